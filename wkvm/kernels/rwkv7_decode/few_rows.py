"""Matrix products for a handful of rows, with the norm and mixes before them in the same launch."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.rwkv7_decode.common import (
    NONE,
    Move,
    ahead_chunks,
    applied,
    launch_options,
    normalized,
    prefetch,
    widened,
)
from wkvm.kernels.rwkv7_decode.many_rows import Tiles


@triton.jit  # type: ignore[untyped-decorator]
def gemv_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    out,
    tiles,
    residual,
    table,
    token_ids,
    shift,
    normed,
    ahead,
    slots,
    norm_weight,
    norm_bias,
    mixes,
    shift_stride,
    eps,
    N,
    out_stride,
    B: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BY_TILE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    WHAT: tl.constexpr,
    NORMS: tl.constexpr,
    MIXES: tl.constexpr,
    EMBEDS: tl.constexpr,
    ADDS: tl.constexpr,
    MOVES: tl.constexpr,
    N_AHEAD: tl.constexpr,
    N_THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per block of outputs, over all rows; see ``gemv``."""
    tile = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    k_inside = k < K
    mix_index = 0
    if BY_TILE:
        at_tile = tiles + tile * 7
        mix_index = tl.load(at_tile)
        offset = tl.multiple_of(tl.load(at_tile + 2), 16)
        weight += offset
        scales += offset // K
        out += tl.load(at_tile + 4)
        out_stride = tl.load(at_tile + 5)
        columns = tl.load(at_tile + 6)
        what = columns % 4
        n_inside = n < columns // 4
        if not MIXES:
            x += mix_index * (B * K)
    else:
        weight += (tile * BLOCK_N).to(tl.int64) * K
        scales += tile * BLOCK_N
        out += tile * BLOCK_N
        what = WHAT
        n_inside = tile * BLOCK_N + n < N
    at_weight = weight + n[:, None] * K + k[None, :]
    if BLOCK_K == K:
        left = tl.load(at_weight, mask=n_inside[:, None], other=0.0, eviction_policy="evict_first")
    else:
        inside = n_inside[:, None] & k_inside[None, :]
        left = tl.load(at_weight, mask=inside, other=0.0, eviction_policy="evict_first")
    if HAS_SCALES:
        scale = tl.load(scales + n, mask=n_inside, other=0.0)
    if NORMS:
        norm_w = tl.load(norm_weight + k, mask=k_inside, other=0.0).to(tl.float32)
        norm_b = tl.load(norm_bias + k, mask=k_inside, other=0.0).to(tl.float32)
    if MIXES:
        mix = tl.load(mixes + mix_index * K + k, mask=k_inside, other=0.0).to(tl.float32)
        # Of the first row, before the wait: it is not in a cache, and nothing else hides that.
        slot = tl.load(slots).to(tl.int64)
        live = k < tl.where(slot >= 0, K, 0)
        first_shift = tl.load(shift + slot * shift_stride + k, mask=live, other=0.0)
    if N_AHEAD > 0:
        prefetch(ahead, tile, tl.num_programs(0), N_AHEAD, N_THREADS)
    if PDL:
        gdc_wait()
    for row in tl.static_range(B):
        slot = tl.load(slots + row).to(tl.int64)
        if EMBEDS:
            token_id = tl.load(token_ids + row).to(tl.int64)
            value = tl.load(table + token_id * K + k, mask=k_inside, other=0.0).to(tl.float32)
            if tile == 0:
                tl.store(residual + row * K + k, value, mask=k_inside)
        else:
            value = tl.load(x + row * K + k, mask=k_inside, other=0.0).to(tl.float32)
        if NORMS:
            value = normalized(value, k_inside, norm_w, norm_b, eps, K)
        if MIXES:
            if row == 0:
                previous = first_shift
            else:
                live = k < tl.where(slot >= 0, K, 0)
                previous = tl.load(shift + slot * shift_stride + k, mask=live, other=0.0)
            if tile == 0:
                tl.store(normed + row * K + k, value.to(normed.dtype.element_ty), mask=k_inside)
            value += tl.where(slot >= 0, previous.to(tl.float32) - value, 0.0) * mix
        total = tl.sum(widened(left, tl.float32) * value[None, :], 1)
        if HAS_SCALES:
            total *= scale
        total = applied(total, what)
        if ADDS:
            at_residual = residual + row * out_stride + tile * BLOCK_N + n
            tl.store(at_residual, tl.load(at_residual, mask=n_inside) + total, mask=n_inside)
        else:
            tl.store(out + row * out_stride + n, total.to(out.dtype.element_ty), mask=n_inside)
        if MOVES:
            moved = tl.load(normed + row * out_stride + tile * BLOCK_N + n, mask=n_inside)
            at_shift = shift + slot * shift_stride + tile * BLOCK_N + n
            tl.store(at_shift, moved, mask=tile * BLOCK_N + n < tl.where(slot >= 0, N, 0))


