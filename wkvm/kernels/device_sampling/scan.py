"""The kernels that see all logits of the rows, a chunk of a row each: largest, masses."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    INFINITY,
    LARGEST,
    MIN_P,
    RULED,
    SCALE,
    TOPS,
    WORDS,
    follow,
    is_filtered,
    masses,
    ordered,
    real,
    share_of,
    start_of,
)
from wkvm.kernels.device_sampling.rules import apply_rules


@triton.jit  # type: ignore[untyped-decorator]
def scan_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    masks,
    has_mask,
    maxima,
    winners,
    broken,
    samples,
    tops,
    n_listed,
    V,
    row_stride,
    mask_stride,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Of each part of each row the largest logit, its lowest id, and whether one is not finite.

    A part is ``GROUP`` chunks, one program.

    Args:
        logits: ``[B, V]`` float32, rows ``row_stride`` apart.
        slots: ``[B]`` int32; negative rows are skipped.
        records: see ``records``. The counts of the slots absorb the ids that were fed.
        masks, has_mask: ``[B, ceil(V / 32)]`` int32, ``[B]`` bool. Rows with rules are written
            where their records say.
        maxima, winners, broken: ``[B, n_parts]`` float32, int32, int32; written.
        samples: ``[B, 2 * LIST]`` float32; written for rows with filters: every ``STRIDE``th logit.
        tops: ``[B, n_chunks * TOPS]`` float32; written for rows with filters: the largest logit of
            each ``CHUNK // TOPS``.
        n_listed: ``[B]`` int32; set to 0.
    """
    follow(PDL)
    part, n_parts = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1)
    first = part * GROUP * CHUNK
    at = tl.arange(0, CHUNK)
    from_row = logits + row.to(tl.int64) * row_stride
    # Each block is asked for while the one before is worked on, the first one before all else.
    ahead = tl.load(from_row + first + at, mask=first + at < V, other=0.0)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        has_filters = is_filtered(record, V)
        ruled = tl.load(record + RULED)
        all_finite = 1
        if ruled != 0:
            mask = masks + row.to(tl.int64) * mask_stride
            is_masked = tl.load(has_mask + row) != 0
            last = tl.minimum(first + GROUP * CHUNK, V)
            all_finite = apply_rules(
                from_row, logits, first, last, record, mask, is_masked, V, CHUNK // 2, ALIGNED
            )
            from_row = start_of(logits, record, row, row_stride, ALIGNED)
            tl.debug_barrier()
            ahead = tl.load(from_row + first + at, mask=first + at < V, other=0.0)
        best = tl.full([CHUNK], -INFINITY, tl.float32)
        best_ids = first + at
        is_finite = at >= 0
        for start in range(first, tl.minimum(first + GROUP * CHUNK, V), CHUNK):
            ids = start + at
            inside = ids < V
            raw = ahead
            is_next = (ids + CHUNK < V) & (ids + CHUNK < first + GROUP * CHUNK)
            ahead = tl.load(from_row + ids + CHUNK, mask=is_next, other=0.0)
            is_finite = is_finite & (tl.abs(raw) <= LARGEST)
            x = tl.where(inside, raw, -INFINITY)
            best_ids = tl.where(x > best, ids, best_ids)
            best = tl.maximum(x, best)
            if has_filters:
                into = samples + row.to(tl.int64) * (2 * LIST) + ids // STRIDE
                tl.store(into, x, mask=ids % STRIDE == 0)
                of_groups = tl.max(tl.reshape(x, [TOPS, CHUNK // TOPS]), 1)
                n_tops = tl.cdiv(V, CHUNK) * TOPS
                into = tops + row * n_tops + start // CHUNK * TOPS + tl.arange(0, TOPS)
                tl.store(into, of_groups)
        largest = tl.max(best, 0)
        out = row * n_parts + part
        tl.store(maxima + out, largest)
        tl.store(winners + out, tl.min(tl.where(best == largest, best_ids, V - 1), 0))
        if ruled == 0:
            all_finite = tl.min(is_finite.to(tl.int32), 0)
        tl.store(broken + out, 1 - all_finite)
        if part == 0:
            tl.store(n_listed + row, 0)


@triton.jit  # type: ignore[untyped-decorator]
def weigh_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    maxima,
    brackets,
    totals,
    above,
    heavy,
    n_above,
    listed,
    n_listed,
    V,
    row_stride,
    n_chunks,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    LIST: tl.constexpr,
    ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Of each chunk of each row that draws the mass, and for filters where it lies.

    Args:
        maxima: as ``scan_kernel`` left them.
        brackets: ``[B, 2]`` float32, as ``bracket_kernel`` left them, for rows with filters. What
            follows but ``totals`` is written for those alone.
        totals: ``[B, n_chunks]`` int64; written.
        above, n_above: ``[B, n_chunks]`` int64, int32; written: mass and number of ids above the
            bracket.
        heavy: ``[B, n_chunks]`` int64; written: the mass of ids that min-p keeps.
        listed: ``[B, 2, LIST]`` int32; written: of the ids in the bracket, in any order, the
            numbers that ``ordered`` gives their logits, and the ids.
        n_listed: ``[B]`` int32; written: how many these are. More than ``LIST`` do not fit.
    """
    follow(PDL)
    part, n_parts = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        scale = real(record, SCALE).to(tl.float32)
        if scale != 0:
            first = part * GROUP * CHUNK
            at = tl.arange(0, CHUNK)
            from_row = start_of(logits, record, row, row_stride, ALIGNED)
            ahead = tl.load(from_row + first + at, mask=first + at < V, other=0.0)
            has_filters = is_filtered(record, V)
            every = tl.arange(0, PARTS)
            of_parts = maxima + row * n_parts + every
            largest = tl.max(tl.load(of_parts, mask=every < n_parts, other=-INFINITY), 0)
            # What is written over only afterwards may be anything for rows without filters.
            low = tl.load(brackets + row * 2)
            high = tl.load(brackets + row * 2 + 1)
            min_p = real(record, MIN_P)
            floor = share_of(tl.full([1], 1 << 31, tl.int64), min_p)
            for start in range(first, tl.minimum(first + GROUP * CHUNK, V), CHUNK):
                ids = start + at
                inside = ids < V
                x = ahead
                is_next = (ids + CHUNK < V) & (ids + CHUNK < first + GROUP * CHUNK)
                ahead = tl.load(from_row + ids + CHUNK, mask=is_next, other=0.0)
                x = tl.where(inside, x, -INFINITY)
                mass = masses(x, largest, scale)
                out = row * n_chunks + start // CHUNK
                tl.store(totals + out, tl.sum(mass.to(tl.int64), 0))
                if has_filters:
                    is_above = x >= high
                    tl.store(above + out, tl.sum(tl.where(is_above, mass, 0).to(tl.int64), 0))
                    tl.store(n_above + out, tl.sum(is_above.to(tl.int32), 0))
                    is_in = (x >= low) & (x < high)
                    upto = tl.cumsum(is_in.to(tl.int32), 0)
                    n_in = tl.max(upto, 0)
                    if n_in > 0:
                        place = tl.atomic_add(n_listed + row, n_in, sem="relaxed") + upto - 1
                        into = listed + row.to(tl.int64) * (2 * LIST) + place
                        is_in = is_in & (place < LIST)
                        tl.store(into, ordered(x), mask=is_in)
                        tl.store(into + LIST, ids, mask=is_in)
                    if min_p > 0:
                        tl.store(
                            heavy + out,
                            tl.sum(tl.where(mass.to(tl.int64) >= floor, mass, 0).to(tl.int64), 0),
                        )
