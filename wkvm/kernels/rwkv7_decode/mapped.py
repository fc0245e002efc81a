"""Matrix products whose blocks the copy engine brings, by tensor maps."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from wkvm.kernels.rwkv7_decode.common import NONE, applied, launch_options
from wkvm.kernels.rwkv7_decode.many_rows import Tiles


@triton.jit  # type: ignore[untyped-decorator]
def mapped_kernel(  # type: ignore[no-untyped-def]
    x_map,
    weight_map,
    out,
    tiles,
    B,
    N,
    K,
    out_stride,
    n_tiles,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N_SPLITS: tl.constexpr,
    BY_TILE: tl.constexpr,
    WHAT: tl.constexpr,
    X_LEFT: tl.constexpr,
    FLAT: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs that take one block of outputs after another; see ``mapped_product``."""
    n_row_blocks = tl.cdiv(B, BLOCK_B)
    n_items = n_tiles * n_row_blocks * N_SPLITS
    part = tl.cdiv(tl.cdiv(K, N_SPLITS), BLOCK_K) * BLOCK_K
    if PDL:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    for item in tl.range(tl.program_id(0), n_items, tl.num_programs(0), flatten=FLAT):
        row_block = item % n_row_blocks
        tile = (item // n_row_blocks) % n_tiles
        split = item // (n_row_blocks * n_tiles)
        at_x = row_block * BLOCK_B
        if BY_TILE:
            at_tile = tiles + tile * 7
            at_x += tl.load(at_tile) * B
            at_weight = tl.load(at_tile + 2) // K
            at_out = out + tl.multiple_of(tl.load(at_tile + 4), 16)
            stride = tl.multiple_of(tl.load(at_tile + 5), 16)
            columns = tl.load(at_tile + 6)
            what = columns % 4
            n_columns = tl.multiple_of(columns // 4, 16)
        else:
            at_weight = tile * BLOCK_N
            at_out = out + tile * BLOCK_N + split.to(tl.int64) * B * out_stride
            stride = out_stride
            what = WHAT
            n_columns = N - tile * BLOCK_N
        start = split * part
        n_steps = tl.cdiv(tl.minimum(K - start, part), BLOCK_K)
        if X_LEFT:
            total = tl.zeros([BLOCK_B, BLOCK_N], tl.float32)
        else:
            total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
        for step in range(n_steps):
            k = start + step * BLOCK_K
            left = weight_map.load([at_weight, k])
            right = x_map.load([at_x, k])
            if X_LEFT:
                total = tl.dot(right, left.T, total, input_precision=PRECISION)
            else:
                total = tl.dot(left, right.T, total, input_precision=PRECISION)
        value = applied(total, what)
        if not X_LEFT:
            value = tl.trans(value)
        rows = row_block * BLOCK_B + tl.arange(0, BLOCK_B)
        n = tl.arange(0, BLOCK_N)
        target = at_out + rows[:, None].to(tl.int64) * stride + n[None, :]
        inside = (rows < B)[:, None] & (n < n_columns)[None, :]
        tl.store(target, value.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Mapped:
    """How a product through tensor maps is cut up.

    Attributes:
        n, b, k: outputs, rows and terms of the sum in one block.
        n_splits: parts of the sum, each summed on its own into its own output.
        n_warps, n_stages: of one program; blocks that are under way at a time.
        n_programs: at most as many, one block of outputs after another. None: one a block.
        x_left: rows are the left operand of the matrix units, else outputs are.
        flat: the loops over blocks and over the sum are made one, so that the next block's operands
            are under way while the last one's outputs are stored.
    """

    n: int
    b: int
    k: int
    n_splits: int = 1
    n_warps: int = 4
    n_stages: int = 4
    n_programs: int | None = None
    x_left: bool = False
    flat: bool = False


def mapped_product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    blocks: Mapped,
    *,
    what: int = NONE,
    tiles: Tiles | None = None,
    pdl: bool = False,
) -> None:
    """``out = what(x @ weight.T)``, as ``product``; with tiles all groups have the length of x.

    Args:
        x: ``[B, K]``, or with tiles ``[n_inputs, B, K]``; contiguous.
        weight: ``[N, K]`` in the dtype of ``x``.
        out, what, tiles, pdl: as in ``product``.
    """
    B, K = x.shape[-2:]
    N = weight.shape[0]
    n_tiles = triton.cdiv(N, blocks.n) if tiles is None else len(tiles.table)
    n_items = n_tiles * triton.cdiv(B, blocks.b) * blocks.n_splits
    n_programs = min(n_items, blocks.n_programs or n_items)
    mapped_kernel[(n_programs,)](
        TensorDescriptor.from_tensor(x.view(-1, K), [blocks.b, blocks.k]),
        TensorDescriptor.from_tensor(weight, [blocks.n, blocks.k]),
        out,
        x if tiles is None else tiles.table,
        B,
        N,
        K,
        out.stride(-2) if out.dim() > 1 else 0,
        n_tiles,
        BLOCK_N=blocks.n,
        BLOCK_B=blocks.b,
        BLOCK_K=blocks.k,
        N_SPLITS=blocks.n_splits,
        BY_TILE=tiles is not None,
        WHAT=what,
        X_LEFT=blocks.x_left,
        FLAT=blocks.flat,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=pdl,
        num_warps=blocks.n_warps,
        num_stages=blocks.n_stages,
        **launch_options(pdl),
    )
