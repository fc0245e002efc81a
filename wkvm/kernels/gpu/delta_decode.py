"""The gated delta rule over one token of each row, in place by slot.

With the old S, w = e^g and u = beta (v - S^T (w k)):

    S <- diag(w) S + k u^T,    o = S_old^T (w q) + (k^T q) u

so both sums are of the old S: each element of a state is read once and written once, and what a
program does between is one pass over registers. A program has all keys of a block of values, so
blocks of values need nothing of each other.

The gates can be made in the same launch. The convolution has one of its own before it: here each
program would make its own queries and keys, as all others of its key head would.

No kernel here is ever autotuned: each trial run would apply its update to the states once more.
Importing this module imports Triton.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.gpu.sizes import STATE_DTYPES
from wkvm.kernels.gpu.ssd_decode import softplus
from wkvm.kernels.rwkv7_decode.common import launch_options


@dataclass(frozen=True, slots=True)
class Launch:
    """How a state is divided among programs.

    Attributes:
        block_v: values of a program, at most; 32 float32 values are one line of the cache.
        n_warps: of a program. One warp has no barriers in its sums over the keys.
    """

    block_v: int
    n_warps: int


LAUNCHES = ((4, Launch(16, 1)), (32, Launch(64, 2)), (None, Launch(32, 1)))
"""By how many rows there are at most: the fastest of those that were measured on an H200."""


def launch_of(n_rows: int) -> Launch:
    """That of ``LAUNCHES`` for so many rows."""
    return next(launch for limit, launch in LAUNCHES if limit is None or n_rows <= limit)


@triton.jit  # type: ignore[untyped-decorator]
def delta_decode_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    decay,
    strength,
    A,
    dt_bias,
    state,
    slots,
    out,
    q_stride,
    k_stride,
    v_stride,
    decay_stride,
    strength_stride,
    state_stride,
    scale,
    max_strength,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BY_KEY: tl.constexpr,
    RAW: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row, head and block of values; see ``delta_step``."""
    n_blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    block = tl.program_id(0) % n_blocks
    head = (tl.program_id(0) // n_blocks) % H
    row = (tl.program_id(0) // (n_blocks * H)).to(tl.int64)
    key_head = head // GROUP
    keys = tl.arange(0, BLOCK_K)
    values = block * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key = keys < K
    is_value = values < V
    at_out = out + (row * H + head) * V + values
    slot = tl.load(slots + row).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
    if slot >= 0:
        inside = is_key[:, None] & is_value[None, :]
        at_state = state + slot * state_stride + head * (K * V)
        at_state = at_state + keys[:, None] * V + values[None, :]
        S = tl.load(at_state, mask=inside, other=0.0).to(tl.float32)
        if PDL:
            # The launch before made what follows.
            gdc_wait()
        at_key = key_head * K + keys
        query = tl.load(q + row * q_stride + at_key, mask=is_key, other=0.0)
        key = tl.load(k + row * k_stride + at_key, mask=is_key, other=0.0)
        value = tl.load(v + row * v_stride + head * V + values, mask=is_value, other=0.0)
        beta = tl.load(strength + row * strength_stride + head).to(tl.float32)
        if BY_KEY:
            at_decay = decay + row * decay_stride + head * K + keys
            g = tl.load(at_decay, mask=is_key, other=0.0).to(tl.float32)
            if RAW:
                g += tl.load(dt_bias + head * K + keys, mask=is_key, other=0.0)
        else:
            g = tl.load(decay + row * decay_stride + head).to(tl.float32)
            if RAW:
                g += tl.load(dt_bias + head)
        if RAW:
            g = tl.load(A + head) * softplus(g)
            beta = max_strength * tl.sigmoid(beta)
        query = query.to(tl.float32)
        key = key.to(tl.float32)
        query *= tl.rsqrt(tl.sum(query * query, 0) + 1e-6) * scale
        key *= tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
        both = tl.sum(query * key, 0)
        if BY_KEY:
            S *= tl.exp(g)[:, None]
        else:
            S *= tl.exp(g)
        removed = tl.sum(key[:, None] * S, 0)
        read = tl.sum(query[:, None] * S, 0)
        u = beta * (value.to(tl.float32) - removed)
        S += key[:, None] * u[None, :]
        tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)
        tl.store(at_out, (read + both * u).to(out.dtype.element_ty), mask=is_value)
    else:
        if PDL:
            gdc_wait()
        nothing = tl.zeros([BLOCK_V], tl.float32).to(out.dtype.element_ty)
        tl.store(at_out, nothing, mask=is_value)


@dataclass(frozen=True, slots=True)
class RawGates:
    """What ``delta_gates`` would be given.

    Attributes:
        decay: ``[B, H]`` or ``[B, H, K]``; strength: ``[B, H]``; one piece within a row.
        A: ``[H]`` float32, negative; dt_bias: float32, as ``decay``.
        max_strength: 1, or 2 where eigenvalues may be negative.
    """

    decay: Tensor
    strength: Tensor
    A: Tensor
    dt_bias: Tensor
    max_strength: float


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    raw: bool = False,
) -> None:
    """See that the arguments of ``gated_delta`` fit one another; ``raw`` gates may be narrow.

    Raises:
        ValueError: they do not, or a token of one of them is in more than one piece.
    """
    T, Hk, K = q.shape
    _, H, _, V = state.shape
    shapes = {"k": (k, (T, Hk, K)), "v": (v, (T, H, V)), "beta": (beta, (T, H))}
    shapes["g"] = (g, (T, H, K) if g.dim() == 3 else (T, H))
    for name, (tensor, shape) in {"q": (q, (T, Hk, K)), **shapes}.items():
        if tensor.shape != shape or not tensor[0].is_contiguous():
            raise ValueError(
                f"{name} {tuple(tensor.shape)}, strides {tensor.stride()}, where {shape} is due"
            )
    if H % Hk or not (raw or g.dtype == beta.dtype == torch.float32):
        raise ValueError(f"{Hk} heads of keys for {H}, g {g.dtype}, beta {beta.dtype}")
    whole = state.shape[2] == K and state[0].is_contiguous()
    if not whole or state.dtype not in STATE_DTYPES:
        raise ValueError(f"a state {tuple(state.shape)}, {state.dtype}, strides {state.stride()}")


