"""Attention of rows of many tokens to the pages of their slots, which they are added to first.

Keys and values go to their pages in one launch, and a second one attends to pages alone, so that
what a prompt sees of itself and what it sees of the turns before are read alike. A program has
some tokens of a row and all heads of queries that read one head of keys: a key is loaded once for
all of them.

Source: Dao, "FlashAttention-2", arXiv:2307.08691.
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

from wkvm.kernels.gpu.attention_decode import attention_decode
from wkvm.kernels.gpu.packing import n_pieces, piece_of
from wkvm.kernels.gpu.paged import Heads, absorb_tile, heads_of
from wkvm.kernels.gpu.sizes import LEAST, LOG2_E
from wkvm.kernels.rows import Rows

WRITTEN_TOKENS = 16
"""Tokens of a row that one program writes to pages."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How queries and keys move through a program.

    Attributes:
        block_m: queries of a program: tokens times heads.
        block_n: keys at a time; a page is a multiple of it.
        n_warps, n_stages: of a program; tiles that are under way at a time.
    """

    block_m: int
    block_n: int
    n_warps: int
    n_stages: int


LAUNCHES = (
    (64, Launch(128, 64, 4, 3)),
    (128, Launch(128, 64, 8, 3)),
    (256, Launch(128, 64, 8, 2)),
    (None, Launch(64, 32, 8, 2)),
)
"""By the elements of a key at most."""

EXACT_LAUNCH = Launch(16, 16, 4, 1)
"""Of float32, whose products take registers instead of matrix units."""


def launch_of(heads: Heads, dtype: torch.dtype) -> Launch:
    """How to launch for such keys."""
    if dtype == torch.float32:
        return EXACT_LAUNCH
    return next(launch for limit, launch in LAUNCHES if limit is None or heads.key <= limit)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def write_pages_kernel(  # type: ignore[no-untyped-def]
    k,
    v,
    pages,
    table,
    lengths,
    slots,
    offsets,
    n_rows,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    page_stride,
    table_stride,
    lengths_stride,
    HKV: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program per ``BLOCK_T`` tokens of a row and ``BLOCK_C`` elements; see ``write_pages``."""
    row, tile = piece_of(offsets, n_rows, tl.program_id(0), BLOCK_T, 32)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        start = tl.load(offsets + row)
        tokens = tile * BLOCK_T + tl.arange(0, BLOCK_T)
        is_token = tokens < tl.load(offsets + row + 1) - start
        positions = tl.load(lengths + slot * lengths_stride) + tokens
        at_table = table + slot * table_stride + positions // PAGE
        page = tl.load(at_table, mask=is_token, other=0).to(tl.int64)
        at_page = page * page_stride + (positions % PAGE) * (HKV * D)
        at_token = (start + tokens).to(tl.int64)
        columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = is_token[:, None] & (columns < HKV * D)[None, :]
        of_head = columns // D * k_head_stride + columns % D
        key = tl.load(k + at_token[:, None] * k_stride + of_head[None, :], mask=inside)
        tl.store(pages + at_page[:, None] + columns[None, :], key, mask=inside)
        if not SHARED:
            inside = is_token[:, None] & (columns < HKV * DV)[None, :]
            of_head = columns // DV * v_head_stride + columns % DV
            value = tl.load(v + at_token[:, None] * v_stride + of_head[None, :], mask=inside)
            in_part = PAGE * HKV * D + columns // DV * D + columns % DV
            tl.store(pages + at_page[:, None] + in_part[None, :], value, mask=inside)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def attention_prefill_kernel(  # type: ignore[no-untyped-def]
    q,
    pages,
    table,
    lengths,
    slots,
    offsets,
    out,
    n_rows,
    q_stride,
    q_head_stride,
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
    N_HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per tile of tokens and ``N_HEADS`` heads of queries; see ``attend``."""
    BLOCK_T: tl.constexpr = BLOCK_M // N_HEADS
    n_head_tiles: tl.constexpr = (GROUP + N_HEADS - 1) // N_HEADS
    kv_head = tl.program_id(0) // n_head_tiles
    head_tile = tl.program_id(0) % n_head_tiles
    # The last tiles of a row see most, so they are begun first.
    index = tl.num_programs(1) - 1 - tl.program_id(1)
    row, tile = piece_of(offsets, n_rows, index, BLOCK_T, 32)
    start = tl.load(offsets + row)
    n_tokens = tl.load(offsets + row + 1) - start
    slot = tl.load(slots + row).to(tl.int64)

    each = tl.arange(0, BLOCK_M)
    tokens = tile * BLOCK_T + each // N_HEADS
    heads = head_tile * N_HEADS + each % N_HEADS
    is_query = (each < BLOCK_T * N_HEADS) & (tokens < n_tokens) & (heads < GROUP)
    mains = tl.arange(0, BLOCK_MAIN)
    values = tl.arange(0, BLOCK_V)
    at_token = (start + tokens).to(tl.int64)
    at_head = kv_head * GROUP + heads
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if slot >= 0:
        at_query = q + (at_token * q_stride + at_head * q_head_stride)[:, None]
        inside = is_query[:, None] & (mains < MAIN)[None, :]
        query = tl.load(at_query + mains[None, :], mask=inside, other=0.0)
        query_tail = query
        if BLOCK_TAIL > 0:
            tails = MAIN + tl.arange(0, BLOCK_TAIL)
            inside = is_query[:, None] & (tails < D)[None, :]
            query_tail = tl.load(at_query + tails[None, :], mask=inside, other=0.0)
        held = tl.load(lengths + slot * lengths_stride)
        positions = held + tokens
        end = held + tl.minimum((tile + 1) * BLOCK_T, n_tokens)
        first_tile = 0
        if WINDOW > 0:
            first_tile = tl.maximum(held + tile * BLOCK_T + 1 - WINDOW, 0) // BLOCK_N
        # Tiles that every token of the program sees whole, unless there is a window.
        whole = tl.maximum((held + tile * BLOCK_T + 1) // BLOCK_N, first_tile)
        table_row = table + slot * table_stride
        head_pages = pages + kv_head * D
        for seen in tl.range(first_tile, whole, num_stages=N_STAGES):
            largest, total, acc = absorb_tile(
                query,
                query_tail,
                largest,
                total,
                acc,
                head_pages,
                table_row,
                seen,
                0,
                end,
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
                WINDOW,
                WINDOW > 0,
                PRECISION,
            )
        for seen in tl.range(whole, (end + BLOCK_N - 1) // BLOCK_N, num_stages=N_STAGES):
            largest, total, acc = absorb_tile(
                query,
                query_tail,
                largest,
                total,
                acc,
                head_pages,
                table_row,
                seen,
                0,
                end,
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
                WINDOW,
                True,
                PRECISION,
            )
    acc /= tl.where(total > 0.0, total, 1.0)[:, None]
    at_out = out + ((at_token * (HKV * GROUP) + at_head) * DV)[:, None]
    inside = is_query[:, None] & (values < DV)[None, :]
    tl.store(at_out + values[None, :], acc.to(out.dtype.element_ty), mask=inside)


def write_pages(
    k: Tensor, v: Tensor | None, pages: Tensor, table: Tensor, lengths: Tensor, rows: Rows
) -> None:
    """Write the keys and values of packed rows to their places in pages; one launch.

    The arguments are those of ``attention``.
    """
    _, n_kv, D = k.shape
    DV = D if v is None else v.shape[2]
    block_c = min(1024, triton.next_power_of_2(n_kv * D))
    write_pages_kernel[(n_pieces(rows, WRITTEN_TOKENS), triton.cdiv(n_kv * D, block_c))](
        k,
        k if v is None else v,
        pages,
        table,
        lengths,
        rows.slots,
        rows.offsets,
        len(rows.lengths),
        *k.stride()[:2],
        *(k if v is None else v).stride()[:2],
        pages.stride(0),
        table.stride(0),
        lengths.stride(0),
        HKV=n_kv,
        D=D,
        DV=DV,
        SHARED=v is None,
        PAGE=pages.shape[2],
        BLOCK_T=WRITTEN_TOKENS,
        BLOCK_C=block_c,
        num_warps=4,
    )


def attend(
    q: Tensor,
    pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    rows: Rows,
    heads: Heads,
    *,
    scale: float,
    window: int | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """Attend to pages that hold the rows' own keys and values already; one launch.

    The other arguments are those of ``attention``.
    """
    launch = launch or launch_of(heads, q.dtype)
    n_heads = min(heads.group, launch.block_m)
    block_m = max(launch.block_m, LEAST)
    n_tiles = n_pieces(rows, block_m // n_heads)
    out = torch.empty(q.shape[0], q.shape[1], heads.value, dtype=q.dtype, device=q.device)
    attention_prefill_kernel[(heads.n_kv * triton.cdiv(heads.group, n_heads), n_tiles)](
        q,
        pages,
        table,
        lengths,
        rows.slots,
        rows.offsets,
        out,
        len(rows.lengths),
        *q.stride()[:2],
        pages.stride(0),
        table.stride(0),
        lengths.stride(0),
        scale * LOG2_E.value,
        **heads.constants(),
        WINDOW=window or 0,
        N_HEADS=n_heads,
        BLOCK_M=block_m,
        BLOCK_N=launch.block_n,
        N_STAGES=launch.n_stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=launch.n_warps,
    )
    return out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    rows: Rows,
    *,
    scale: float,
    window: int | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """``reference.attention``; q, k, v of any strides but the last, of the dtype of ``pages``."""
    if rows.is_decode:
        return attention_decode(
            q,
            k,
            v,
            pages,
            table,
            lengths,
            rows.slots,
            scale=scale,
            window=window,
            value_dim=value_dim,
        )
    heads = heads_of(q, k, v, pages, value_dim)
    write_pages(k, v, pages, table, lengths, rows)
    return attend(q, pages, table, lengths, rows, heads, scale=scale, window=window)
