"""All between the first and the last products of the time mix, with the state in registers."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.rwkv7_decode.common import Move, ahead_chunks, launch_options, prefetch
from wkvm.kernels.rwkv7_decode.deferred import (
    ENTRY,
    LOG_DECAY,
    Ring,
    absorbed,
    output_of_ring,
    put_entry,
    ring_absorbed,
    ring_loaded,
)

STATE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit  # type: ignore[untyped-decorator]
def _matrix(weight, channels, inside, RANK: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The second matrix of a low-rank map for the channels of one head."""
    ranks = tl.arange(0, BLOCK)
    both = inside[:, None] & (ranks < RANK)[None, :]
    return tl.load(weight + channels[:, None] * RANK + ranks[None, :], mask=both, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def applied_to_row(matrix, hidden, RANK: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The map of one row for these channels."""
    ranks = tl.arange(0, BLOCK)
    vector = tl.load(hidden + ranks, mask=ranks < RANK, other=0.0).to(tl.float32)
    return tl.sum(matrix.to(tl.float32) * vector[None, :], 1)


@triton.jit  # type: ignore[untyped-decorator]
def wkv_kernel(  # type: ignore[no-untyped-def]
    rkv,
    v_first,
    hidden,
    second,
    second_weight,
    vectors,
    y,
    state,
    shift,
    normed,
    ahead,
    ring,
    order,
    slots,
    state_stride,
    shift_stride,
    ring_stride,
    B,
    group_eps,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK_V: tl.constexpr,
    RANK_W: tl.constexpr,
    RANK_A: tl.constexpr,
    RANK_G: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_G: tl.constexpr,
    IS_FIRST: tl.constexpr,
    EXPANDS: tl.constexpr,
    MOVES: tl.constexpr,
    R: tl.constexpr,
    N_AHEAD: tl.constexpr,
    N_THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row and head, with the head's state in registers; see ``wkv``."""
    row = tl.program_id(0) // H
    head = tl.program_id(0) % H
    if R > 0:
        slot = tl.load(order + B + row).to(tl.int64)
        n = tl.load(order + 2 * B + row)
        row = tl.load(order + row)
    else:
        slot = tl.load(slots + row).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
    C: tl.constexpr = H * K
    keys = tl.arange(0, BLOCK)
    values = tl.arange(0, BLOCK)
    key_inside = keys < K
    value_inside = values < K
    at_key = head * K + keys
    at_value = head * K + values
    row = row.to(tl.int64)
    inside = key_inside[:, None] & value_inside[None, :]
    at_state = state + slot * state_stride + head * (K * K) + keys[:, None] * K + values[None, :]
    if slot >= 0:
        # Nothing else in a step writes this layer's states, so this need not wait.
        if R > 0:
            # Before the state, which takes longest to come.
            at_ring = ring + slot * ring_stride + head * ((R - 1) * ENTRY * K)
            entries = ring_loaded(at_ring, n, keys, values, K, R)
        if BLOCK == K:  # noqa: SIM108
            S = tl.load(at_state)
        else:
            S = tl.load(at_state, mask=inside, other=0.0)
        S = S.to(tl.float32)
        w0 = tl.load(vectors + at_key, mask=key_inside, other=0.0)
        a0 = tl.load(vectors + C + at_key, mask=key_inside, other=0.0)
        k_k = tl.load(vectors + 3 * C + at_key, mask=key_inside, other=0.0)
        k_a = tl.load(vectors + 4 * C + at_key, mask=key_inside, other=0.0)
        r_k = tl.load(vectors + 5 * C + at_key, mask=key_inside, other=0.0)
        norm_w = tl.load(vectors + 6 * C + at_value, mask=value_inside, other=0.0)
        norm_b = tl.load(vectors + 7 * C + at_value, mask=value_inside, other=0.0)
        if EXPANDS:
            if not IS_FIRST:
                matrix_v = _matrix(second_weight, at_value, value_inside, RANK_V, BLOCK_V)
            second_weight += C * RANK_V
            matrix_w = _matrix(second_weight, at_key, key_inside, RANK_W, BLOCK_W)
            second_weight += C * RANK_W
            matrix_a = _matrix(second_weight, at_key, key_inside, RANK_A, BLOCK_A)
            second_weight += C * RANK_A
            matrix_g = _matrix(second_weight, at_value, value_inside, RANK_G, BLOCK_G)
        if N_AHEAD > 0:
            prefetch(ahead, tl.program_id(0), tl.num_programs(0), N_AHEAD, N_THREADS)
        if PDL:
            gdc_wait()
        part = B * C
        at_row = rkv + row * C
        r = tl.load(at_row + at_key, mask=key_inside, other=0.0).to(tl.float32)
        k = tl.load(at_row + part + at_key, mask=key_inside, other=0.0).to(tl.float32)
        v = tl.load(at_row + 2 * part + at_value, mask=value_inside, other=0.0).to(tl.float32)
        if EXPANDS:
            hidden += row * (RANK_V + RANK_W + RANK_A + RANK_G)
            if not IS_FIRST:
                lerp = applied_to_row(matrix_v, hidden, RANK_V, BLOCK_V)
            hidden += RANK_V
            w = applied_to_row(matrix_w, hidden, RANK_W, BLOCK_W)
            hidden += RANK_W
            a = applied_to_row(matrix_a, hidden, RANK_A, BLOCK_A)
            hidden += RANK_A
            g = applied_to_row(matrix_g, hidden, RANK_G, BLOCK_G)
        else:
            at_row = second + row * (4 * C)
            if not IS_FIRST:
                lerp = tl.load(at_row + at_value, mask=value_inside, other=0.0).to(tl.float32)
            w = tl.load(at_row + C + at_key, mask=key_inside, other=0.0).to(tl.float32)
            a = tl.load(at_row + 2 * C + at_key, mask=key_inside, other=0.0).to(tl.float32)
            g = tl.load(at_row + 3 * C + at_value, mask=value_inside, other=0.0).to(tl.float32)
        k_raw = k
        w_low = w
        a_low = a
        w = tl.exp(tl.sigmoid(w0 + w) * LOG_DECAY)
        a = tl.sigmoid(a0 + a)
        if not IS_FIRST:
            v0 = tl.load(vectors + 2 * C + at_value, mask=value_inside, other=0.0)
            at_first = v_first + 2 * part + row * C + at_value
            of_first = tl.load(at_first, mask=value_inside, other=0.0).to(tl.float32)
            v += (of_first - v) * tl.sigmoid(v0 + lerp)
        kap = k * k_k
        k *= 1.0 + (a - 1.0) * k_a
        kap /= tl.sqrt(tl.sum(kap * kap, 0)) + 1e-12
        away = kap * a
        bonus = tl.sum(r * k * r_k, 0)
        if R == 0:
            of_key = tl.sum(k * r, 0)
            of_removal = tl.sum(away * r, 0)
            # Both sums over the old state: what the new one adds to the output is rank one each.
            removed = tl.sum(kap[:, None] * S, 0)
            out = tl.sum((w * r)[:, None] * S, 0)
            S = w[:, None] * S - away[:, None] * removed[None, :] + k[:, None] * v[None, :]
            out += of_key * v - of_removal * removed
            if BLOCK == K:
                tl.store(at_state, S.to(state.dtype.element_ty))
            else:
                tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)
        elif n == R - 1:
            decay = tl.full([BLOCK], 1.0, tl.float32)
            S, decay = ring_absorbed(S, decay, at_ring, n, w0, a0, k_k, k_a, keys, values, K)
            S, decay = absorbed(S, decay, w, kap, away, k, v)
            S *= decay[:, None]
            out = tl.sum(r[:, None] * S, 0)
            if BLOCK == K:
                tl.store(at_state, S.to(state.dtype.element_ty))
            else:
                tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)
        else:
            put_entry(at_ring, n, k_raw, w_low, a_low, v, keys, values, K)
            of_key = tl.sum(k * r, 0)
            of_removal = tl.sum(away * r, 0)
            u = w * r - kap * of_removal
            u, out = output_of_ring(u, of_key * v, entries, n, w0, a0, k_k, k_a, R)
            out += tl.sum(u[:, None] * S, 0)
        mean = tl.sum(tl.where(value_inside, out, 0.0), 0) / K
        centred = tl.where(value_inside, out - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 0) / K + group_eps)
        out = centred * scale * norm_w + norm_b + bonus * v
        tl.store(y + row * C + at_value, (out * g).to(y.dtype.element_ty), mask=value_inside)
        if MOVES:
            moved = tl.load(normed + row * C + at_value, mask=value_inside)
            tl.store(shift + slot * shift_stride + at_value, moved, mask=value_inside)
    else:
        if PDL:
            gdc_wait()
        nothing = tl.zeros([BLOCK], tl.float32).to(y.dtype.element_ty)
        tl.store(y + row * C + at_value, nothing, mask=value_inside)


