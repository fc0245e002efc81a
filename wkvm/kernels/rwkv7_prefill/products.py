"""The first matrix product of the channel mix for thousands of tokens, squared where it is made."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit  # type: ignore[untyped-decorator]
def squared_kernel(  # type: ignore[no-untyped-def]
    x_map,
    weight_map,
    out_map,
    T,
    N,
    K,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N_TOGETHER: tl.constexpr,
    N_PARTS: tl.constexpr,
):
    """Programs that take one block of outputs after another; see ``squared_product``."""
    n_token_blocks = tl.cdiv(T, BLOCK_T)
    n_tiles = tl.cdiv(N, BLOCK_N)
    n_steps = tl.cdiv(K, BLOCK_K)
    n_items = n_token_blocks * n_tiles
    # Made one with the loop over the sum, so that the next block is fetched while the last one is
    # stored.
    for item in tl.range(tl.program_id(0), n_items, tl.num_programs(0), flatten=True):
        first = item // (N_TOGETHER * n_tiles) * N_TOGETHER
        n_first = tl.minimum(n_token_blocks - first, N_TOGETHER)
        within = item % (N_TOGETHER * n_tiles)
        at_t = (first + within % n_first) * BLOCK_T
        at_n = within // n_first * BLOCK_N
        total = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
        for step in range(n_steps):
            left = x_map.load([at_t, step * BLOCK_K])
            right = weight_map.load([at_n, step * BLOCK_K])
            total = tl.dot(left, right.T, total)
        total = tl.maximum(total, 0.0)
        total = total * total
        if N_PARTS == 1:
            out_map.store([at_t, at_n], total.to(out_map.dtype))
        else:
            # In halves, which take half the shared memory.
            halves = tl.permute(tl.reshape(total, [BLOCK_T, 2, BLOCK_N // 2]), [0, 2, 1])
            one, two = tl.split(halves)
            out_map.store([at_t, at_n], one.to(out_map.dtype))
            out_map.store([at_t, at_n + BLOCK_N // 2], two.to(out_map.dtype))


@dataclass(frozen=True, slots=True)
class SquaredCut:
    """How the product is cut up.

    Attributes:
        t, n, k: tokens, outputs and terms of the sum in one block.
        n_together: blocks of tokens whose outputs are all made before other tokens are read: so
            many stay in the L2 cache, with the weights.
        n_warps, n_stages: of one program; blocks that are under way at a time.
        n_programs: at most as many, one for each multiprocessor.
        n_parts: of a block of outputs, stored one after the other: 1 or 2.
    """

    t: int = 128
    n: int = 256
    k: int = 64
    n_together: int = 16
    n_warps: int = 8
    n_stages: int = 3
    n_programs: int = 132
    n_parts: int = 1


def squared_product(x: Tensor, weight: Tensor, out: Tensor, cut: SquaredCut) -> None:
    """``out = relu(x @ weight.T) ** 2``, rounded once.

    Args:
        x: ``[T, K]``, contiguous, bfloat16 or float16.
        weight: ``[N, K]`` in the dtype of ``x``, contiguous.
        out: ``[T, N]`` in the dtype of ``x``, contiguous, overwritten.
        cut: of the product.
    """
    T, K = x.shape
    N = weight.shape[0]
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype:
        raise ValueError(f"x is {x.dtype}, the weights are {weight.dtype}")
    n_items = triton.cdiv(T, cut.t) * triton.cdiv(N, cut.n)
    squared_kernel[(min(n_items, cut.n_programs),)](
        TensorDescriptor.from_tensor(x, [cut.t, cut.k]),
        TensorDescriptor.from_tensor(weight, [cut.n, cut.k]),
        TensorDescriptor.from_tensor(out, [cut.t, cut.n // cut.n_parts]),
        T,
        N,
        K,
        BLOCK_T=cut.t,
        BLOCK_N=cut.n,
        BLOCK_K=cut.k,
        N_TOGETHER=cut.n_together,
        N_PARTS=cut.n_parts,
        num_warps=cut.n_warps,
        num_stages=cut.n_stages,
    )
