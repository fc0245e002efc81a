"""The recurrence of RWKV-7 within chunks: what each chunk does to any state that enters it.

With P[t] the product of the decays of a chunk's tokens up to t, and S what enters it, each token
removes and adds

    u[t] = -(kap[t] * P[t-1])^T S + sum over j < t of  A_b[t, j] u[j] + A_k[t, j] v[j]
    A_b[t, j] = -sum over keys of kap[t] (kap a)[j] P[t-1] / P[j];   A_k with k[j] in its place

so with T the inverse of the triangle 1 - A_b, u = T (-(kap P)^T S + A_k v): linear in S. Then

    y  = reads S + own                      for the tokens of the chunk
    S' = decay S + moves S + adds           for what leaves it

This module makes the five from the outputs of the products, for all chunks and heads side by side;
``passing`` takes the states through the chunks. Quotients of P are made of two factors that are
relative to the middle of the chunk: of 64 tokens a decay is at least exp(-39), so neither
overflows, nor loses what a product of the two keeps.

Source of the algebra: Yang et al., "Parallelizing Linear Transformers with the Delta Rule",
arXiv:2406.06484, with a decay for each key; Peng et al., arXiv:2503.14456.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.rwkv7_prefill.tables import Tables

DEFAULT_OPTIONS: Mapping[str, int] = MappingProxyType({"num_warps": 4, "BASE": 8})

LOG2_DECAY = tl.constexpr(-0.6065306597126334 * 1.4426950408889634)
"""The lowest decay of a token, as a logarithm to base 2."""


@triton.jit  # type: ignore[untyped-decorator]
def inverse_of_one_minus(  # type: ignore[no-untyped-def]
    A, L: tl.constexpr, BASE: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr
):
    """``(1 - A)^-1`` of a strictly lower triangle ``[L, L]``, L a power of two from 16 to 64.

    Blocks of ``BASE`` row by row, without powers of A, which would be large where T is not; then
    pairs of blocks, of which the inverse is exact in one term.
    """
    n: tl.constexpr = L // BASE
    block = tl.arange(0, n)
    in_block = tl.arange(0, BASE)
    same = block[:, None, None, None] == block[None, None, :, None]
    D = tl.sum(tl.where(same, tl.reshape(A, [n, BASE, n, BASE]), 0.0), 2)
    X = D
    for row in tl.static_range(1, BASE):
        is_row = (in_block == row)[None, :, None]
        of_row = tl.sum(tl.where(is_row, D, 0.0), 1)
        of_row += tl.sum(of_row[:, :, None] * X, 1)
        X = tl.where(is_row, of_row[:, None, :], X)
    X += tl.where(in_block[:, None] == in_block[None, :], 1.0, 0.0)[None, :, :]
    T = tl.reshape(tl.where(same, X[:, :, None, :], 0.0), [L, L])
    at = tl.arange(0, L)
    for level in tl.static_range(4):
        if (BASE << level) < L:
            of_size = at // (BASE << level)
            of_pair = at // (BASE << (level + 1))
            off = (of_size[:, None] != of_size[None, :]) & (of_pair[:, None] == of_pair[None, :])
            of_pairs = tl.where(off, A, 0.0).to(OPERAND)
            right = T.to(OPERAND)
            left = tl.dot(right, of_pairs, input_precision=PRECISION).to(OPERAND)
            T = tl.dot(left, right, T, input_precision=PRECISION)
    return T


@triton.jit  # type: ignore[untyped-decorator]
def within_kernel(  # type: ignore[no-untyped-def]
    rkv,
    v_first,
    second,
    vectors,
    reads,
    own,
    moves,
    adds,
    decays,
    bonuses,
    chunks,
    part_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    L: tl.constexpr,
    BASE: tl.constexpr,
    OPERAND: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk and head; see ``within``."""
    chunk = tl.program_id(0) // H
    head = tl.program_id(0) % H
    length = tl.load(chunks + chunk * 4 + 1)
    if length > 0:
        C: tl.constexpr = H * K
        start = tl.load(chunks + chunk * 4).to(tl.int64)
        tokens = tl.arange(0, L)
        keys = tl.arange(0, BLOCK)
        live = (tokens < length)[:, None] & (keys < K)[None, :]
        # Scalars to the pointers, and 32 bits for the rest: addresses would take most registers.
        at = tokens[:, None] * C + keys[None, :]
        base = start * C + head * K
        at_second = (
            second + (start * (4 * C) + head * K) + (tokens[:, None] * (4 * C) + keys[None, :])
        )
        at_r = rkv + base
        at_k = at_r + part_stride
        at_v = at_k + part_stride
        at_vector = vectors + head * K + keys
        is_key = keys < K
        # A token that is not there decays nothing, removes nothing, and adds nothing.
        w = tl.load(at_second + C, mask=live, other=0.0).to(tl.float32)
        w += tl.load(at_vector, mask=is_key, other=0.0)[None, :]
        log_w = tl.where(live, tl.sigmoid(w) * LOG2_DECAY, 0.0)
        total = tl.sum(log_w, 0)
        at_decay = decays + (chunk.to(tl.int64) * H + head) * K + keys
        tl.store(at_decay, tl.exp2(total), mask=is_key)
        half = 0.5 * total
        until = tl.cumsum(log_w, 0) - half[None, :]
        half = tl.exp2(half)
        k = tl.load(at_k + at, mask=live, other=0.0).to(tl.float32)
        a = tl.load(at_second + 2 * C, mask=live, other=0.0).to(tl.float32)
        a = tl.sigmoid(a + tl.load(at_vector + C, mask=is_key, other=0.0)[None, :])
        kap = k * tl.load(at_vector + 3 * C, mask=is_key, other=0.0)[None, :]
        kap *= (1.0 / (tl.sqrt(tl.sum(kap * kap, 1)) + 1e-12))[:, None]
        k_a = tl.load(at_vector + 4 * C, mask=is_key, other=0.0)
        outof = tl.exp2(-until)
        k *= (1.0 + (a - 1.0) * k_a[None, :]) * outof
        removal = (-kap * tl.exp2(until - log_w)).to(OPERAND)
        b_t = tl.trans((kap * a * outof).to(OPERAND))
        row = tokens[:, None]
        column = tokens[None, :]
        A = tl.dot(removal, b_t, input_precision=PRECISION)
        A = tl.where(row > column, A, 0.0)
        T = inverse_of_one_minus(A, L, BASE, OPERAND, PRECISION).to(OPERAND)

        base_square = (chunk.to(tl.int64) * H + head) * (K * K)
        at_square = keys[:, None] * K + keys[None, :]
        in_square = is_key[:, None] & is_key[None, :]
        removed = tl.dot(T, removal, input_precision=PRECISION).to(OPERAND)
        move = tl.dot(b_t, removed, input_precision=PRECISION) * half[:, None] * half[None, :]
        tl.store(moves + base_square + at_square, move.to(moves.dtype.element_ty), mask=in_square)

        v = tl.load(at_v + at, mask=live, other=0.0).to(tl.float32)
        v0 = tl.load(at_vector + 2 * C, mask=is_key, other=0.0)
        lerp = tl.load(at_second, mask=live, other=0.0).to(tl.float32)
        of_first = tl.load(v_first + base + at, mask=live, other=0.0).to(tl.float32)
        v += (of_first - v) * tl.sigmoid(v0[None, :] + lerp)
        tl.store(at_v + at, v.to(rkv.dtype.element_ty), mask=live)
        # What a token adds itself is most of a state and of an output: here more digits.
        v = v.to(NARROW)
        A = tl.dot(removal, tl.trans(k.to(OPERAND)), input_precision=PRECISION)
        A = tl.where(row > column, A, 0.0).to(NARROW)
        u = tl.dot(A, v, input_precision=PRECISION).to(OPERAND)
        u = tl.dot(T, u, input_precision=PRECISION).to(OPERAND)
        add = tl.dot(b_t, u, input_precision=PRECISION) * half[:, None]
        k_t = tl.trans((k * half[None, :]).to(NARROW))
        add = tl.dot(k_t, v, add, input_precision=PRECISION)
        tl.store(adds + base_square + at_square, add.to(adds.dtype.element_ty), mask=in_square)

        r = tl.load(at_r + at, mask=live, other=0.0).to(tl.float32) * tl.exp2(until)
        r_k = tl.load(at_vector + 5 * C, mask=is_key, other=0.0)
        bonus = tl.sum(r * k * r_k[None, :], 1)
        tl.store(bonuses + (start + tokens) * H + head, bonus, mask=tokens < length)
        A = tl.dot(r, tl.trans(k), input_precision=PRECISION)
        A = tl.where(row >= column, A, 0.0).to(NARROW)
        out = tl.dot(A, v, input_precision=PRECISION)
        A = tl.dot(r.to(OPERAND), b_t, input_precision=PRECISION)
        R = tl.where(row >= column, A, 0.0).to(OPERAND)
        out = tl.dot(R, u, out, input_precision=PRECISION)
        tl.store(own + base + at, out.to(own.dtype.element_ty), mask=live)
        read = tl.dot(R, removed, r, input_precision=PRECISION) * half[None, :]
        tl.store(reads + base + at, read.to(reads.dtype.element_ty), mask=live)


