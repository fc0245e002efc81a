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
    TOPS,
    WORDS,
    follow,
    is_filtered,
    real,
)

N_HALVINGS = tl.constexpr(11)
N_SIGMAS = tl.constexpr(3.0)
"""How far the cut may lie from where the sample has it. One row in hundreds lies further."""


@triton.jit
def held(x, weights, peaks, peak_weights, level):  # type: ignore[no-untyped-def]
    """What the sample and the largest logits of the groups hold from ``level`` up."""
    return tl.sum(tl.where(x >= level, weights, 0.0), 0) + tl.sum(
        tl.where(peaks >= level, peak_weights, 0.0), 0
    )


@triton.jit  # type: ignore[untyped-decorator]
def bracket_kernel(  # type: ignore[no-untyped-def]
    slots,
    records,
    samples,
    tops,
    brackets,
    V,
    n_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    LIST: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Between which logits top-k or top-p cuts a row, one program a row.

    What comes of a guess that is wrong is the same id, later. The largest logits of
    small groups of ids are known; others stand for ``STRIDE`` of their kind, so that few heavy
    ids spoil little.

    Args:
        samples, tops: as ``scan_kernel`` left them.
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
                    tops += row * n_chunks * TOPS
                    every = tl.arange(0, CHUNKS * TOPS)
                    is_group = every < n_chunks * TOPS
                    peaks = tl.load(tops + every, mask=is_group, other=-INFINITY)
                    largest = tl.max(peaks, 0)
                    at = tl.arange(0, CHUNKS * (CHUNK // STRIDE))
                    inside = at * STRIDE < V
                    from_row = samples + row.to(tl.int64) * (2 * LIST) + at
                    x = tl.load(from_row, mask=inside, other=-INFINITY)
                    group = at * STRIDE // (CHUNK // TOPS)
                    peak = tl.load(tops + group, mask=inside, other=0.0)
                    is_other = (x != peak) & (x > -INFINITY)
                    is_peak = peaks > -INFINITY
                    ones = tl.where(is_other, 1.0 * STRIDE, 0.0)
                    peak_ones = tl.where(is_peak, 1.0, 0.0)
                    weights, peak_weights = ones, peak_ones
                    lowest = tl.min(tl.where(is_other, x, largest), 0)
                    if not by_count:
                        weights = ones * tl.exp2((x - largest) * scale)
                        weights = tl.where(is_other, weights, 0.0)
                        peak_weights = tl.where(is_peak, tl.exp2((peaks - largest) * scale), 0.0)
                        lowest = tl.maximum(lowest, largest - 31.0 / scale)
                    total = tl.sum(weights, 0) + tl.sum(peak_weights, 0)
                    goal = tl.where(by_count, top_k.to(tl.float32), total * top_p)
                    # Where the sample cuts.
                    below, over = lowest, largest
                    for _ in range(N_HALVINGS):
                        middle = below * 0.5 + over * 0.5
                        is_enough = held(x, weights, peaks, peak_weights, middle) >= goal
                        below = tl.where(is_enough, middle, below)
                        over = tl.where(is_enough, over, middle)
                    n_kept = held(x, ones, peaks, peak_ones, below)
                    goal_high = goal * 0 - 1.0
                    goal_low = n_kept * 2 + LIST // 4
                    if n_kept <= LIST * 0.25:
                        # Few enough to list all above the cut, and more.
                        weights, peak_weights = ones, peak_ones
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
                        is_enough = held(x, weights, peaks, peak_weights, middle) >= goal_low
                        low = tl.where(is_enough, middle, low)
                        low_over = tl.where(is_enough, low_over, middle)
                        middle = high_below * 0.5 + high * 0.5
                        is_more = held(x, weights, peaks, peak_weights, middle) >= goal_high
                        high_below = tl.where(is_more, middle, high_below)
                        high = tl.where(is_more, high, middle)
                    if held(x, weights, peaks, peak_weights, low) < goal_low:
                        low = tl.where(by_count, -LARGEST, low)
                    if held(x, weights, peaks, peak_weights, high) >= goal_high:
                        high = high * 0 + INFINITY
            tl.store(brackets + row * 2, low)
            tl.store(brackets + row * 2 + 1, high)
