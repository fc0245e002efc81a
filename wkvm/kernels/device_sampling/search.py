"""The kernel that finds how far down the filters of a row keep ids."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    LOWEST,
    MIN_P,
    SCALE,
    TOP_K,
    TOP_P,
    WORDS,
    is_filtered,
    mass_of_key,
    masses,
    ordered,
    real,
    ruled,
    share_of,
)


@triton.jit  # type: ignore[untyped-decorator]
def held_above(  # type: ignore[no-untyped-def]
    level,
    logits,
    record,
    mask,
    is_masked,
    largest,
    scale,
    V,
    COUNTS_IDS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """What the ids of a row from ``level`` up hold: how many they are, or their mass."""
    held = tl.zeros([CHUNK], tl.int64)
    for start in range(0, V, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        inside = ids < V
        x = tl.load(logits + ids, mask=inside, other=0.0)
        x = ruled(x, ids, inside, record, mask, is_masked, V, False, CHUNK)
        if COUNTS_IDS:  # noqa: SIM108
            weight = inside.to(tl.int64)
        else:
            weight = masses(x, largest, scale)
        held += tl.where(ordered(x).to(tl.int64) >= level, weight, 0)
    return tl.sum(held, 0)


@triton.jit  # type: ignore[untyped-decorator]
def level_of(  # type: ignore[no-untyped-def]
    goal,
    logits,
    record,
    mask,
    is_masked,
    largest,
    scale,
    V,
    COUNTS_IDS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The highest level from which up ids hold ``goal``, and how many on it are needed for that."""
    low = goal * 0 + LOWEST
    high = tl.max(ordered(tl.zeros([1], tl.float32) + largest).to(tl.int64), 0) + 1
    above = goal * 0
    while high - low > 1:
        middle = (low + high) >> 1
        held = held_above(
            middle, logits, record, mask, is_masked, largest, scale, V, COUNTS_IDS, CHUNK
        )
        if held >= goal:
            low = middle
        else:
            high = middle
            above = held
    missing = goal - above
    if not COUNTS_IDS:
        each = tl.maximum(mass_of_key(low, largest, scale), 1)
        missing = (missing + each - 1) // each
    return low, missing


@triton.jit  # type: ignore[untyped-decorator]
def search_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    masks,
    has_mask,
    maxima,
    totals,
    levels,
    V,
    row_stride,
    mask_stride,
    n_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """What top-k, top-p and min-p leave of each row, one program a row.

    Args:
        maxima, totals: as ``scan_kernel`` and ``weigh_kernel`` left them.
        levels: ``[B, 3]`` int64; written for rows with filters: a level, as ``ordered`` numbers
            logits; how many ids on it are kept, the lowest ones, beside all above it; and the
            least mass of an id that is kept.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        scale = real(record, SCALE).to(tl.float32)
        every = tl.arange(0, CHUNKS)
        at = row * n_chunks + every
        is_chunk = every < n_chunks
        largest = tl.max(tl.load(maxima + at, mask=is_chunk, other=-float("inf")), 0)
        if (scale != 0) & is_filtered(record, V) & (largest > -float("inf")):
            logits += row.to(tl.int64) * row_stride
            mask = masks + row.to(tl.int64) * mask_stride
            is_masked = tl.load(has_mask + row) != 0
            total = tl.sum(tl.load(totals + at, mask=is_chunk, other=0), 0)
            top_k = tl.load(record + TOP_K)
            top_p = real(record, TOP_P)
            level = total * 0 + LOWEST
            n_level = total * 0
            floor = total * 0
            if top_k < V:
                level, n_level = level_of(
                    top_k, logits, record, mask, is_masked, largest, scale, V, True, CHUNK
                )
                if top_p < 1:
                    total = held_above(
                        level + 1, logits, record, mask, is_masked, largest, scale, V, False, CHUNK
                    )
                    total += n_level * mass_of_key(level, largest, scale)
            if top_p < 1:
                goal = share_of(total, top_p)
                level, n_level = level_of(
                    goal, logits, record, mask, is_masked, largest, scale, V, False, CHUNK
                )
            min_p = real(record, MIN_P)
            if min_p > 0:
                heaviest = tl.max(masses(tl.zeros([1], tl.float32), 0.0, scale), 0)
                floor = share_of(heaviest, min_p)
                if mass_of_key(level, largest, scale) < floor:
                    n_level = n_level * 0
            tl.store(levels + row * 3, level)
            tl.store(levels + row * 3 + 1, n_level)
            tl.store(levels + row * 3 + 2, floor)