@dataclass(frozen=True, slots=True)
class Effects:
    """What chunks do to a state that enters them, for all heads.

    Attributes:
        reads, own: ``[T, C]``: of S and of nothing, to the outputs of each token.
        moves: ``[n_chunks, H, K, K]``: of S to what leaves the chunk, without the decay.
        adds: ``[n_chunks, H, K, K]``: what leaves the chunk if zeros enter.
        decays: ``[n_chunks, H, K]`` float32.
        bonuses: ``[T, H]`` float32: of each token's v to its output, after the group norm.
    """

    reads: Tensor
    own: Tensor
    moves: Tensor
    adds: Tensor
    decays: Tensor
    bonuses: Tensor


def within(
    rkv: Tensor,
    v_first: Tensor,
    second: Tensor,
    vectors: Tensor,
    effects: Effects,
    tables: Tables,
    *,
    options: Mapping[str, int] = DEFAULT_OPTIONS,
) -> None:
    """What each chunk does to the state that enters it.

    Args:
        rkv: ``[3, T, C]``: r, k, v. v is overwritten with its mix with that of the first layer.
        v_first: ``[T, C]``: v of the first layer. Of that layer itself: v, which stays as it is.
        second: ``[T, 4, C]``: outputs of the low-rank maps v, w, a, g.
        vectors: ``[8, C]`` float32: w0, a0, v0, k_k, k_a, r_k; the group norm's are not used.
        effects: overwritten.
        options: of the compiler, beside the default ones.

    In a float32 model all operands are float32. Else they are bfloat16, which has the range of
    decays, where that rounding is not seen beside what the products before have rounded; where it
    would be, float16, or float32 on tf32 units where the range is needed.
    """
    H, K = effects.decays.shape[1:]
    exact = rkv.dtype == torch.float32
    within_kernel[(len(tables.chunks) * H,)](
        rkv,
        v_first,
        second,
        vectors,
        effects.reads,
        effects.own,
        effects.moves,
        effects.adds,
        effects.decays,
        effects.bonuses,
        tables.chunks,
        rkv.stride(0),
        H=H,
        K=K,
        BLOCK=triton.next_power_of_2(K),
        L=tables.chunk,
        OPERAND=tl.float32 if exact else tl.bfloat16,
        NARROW=tl.float32 if exact else tl.float16,
        PRECISION="ieee" if exact else "tf32",
        **{**DEFAULT_OPTIONS, **options},
    )
