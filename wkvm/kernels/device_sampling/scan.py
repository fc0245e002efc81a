"""The kernels that see all logits of the rows, a chunk of a row each: largest, masses."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    ANY_ALIGNMENT,
    CURSOR,
    INFINITY,
    MASS,
    MIN_P,
    RULED,
    SCALE,
    TOP_K,
    TOPS,
    WORDS,
    add_three,
    follow,
    is_filtered,
    masses,
    ordered,
    real,
    share_of,
    start_of,
)
from wkvm.kernels.device_sampling.rules import apply_rules


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
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
    CHUNKS: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    LINES: tl.constexpr,
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
        samples: ``[B, 2 * LIST]`` float32; written for rows with filters: every ``STRIDE``th
            logit: the first of each group, then the second of each, and so on.
        tops: ``[B, n_chunks * TOPS]`` float32; written for rows with filters: the largest logit of
            each ``CHUNK // TOPS``.
        n_listed: ``[B, CURSOR]`` int32; the first of each row is set to 0.
    """
    follow(PDL)
    part, n_parts = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1)
    first = part * GROUP * CHUNK
    last = tl.minimum(first + GROUP * CHUNK, V)
    # In lines of ids: what a thread has of a column is compared without the others.
    column = tl.arange(0, BLOCK // LINES)
    at = tl.arange(0, LINES)[:, None] * (BLOCK // LINES) + column[None, :]
    from_row = logits + row.to(tl.int64) * row_stride
    # Each block is asked for while the one before is worked on, the first one before all else.
    ahead = tl.load(from_row + first + at, mask=first + at < last, other=0.0)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        has_filters = is_filtered(record, V)
        ruled = tl.load(record + RULED)
        all_finite = 1
        if ruled != 0:
            mask = masks + row.to(tl.int64) * mask_stride
            is_masked = tl.load(has_mask + row) != 0
            all_finite = apply_rules(
                from_row, logits, first, last, record, mask, is_masked, V, CHUNK // 2, ALIGNED
            )
            from_row = start_of(logits, record, row, row_stride, ALIGNED)
            tl.debug_barrier()
            ahead = tl.load(from_row + first + at, mask=first + at < last, other=0.0)
        best = column * 0.0 - INFINITY
        best_ids = first + column
        nothing = column * 0.0
        for start in range(first, last, BLOCK):
            ids = start + at
            raw = ahead
            ahead = tl.load(from_row + ids + BLOCK, mask=ids + BLOCK < last, other=0.0)
            # NaN, if one of them is not finite.
            nothing += tl.sum(raw * 0.0, 0)
            of_column, line = tl.max(tl.where(ids < last, raw, -INFINITY), 0, return_indices=True)
            best_ids = tl.where(
                of_column > best, start + line * (BLOCK // LINES) + column, best_ids
            )
            best = tl.maximum(of_column, best)
        if has_filters:
            # Read again: few are wanted, and these lie with any thread.
            for start in range(first, last, CHUNK):
                some = start + tl.arange(0, CHUNK // STRIDE) * STRIDE
                group, place = some // (CHUNK // TOPS), some % (CHUNK // TOPS)
                into = samples + row.to(tl.int64) * (2 * LIST)
                into += place // STRIDE * (CHUNKS * TOPS) + group
                tl.store(into, tl.load(from_row + some, mask=some < V, other=-INFINITY))
                group = tl.arange(0, TOPS)
                every = start + group[:, None] * (CHUNK // TOPS)
                every += tl.arange(0, CHUNK // TOPS)[None, :]
                x = tl.load(from_row + every, mask=every < V, other=-INFINITY)
                into = tops + row * (tl.cdiv(V, CHUNK) * TOPS) + start // CHUNK * TOPS + group
                tl.store(into, tl.max(x, 1))
        largest = tl.max(best, 0)
        out = row * n_parts + part
        tl.store(maxima + out, largest)
        tl.store(winners + out, tl.min(tl.where(best == largest, best_ids, V - 1), 0))
        if ruled == 0:
            all_finite = (tl.sum(nothing, 0) == 0.0).to(tl.int32)
        tl.store(broken + out, 1 - all_finite)
        if part == 0:
            tl.store(n_listed + row * CURSOR, 0)


@triton.jit  # type: ignore[untyped-decorator]
def put(x, ids, low, high, place, into, LIST: tl.constexpr):  # type: ignore[no-untyped-def]
    """List the ids in the bracket, each at the place of its column; the places after them."""
    is_in = (x >= low) & (x < high)
    fits = is_in & (place < LIST)
    tl.store(into + place, ordered(x), mask=fits)
    tl.store(into + LIST + place, ids, mask=fits)
    return place + is_in.to(tl.int32)


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
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
    BLOCK: tl.constexpr,
    LINES: tl.constexpr,
    ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Of each chunk of each row that draws the mass, and for filters where it lies.

    Args:
        maxima: as ``scan_kernel`` left them.
        brackets: ``[B, 2]`` float32, as ``bracket_kernel`` left them, for rows with filters. What
            follows but ``totals`` is written for those alone.
        totals: ``[B, n_chunks]`` int64; written.
        above, n_above: ``[B, n_chunks]`` int64, int32; written: mass of ids above the bracket, and
            their number, the latter for rows with top-k.
        heavy: ``[B, n_chunks]`` int64; written: the mass of ids that min-p keeps.
        listed: ``[B, 2, LIST]`` int32; written: of the ids in the bracket, in any order, the
            numbers that ``ordered`` gives their logits, and the ids.
        n_listed: ``[B, CURSOR]`` int32; written, the first of each row: how many these are. More
            than ``LIST`` do not fit.
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
            # In lines of ids: what a thread has of a column is added up without the others.
            column = tl.arange(0, BLOCK // LINES)
            at = tl.arange(0, LINES)[:, None] * (BLOCK // LINES) + column[None, :]
            from_row = start_of(logits, record, row, row_stride, ALIGNED)
            ahead = tl.load(from_row + first + at, mask=first + at < V, other=-INFINITY)
            has_filters = is_filtered(record, V)
            by_count = tl.load(record + TOP_K) < V
            every = tl.arange(0, PARTS)
            of_parts = maxima + row * n_parts + every
            largest = tl.max(tl.load(of_parts, mask=every < n_parts, other=-INFINITY), 0)
            # Anything, for rows without filters.
            low = tl.load(brackets + row * 2)
            high = tl.load(brackets + row * 2 + 1)
            min_p = real(record, MIN_P)
            floor = tl.max(share_of(tl.full([1], MASS, tl.int64), min_p), 0).to(tl.uint32)
            cursors = n_listed + row * CURSOR + column * 0
            last = tl.minimum(first + GROUP * CHUNK, V)
            whole = column.to(tl.int64) * 0
            over, kept, count, n_in = whole, whole, column * 0, column * 0
            for start in range(first, last, BLOCK):
                ids = start + at
                x = ahead
                ahead = tl.load(from_row + ids + BLOCK, mask=ids + BLOCK < last, other=-INFINITY)
                mass = masses(x, largest, scale)
                whole += tl.sum(mass.to(tl.int64), 0)
                if has_filters:
                    is_above = x >= high
                    over += tl.sum(tl.where(is_above, mass, 0).to(tl.int64), 0)
                    if min_p > 0:
                        kept += tl.sum(tl.where(mass >= floor, mass, 0).to(tl.int64), 0)
                    if by_count:
                        count += tl.sum(is_above.to(tl.int32), 0)
                    n_in += tl.sum(((x >= low) & (x < high)).to(tl.int32), 0)
                if ((start + BLOCK) % CHUNK == 0) | (start + BLOCK >= last):
                    out = row * n_chunks + start // CHUNK
                    if has_filters:
                        total, above_all, kept_all = tl.reduce((whole, over, kept), 0, add_three)
                        tl.store(totals + out, total)
                        tl.store(above + out, above_all)
                        tl.store(heavy + out, kept_all)
                        if by_count:
                            tl.store(n_above + out, tl.sum(count, 0))
                    else:
                        tl.store(totals + out, tl.sum(whole, 0))
                    whole = whole * 0
                    over, kept, count = whole, whole, column * 0
            if has_filters & (low < INFINITY):
                # Places are taken once for all that a column has: an answer takes a microsecond.
                # What goes there is read again, and not in fours, just as it is written.
                place = tl.atomic_add(cursors, n_in, mask=n_in > 0, sem="relaxed")
                from_row = start_of(logits, record, row, row_stride, False)
                into = listed + row.to(tl.int64) * (2 * LIST)
                width: tl.constexpr = BLOCK // LINES
                for start in range(first, last, 4 * width):
                    ids = start + tl.arange(0, width)
                    x0 = tl.load(from_row + ids, mask=ids < last, other=-INFINITY)
                    ids1, ids2, ids3 = ids + width, ids + 2 * width, ids + 3 * width
                    x1 = tl.load(from_row + ids1, mask=ids1 < last, other=-INFINITY)
                    x2 = tl.load(from_row + ids2, mask=ids2 < last, other=-INFINITY)
                    x3 = tl.load(from_row + ids3, mask=ids3 < last, other=-INFINITY)
                    place = put(x0, ids, low, high, place, into, LIST)
                    place = put(x1, ids1, low, high, place, into, LIST)
                    place = put(x2, ids2, low, high, place, into, LIST)
                    place = put(x3, ids3, low, high, place, into, LIST)
