"""Matrix products for tens to hundreds of rows, several of them in one launch."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.rwkv7_decode.common import NONE, applied, launch_options, widened

TILE_FIELDS = 7
"""Numbers of a tile: which of the inputs, first column of it, offset of the weights, length of the
sum, offset and row stride of the output, and how many columns with what applied:
``columns * 4 + what``."""


@triton.jit  # type: ignore[untyped-decorator]
def _fetch(at_row, n_bytes, N_BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring ``N_BYTES`` from each address into the L2 cache, lines beyond ``n_bytes`` not."""
    line = tl.arange(0, N_BYTES // 128) * 128
    address = at_row.to(tl.int64)[:, None] + tl.minimum(line, n_bytes - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    out,
    tiles,
    B,
    N,
    K,
    x_stride,
    input_stride,
    out_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N_SPLITS: tl.constexpr,
    BY_TILE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    WHAT: tl.constexpr,
    ADDS: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_B: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    N_FETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per block of outputs, block of rows and part of the sum; see ``product``.

    The weights are the left operand, so that few rows still fill the matrix units.
    """
    n_row_blocks = tl.cdiv(B, BLOCK_B)
    row_block = tl.program_id(0) % n_row_blocks
    tile = tl.program_id(0) // n_row_blocks
    split = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    n = tl.arange(0, BLOCK_N)
    rows = row_block * BLOCK_B + tl.arange(0, BLOCK_B)
    k = tl.arange(0, BLOCK_K)
    if BY_TILE:
        at_tile = tiles + tile * 7
        x += tl.load(at_tile).to(tl.int64) * input_stride
        x += tl.multiple_of(tl.load(at_tile + 1), 16)
        offset = tl.multiple_of(tl.load(at_tile + 2), 16)
        weight += offset
        length = tl.multiple_of(tl.load(at_tile + 3), 16)
        scales += offset // length
        out += tl.multiple_of(tl.load(at_tile + 4), 16)
        out_stride = tl.multiple_of(tl.load(at_tile + 5), 16)
        columns = tl.load(at_tile + 6)
        what = columns % 4
        n_columns = tl.multiple_of(columns // 4, 16)
    else:
        weight += (tile * BLOCK_N).to(tl.int64) * K
        scales += tile * BLOCK_N
        out += tile * BLOCK_N
        length = K
        what = WHAT
        n_columns = N - tile * BLOCK_N
    start = 0
    end = length
    if N_SPLITS > 1:
        part = tl.cdiv(tl.cdiv(length, N_SPLITS), BLOCK_K) * BLOCK_K
        start = split * part
        end = tl.minimum(length, start + part)
        out += split.to(tl.int64) * B * out_stride
    row_inside = rows < B
    at_weight = weight + n[:, None] * length + (start + k)[None, :]
    at_x = x + rows[None, :].to(tl.int64) * x_stride + (start + k)[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    if HAS_SCALES:
        scale = tl.load(scales + n, mask=n < n_columns, other=0.0)
    if N_FETCHED > 0 and row_block == 0:
        at_row = weight + tl.minimum(n, n_columns - 1) * length + start
        item_bytes: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        _fetch(at_row, (end - start) * item_bytes, N_FETCHED)
    if PDL:
        gdc_wait()
    for at in range(start, end, BLOCK_K):
        if EVEN_K:
            if EVEN_N:
                left = tl.load(at_weight)
            else:
                left = tl.load(at_weight, mask=(n < n_columns)[:, None], other=0.0)
            if EVEN_B:  # noqa: SIM108
                right = tl.load(at_x)
            else:
                right = tl.load(at_x, mask=row_inside[None, :], other=0.0)
        else:
            k_inside = k < end - at
            left_inside = k_inside[None, :] & (n < n_columns)[:, None]
            left = tl.load(at_weight, mask=left_inside, other=0.0)
            right = tl.load(at_x, mask=k_inside[:, None] & row_inside[None, :], other=0.0)
        if HAS_SCALES:
            left = widened(left, right.dtype)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        at_weight += BLOCK_K
        at_x += BLOCK_K
    if HAS_SCALES:
        total *= scale[:, None]
    value = tl.trans(applied(total, what))
    at_out = out + rows[:, None].to(tl.int64) * out_stride + n[None, :]
    inside = row_inside[:, None] & (n < n_columns)[None, :]
    if ADDS:
        value += tl.load(at_out, mask=inside, other=0.0).to(tl.float32)
    tl.store(at_out, value.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a product is cut up.

    Attributes:
        n, b, k: outputs, rows and terms of the sum in one block.
        n_splits: parts of the sum, each summed by a program of its own into its own output.
        n_warps, n_stages: of one program; blocks that are under way at a time.
        n_fetched: bytes of each of its rows of weights that a program brings into the L2 cache
            before it waits for the launch before it: 0, or a power of two of at least 128.
    """

    n: int
    b: int
    k: int
    n_splits: int = 1
    n_warps: int = 4
    n_stages: int = 4
    n_fetched: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive rows of a packed weight that share an input.

    Attributes:
        input: which of the inputs.
        column: of the input, where the sum begins.
        weight: offset of the first weight.
        length: terms of the sum, which is also the distance from one row of weights to the next.
        n: rows of weights, which are columns of the output; a multiple of 16.
        out, out_stride: where the first of these columns is, and how far its rows are apart.
        what: applied to the product.
    """

    input: int
    column: int
    weight: int
    length: int
    n: int
    out: int
    out_stride: int
    what: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Groups cut into blocks of outputs.

    Attributes:
        table: ``[n_tiles, TILE_FIELDS]`` int32.
        n: outputs of a whole block.
        lengths: every length of a sum that occurs.
    """

    table: Tensor
    n: int
    lengths: frozenset[int]


def tiles_of(groups: Sequence[Group], n: int, device: torch.device | str) -> Tiles:
    """The groups cut into blocks of ``n`` outputs; the last block of a group may be smaller."""
    rows = [
        (
            group.input,
            group.column,
            group.weight + at * group.length,
            group.length,
            group.out + at,
            group.out_stride,
            min(n, group.n - at) * 4 + group.what,
        )
        for group in groups
        for at in range(0, group.n, n)
    ]
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    return Tiles(table, n, frozenset(group.length for group in groups))


def product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    blocks: Blocks,
    *,
    scales: Tensor | None = None,
    what: int = NONE,
    tiles: Tiles | None = None,
    adds: bool = False,
    pdl: bool = False,
) -> None:
    """``out = what(x @ weight.T)`` for tens to hundreds of rows.

    Without splits each sum is made in the order of its terms, whatever the blocks: no bit of a row
    depends on them, or on the other rows.

    Args:
        x: ``[B, K]``, or with tiles ``[n_inputs, B, K]``; contiguous.
        weight: ``[N, K]`` in the dtype of ``x``, or quantised. With tiles: any, with ``blocks.n``
            rows of anything after the last one.
        out: ``[B, N]``, or ``[n_splits, B, N]`` with parts of the sums; overwritten.
        scales: as in ``gemv``; with tiles, all groups then have one length.
        tiles: from ``tiles_of`` with ``blocks.n``. Each names its input, weights and outputs.
        adds: the product is added to ``out`` instead.
        pdl: as in ``mix``.
    """
    B, K = x.shape[-2:]
    N = weight.shape[0] if tiles is None else 0
    if tiles is not None and tiles.n != blocks.n:
        raise ValueError(f"tiles of {tiles.n} outputs, blocks of {blocks.n}")
    lengths = (K,) if tiles is None else tiles.lengths
    step = blocks.k * blocks.n_splits
    n_tiles = triton.cdiv(N, blocks.n) if tiles is None else len(tiles.table)
    n_programs = n_tiles * triton.cdiv(B, blocks.b)
    product_kernel[(n_programs, blocks.n_splits)](
        x,
        weight,
        x if scales is None else scales,
        out,
        x if tiles is None else tiles.table,
        B,
        N,
        K,
        x.stride(-2),
        x.stride(0) if x.dim() == 3 else 0,
        out.stride(-2) if out.dim() > 1 else 0,
        BLOCK_N=blocks.n,
        BLOCK_B=blocks.b,
        BLOCK_K=blocks.k,
        N_SPLITS=blocks.n_splits,
        BY_TILE=tiles is not None,
        HAS_SCALES=scales is not None,
        WHAT=what,
        ADDS=adds,
        EVEN_N=tiles is not None or N % blocks.n == 0,
        EVEN_B=B % blocks.b == 0,
        EVEN_K=all(length % step == 0 for length in lengths),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        N_FETCHED=blocks.n_fetched,
        PDL=pdl,
        num_warps=blocks.n_warps,
        num_stages=blocks.n_stages,
        **launch_options(pdl),
    )
