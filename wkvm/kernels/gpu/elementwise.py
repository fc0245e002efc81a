"""Small functions that are one pass over their tensors, in float32.

Importing this module imports Triton.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.gpu.norms import strides_of
from wkvm.kernels.gpu.ssd_decode import softplus


@triton.jit  # type: ignore[untyped-decorator]
def swiglu_kernel(gate_up, out, stride, F, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per token and ``BLOCK`` elements."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < F
    at = gate_up + token * stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + F, mask=inside, other=0.0).to(tl.float32)
    opened = gate * tl.sigmoid(gate) * up
    tl.store(out + token * F + columns, opened.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def delta_gates_kernel(  # type: ignore[no-untyped-def]
    decay,
    strength,
    A,
    dt_bias,
    g,
    beta,
    decay_stride,
    strength_stride,
    max_strength,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program per token and ``BLOCK`` decays."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < H * K
    x = tl.load(decay + token * decay_stride + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + columns, mask=inside, other=0.0)
    slope = tl.load(A + columns // K, mask=inside, other=0.0)
    tl.store(g + token * (H * K) + columns, slope * softplus(x), mask=inside)
    if tl.program_id(1) == 0:
        heads = tl.arange(0, BLOCK_H)
        at = strength + token * strength_stride + heads
        raw = tl.load(at, mask=heads < H, other=0.0).to(tl.float32)
        tl.store(beta + token * H + heads, max_strength * tl.sigmoid(raw), mask=heads < H)


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


def swiglu(gate_up: Tensor) -> Tensor:
    """``reference.swiglu``; one launch."""
    _, stride, _ = strides_of(gate_up)
    T, F = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(T, F, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(F))
    swiglu_kernel[(T, triton.cdiv(F, block))](gate_up, out, stride, F, BLOCK=block, num_warps=4)
    return out


def delta_gates(
    decay: Tensor, strength: Tensor, A: Tensor, dt_bias: Tensor, max_strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``reference.delta_gates``; one launch.

    Raises:
        ValueError: a token of ``decay`` or ``strength`` is in more than one piece.
    """
    T, H = strength.shape
    K = 1 if decay.dim() == 2 else decay.shape[2]
    if not decay[0].is_contiguous() or strength.stride(1) != 1 or dt_bias.numel() != H * K:
        raise ValueError(
            f"decay {tuple(decay.shape)}, strides {decay.stride()}; strength"
            f" {tuple(strength.shape)}, strides {strength.stride()}; bias {tuple(dt_bias.shape)}"
        )
    g = torch.empty(decay.shape, dtype=torch.float32, device=decay.device)
    beta = torch.empty(T, H, dtype=torch.float32, device=decay.device)
    block = min(1024, triton.next_power_of_2(H * K))
    delta_gates_kernel[(T, triton.cdiv(H * K, block))](
        decay,
        strength,
        A,
        dt_bias,
        g,
        beta,
        decay.stride(0),
        strength.stride(0),
        max_strength,
        H=H,
        K=K,
        BLOCK=block,
        BLOCK_H=triton.next_power_of_2(H),
        num_warps=4,
    )
    return g, beta


def rotary(
    q: Tensor, k: Tensor, frequencies: Tensor, positions: Tensor, scaling: float = 1.0
) -> None:
    """``reference.rotary``; one launch."""
    R = frequencies.shape[0]
    if q.shape[2] < 2 * R or q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, {R} frequencies")
    q_heads, q_token_stride, q_head_stride = strides_of(q)
    k_heads, k_token_stride, k_head_stride = strides_of(k)
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
