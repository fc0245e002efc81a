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


@triton.jit  # type: ignore[untyped-decorator]
def mapped_kernel(  # type: ignore[no-untyped-def]
    x_map,
    weight_map,
    out,
    B,
    N,
    K,
    out_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N_SPLITS: tl.constexpr,
    WHAT: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs that take one block of outputs after another; see ``mapped_product``."""
    n_row_blocks = tl.cdiv(B, BLOCK_B)
    n_tiles = tl.cdiv(N, BLOCK_N)
    n_items = n_tiles * n_row_blocks * N_SPLITS
    part = tl.cdiv(tl.cdiv(K, N_SPLITS), BLOCK_K) * BLOCK_K
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    # Made one with the loop over the sum, so that the next block's operands are under way while
    # this one's outputs are stored.
    for item in tl.range(tl.program_id(0), n_items, tl.num_programs(0), flatten=True):
        row_block = item % n_row_blocks
        tile = (item // n_row_blocks) % n_tiles
        split = item // (n_row_blocks * n_tiles)
        at_out = out + tile * BLOCK_N + split.to(tl.int64) * B * out_stride
        n_columns = N - tile * BLOCK_N
        start = split * part
        n_steps = tl.cdiv(tl.minimum(K - start, part), BLOCK_K)
        total = tl.zeros([BLOCK_B, BLOCK_N], tl.float32)
        for step in range(n_steps):
            k = start + step * BLOCK_K
            left = x_map.load([row_block * BLOCK_B, k])
            right = weight_map.load([tile * BLOCK_N, k])
            total = tl.dot(left, right.T, total, input_precision=PRECISION)
        value = applied(total, WHAT)
        rows = row_block * BLOCK_B + tl.arange(0, BLOCK_B)
        n = tl.arange(0, BLOCK_N)
        target = at_out + rows[:, None].to(tl.int64) * out_stride + n[None, :]
        inside = (rows < B)[:, None] & (n < n_columns)[None, :]
        tl.store(target, value.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Mapped:
    """How a product through tensor maps is cut up. Rows are the left operand of the matrix units.

    Attributes:
        n, b, k: outputs, rows and terms of the sum in one block.
        n_splits: parts of the sum, each summed on its own into its own output.
        n_warps, n_stages: of one program; blocks that are under way at a time.
        n_programs: at most as many, each of which takes one block of outputs after another.
    """

    n: int
    b: int
    k: int
    n_splits: int = 1
    n_warps: int = 8
    n_stages: int = 3
    n_programs: int = 132


def mapped_product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    blocks: Mapped,
    *,
    what: int = NONE,
    pdl: bool = False,
) -> None:
    """``out = what(x @ weight.T)``, as ``product``.

    Args:
        x: ``[B, K]``, contiguous.
        weight: ``[N, K]`` in the dtype of ``x``, contiguous.
        out, what, pdl: as in ``product``.
    """
    B, K = x.shape
    N = weight.shape[0]
    n_items = triton.cdiv(N, blocks.n) * triton.cdiv(B, blocks.b) * blocks.n_splits
    mapped_kernel[(min(n_items, blocks.n_programs),)](
        TensorDescriptor.from_tensor(x, [blocks.b, blocks.k]),
        TensorDescriptor.from_tensor(weight, [blocks.n, blocks.k]),
        out,
        B,
        N,
        K,
        out.stride(-2),
        BLOCK_N=blocks.n,
        BLOCK_B=blocks.b,
        BLOCK_K=blocks.k,
        N_SPLITS=blocks.n_splits,
        WHAT=what,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=pdl,
        num_warps=blocks.n_warps,
        num_stages=blocks.n_stages,
        **launch_options(pdl),
    )
