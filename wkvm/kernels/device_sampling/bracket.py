"""The kernel that guesses, from a sample of a row, between which logits its filters cut."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    ANY_ALIGNMENT,
    INFINITY,
    LARGEST,
    SCALE,
    TOP_K,
    TOP_P,
    TOPS,
    WORDS,
    add_two,
    follow,
    is_filtered,
    real,
)

N_HALVINGS = tl.constexpr(9)
N_SIGMAS = tl.constexpr(4.0)
"""How far the cut may lie from where the sample has it. One row in ten thousand lies further."""
NONE = tl.constexpr(-1e30)
"""In the place of a sample: no logit, and finite after a temperature is divided by."""


@triton.jit
def held(x, peaks, peak_weights, level, largest, steep):  # type: ignore[no-untyped-def]
    """What a sample and the largest logits of the groups hold from ``level`` up, by column.

    The weights of a sample are made anew from its logits each time: kept, they would take as many
    registers as these do. ``steep`` is 0 where ids are counted.
    """
    of_peaks = tl.sum(tl.where(peaks >= level, peak_weights, 0.0), 0)
    return tl.sum(tl.where(x >= level, tl.exp2((x - largest) * steep), 0.0), 0), of_peaks


@triton.jit
def both(x, peaks, peak_weights, low, high, largest, steep, each):  # type: ignore[no-untyped-def]
    """What is held from either of two levels up, each sample standing for ``each``."""
    weights = tl.exp2((x - largest) * steep)
    of_low = tl.sum(tl.where(x >= low, weights, 0.0), 0) * each
    of_high = tl.sum(tl.where(x >= high, weights, 0.0), 0) * each
    of_low += tl.sum(tl.where(peaks >= low, peak_weights, 0.0), 0)
    of_high += tl.sum(tl.where(peaks >= high, peak_weights, 0.0), 0)
    return tl.reduce((of_low, of_high), 0, add_two)


@triton.jit  # type: ignore[untyped-decorator]
def load_samples(  # type: ignore[no-untyped-def]
    from_row, column, is_group, peaks, N: tl.constexpr, WIDTH: tl.constexpr
):
    """The first ``N`` samples of each group, but for its largest logit, which is known apart.

    What is none is ``NONE``: infinities times 0 are NaN.
    """
    lines = tl.arange(0, N)[:, None]
    at = lines * WIDTH + column
    x = tl.load(from_row + at, mask=is_group & (lines >= 0), other=-INFINITY)
    return tl.where((x != peaks) & (x > NONE), x, NONE)


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
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
            LINES: tl.constexpr = CHUNK // TOPS // STRIDE
            FEW: tl.constexpr = LINES // 4 if LINES >= 16 else LINES
            top_k = tl.load(record + TOP_K)
            top_p = real(record, TOP_P).to(tl.float32)
            by_count = top_k < V
            low = tl.zeros([], tl.float32) + INFINITY
            high = tl.zeros([], tl.float32) + INFINITY
            if by_count | (top_p < 1):
                low = -LARGEST
                if V > LIST:
                    tops += row * n_chunks * TOPS
                    # A column is a group: what a thread has of it is added up without the others.
                    column = tl.arange(0, CHUNKS * TOPS)[None, :]
                    is_group = column < n_chunks * TOPS
                    peaks = tl.load(tops + column, mask=is_group, other=-INFINITY)
                    largest = tl.max(tl.max(peaks, 0), 0)
                    from_row = samples + row.to(tl.int64) * (2 * LIST)
                    few = load_samples(from_row, column, is_group, peaks, FEW, CHUNKS * TOPS)
                    is_peak = peaks > -INFINITY
                    peak_ones = tl.where(is_peak, 1.0, 0.0)
                    steep = scale * 0
                    peak_weights = peak_ones
                    lowest = tl.where(few > NONE, few, largest)
                    lowest = tl.min(tl.min(lowest, 0), 0)
                    if not by_count:
                        steep = scale
                        peak_weights = tl.where(is_peak, tl.exp2((peaks - largest) * scale), 0.0)
                        lowest = tl.maximum(lowest, largest - 31.0 / scale)
                    # Roughly where the cut is, by a few of the samples.
                    each = STRIDE * (LINES // FEW) * 1.0
                    share = tl.where(by_count, 0.0, top_p)
                    of_few, of_peaks = held(few, peaks, peak_weights, lowest, largest, steep)
                    total = tl.sum(of_few * each + of_peaks, 0)
                    goal = tl.where(by_count, top_k.to(tl.float32), total * top_p)
                    below, over = lowest, largest
                    for _ in range(N_HALVINGS):
                        middle = below * 0.5 + over * 0.5
                        of_few, of_peaks = held(few, peaks, peak_weights, middle, largest, steep)
                        is_enough = tl.sum(of_few * each + of_peaks, 0) >= goal
                        below = tl.where(is_enough, middle, below)
                        over = tl.where(is_enough, over, middle)
                    # How sure all of them are of it.
                    each = STRIDE * 1.0
                    x = load_samples(from_row, column, is_group, peaks, LINES, CHUNKS * TOPS)
                    lowest = tl.where(x > NONE, x, largest)
                    lowest = tl.min(tl.min(lowest, 0), 0)
                    if not by_count:
                        lowest = tl.maximum(lowest, largest - 31.0 / scale)
                    of_all, of_peaks = held(x, peaks, peak_weights, lowest, largest, steep)
                    total = tl.sum(of_all * each + of_peaks, 0)
                    goal = tl.where(by_count, top_k.to(tl.float32), total * top_p)
                    of_all, of_peaks = held(x, peaks, peak_ones, below, largest, steep * 0)
                    n_kept = tl.sum(of_all * each + of_peaks, 0)
                    goal_high = goal * 0 - 1.0
                    goal_low = n_kept * 2 + LIST // 4
                    if n_kept <= LIST * 0.25:
                        # Few enough to list all above the cut, and more.
                        steep = steep * 0
                        peak_weights = peak_ones
                    else:
                        spread = tl.where(x >= below, 1.0 - share, share) * each
                        spread *= tl.exp2((x - largest) * steep)
                        spread = tl.where(x > NONE, spread, 0.0)
                        margin = N_SIGMAS * tl.sqrt(tl.sum(tl.sum(spread * spread, 0), 0))
                        goal_low = goal + margin
                        goal_high = goal - margin
                    low, low_over = lowest, largest
                    high_below, high = lowest, largest
                    for _ in range(N_HALVINGS):
                        low_middle = low * 0.5 + low_over * 0.5
                        high_middle = high_below * 0.5 + high * 0.5
                        of_low, of_high = both(
                            x, peaks, peak_weights, low_middle, high_middle, largest, steep, each
                        )
                        low = tl.where(of_low >= goal_low, low_middle, low)
                        low_over = tl.where(of_low >= goal_low, low_over, low_middle)
                        high_below = tl.where(of_high >= goal_high, high_middle, high_below)
                        high = tl.where(of_high >= goal_high, high, high_middle)
                    of_low, of_high = both(x, peaks, peak_weights, low, high, largest, steep, each)
                    low = tl.where(by_count & (of_low < goal_low), -LARGEST, low)
                    high = tl.where(of_high >= goal_high, INFINITY, high)
            tl.store(brackets + row * 2, low)
            tl.store(brackets + row * 2 + 1, high)
