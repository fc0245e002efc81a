"""Quantised matrices back to the model's dtype, for products that a library makes."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.weight import Weight

BLOCK = 4096
"""Values of one program."""


@triton.jit  # type: ignore[untyped-decorator]
def dequantise_kernel(values, scales, out, n_values, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per ``BLOCK`` values; see ``plain``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_values
    value = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(scales + at // K, mask=inside, other=0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


def plain(weight: Weight, scratch: Tensor | None) -> Tensor:
    """The matrix ``[N, K]`` in the model's dtype.

    A quantised one is written to the beginning of ``scratch`` (flat, at least N K elements of the
    model's dtype), where it lies until the next call; that reads one byte a value and writes two.
    Each value is rounded once more. One that is not quantised is returned as it is, at no cost.

    Raises:
        ValueError: the scratch is too small, or there is none.
    """
    if weight.scales is None:
        return weight.values
    N, K = weight.values.shape
    if scratch is None or scratch.numel() < N * K:
        raise ValueError(f"no scratch for {N} x {K} values")
    out = scratch[: N * K].view(N, K)
    grid = (triton.cdiv(N * K, BLOCK),)
    dequantise_kernel[grid](weight.values, weight.scales, out, N * K, K, BLOCK=BLOCK, num_warps=8)
    return out
