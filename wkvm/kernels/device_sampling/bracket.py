"""The kernel that guesses, from a sample of a row, between which logits its filters cut."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    INFINITY,
    LARGEST,
    SCALE,
    TOP_K,
    TOP_P,
    WORDS,
    follow,
    is_filtered,
    real,
)

N_HALVINGS = tl.constexpr(11)
N_SIGMAS = tl.constexpr(3.0)
"""How far the cut may lie from where the sample has it. One row in hundreds lies further."""


@triton.jit
def held(x, weights, tops, top_weights, level):  # type: ignore[no-untyped-def]
    """What the sample and the largest logits of the parts hold from ``level`` up."""
    return tl.sum(tl.where(x >= level, weights, 0.0), 0) + tl.sum(
        tl.where(tops >= level, top_weights, 0.0), 0
    )


@triton.jit  # type: ignore[untyped-decorator]
def bracket_kernel(  # type: ignore[no-untyped-def]
    slots,
    records,
    maxima,
    samples,
    brackets,
    V,
    n_parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    LIST: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Between which logits top-k or top-p cuts a row, one program a row.

    What comes of a guess that is wrong is the same id, later. The largest logits of the parts
    are known; others stand for ``STRIDE`` of their kind, so that few heavy ids spoil little.

    Args:
        maxima, samples: as ``scan_kernel`` left them.
        brackets: ``[B, 2]`` float32; written for rows with filters: the cut is at or above the
            first and below the second. Two infinities if only min-p cuts.
    """
    follow(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        scale = real(record, SCALE).to(tl.float32)
        if (scale != 0) & is_filtered(record, V):
            top_k = tl.load(record + TOP_K)
            top_p = real(record, TOP_P).to(tl.float32)
            by_count = top_k < V
            low = tl.zeros([], tl.float32) + INFINITY
            high = tl.zeros([], tl.float32) + INFINITY
            if by_count | (top_p < 1):
                low = -LARGEST
                if V > LIST:
                    every = tl.arange(0, PARTS)
                    at_tops = maxima + row * n_parts + every
                    tops = tl.load(at_tops, mask=every < n_parts, other=-INFINITY)
                    largest = tl.max(tops, 0)
                    at = tl.arange(0, PARTS * (PART // STRIDE))
                    inside = at * STRIDE < V
                    from_row = samples + row.to(tl.int64) * (2 * LIST) + at
                    x = tl.load(from_row, mask=inside, other=-INFINITY)
                    part = at // (PART // STRIDE)
                    top = tl.load(maxima + row * n_parts + part, mask=inside, other=0.0)
                    is_other = (x != top) & (x > -INFINITY)
                    is_top = tops > -INFINITY
                    ones = tl.where(is_other, 1.0 * STRIDE, 0.0)
                    top_ones = tl.where(is_top, 1.0, 0.0)
                    weights, top_weights = ones, top_ones
                    lowest = tl.min(tl.where(is_other, x, largest), 0)
                    if not by_count:
                        weights = ones * tl.exp2((x - largest) * scale)
                        weights = tl.where(is_other, weights, 0.0)
                        top_weights = tl.where(is_top, tl.exp2((tops - largest) * scale), 0.0)
                        lowest = tl.maximum(lowest, largest - 31.0 / scale)
                    total = tl.sum(weights, 0) + tl.sum(top_weights, 0)
                    goal = tl.where(by_count, top_k.to(tl.float32), total * top_p)
                    # Where the sample cuts.
                    below, over = lowest, largest
                    for _ in range(N_HALVINGS):
                        middle = below * 0.5 + over * 0.5
                        is_enough = held(x, weights, tops, top_weights, middle) >= goal
                        below = tl.where(is_enough, middle, below)
                        over = tl.where(is_enough, over, middle)
                    n_kept = held(x, ones, tops, top_ones, below)
                    goal_high = goal * 0 - 1.0
                    goal_low = tl.minimum(n_kept * 4 + LIST // 8, LIST * 0.75)
                    if n_kept <= LIST * 0.5:
                        # Few enough to list all above the cut, and more.
                        weights, top_weights = ones, top_ones
                    else:
                        share = tl.where(by_count, 0.0, top_p)
                        spread = tl.where(x >= below, 1.0 - share, share) * weights
                        margin = N_SIGMAS * tl.sqrt(tl.sum(spread * spread, 0))
                        goal_low = goal + margin
                        goal_high = goal - margin
                    low, low_over = lowest, largest
                    high_below, high = lowest, largest
                    for _ in range(N_HALVINGS):
                        middle = low * 0.5 + low_over * 0.5
                        is_enough = held(x, weights, tops, top_weights, middle) >= goal_low
                        low = tl.where(is_enough, middle, low)
                        low_over = tl.where(is_enough, low_over, middle)
                        middle = high_below * 0.5 + high * 0.5
                        is_more = held(x, weights, tops, top_weights, middle) >= goal_high
                        high_below = tl.where(is_more, middle, high_below)
                        high = tl.where(is_more, high, middle)
                    if held(x, weights, tops, top_weights, low) < goal_low:
                        low = tl.where(by_count, -LARGEST, low)
                    if held(x, weights, tops, top_weights, high) >= goal_high:
                        high = high * 0 + INFINITY
            tl.store(brackets + row * 2, low)
            tl.store(brackets + row * 2 + 1, high)
