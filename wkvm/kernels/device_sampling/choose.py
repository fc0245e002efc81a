"""The kernels at the ends of a step: which id a row is fed, and which one is chosen for it."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    ANY_ALIGNMENT,
    ENDED,
    IN_SEQUENCE,
    INFINITY,
    IS_DONE,
    LOWEST,
    MAX_TOKENS,
    N_OUTPUT,
    N_STOPS,
    NEXT_ID,
    NOT_FINITE,
    PENDING,
    POSITION,
    SCALE,
    STOPS,
    WORDS,
    follow,
    is_filtered,
    masses,
    ordered,
    point_of,
    real,
    start_of,
    uniform,
)
from wkvm.kernels.device_sampling.search import FOUND


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
def begin_kernel(slots_in, records, token_ids, slots, B, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What each row is fed; see ``begin``."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < B
    slot = tl.load(slots_in + rows, mask=inside, other=-1)
    record = records + slot.to(tl.int64) * WORDS
    runs = inside & (slot >= 0)
    runs = runs & (tl.load(record + IS_DONE, mask=runs, other=1) == 0)
    next_id = tl.load(record + NEXT_ID, mask=runs, other=0)
    tl.store(record + PENDING, next_id, mask=runs)
    tl.store(token_ids + rows, next_id, mask=inside)
    tl.store(slots + rows, tl.where(runs, slot, -1), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def mark_kernel(addresses, ids, N, V, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Note ids of prompts as seen; see ``mark``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    address = tl.load(addresses + at, mask=inside, other=0) + 4 * V
    address += tl.load(ids + at, mask=inside, other=0)
    marks = address.to(tl.pointer_type(tl.uint8))
    # Ids of a prompt may be equal, but all of them write the same.
    mark = tl.load(marks, mask=inside, other=0)
    tl.store(marks, mark | IN_SEQUENCE, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def is_stop(stops, n_stops, chosen, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 if an id is among the stop ids, else 0."""
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n_stops, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found |= (tl.load(stops + at, mask=at < n_stops, other=-1) == chosen).to(tl.int32)
    return tl.max(found, 0)


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
def select_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    maxima,
    winners,
    broken,
    totals,
    found,
    out_ids,
    out_flags,
    V,
    row_stride,
    n_parts,
    n_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Choose one id of each row from what the other kernels found, and carry its slot on."""
    follow(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    chosen = slot.to(tl.int64) * 0
    flags = slot * 0
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        parts = tl.arange(0, PARTS)
        is_part = parts < n_parts
        tops = tl.load(maxima + row * n_parts + parts, mask=is_part, other=-INFINITY)
        best = tl.load(winners + row * n_parts + parts, mask=is_part, other=0)
        is_broken = tl.max(tl.load(broken + row * n_parts + parts, mask=is_part, other=0), 0)
        scale = real(record, SCALE).to(tl.float32)
        # All that is read of the record is asked for before anything is waited for.
        random = uniform(record)
        has_filters = is_filtered(record, V)
        from_row = start_of(logits, record, row, row_stride, ALIGNED)
        n_output = tl.load(record + N_OUTPUT) + 1
        max_tokens = tl.load(record + MAX_TOKENS)
        position = tl.load(record + POSITION)
        n_stops = tl.load(record + N_STOPS)
        stops = tl.load(record + STOPS).to(tl.pointer_type(tl.int64))
        largest = tl.max(tops, 0)
        chosen = tl.min(tl.where((tops == largest) & is_part, best, V - 1), 0).to(tl.int64)
        if (scale != 0) & (is_broken == 0) & (largest > -INFINITY):
            level = slot.to(tl.int64) * 0 + LOWEST
            n_level = slot.to(tl.int64) * 0
            floor = slot.to(tl.int64) * 0
            n_before = slot.to(tl.int64) * 0
            if has_filters:
                at = found + row * FOUND
                level = tl.load(at)
                n_level = tl.load(at + 1)
                floor = tl.load(at + 2)
                chunk = tl.load(at + 3).to(tl.int32)
                point = tl.load(at + 4)
                n_before = tl.load(at + 5)
            else:
                every = tl.arange(0, CHUNKS)
                is_chunk = every < n_chunks
                of_chunk = tl.load(totals + row * n_chunks + every, mask=is_chunk, other=0)
                upto = tl.cumsum(of_chunk, 0)
                point = point_of(tl.sum(of_chunk, 0), random)
                chunk = tl.sum((is_chunk & (upto <= point)).to(tl.int32), 0)
                point -= tl.sum(tl.where(every < chunk, of_chunk, 0), 0)
            chunk = tl.minimum(tl.maximum(chunk, 0), n_chunks - 1)
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            inside = ids < V
            x = tl.load(from_row + ids, mask=inside, other=-INFINITY)
            key = ordered(x).to(tl.int64)
            mass = masses(x, largest, scale).to(tl.int64)
            is_kept = (key > level) & (mass >= floor)
            if n_level > 0:
                is_on = (key == level) & inside
                rank = n_before + tl.cumsum(is_on.to(tl.int32), 0)
                is_kept = is_kept | is_on & (rank <= n_level)
            mass = tl.where(is_kept, mass, 0)
            passed = tl.sum((inside & (tl.cumsum(mass, 0) <= point)).to(tl.int32), 0)
            chosen = tl.minimum(chunk * CHUNK + passed, V - 1).to(tl.int64)
        ends = (n_output >= max_tokens).to(tl.int32) | is_stop(stops, n_stops, chosen, 32)
        is_broken = (is_broken != 0).to(tl.int32)
        flags = is_broken * NOT_FINITE + ends * ENDED
        tl.store(record + NEXT_ID, chosen)
        tl.store(record + POSITION, position + 1)
        tl.store(record + N_OUTPUT, n_output)
        tl.store(record + IS_DONE, (ends | is_broken).to(tl.int64))
        tl.store(record + PENDING, chosen * 0 - 1)
    tl.store(out_ids + row, chosen)
    tl.store(out_flags + row, flags.to(tl.uint8))
