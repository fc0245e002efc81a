"""The states of RWKV-7 from chunk to chunk, and the outputs of each chunk's tokens."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.rwkv7_prefill.tables import Tables
from wkvm.kernels.rwkv7_prefill.within import Effects


@triton.jit  # type: ignore[untyped-decorator]
def pass_kernel(  # type: ignore[no-untyped-def]
    moves,
    adds,
    decays,
    entering,
    state,
    rows,
    state_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """One program per row, head and block of values; see ``pass_states``."""
    n_blocks: tl.constexpr = BLOCK // BLOCK_V
    block = tl.program_id(0) % n_blocks
    head = (tl.program_id(0) // n_blocks) % H
    row = tl.program_id(0) // (n_blocks * H)
    slot = tl.load(rows + row * 4).to(tl.int64)
    first_chunk = tl.load(rows + row * 4 + 1)
    n_chunks = tl.load(rows + row * 4 + 2)
    keys = tl.arange(0, BLOCK)
    values = block * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key = keys < K
    inside = is_key[:, None] & (values < K)[None, :]
    within = keys[:, None] * K + values[None, :]
    at_state = state + slot * state_stride + head * (K * K) + within
    live = is_key[:, None] & (values < tl.where(slot >= 0, K, 0))[None, :]
    S = tl.load(at_state, mask=live, other=0.0).to(tl.float32)
    square = keys[:, None] * K + keys[None, :]
    in_square = is_key[:, None] & is_key[None, :]
    at = (first_chunk.to(tl.int64) * H + head) * (K * K)
    at_decay = decays + (first_chunk.to(tl.int64) * H + head) * K + keys
    for _ in tl.range(0, n_chunks, num_stages=N_STAGES):
        move = tl.load(moves + at + square, mask=in_square, other=0.0).to(tl.float32)
        add = tl.load(adds + at + within, mask=inside, other=0.0).to(tl.float32)
        decay = tl.load(at_decay, mask=is_key, other=0.0)
        tl.store(entering + at + within, S.to(entering.dtype.element_ty), mask=inside)
        S = tl.dot(move, S, decay[:, None] * S + add, input_precision=PRECISION)
        # As it would be if the row were cut here.
        S = S.to(state.dtype.element_ty).to(tl.float32)
        at += H * K * K
        at_decay += H * K
    if n_chunks > 0:
        tl.store(at_state, S.to(state.dtype.element_ty), mask=live)


def pass_states(
    effects: Effects,
    entering: Tensor,
    state: Tensor,
    tables: Tables,
    *,
    block_v: int = 16,
    n_warps: int = 4,
    n_stages: int = 3,
) -> None:
    """Take the state of each row through its chunks.

    Args:
        effects: of the chunks.
        entering: ``[n_chunks, H, K, K]``, overwritten: the state that enters each chunk.
        state: ``[N, H, K, K]`` of any float dtype and first stride: slots of ``tables`` are
            overwritten, no other is read or written. It is rounded to its dtype after each chunk.
        block_v: values of one program.
        n_warps, n_stages: of a program; chunks that are under way at a time.
    """
    _, H, K, V = state.shape
    if K != V or state.stride()[1:] != (K * V, V, 1):
        raise ValueError(f"a state {tuple(state.shape)}, strides {state.stride()}")
    block = triton.next_power_of_2(K)
    exact = effects.reads.dtype == torch.float32 and effects.moves.dtype == torch.float32
    pass_kernel[(len(tables.rows) * H * (block // block_v),)](
        effects.moves,
        effects.adds,
        effects.decays,
        entering,
        state,
        tables.rows,
        state.stride(0),
        H=H,
        K=K,
        BLOCK=block,
        BLOCK_V=block_v,
        PRECISION="ieee" if exact else "tf32",
        N_STAGES=n_stages,
        num_warps=n_warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def outputs_kernel(  # type: ignore[no-untyped-def]
    reads,
    own,
    entering,
    bonuses,
    v,
    gate,
    vectors,
    y,
    chunks,
    gate_stride,
    group_eps,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    L: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk and head; see ``outputs``."""
    chunk = tl.program_id(0) // H
    head = tl.program_id(0) % H
    length = tl.load(chunks + chunk * 4 + 1)
    if length > 0:
        C: tl.constexpr = H * K
        start = tl.load(chunks + chunk * 4).to(tl.int64)
        tokens = tl.arange(0, L)
        keys = tl.arange(0, BLOCK)
        is_key = keys < K
        live = (tokens < length)[:, None] & is_key[None, :]
        at = (start + tokens)[:, None] * C + head * K + keys[None, :]
        at_square = (chunk.to(tl.int64) * H + head) * (K * K) + keys[:, None] * K + keys[None, :]
        in_square = is_key[:, None] & is_key[None, :]
        read = tl.load(reads + at, mask=live, other=0.0)
        S = tl.load(entering + at_square, mask=in_square, other=0.0)
        of_chunk = tl.load(own + at, mask=live, other=0.0).to(tl.float32)
        out = tl.dot(read, S, of_chunk, input_precision=PRECISION)
        mean = tl.sum(out, 1) / K
        out = tl.where(is_key[None, :], out - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(out * out, 1) / K + group_eps)
        norm_w = tl.load(vectors + 6 * C + head * K + keys, mask=is_key, other=0.0)
        norm_b = tl.load(vectors + 7 * C + head * K + keys, mask=is_key, other=0.0)
        out = out * scale[:, None] * norm_w[None, :] + norm_b[None, :]
        at_bonus = bonuses + (start + tokens) * H + head
        bonus = tl.load(at_bonus, mask=tokens < length, other=0.0)
        out += bonus[:, None] * tl.load(v + at, mask=live, other=0.0).to(tl.float32)
        at_gate = gate + (start + tokens)[:, None] * gate_stride + head * K + keys[None, :]
        out *= tl.load(at_gate, mask=live, other=0.0).to(tl.float32)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=live)


def outputs(
    effects: Effects,
    entering: Tensor,
    v: Tensor,
    gate: Tensor,
    vectors: Tensor,
    y: Tensor,
    group_eps: float,
    tables: Tables,
) -> None:
    """What each token reads from its state; group norm, bonus and gate.

    Args:
        effects: of the chunks.
        entering: from ``pass_states``.
        v: ``[T, C]``: as ``within`` left it.
        gate: ``[T, C]``, any first stride: of the low-rank map g.
        vectors: ``[8, C]`` float32: the last two are weight and bias of the group norm.
        y: ``[T, C]``, overwritten.
    """
    H, K = effects.decays.shape[1:]
    exact = y.dtype == torch.float32
    outputs_kernel[(len(tables.chunks) * H,)](
        effects.reads,
        effects.own,
        entering,
        effects.bonuses,
        v,
        gate,
        vectors,
        y,
        tables.chunks,
        gate.stride(0),
        group_eps,
        H=H,
        K=K,
        BLOCK=triton.next_power_of_2(K),
        L=tables.chunk,
        PRECISION="ieee" if exact else "tf32",
        num_warps=4,
    )