def gated_delta_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    *,
    launch: Launch | None = None,
    pdl: bool = False,
) -> Tensor:
    """``reference.gated_delta`` over rows of one token.

    Args:
        q, k: ``[B, Hk, K]``; v: ``[B, H, V]``; any first stride, one piece within a row.
        g: ``[B, H]`` or, with a decay for each key, ``[B, H, K]``, float32.
        beta: ``[B, H]`` float32.
        state: ``[N, H, K, V]`` float32, float16 or bfloat16, any first stride. Slots in ``slots``
            are overwritten, no other is read or written.
        slots: ``[B]`` int32, distinct where not negative; a negative one is a pad row.
        launch: None for the one of ``LAUNCHES``.
        pdl: launched dependently: slots and states are read while the launch before still runs,
            and the launch after may begin. What wrote them must have ended: between it and this
            there must be a launch that is not dependent.

    Returns:
        ``[B, H, V]`` in the dtype of ``v``; zeros for pad rows. One launch.

    Raises:
        ValueError: a shape, dtype or stride differs from the above.
    """
    check(q, k, v, g, beta, state)
    return _launched(q, k, v, g, beta, None, state, slots, launch, pdl=pdl)


def delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: RawGates,
    state: Tensor,
    slots: Tensor,
    *,
    launch: Launch | None = None,
    pdl: bool = False,
) -> Tensor:
    """``reference.delta_mix`` over rows of one token, but for its convolution.

    Args:
        q, k, v, state, slots, launch, pdl: as for ``gated_delta_decode``.

    Returns:
        ``[B, H, V]`` in the dtype of ``v``; zeros for pad rows. One launch.

    Raises:
        ValueError: a shape, dtype or stride differs from the above.
    """
    check(q, k, v, gates.decay, gates.strength, state, raw=True)
    return _launched(q, k, v, gates.decay, gates.strength, gates, state, slots, launch, pdl=pdl)


def _launched(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    strength: Tensor,
    gates: RawGates | None,
    state: Tensor,
    slots: Tensor,
    launch: Launch | None,
    *,
    pdl: bool,
) -> Tensor:
    B, Hk, K = q.shape
    _, H, _, V = state.shape
    launch = launch or launch_of(B)
    block_v = min(launch.block_v, triton.next_power_of_2(V))
    out = torch.empty(B, H, V, dtype=v.dtype, device=v.device)
    delta_decode_kernel[(B * H * triton.cdiv(V, block_v),)](
        q,
        k,
        v,
        decay,
        strength,
        decay if gates is None else gates.A,
        decay if gates is None else gates.dt_bias,
        state,
        slots,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        decay.stride(0),
        strength.stride(0),
        state.stride(0),
        K**-0.5,
        1.0 if gates is None else gates.max_strength,
        H=H,
        GROUP=H // Hk,
        K=K,
        V=V,
        BLOCK_K=triton.next_power_of_2(K),
        BLOCK_V=block_v,
        BY_KEY=decay.dim() == 3,
        RAW=gates is not None,
        PDL=pdl,
        num_warps=launch.n_warps,
        **launch_options(pdl),
    )
    return out