@dataclass(frozen=True, slots=True)
class Before:
    """What ``gemv`` does to its input first: layer norm, and perhaps token shift and mixes.

    Attributes:
        norm: weight and bias, ``[K]`` each.
        eps: added to the variance.
        shift: ``[N, K]``, any first stride; only read. None: no token shift.
        mixes: ``[n_mixes, K]``.
        normed: ``[B, K]``: overwritten with what the token shift has to become.
        embedding: a table ``[V, K]`` and the ids ``[B]`` int64 of the rows, which are then the
            input; it is written to ``residual`` as well.
    """

    norm: tuple[Tensor, Tensor]
    eps: float
    shift: Tensor | None = None
    mixes: Tensor | None = None
    normed: Tensor | None = None
    embedding: tuple[Tensor, Tensor] | None = None


def gemv(
    x: Tensor,
    weight: Tensor,
    slots: Tensor,
    *,
    scales: Tensor | None = None,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    what: int = NONE,
    tiles: Tiles | None = None,
    before: Before | None = None,
    move: Move | None = None,
    ahead: Tensor | None = None,
    block_n: int,
    n_warps: int = 8,
    pdl: bool = False,
) -> None:
    """``what(before(x) @ weight.T)`` for a handful of rows, into ``out`` or added to ``residual``.

    A program holds all its weights in registers before it waits for the launch before this one.

    Args:
        x: ``[B, K]``, float32 or the model's dtype; contiguous. With tiles and without mixes
            ``[n_inputs, B, K]``.
        weight: ``[N, K]``; with tiles, packed groups of which each has length K.
        slots: as in ``mix``.
        scales: of quantised weights, ``[N]`` float32, one for each of their rows.
        out: ``[B, N]``, overwritten.
        residual: ``[B, N]`` float32, added to; with an embedding, what it is written to.
        tiles: from ``tiles_of`` with ``block_n``; ``input`` is then the index of a mix.
        ahead: weights of a later launch: as much of their beginning as ``AHEAD_BYTES`` is brought
            into the L2 cache, where the launches between leave the memory idle.
        block_n: outputs of one program, a power of two.
        pdl: as in ``mix``.
    """
    B, K = x.shape[-2:]
    before_shift = None if before is None else before.shift
    shift = before_shift if move is None else move.shift
    normed = None if before is None else before.normed
    embedding = None if before is None else before.embedding
    mixes = None if before is None else before.mixes
    norm = (x, x) if before is None else before.norm
    adds = out is None
    target = residual if out is None else out
    if target is None:
        raise ValueError("neither out nor residual is given")
    N = target.shape[-1]
    n_programs = triton.cdiv(N, block_n) if tiles is None else len(tiles.table)
    gemv_kernel[(n_programs,)](
        x,
        weight,
        x if scales is None else scales,
        target,
        x if tiles is None else tiles.table,
        x if residual is None else residual,
        *((x, x) if embedding is None else embedding),
        x if shift is None else shift,
        _either(None if move is None else move.normed, normed, x),
        x if ahead is None else ahead,
        slots,
        *norm,
        x if mixes is None else mixes,
        0 if shift is None else shift.stride(0),
        0.0 if before is None else before.eps,
        N,
        target.stride(-2) if target.dim() > 1 else 0,
        B=B,
        K=K,
        BLOCK_N=block_n,
        BLOCK_K=triton.next_power_of_2(K),
        BY_TILE=tiles is not None,
        HAS_SCALES=scales is not None,
        WHAT=what,
        NORMS=before is not None,
        MIXES=mixes is not None,
        EMBEDS=embedding is not None,
        ADDS=adds,
        MOVES=move is not None,
        N_AHEAD=ahead_chunks(ahead),
        N_THREADS=n_warps * 32,
        PDL=pdl,
        num_warps=n_warps,
        **launch_options(pdl),
    )


def _either(*tensors: Tensor | None) -> Tensor:
    return next(tensor for tensor in tensors if tensor is not None)