def wkv(
    rkv: Tensor,
    v_first: Tensor,
    hidden: Tensor,
    vectors: Tensor,
    ranks: tuple[int, int, int, int],
    y: Tensor,
    state: Tensor,
    slots: Tensor,
    group_eps: float,
    *,
    second: Tensor | None = None,
    second_weight: Tensor | None = None,
    is_first: bool,
    move: Move | None = None,
    ring: Ring | None = None,
    ahead: Tensor | None = None,
    n_warps: int,
    pdl: bool = False,
) -> None:
    """Everything between the first and the last products of the time mix; states in place.

    Decay, rate of removal and value residual from the low-rank maps; normalised keys; the
    recurrence of ``reference.wkv7`` over one token; group norm, bonus and gate.

    Args:
        rkv: ``[3, B, C]``: r, k, v.
        v_first: ``rkv`` of the first layer.
        hidden: ``[B, sum of ranks]``: of the low-rank maps v, w, a and g, activated.
        vectors: ``[8, C]`` float32: w0, a0, v0, k_k, k_a, r_k; weight and bias of the group norm.
        ranks: of the maps v, w, a, g.
        y: ``[B, C]``, overwritten; zeros for pad rows.
        state: ``[N, H, K, K]`` float32, float16 or bfloat16, any first stride; the arithmetic is
            float32. Slots in ``slots`` are overwritten, no other is read or written.
        slots: ``[B]`` int32, distinct where not negative. With a ring, its rows are used instead.
        second: ``[B, 4, C]``: outputs of the four maps. If it is None they are computed here from
        second_weight: flat, the second matrices ``[C, rank]`` of the four maps one after another.
        is_first: of the layers: v is its own residual.
        move: a token shift to overwrite.
        ring: of deferred writes. Then a state is overwritten only when its ring is full: see
            ``Ring``.
        ahead: as in ``gemv``.
        pdl: as in ``mix``.
    """
    B = rkv.shape[1]
    _, H, K, V = state.shape
    if K != V or state.stride()[1:] != (K * V, V, 1) or state.dtype not in STATE_DTYPES:
        raise ValueError(f"a state {tuple(state.shape)}, {state.dtype}, strides {state.stride()}")
    if ring is not None:
        ring.check(state, B)
    if (second is None) == (second_weight is None):
        raise ValueError("exactly one of second and second_weight is needed")
    rank_v, rank_w, rank_a, rank_g = ranks
    wkv_kernel[(B * H,)](
        rkv,
        v_first,
        hidden,
        rkv if second is None else second,
        rkv if second_weight is None else second_weight,
        vectors,
        y,
        state,
        y if move is None else move.shift,
        y if move is None else move.normed,
        vectors if ahead is None else ahead,
        y if ring is None else ring.entries,
        slots if ring is None else ring.rows,
        slots,
        state.stride(0),
        0 if move is None else move.shift.stride(0),
        0 if ring is None else ring.entries.stride(0),
        B,
        group_eps,
        H=H,
        K=K,
        BLOCK=triton.next_power_of_2(K),
        RANK_V=rank_v,
        RANK_W=rank_w,
        RANK_A=rank_a,
        RANK_G=rank_g,
        BLOCK_V=triton.next_power_of_2(rank_v),
        BLOCK_W=triton.next_power_of_2(rank_w),
        BLOCK_A=triton.next_power_of_2(rank_a),
        BLOCK_G=triton.next_power_of_2(rank_g),
        IS_FIRST=is_first,
        EXPANDS=second is None,
        MOVES=move is not None,
        R=0 if ring is None else ring.length,
        N_AHEAD=ahead_chunks(ahead),
        N_THREADS=n_warps * 32,
        PDL=pdl,
        num_warps=n_warps,
        **launch_options(pdl),
    )
