"""The kernels that see all logits of the rows, a chunk of a row each: largest, masses."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    SCALE,
    WORDS,
    is_filtered,
    masses,
    ordered,
    real,
    ruled,
)


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
    V,
    row_stride,
    mask_stride,
    CHUNK: tl.constexpr,
):
    """Of each chunk of each row the largest logit, its lowest id, and whether one is not finite.

    Args:
        logits: ``[B, V]`` float32, rows ``row_stride`` apart.
        slots: ``[B]`` int32; negative rows are skipped.
        records: see ``records``. The counts of the slots absorb the ids that were fed.
        masks, has_mask: ``[B, ceil(V / 32)]`` int32, ``[B]`` bool.
        maxima, winners, broken: ``[B, n_chunks]`` float32, int32, int32; written.
    """
    chunk, n_chunks = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = ids < V
        raw = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=inside, other=0.0)
        is_broken = tl.max(tl.where(tl.abs(raw) < float("inf"), 0, 1), 0)
        mask = masks + row.to(tl.int64) * mask_stride
        is_masked = tl.load(has_mask + row) != 0
        x = ruled(raw, ids, inside, record, mask, is_masked, V, True, CHUNK)
        largest, at = tl.max(x, 0, return_indices=True)
        out = row * n_chunks + chunk
        tl.store(maxima + out, largest)
        tl.store(winners + out, chunk * CHUNK + at)
        tl.store(broken + out, is_broken)


@triton.jit  # type: ignore[untyped-decorator]
def weigh_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    masks,
    has_mask,
    maxima,
    levels,
    totals,
    n_on,
    V,
    row_stride,
    mask_stride,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Of each chunk of each row that draws the mass of all ids, or of those above a level.

    Args:
        maxima: as ``scan_kernel`` left them.
        levels: ``[B, 3]`` int64, see ``search_kernel``; read where ``FILTERED``.
        totals: ``[B, n_chunks]`` int64; written, where ``FILTERED`` for rows with filters alone.
        n_on: ``[B, n_chunks]`` int32: how many ids are on the level; written where ``FILTERED``.
    """
    chunk, n_chunks = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        scale = real(record, SCALE).to(tl.float32)
        is_wanted = scale != 0
        if FILTERED:
            is_wanted = is_wanted & is_filtered(record, V)
        if is_wanted:
            every = tl.arange(0, CHUNKS)
            is_chunk = every < n_chunks
            of_chunks = tl.load(maxima + row * n_chunks + every, mask=is_chunk, other=-float("inf"))
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            inside = ids < V
            x = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=inside, other=0.0)
            mask = masks + row.to(tl.int64) * mask_stride
            is_masked = tl.load(has_mask + row) != 0
            x = ruled(x, ids, inside, record, mask, is_masked, V, False, CHUNK)
            mass = masses(x, tl.max(of_chunks, 0), scale)
            out = row * n_chunks + chunk
            if FILTERED:
                level = tl.load(levels + row * 3)
                floor = tl.load(levels + row * 3 + 2)
                key = ordered(x).to(tl.int64)
                mass = tl.where((key > level) & (mass >= floor), mass, 0)
                is_on = (key == level) & inside
                tl.store(n_on + out, tl.sum(is_on.to(tl.int32), 0))
            tl.store(totals + out, tl.sum(mass, 0))
