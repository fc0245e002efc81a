"""The RWKV-7 kernels for a GPU, in Triton: indexed by slot, in place.

Importing this module imports Triton. Signatures and contracts are those of ``reference``.
No kernel here is ever autotuned: each trial run would apply its update to the states once more.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.rows import Rows

SHIFT_BLOCK = 256
"""Channels of one program of the token shift."""

VALUE_BLOCK = 32
"""Columns of the state in one program: with 64 keys it holds 8 KiB of state in registers."""

STATE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit  # type: ignore[untyped-decorator]
def token_shift_kernel(  # type: ignore[no-untyped-def]
    x,
    state,
    delta,
    slots,
    offsets,
    state_stride,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DECODE: tl.constexpr,
):
    """One program per row and block of channels; see ``reference.token_shift``."""
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < C
    slot = tl.load(slots + row).to(tl.int64)
    if IS_DECODE:
        start = row.to(tl.int64)
        end = start + 1
    else:
        start = tl.load(offsets + row).to(tl.int64)
        end = tl.load(offsets + row + 1).to(tl.int64)
    if slot >= 0:
        at_state = state + slot * state_stride + channels
        previous = tl.load(at_state, mask=inside, other=0.0)
        for t in range(start, end):
            current = tl.load(x + t * C + channels, mask=inside, other=0.0)
            difference = previous.to(tl.float32) - current.to(tl.float32)
            tl.store(delta + t * C + channels, difference.to(delta.dtype.element_ty), mask=inside)
            previous = current
        tl.store(at_state, previous, mask=inside)
    else:
        nothing = tl.zeros([BLOCK], tl.float32).to(delta.dtype.element_ty)
        for t in range(start, end):
            tl.store(delta + t * C + channels, nothing, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def wkv7_kernel(  # type: ignore[no-untyped-def]
    r,
    w,
    k,
    v,
    kap,
    a,
    y,
    state,
    slots,
    offsets,
    state_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    IS_DECODE: tl.constexpr,
):
    """One program per row, head and block of values; see ``reference.wkv7``.

    The program keeps its columns of the state in registers over all tokens of the row.
    """
    n_blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    block = tl.program_id(0) % n_blocks
    head = (tl.program_id(0) // n_blocks) % H
    row = tl.program_id(0) // (n_blocks * H)
    keys = tl.arange(0, BLOCK_K)
    values = block * BLOCK_V + tl.arange(0, BLOCK_V)
    key_inside = keys < K
    value_inside = values < V
    slot = tl.load(slots + row).to(tl.int64)
    if IS_DECODE:
        start = row.to(tl.int64)
        end = start + 1
    else:
        start = tl.load(offsets + row).to(tl.int64)
        end = tl.load(offsets + row + 1).to(tl.int64)
    if slot >= 0:
        at_state = (
            state + slot * state_stride + head * (K * V) + keys[:, None] * V + values[None, :]
        )
        inside = key_inside[:, None] & value_inside[None, :]
        S = tl.load(at_state, mask=inside, other=0.0).to(tl.float32)
        for t in range(start, end):
            at_key = (t * H + head) * K + keys
            at_value = (t * H + head) * V + values
            kap_t = tl.load(kap + at_key, mask=key_inside, other=0.0)
            a_t = tl.load(a + at_key, mask=key_inside, other=0.0)
            w_t = tl.load(w + at_key, mask=key_inside, other=0.0)
            k_t = tl.load(k + at_key, mask=key_inside, other=0.0)
            r_t = tl.load(r + at_key, mask=key_inside, other=0.0)
            v_t = tl.load(v + at_value, mask=value_inside, other=0.0)
            removed = tl.sum(kap_t[:, None] * S, 0)
            S = (
                w_t[:, None] * S
                - (kap_t * a_t)[:, None] * removed[None, :]
                + k_t[:, None] * v_t[None, :]
            )
            tl.store(y + at_value, tl.sum(r_t[:, None] * S, 0), mask=value_inside)
        tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)
    else:
        for t in range(start, end):
            at_value = (t * H + head) * V + values
            tl.store(y + at_value, tl.zeros([BLOCK_V], tl.float32), mask=value_inside)


def token_shift(x: Tensor, state: Tensor, rows: Rows) -> Tensor:
    """See ``reference.token_shift``. One launch; no copy of the state is made.

    Raises:
        ValueError: a shape, dtype or stride differs from the contract.
    """
    T, C = x.shape
    _require(rows.n_tokens == T, f"x has {T} tokens, the rows have {rows.n_tokens}")
    _require(x.is_contiguous(), "x is not contiguous")
    _require(state.dtype == x.dtype, f"the state is {state.dtype}, x is {x.dtype}")
    _require(state.shape[1:] == (C,) and state.stride(1) == 1, "the state does not fit x")
    delta = torch.empty_like(x)
    token_shift_kernel[(len(rows.lengths), triton.cdiv(C, SHIFT_BLOCK))](
        x,
        state,
        delta,
        rows.slots,
        rows.slots if rows.is_decode else rows.offsets,
        state.stride(0),
        C=C,
        BLOCK=SHIFT_BLOCK,
        IS_DECODE=rows.is_decode,
        num_warps=2,
    )
    return delta


def wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kap: Tensor, a: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.wkv7``. One launch; no copy of the state is made.

    Raises:
        ValueError: a shape, dtype or stride differs from the contract.
    """
    T, H, K = r.shape
    V = v.shape[2]
    _require(rows.n_tokens == T, f"r has {T} tokens, the rows have {rows.n_tokens}")
    for name, tensor in (("r", r), ("w", w), ("k", k), ("kap", kap), ("a", a), ("v", v)):
        shape = (T, H, V if name == "v" else K)
        _require(tensor.shape == shape, f"{name} is {tuple(tensor.shape)}, expected {shape}")
        _require(tensor.dtype == torch.float32, f"{name} is {tensor.dtype}")
        _require(tensor.is_contiguous(), f"{name} is not contiguous")
    _require(state.dtype in STATE_DTYPES, f"the state is {state.dtype}")
    _require(state.shape[1:] == (H, K, V), f"the state is {tuple(state.shape)}")
    _require(state.stride()[1:] == (K * V, V, 1), "the state is not contiguous within a slot")
    y = torch.empty_like(v)
    block_v = min(VALUE_BLOCK, triton.next_power_of_2(V))
    wkv7_kernel[(len(rows.lengths) * H * triton.cdiv(V, block_v),)](
        r,
        w,
        k,
        v,
        kap,
        a,
        y,
        state,
        rows.slots,
        rows.slots if rows.is_decode else rows.offsets,
        state.stride(0),
        H=H,
        K=K,
        V=V,
        BLOCK_K=triton.next_power_of_2(K),
        BLOCK_V=block_v,
        IS_DECODE=rows.is_decode,
        num_warps=4,
    )
    return y


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
