"""Attention of one token of each row to the pages of its slot, which it is added to.

A row is divided among programs by its tokens, so that few long rows use the whole device, and
what the programs found is added up by a second launch. How many programs a row has does not depend
on its length, which the device alone knows: those that nothing is left for end at once. The new
token is read from the arguments, never from its page, so that whoever writes it there need not be
waited for.

Source: Dao et al., "Flash-Decoding for long-context inference" (2023); Dao, "FlashAttention-2",
arXiv:2307.08691.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.gpu.paged import Heads, absorb_tile, heads_of
from wkvm.kernels.gpu.sizes import LOG2_E, block_of

N_PROGRAMS = 4 * 132
"""Programs of a launch that are aimed at: two on each multiprocessor at a time, in two rounds."""

MOST_HEADS = 32
"""Heads of queries of a program at most."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How keys move through a program.

    Attributes:
        block_n: tokens at a time; a page is a multiple of it.
        n_warps, n_stages: of a program; tiles that are under way at a time.
    """

    block_n: int
    n_warps: int
    n_stages: int


LAUNCHES = ((128, Launch(64, 4, 3)), (256, Launch(32, 4, 3)), (None, Launch(32, 8, 3)))
"""By the elements of a key at most: some 100 KiB under way, so that two programs share a
multiprocessor."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How rows are divided.

    Attributes:
        n: programs of a row and head of keys.
        least_pages: that one of them takes, unless there are fewer.
    """

    n: int
    least_pages: int


def launch_of(heads: Heads) -> Launch:
    """That of ``LAUNCHES`` for such keys."""
    return next(launch for limit, launch in LAUNCHES if limit is None or heads.key <= limit)


def splits_of(n_rows: int, n_per_row: int) -> Splits:
    """How to divide rows of any lengths, of which each is so many programs if it is whole.

    Many rows are divided too, as one of them may be much longer than the others.
    """
    n_whole = n_rows * n_per_row
    n = triton.next_power_of_2(triton.cdiv(N_PROGRAMS, n_whole))
    return Splits(min(max(n, 4), 64), 2 if n_whole < N_PROGRAMS // 4 else 8)


@triton.jit  # type: ignore[untyped-decorator]
def pages_of_split(  # type: ignore[no-untyped-def]
    length,
    split,
    N_SPLITS: tl.constexpr,
    LEAST_PAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
):
    """First position that is seen; pages of a split, from and to; how many splits have any."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length + 1 - WINDOW, 0)
    first_page = first // PAGE
    n_pages = tl.maximum((length + PAGE - 1) // PAGE - first_page, 0)
    each = tl.maximum((n_pages + N_SPLITS - 1) // N_SPLITS, LEAST_PAGES)
    page_from = first_page + tl.minimum(split * each, n_pages)
    page_to = first_page + tl.minimum((split + 1) * each, n_pages)
    # The first one has the new token.
    return first, page_from, page_to, tl.maximum((n_pages + each - 1) // each, 1)


@triton.jit  # type: ignore[untyped-decorator]
def attention_decode_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    pages,
    table,
    lengths,
    slots,
    out,
    logs,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    page_stride,
    table_stride,
    lengths_stride,
    scale_log2,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    MAIN: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_MAIN: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    N_SPLITS: tl.constexpr,
    LEAST_PAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per split, ``BLOCK_M`` heads of queries, and row; see ``attention_decode``."""
    n_tiles: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    split = tl.program_id(0)
    kv_head = tl.program_id(1) // n_tiles
    head_tile = tl.program_id(1) % n_tiles
    row = tl.program_id(2).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        length = tl.load(lengths + slot * lengths_stride)
        first, page_from, page_to, n_live = pages_of_split(
            length, split, N_SPLITS, LEAST_PAGES, WINDOW, PAGE
        )
        if split < n_live:
            heads = head_tile * BLOCK_M + tl.arange(0, BLOCK_M)
            is_head = heads < GROUP
            mains = tl.arange(0, BLOCK_MAIN)
            values = tl.arange(0, BLOCK_V)
            at_query = q + row * q_stride + (kv_head * GROUP + heads)[:, None] * q_head_stride
            inside = is_head[:, None] & (mains < MAIN)[None, :]
            query = tl.load(at_query + mains[None, :], mask=inside, other=0.0)
            table_row = table + slot * table_stride
            head_pages = pages + kv_head * D

            # The new token, which the first split has, and nobody reads from its page.
            is_first = split == 0
            here = tl.load(table_row + length // PAGE).to(tl.int64)
            at_page = head_pages + here * page_stride + (length % PAGE) * (HKV * D)
            n_read = tl.where(is_first, D, 0)
            n_written = tl.where(head_tile == 0, n_read, 0)
            at_key = k + row * k_stride + kv_head * k_head_stride
            key = tl.load(at_key + mains, mask=mains < tl.minimum(n_read, MAIN), other=0.0)
            tl.store(at_page + mains, key, mask=mains < tl.minimum(n_written, MAIN))
            score = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1)
            if BLOCK_TAIL > 0:
                tails = MAIN + tl.arange(0, BLOCK_TAIL)
                inside = is_head[:, None] & (tails < D)[None, :]
                query_tail = tl.load(at_query + tails[None, :], mask=inside, other=0.0)
                key_tail = tl.load(at_key + tails, mask=tails < n_read, other=0.0)
                tl.store(at_page + tails, key_tail, mask=tails < n_written)
                score += tl.sum(query_tail.to(tl.float32) * key_tail.to(tl.float32)[None, :], 1)
            else:
                query_tail = query
            if SHARED:
                value = key
            else:
                at_value = v + row * v_stride + kv_head * v_head_stride
                value = tl.load(at_value + values, mask=values < tl.minimum(n_read, DV), other=0.0)
                tl.store(
                    at_page + PAGE * HKV * D + values,
                    value,
                    mask=values < tl.minimum(n_written, DV),
                )
            largest = tl.where(is_first, score * scale_log2, float("-inf"))
            total = tl.where(largest > float("-inf"), 1.0, 0.0)
            acc = total[:, None] * value.to(tl.float32)[None, :]

            positions = tl.zeros([BLOCK_M], tl.int32) + length
            per_page: tl.constexpr = PAGE // BLOCK_N
            for tile in tl.range(page_from * per_page, page_to * per_page, num_stages=N_STAGES):
                largest, total, acc = absorb_tile(
                    query,
                    query_tail,
                    largest,
                    total,
                    acc,
                    head_pages,
                    table_row,
                    tile,
                    first,
                    length,
                    positions,
                    page_stride,
                    scale_log2,
                    HKV,
                    D,
                    MAIN,
                    DV,
                    BLOCK_MAIN,
                    BLOCK_TAIL,
                    BLOCK_V,
                    SHARED,
                    PAGE,
                    BLOCK_N,
                    0,
                    True,
                    PRECISION,
                )
            acc /= tl.where(total > 0.0, total, 1.0)[:, None]
            at_out = (row * N_SPLITS + split) * (HKV * GROUP) + kv_head * GROUP + heads
            inside = is_head[:, None] & (values < DV)[None, :]
            found = acc.to(out.dtype.element_ty)
            tl.store(out + at_out[:, None] * DV + values[None, :], found, mask=inside)
            if N_SPLITS > 1:
                tl.store(logs + at_out, largest + tl.log2(total), mask=is_head)
    elif N_SPLITS == 1:
        heads = head_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        values = tl.arange(0, BLOCK_V)
        at_out = row * (HKV * GROUP) + kv_head * GROUP + heads
        nothing = tl.zeros([BLOCK_M, BLOCK_V], tl.float32).to(out.dtype.element_ty)
        inside = (heads < GROUP)[:, None] & (values < DV)[None, :]
        tl.store(out + at_out[:, None] * DV + values[None, :], nothing, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def add_splits_kernel(  # type: ignore[no-untyped-def]
    parts,
    logs,
    lengths,
    slots,
    out,
    lengths_stride,
    HQ: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    N_SPLITS: tl.constexpr,
    LEAST_PAGES: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One program per row and head of queries: the splits of a row, weighted."""
    head = tl.program_id(0) % HQ
    row = (tl.program_id(0) // HQ).to(tl.int64)
    values = tl.arange(0, BLOCK_V)
    is_value = values < DV
    slot = tl.load(slots + row).to(tl.int64)
    acc = tl.zeros([BLOCK_V], tl.float32)
    if slot >= 0:
        length = tl.load(lengths + slot * lengths_stride)
        _, _, _, n_live = pages_of_split(length, 0, N_SPLITS, LEAST_PAGES, WINDOW, PAGE)
        every = tl.arange(0, N_SPLITS)
        at = (row * N_SPLITS) * HQ + head
        all_logs = tl.load(logs + at + every * HQ, mask=every < n_live, other=float("-inf"))
        largest = tl.max(all_logs, 0)
        total = tl.sum(tl.exp2(all_logs - largest), 0)
        for start in range(0, n_live, BLOCK_S):
            splits = start + tl.arange(0, BLOCK_S)
            is_live = splits < n_live
            at_split = at + splits * HQ
            log = tl.load(logs + at_split, mask=is_live, other=float("-inf"))
            weight = tl.exp2(log - largest) / total
            inside = is_live[:, None] & is_value[None, :]
            part = tl.load(parts + at_split[:, None] * DV + values[None, :], mask=inside, other=0.0)
            acc += tl.sum(weight[:, None] * part, 0)
    at_out = out + (row * HQ + head) * DV + values
    tl.store(at_out, acc.to(out.dtype.element_ty), mask=is_value)


def attention_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    *,
    scale: float,
    window: int | None = None,
    value_dim: int | None = None,
    launch: Launch | None = None,
    splits: Splits | None = None,
) -> Tensor:
    """``reference.attention`` over rows of one token.

    Args:
        q: ``[B, Hq, D]``; k: ``[B, Hkv, D]``; v: ``[B, Hkv, Dv]`` or None; any strides but
            the last, all of one dtype, which is that of ``pages``.
        pages: ``[n_pages, n_parts, PAGE_TOKENS, Hkv, D]``, any first stride.
        table: ``[N, max_pages]`` int32; lengths: ``[N]`` int32, any stride.
        slots: ``[B]`` int32, distinct where not negative; a negative one is a pad row.
        launch, splits: None for what suits the shapes.

    Returns:
        ``[B, Hq, Dv]``; zeros for pad rows. Two launches, or one if a row is not divided.

    Raises:
        ValueError: a shape, dtype or stride differs from the above.
    """
    heads = heads_of(q, k, v, pages, value_dim)
    B, n_q = q.shape[:2]
    block_m = min(block_of(heads.group), MOST_HEADS)
    n_per_row = heads.n_kv * triton.cdiv(heads.group, block_m)
    launch = launch or launch_of(heads)
    splits = splits or splits_of(B, n_per_row)
    out = torch.empty(B, n_q, heads.value, dtype=q.dtype, device=q.device)
    parts, logs = out, out
    if splits.n > 1:
        sizes = (B, splits.n, n_q)
        parts = torch.empty(*sizes, heads.value, dtype=torch.float32, device=q.device)
        logs = torch.empty(sizes, dtype=torch.float32, device=q.device)
    constants = heads.constants()
    attention_decode_kernel[(splits.n, n_per_row, B)](
        q,
        k,
        k if v is None else v,
        pages,
        table,
        lengths,
        slots,
        parts,
        logs,
        *q.stride()[:2],
        *k.stride()[:2],
        *(k if v is None else v).stride()[:2],
        pages.stride(0),
        table.stride(0),
        lengths.stride(0),
        scale * LOG2_E.value,
        **constants,
        WINDOW=window or 0,
        N_SPLITS=splits.n,
        LEAST_PAGES=splits.least_pages,
        BLOCK_M=block_m,
        BLOCK_N=launch.block_n,
        N_STAGES=launch.n_stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=launch.n_warps,
    )
    if splits.n > 1:
        add_splits_kernel[(B * n_q,)](
            parts,
            logs,
            lengths,
            slots,
            out,
            lengths.stride(0),
            HQ=n_q,
            DV=heads.value,
            BLOCK_V=constants["BLOCK_V"],
            WINDOW=window or 0,
            PAGE=constants["PAGE"],
            N_SPLITS=splits.n,
            LEAST_PAGES=splits.least_pages,
            BLOCK_S=8,
            num_warps=2 if heads.value <= 256 else 4,
        )
    return out
