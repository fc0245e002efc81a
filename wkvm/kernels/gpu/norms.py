"""Norms by the root of the mean square, with what stands beside them.

Each is one pass over its tensors, in float32. Importing this module imports Triton.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.device_sampling.common import follow
from wkvm.kernels.reference.norms import GateActivation
from wkvm.kernels.rwkv7_decode.common import launch_options

N_TOGETHER = 1024
"""Elements of a program that takes several short vectors, at least."""

DEPENDENT_TOKENS = 512
"""Up to here launches may begin before the one before them has ended: they wait for it within. What
that gains is microseconds, and programs that wait are in the way of those of a long prompt."""


def is_dependent(x: Tensor) -> bool:
    """Whether a launch over the tokens of ``x`` is a dependent one."""
    return x.is_cuda and x.shape[0] <= DEPENDENT_TOKENS


@triton.jit(do_not_specialize=["n_vectors"])  # type: ignore[untyped-decorator]
def norm_kernel(  # type: ignore[no-untyped-def]
    x,
    added,
    weight,
    total,
    out,
    n_vectors,
    token_stride,
    head_stride,
    added_stride,
    scale,
    eps,
    H: tl.constexpr,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ADDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per ``BLOCK_R`` vectors; see ``rms_norm`` and ``add_rms_norm``."""
    follow(PDL)
    vectors = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    inside = (vectors < n_vectors)[:, None] & (columns < C)[None, :]
    at = (vectors // H) * token_stride + (vectors % H) * head_stride
    at_out = vectors[:, None] * C + columns[None, :]
    value = tl.load(x + at[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        at_added = vectors[:, None] * added_stride + columns[None, :]
        value += scale * tl.load(added + at_added, mask=inside, other=0.0).to(tl.float32)
        # What is normed is what goes on, with its rounding.
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at_out, rounded, mask=inside)
        value = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / C + eps)
    w = tl.load(weight + columns, mask=columns < C, other=0.0)
    normed = value * inverse[:, None] * w[None, :]
    tl.store(out + at_out, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_vectors"])  # type: ignore[untyped-decorator]
def gated_norm_kernel(  # type: ignore[no-untyped-def]
    y,
    z,
    weight,
    out,
    n_vectors,
    y_token_stride,
    y_head_stride,
    z_token_stride,
    z_head_stride,
    eps,
    H: tl.constexpr,
    N_GROUPS: tl.constexpr,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SIGMOID: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per ``BLOCK_R`` groups of C elements; see ``gated_rms_norm``."""
    follow(PDL)
    vectors = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    inside = (vectors < n_vectors)[:, None] & (columns < C)[None, :]
    token = vectors // (H * N_GROUPS)
    head = (vectors // N_GROUPS) % H
    in_head = ((vectors % N_GROUPS) * C)[:, None] + columns[None, :]
    at_y = (token * y_token_stride + head * y_head_stride)[:, None] + in_head
    at_z = (token * z_token_stride + head * z_head_stride)[:, None] + in_head
    value = tl.load(y + at_y, mask=inside, other=0.0).to(tl.float32)
    opening = tl.load(z + at_z, mask=inside, other=0.0).to(tl.float32)
    if SIGMOID:
        opening = tl.sigmoid(opening)
    else:
        opening *= tl.sigmoid(opening)
    if GATE_FIRST:
        value *= opening
    scale = tl.rsqrt(tl.sum(value * value, 1) / C + eps)
    w = tl.load(weight + in_head, mask=inside, other=0.0)
    normed = value * scale[:, None] * w
    if not GATE_FIRST:
        normed *= opening
    at_out = vectors[:, None] * C + columns[None, :]
    tl.store(out + at_out, normed.to(out.dtype.element_ty), mask=inside)


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Heads of a token, and the strides of tokens and heads, of ``[T, C]`` or ``[T, H, C]``."""
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(
            f"[T, C] or [T, H, C] with vectors in one piece, not {tuple(x.shape)}"
            f" with strides {x.stride()}"
        )
    return (x.shape[1], x.stride(0), x.stride(1)) if x.dim() == 3 else (1, x.stride(0), 0)


def _blocks(n_columns: int) -> tuple[int, int, int]:
    """Vectors and columns of a program, and its warps."""
    columns = triton.next_power_of_2(n_columns)
    rows = max(1, N_TOGETHER // columns)
    return rows, columns, 8 if columns >= 4096 else 4


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """``reference.rms_norm``, of ``[T, C]`` or ``[T, H, C]`` with any strides but the last.

    What is returned is contiguous. One launch.
    """
    heads, token_stride, head_stride = strides_of(x)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    C = x.shape[-1]
    block_r, block_c, n_warps = _blocks(C)
    n_vectors = x.shape[0] * heads
    norm_kernel[(triton.cdiv(n_vectors, block_r),)](
        x,
        x,
        weight,
        out,
        out,
        n_vectors,
        token_stride,
        head_stride,
        0,
        1.0,
        eps,
        H=heads,
        C=C,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        ADDS=False,
        PDL=(pdl := is_dependent(x)),
        num_warps=n_warps,
        **launch_options(pdl),
    )
    return out


def add_rms_norm(
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    eps: float,
    *,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``reference.add_rms_norm``, of ``[T, C]`` with any first strides. One launch."""
    if x.dim() != 2 or added.shape != x.shape:
        raise ValueError(f"{tuple(added.shape)} is added to {tuple(x.shape)}")
    (_, x_stride, _), (_, added_stride, _) = strides_of(x), strides_of(added)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    T, C = x.shape
    _, block_c, n_warps = _blocks(C)
    norm_kernel[(T,)](
        x,
        added,
        weight,
        total,
        out,
        T,
        x_stride,
        0,
        added_stride,
        scale,
        eps,
        H=1,
        C=C,
        BLOCK_R=1,
        BLOCK_C=block_c,
        ADDS=True,
        PDL=(pdl := is_dependent(x)),
        num_warps=n_warps,
        **launch_options(pdl),
    )
    return total, out


def gated_rms_norm(
    y: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    *,
    group: int,
    gate: GateActivation = "silu",
    gate_first: bool,
) -> Tensor:
    """``reference.gated_rms_norm``, of ``[T, C]`` or ``[T, H, C]``, any strides but the last.

    What is returned is contiguous. One launch.
    """
    if y.shape != z.shape or y.shape[-1] % group:
        raise ValueError(f"y {tuple(y.shape)}, z {tuple(z.shape)}, groups of {group}")
    heads, y_token_stride, y_head_stride = strides_of(y)
    _, z_token_stride, z_head_stride = strides_of(z)
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    n_groups = y.shape[-1] // group
    n_vectors = y.shape[0] * heads * n_groups
    block_r, block_c, n_warps = _blocks(group)
    gated_norm_kernel[(triton.cdiv(n_vectors, block_r),)](
        y,
        z,
        weight,
        out,
        n_vectors,
        y_token_stride,
        y_head_stride,
        z_token_stride,
        z_head_stride,
        eps,
        H=heads,
        N_GROUPS=n_groups,
        C=group,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        SIGMOID=gate == "sigmoid",
        GATE_FIRST=gate_first,
        PDL=(pdl := is_dependent(y)),
        num_warps=n_warps,
        **launch_options(pdl),
    )
    return out
