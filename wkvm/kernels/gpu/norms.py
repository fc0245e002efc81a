"""Norms by the root of the mean square, with what stands beside them; and rotary positions.

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

N_TOGETHER = 1024
"""Elements of a program that takes several short vectors, at least."""


@triton.jit(do_not_specialize=["n_vectors"])  # type: ignore[untyped-decorator]
def norm_kernel(  # type: ignore[no-untyped-def]
    x,
    residual,
    weight,
    out,
    n_vectors,
    token_stride,
    head_stride,
    eps,
    H: tl.constexpr,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One program per ``BLOCK_R`` vectors; see ``rms_norm`` and ``add_rms_norm``."""
    vectors = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    inside = (vectors < n_vectors)[:, None] & (columns < C)[None, :]
    at = (vectors // H) * token_stride + (vectors % H) * head_stride
    at_out = vectors[:, None] * C + columns[None, :]
    value = tl.load(x + at[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(residual + at_out, mask=inside, other=0.0).to(tl.float32)
        # What is normed is what goes on as the residual, with its rounding.
        rounded = value.to(residual.dtype.element_ty)
        tl.store(residual + at_out, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / C + eps)
    w = tl.load(weight + columns, mask=columns < C, other=0.0)
    normed = value * scale[:, None] * w[None, :]
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
):
    """One program per ``BLOCK_R`` groups of C elements; see ``gated_rms_norm``."""
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


@triton.jit  # type: ignore[untyped-decorator]
def turn(  # type: ignore[no-untyped-def]
    heads,
    token_stride,
    head_stride,
    cos,
    sin,
    H: tl.constexpr,
    R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Turn the pairs ``(i, i + R)`` of all heads of a token, in place."""
    head = tl.arange(0, BLOCK_H)
    pairs = tl.arange(0, BLOCK_R)
    inside = (head < H)[:, None] & (pairs < R)[None, :]
    at = heads + tl.program_id(0).to(tl.int64) * token_stride
    at = at + head[:, None] * head_stride + pairs[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + R, mask=inside, other=0.0).to(tl.float32)
    turned = first * cos[None, :] - second * sin[None, :]
    tl.store(at, turned.to(heads.dtype.element_ty), mask=inside)
    turned = second * cos[None, :] + first * sin[None, :]
    tl.store(at + R, turned.to(heads.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def rotary_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    frequencies,
    positions,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    scaling,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    R: tl.constexpr,
    BLOCK_HQ: tl.constexpr,
    BLOCK_HK: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program per token; see ``rotary``."""
    pairs = tl.arange(0, BLOCK_R)
    position = tl.load(positions + tl.program_id(0)).to(tl.float32)
    angle = tl.load(frequencies + pairs, mask=pairs < R, other=0.0) * position
    cos = tl.cos(angle) * scaling
    sin = tl.sin(angle) * scaling
    turn(q, q_token_stride, q_head_stride, cos, sin, HQ, R, BLOCK_HQ, BLOCK_R)
    turn(k, k_token_stride, k_head_stride, cos, sin, HK, R, BLOCK_HK, BLOCK_R)


def _strides(x: Tensor) -> tuple[int, int, int]:
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
    heads, token_stride, head_stride = _strides(x)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    C = x.shape[-1]
    block_r, block_c, n_warps = _blocks(C)
    n_vectors = x.shape[0] * heads
    norm_kernel[(triton.cdiv(n_vectors, block_r),)](
        x,
        out,
        weight,
        out,
        n_vectors,
        token_stride,
        head_stride,
        eps,
        H=heads,
        C=C,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        ADDS=False,
        num_warps=n_warps,
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place, and norm the sum.

    Args:
        x: ``[T, C]``, any first stride.
        residual: ``[T, C]``, contiguous; overwritten with the sum in its own dtype, of which the
            norm is.
        weight: ``[C]`` float32.

    Returns:
        ``[T, C]`` in the dtype of ``x``. One launch.
    """
    _, token_stride, _ = _strides(x)
    if residual.shape != x.shape or x.dim() != 2 or not residual.is_contiguous():
        raise ValueError(
            f"a residual {tuple(residual.shape)} of strides {residual.stride()}"
            f" for {tuple(x.shape)}"
        )
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    T, C = x.shape
    _, block_c, n_warps = _blocks(C)
    norm_kernel[(T,)](
        x,
        residual,
        weight,
        out,
        T,
        token_stride,
        0,
        eps,
        H=1,
        C=C,
        BLOCK_R=1,
        BLOCK_C=block_c,
        ADDS=True,
        num_warps=n_warps,
    )
    return out


def gated_rms_norm(
    y: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    *,
    group: int,
    gate: str = "silu",
    gate_first: bool,
) -> Tensor:
    """``reference.gated_rms_norm``, of ``[T, C]`` or ``[T, H, C]``, any strides but the last.

    What is returned is contiguous. One launch.
    """
    if y.shape != z.shape or y.shape[-1] % group or gate not in ("silu", "sigmoid"):
        raise ValueError(f"y {tuple(y.shape)}, z {tuple(z.shape)}, groups of {group}, gate {gate}")
    heads, y_token_stride, y_head_stride = _strides(y)
    _, z_token_stride, z_head_stride = _strides(z)
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
        num_warps=n_warps,
    )
    return out


def rotary(
    q: Tensor, k: Tensor, frequencies: Tensor, positions: Tensor, scaling: float = 1.0
) -> None:
    """Turn the heads of each token by its position, in place.

    Of the first 2 R elements of a head, element i and element R + i are one pair; with the angle
    position * frequencies[i] it is turned, and multiplied by ``scaling``. The others stay.

    Args:
        q, k: ``[T, Hq, D]`` and ``[T, Hk, D]``, any strides but the last. Both are overwritten.
        frequencies: ``[R]`` float32, radians a token; 2 R is at most D.
        positions: ``[T]`` int32.

    Source: Su et al., arXiv:2104.09864, with the halves of transformers' ``rotate_half``.
    """
    R = frequencies.shape[0]
    if q.shape[2] < 2 * R or q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, {R} frequencies")
    q_heads, q_token_stride, q_head_stride = _strides(q)
    k_heads, k_token_stride, k_head_stride = _strides(k)
    rotary_kernel[(q.shape[0],)](
        q,
        k,
        frequencies,
        positions,
        q_token_stride,
        q_head_stride,
        k_token_stride,
        k_head_stride,
        scaling,
        HQ=q_heads,
        HK=k_heads,
        R=R,
        BLOCK_HQ=triton.next_power_of_2(q_heads),
        BLOCK_HK=triton.next_power_of_2(k_heads),
        BLOCK_R=triton.next_power_of_2(R),
        num_warps=4,
    )
