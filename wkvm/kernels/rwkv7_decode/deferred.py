"""Deferred writes: the last inputs of a row wait in a ring beside its state.

A decode step then reads the state and the ring, and writes one entry of the ring; the state is
written once in R tokens. With S the state as it lies there, and u = r:

    for each entry from the newest to the oldest:  c = k . u;  out += c v
                                                   u <- w u - kap ((kap a) . u)
    y = S^T u + out

An entry is what the recurrence is computed from (k before normalisation, the outputs of the
low-rank maps of decay and rate, v) in the dtype of the model, which all but v have already.
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

ENTRY = tl.constexpr(4)
"""Vectors of an entry: k, w, a, v."""

LOG_DECAY = tl.constexpr(-0.6065306597126334)
"""The lowest log decay, -exp(-1/2): a decay is exp of this times a sigmoid."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The rings of one layer.

    A ring is filled from its start. The token that finds it full, the R-th, is not put there:
    after all entries, in order, it goes into the state, and the ring is empty again.

    Attributes:
        entries: ``[N, H, R - 1, 4, K]``, any first stride.
        rows: ``[3, B]`` int32, as ``begin_ring`` makes it for a step.
    """

    entries: Tensor
    rows: Tensor

    @property
    def length(self) -> int:
        """R."""
        return self.entries.shape[2] + 1

    def check(self, state: Tensor, n_rows: int) -> None:
        """Raise a ValueError unless these are the rings of ``state``, ``[N, H, K, K]``."""
        N, H, K, _ = state.shape
        entries, rows = self.entries, self.rows
        if entries.shape != (N, H, self.length - 1, 4, K) or not entries[0].is_contiguous():
            raise ValueError(f"a ring {tuple(entries.shape)} of a state {(N, H, K, K)}")
        if rows.shape != (3, n_rows) or rows.dtype != torch.int32 or not rows.is_contiguous():
            raise ValueError(f"rows are {tuple(rows.shape)}, {rows.dtype}")


@triton.jit  # type: ignore[untyped-decorator]
def _vectors(at_ring, j, n, keys, values, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """The four vectors of entry ``j`` of ``n``; zeros where there is none."""
    at = at_ring + j * (ENTRY * K)
    end = tl.where(j < n, K, 0)
    k = tl.load(at + keys, mask=keys < end, other=0.0)
    w = tl.load(at + K + keys, mask=keys < end, other=0.0)
    a = tl.load(at + 2 * K + keys, mask=keys < end, other=0.0)
    v = tl.load(at + 3 * K + values, mask=values < end, other=0.0)
    return k, w, a, v


@triton.jit  # type: ignore[untyped-decorator]
def ring_loaded(at_ring, n, keys, values, K: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    """All entries, asked for at once: one wait, not one for each."""
    entries = ()
    for j in tl.static_range(R - 1):
        entries += (_vectors(at_ring, j, n, keys, values, K),)  # type: ignore[assignment]
    return entries


@triton.jit
def _prepared(k, w, a, w0, a0, k_k, k_a):  # type: ignore[no-untyped-def]
    """Of an entry: key, decay, kap before it is normalised, and kap times the rate of removal."""
    k = k.to(tl.float32)
    w = tl.exp(tl.sigmoid(w0 + w.to(tl.float32)) * LOG_DECAY)
    a = tl.sigmoid(a0 + a.to(tl.float32))
    kap = k * k_k
    return k * (1.0 + (a - 1.0) * k_a), w, kap, kap * a


@triton.jit  # type: ignore[untyped-decorator]
def output_of_ring(u, out, entries, n, w0, a0, k_k, k_a, R: tl.constexpr):  # type: ignore[no-untyped-def]
    """``u`` taken back through the ring, and ``out`` with what the entries add to it."""
    for i in tl.static_range(R - 1):
        if R - 2 - i < n:
            k, w, a, v = entries[R - 2 - i]
            k, w, kap, away = _prepared(k, w, a, w0, a0, k_k, k_a)
            # The three sums do not wait for one another.
            square = tl.sum(kap * kap, 0)
            of_removal = tl.sum(away * u, 0)
            of_key = tl.sum(k * u, 0)
            inverse = tl.rsqrt(tl.maximum(square, 1e-24))
            u = w * u - kap * (of_removal * inverse * inverse)
            out += of_key * v.to(tl.float32)
    return u, out


@triton.jit
def absorbed(S, decay, w, kap, away, k, v):  # type: ignore[no-untyped-def]
    """``S`` and ``decay`` after one more token, where the state is the product of the two.

    A decay of eight tokens is above 0.007: it can be divided by.
    """
    removed = tl.sum((kap * decay)[:, None] * S, 0)
    decay *= w
    S -= (away / decay)[:, None] * removed[None, :]
    return S + (k / decay)[:, None] * v[None, :], decay


@triton.jit  # type: ignore[untyped-decorator]
def ring_absorbed(S, decay, at_ring, n, w0, a0, k_k, k_a, keys, values, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """``S`` and ``decay`` after the first ``n`` entries, in order."""
    for j in range(n):
        k, w, a, v = _vectors(at_ring, j, n, keys, values, K)
        k, w, kap, away = _prepared(k, w, a, w0, a0, k_k, k_a)
        inverse = tl.rsqrt(tl.maximum(tl.sum(kap * kap, 0), 1e-24))
        S, decay = absorbed(S, decay, w, kap * inverse, away * inverse, k, v.to(tl.float32))
    return S, decay


@triton.jit  # type: ignore[untyped-decorator]
def put_entry(at_ring, n, k, w, a, v, keys, values, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write one entry behind the ``n`` that are there."""
    at = at_ring + n * (ENTRY * K)
    dtype = at_ring.dtype.element_ty
    tl.store(at + keys, k.to(dtype), mask=keys < K)
    tl.store(at + K + keys, w.to(dtype), mask=keys < K)
    tl.store(at + 2 * K + keys, a.to(dtype), mask=keys < K)
    tl.store(at + 3 * K + values, v.to(dtype), mask=values < K)


