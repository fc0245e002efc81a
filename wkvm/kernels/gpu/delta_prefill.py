"""The gated delta rule over rows of many tokens, in chunks, in place by slot.

``delta_within`` says what a chunk does to any state; here the states go through the chunks, one
after the other. Chunks begin with their row, and a state is rounded after each of them as if the
row were cut there: a prompt that is cut at multiples of 64 gets the same bits.

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

from wkvm.kernels.gpu.delta_decode import check, gated_delta_decode
from wkvm.kernels.gpu.delta_within import Cut, Effects, within
from wkvm.kernels.gpu.sizes import block_of
from wkvm.kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class Launch:
    """How the work is divided.

    Attributes:
        within_warps, score_warps: of programs of a chunk and head.
        block_v: values of a program that takes a state through its chunks.
        pass_warps, pass_stages: of such a program; chunks that are under way at a time.
    """

    within_warps: int = 8
    score_warps: int = 4
    block_v: int = 32
    pass_warps: int = 4
    pass_stages: int = 3


LAUNCHES = ((128, Launch()), (None, Launch(pass_warps=8, pass_stages=1)))
"""By the elements of a key at most: of 256 no two chunks fit a multiprocessor's shared memory."""


def launch_of(key_size: int) -> Launch:
    """That of ``LAUNCHES`` for such keys."""
    return next(launch for limit, launch in LAUNCHES if limit is None or key_size <= limit)


@triton.jit  # type: ignore[untyped-decorator]
def chunks_before(  # type: ignore[no-untyped-def]
    offsets, row, SIZE: tl.constexpr
):
    """Chunks of ``SIZE`` tokens of all rows before one."""
    n_chunks = 0
    for start in range(0, row, 32):
        rows = start + tl.arange(0, 32)
        is_before = rows < row
        lengths = tl.load(offsets + rows + 1, mask=is_before, other=0)
        lengths -= tl.load(offsets + rows, mask=is_before, other=0)
        n_chunks += tl.sum((lengths + SIZE - 1) // SIZE, 0)
    return n_chunks


@triton.jit  # type: ignore[untyped-decorator]
def pass_kernel(  # type: ignore[no-untyped-def]
    query_scores,
    queries,
    leaving,
    removing,
    written,
    decays,
    state,
    slots,
    offsets,
    out,
    state_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    L: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    PRECISION: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """One program per row, head and block of values; the states through their chunks."""
    n_blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    block = tl.program_id(0) % n_blocks
    head = tl.program_id(0) // n_blocks % H
    row = tl.program_id(0) // (n_blocks * H)
    start = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    slot = tl.load(slots + row).to(tl.int64)
    first = chunks_before(offsets, row, L)
    tokens = tl.arange(0, L)
    keys = tl.arange(0, BLOCK_K)
    values = block * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key = keys < K
    is_value = values < V
    at_state = state + slot * state_stride + head * (K * V)
    at_state = at_state + keys[:, None] * V + values[None, :]
    held = is_key[:, None] & (values < tl.where(slot >= 0, V, 0))[None, :]
    S = tl.load(at_state, mask=held, other=0.0).to(tl.float32)
    base = (start.to(tl.int64) * H + head).to(tl.int64)
    at_k = base * K + tokens[:, None] * (H * K) + keys[None, :]
    at_v = base * V + tokens[:, None] * (H * V) + values[None, :]
    at_score = base * L + tokens[:, None] * (H * L) + tokens[None, :]
    if BY_CHANNEL:
        at_decay = decays + (first.to(tl.int64) * H + head) * K + keys
    else:
        at_decay = decays + first.to(tl.int64) * H + head
    for at in tl.range(start, end, L, num_stages=N_STAGES):
        is_token = tokens < end - at
        live = is_token[:, None] & is_key[None, :]
        inside = is_token[:, None] & is_value[None, :]
        remove = tl.load(removing + at_k, mask=live, other=0.0)
        query = tl.load(queries + at_k, mask=live, other=0.0)
        leave = tl.load(leaving + at_k, mask=live, other=0.0)
        P = tl.load(query_scores + at_score, mask=is_token[:, None], other=0.0)
        write = tl.load(written + at_v, mask=inside, other=0.0).to(tl.float32)
        narrow = S.to(remove.dtype)
        write -= tl.dot(remove, narrow, input_precision=PRECISION)
        read = tl.dot(query, narrow, input_precision=PRECISION)
        write = write.to(remove.dtype)
        read = tl.dot(P, write, read, input_precision=PRECISION)
        if BY_CHANNEL:
            decay = tl.load(at_decay, mask=is_key, other=0.0)
            S *= decay[:, None]
            at_decay += H * K
        else:
            S *= tl.load(at_decay)
            at_decay += H
        S = tl.dot(tl.trans(leave), write, S, input_precision=PRECISION)
        # As it would be if the row were cut here.
        S = S.to(state.dtype.element_ty).to(tl.float32)
        read = tl.where(slot >= 0, read, 0.0)
        tl.store(out + at_v, read.to(out.dtype.element_ty), mask=inside)
        at_k += L * H * K
        at_v += L * H * V
        at_score += L * H * L
    tl.store(at_state, S.to(state.dtype.element_ty), mask=held)


def pass_states(
    effects: Effects, state: Tensor, rows: Rows, cut: Cut, launch: Launch, dtype: torch.dtype
) -> Tensor:
    """Take the state of each row through its chunks; outputs ``[T, H, V]`` in ``dtype``."""
    T, H, V = effects.written.shape
    K = effects.queries.shape[2]
    block_v = min(block_of(V), launch.block_v)
    out = torch.empty(T, H, V, dtype=dtype, device=state.device)
    pass_kernel[(len(rows.lengths) * H * triton.cdiv(V, block_v),)](
        effects.query_scores,
        effects.queries,
        effects.leaving,
        effects.removing,
        effects.written,
        effects.decays,
        state,
        rows.slots,
        rows.offsets,
        out,
        state.stride(0),
        H=H,
        K=K,
        V=V,
        BLOCK_K=block_of(K),
        BLOCK_V=block_v,
        L=cut.chunk,
        BY_CHANNEL=effects.decays.shape[2] > 1,
        PRECISION=cut.precision,
        N_STAGES=launch.pass_stages,
        num_warps=launch.pass_warps,
    )
    return out


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: Rows,
    *,
    launch: Launch | None = None,
) -> Tensor:
    """``reference.gated_delta``.

    Rows of many tokens are two launches, or three with a decay for each channel, and take
    ``3 K + V + 64`` elements a token and head of memory meanwhile. Their products have
    operands in the dtype of ``v``; what is added up is float32, and so may states be.
    """
    if rows.is_decode:
        return gated_delta_decode(q, k, v, g, beta, state, rows.slots)
    check(q, k, v, g, beta, state)
    launch, cut = launch or launch_of(q.shape[2]), Cut.of(rows, v.dtype)
    effects = within(
        q,
        k,
        v,
        g,
        beta,
        rows,
        cut,
        n_warps=launch.within_warps,
        n_score_warps=launch.score_warps,
    )
    return pass_states(effects, state, rows, cut, launch, v.dtype)