@triton.jit  # type: ignore[untyped-decorator]
def fold_kernel(  # type: ignore[no-untyped-def]
    state,
    ring,
    fill,
    vectors,
    slots,
    state_stride,
    ring_stride,
    fill_stride,
    L: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    R: tl.constexpr,
):
    """One program per row, layer and head; see ``fold``."""
    place = tl.program_id(0) % (L * H)
    slot = tl.load(slots + tl.program_id(0) // (L * H)).to(tl.int64)
    if slot >= 0:
        n = tl.minimum(tl.load(fill + slot * fill_stride), R - 1)
        if n > 0:
            keys = tl.arange(0, BLOCK)
            values = tl.arange(0, BLOCK)
            key_inside = keys < K
            inside = key_inside[:, None] & (values < K)[None, :]
            C: tl.constexpr = H * K
            at_key = vectors + (place // H) * (8 * C) + (place % H) * K + keys
            w0 = tl.load(at_key, mask=key_inside, other=0.0)
            a0 = tl.load(at_key + C, mask=key_inside, other=0.0)
            k_k = tl.load(at_key + 3 * C, mask=key_inside, other=0.0)
            k_a = tl.load(at_key + 4 * C, mask=key_inside, other=0.0)
            at_state = state + slot * state_stride + place.to(tl.int64) * (K * K)
            at_state = at_state + keys[:, None] * K + values[None, :]
            at_ring = ring + slot * ring_stride + place.to(tl.int64) * ((R - 1) * ENTRY * K)
            S = tl.load(at_state, mask=inside, other=0.0).to(tl.float32)
            decay = tl.full([BLOCK], 1.0, tl.float32)
            S, decay = ring_absorbed(S, decay, at_ring, n, w0, a0, k_k, k_a, keys, values, K)
            S *= decay[:, None]
            tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def empty_kernel(slots, fill, fill_stride, B, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program: the rings of ``slots`` are empty from now on."""
    rows = tl.arange(0, BLOCK)
    slot = tl.load(slots + rows, mask=rows < B, other=-1).to(tl.int64)
    tl.store(fill + slot * fill_stride, tl.zeros([BLOCK], tl.int32), mask=slot >= 0)


def fold(state: Tensor, ring: Tensor, fill: Tensor, vectors: Tensor, slots: Tensor) -> None:
    """Take the rings of some slots into their states, of all layers, and leave them empty.

    Two launches; a ring that is empty costs a read of four bytes.

    Args:
        state: ``[N, L, H, K, K]`` float32, float16 or bfloat16, any first stride.
        ring: ``[N, L, H, R - 1, 4, K]``, any first stride.
        fill: ``[N, 1]`` int32, any first stride: entries in use, of all layers and heads.
        vectors: ``[L, 8, C]`` float32, contiguous: of each layer, as ``wkv`` takes them.
        slots: ``[B]`` int32, distinct where not negative. No other slot is read or written.
    """
    N, L, H, K, _ = state.shape
    B = slots.shape[0]
    if vectors.shape != (L, 8, H * K) or not vectors.is_contiguous():
        raise ValueError(f"vectors are {tuple(vectors.shape)}, strides {vectors.stride()}")
    if ring.shape != (N, L, H, ring.shape[3], 4, K) or not ring[0].is_contiguous():
        raise ValueError(f"a ring {tuple(ring.shape)} of states {tuple(state.shape)}")
    _check_fill(fill)
    fold_kernel[(B * L * H,)](
        state,
        ring,
        fill,
        vectors,
        slots,
        state.stride(0),
        ring.stride(0),
        fill.stride(0),
        L=L,
        H=H,
        K=K,
        BLOCK=triton.next_power_of_2(K),
        R=ring.shape[3] + 1,
        num_warps=1,
    )
    empty_kernel[(1,)](slots, fill, fill.stride(0), B, BLOCK=triton.next_power_of_2(B))


@triton.jit  # type: ignore[untyped-decorator]
def begin_ring_kernel(  # type: ignore[no-untyped-def]
    slots,
    fill,
    out,
    fill_stride,
    B,
    BLOCK: tl.constexpr,
    R: tl.constexpr,
):
    """One program; see ``begin_ring``."""
    rows = tl.arange(0, BLOCK)
    inside = rows < B
    slot = tl.load(slots + rows, mask=inside, other=-1)
    at_fill = fill + slot.to(tl.int64) * fill_stride
    n = tl.load(at_fill, mask=slot >= 0, other=0)
    # A number that is none would lead out of the record; what is poisoned shows by its NaN.
    n = tl.minimum(tl.maximum(n, 0), R - 1)
    is_full = (n == R - 1).to(tl.int32)
    tl.store(at_fill, tl.where(is_full > 0, 0, n + 1), mask=slot >= 0)
    n_full = tl.sum(is_full, 0)
    n_before = tl.cumsum(is_full, 0) - is_full
    other = rows - n_before
    # Full ones take every ``step``-th place of the first three quarters, as long as there are any.
    step = tl.maximum((B - B // 4) // tl.maximum(n_full, 1), 1)
    after = tl.where(step > 1, other // tl.maximum(step - 1, 1) + 1, n_full)
    place = tl.where(is_full > 0, n_before * step, other + tl.minimum(after, n_full))
    tl.store(out + place, rows, mask=inside)
    tl.store(out + B + place, slot, mask=inside)
    tl.store(out + 2 * B + place, n, mask=inside)


def begin_ring(slots: Tensor, fill: Tensor, out: Tensor, length: int) -> None:
    """Begin a step: count its token in the rings of its rows, and say how full they were.

    Programs take the rows in the order of ``out``. Those that write their states take longest: they
    come early, but not all at once, since in each there is a time in which it moves nothing.

    Args:
        slots: ``[B]`` int32, distinct where not negative.
        fill: ``[N, 1]`` int32, any first stride: entries in use, of all layers and heads. Of
            ``slots`` it is overwritten.
        out: ``[3, B]`` int32, overwritten: rows, their slots, and the entries in use before.
        length: R.
    """
    B = slots.shape[0]
    if out.shape != (3, B) or out.dtype != torch.int32 or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}, {out.dtype}")
    _check_fill(fill)
    block = triton.next_power_of_2(B)
    n_warps = max(1, min(block // 128, 8))
    begin_ring_kernel[(1,)](
        slots, fill, out, fill.stride(0), B, BLOCK=block, R=length, num_warps=n_warps
    )


def _check_fill(fill: Tensor) -> None:
    if fill.shape[1:] != (1,) or fill.dtype != torch.int32:
        raise ValueError(f"fill is {tuple(fill.shape)}, {fill.dtype}")
