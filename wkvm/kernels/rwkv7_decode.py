"""The RWKV-7 decode step for a GPU, in Triton: one token a row, few kernels a layer.

Importing this module imports Triton. Three kinds of kernel make a step:

- ``mix``: residual sum, layer norm, token shift by slot in place, and the mixes of both;
- ``product`` and ``gemv``: matrix products with weights as ``[out, in]``, for tens to hundreds of
  rows and for a handful;
- ``wkv``: all between the products of the time mix, with the state updated in place by slot.

All arithmetic but the operands of matrix products is float32. Every kernel is written for
programmatic dependent launch: what no earlier kernel of the step writes (weights, states) is read
before the wait for that kernel, everything else after it, and nothing is stored before it. So a
launch may begin while the one before it runs, and still sees all that it wrote.

No kernel here is ever autotuned: each trial run would apply its update to the states once more.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE, SQUARED_RELU, TANH, SIGMOID = 0, 1, 2, 3
"""What is applied to a product."""

TILE_FIELDS = 7
"""Numbers of a tile: which of the inputs, first column of it, offset of the weights, length of the
sum, offset and row stride of the output, and how many columns with what applied:
``columns * 4 + what``."""

AHEAD_BYTES = 3 << 20
"""Of weights that are brought into the L2 cache ahead of their use, at a time."""

LOG_DECAY = tl.constexpr(-0.6065306597126334)
"""The lowest log decay, -exp(-1/2): a decay is exp of this times a sigmoid."""


@triton.jit
def _applied(x, what):  # type: ignore[no-untyped-def]
    """``x`` after the activation of that number."""
    if what == 1:
        x = tl.maximum(x, 0.0)
        x = x * x
    elif what == 2:
        # Of the exponential of a negative number: it cannot overflow.
        e = tl.exp(-2.0 * tl.abs(x))
        x = tl.where(x < 0, e - 1.0, 1.0 - e) / (1.0 + e)
    elif what == 3:
        x = tl.sigmoid(x)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _normalized(x, inside, weight, bias, eps, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Layer norm of one row in registers."""
    mean = tl.sum(x, 0) / C
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / C
    return centred * tl.rsqrt(variance + eps) * weight + bias


@triton.jit
def _store_mixed(out, at_row, u, delta, mix, inside):  # type: ignore[no-untyped-def]
    value = u + delta * mix.to(tl.float32)
    tl.store(out + at_row, value.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _prefetch(ahead, program, n_programs, N_CHUNKS: tl.constexpr, N_THREADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring chunks of 4 KiB into the L2 cache, shared out among all programs."""
    chunk = tl.arange(0, N_THREADS) * n_programs + program
    address = ahead.to(tl.int64) + chunk.to(tl.int64) * 4096
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.s32 p, $2, 1; "
        "@!p cp.async.bulk.prefetch.L2.global [$1], 4096; mov.b32 $0, 0; }",
        "=r,l,r",
        [address, (chunk < N_CHUNKS).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def mix_kernel(  # type: ignore[no-untyped-def]
    x,
    table,
    token_ids,
    branch,
    out,
    shift,
    slots,
    norm_weight,
    norm_bias,
    mixes,
    ahead,
    shift_stride,
    B,
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    EMBEDS: tl.constexpr,
    N_PARTS: tl.constexpr,
    N_MIXES: tl.constexpr,
    N_AHEAD: tl.constexpr,
    N_THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row; see ``mix``."""
    row = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    channels = tl.arange(0, BLOCK)
    inside = channels < C
    slot = tl.load(slots + row).to(tl.int64)
    weight = tl.load(norm_weight + channels, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(norm_bias + channels, mask=inside, other=0.0).to(tl.float32)
    at_row = row.to(tl.int64) * C + channels
    live = channels < tl.where(slot >= 0, C, 0)
    if N_MIXES > 0:
        mix0 = tl.load(mixes + channels, mask=inside, other=0.0)
        if N_MIXES == 6:
            mix1 = tl.load(mixes + C + channels, mask=inside, other=0.0)
            mix2 = tl.load(mixes + 2 * C + channels, mask=inside, other=0.0)
            mix3 = tl.load(mixes + 3 * C + channels, mask=inside, other=0.0)
            mix4 = tl.load(mixes + 4 * C + channels, mask=inside, other=0.0)
            mix5 = tl.load(mixes + 5 * C + channels, mask=inside, other=0.0)
        at_shift = shift + slot * shift_stride + channels
        previous = tl.load(at_shift, mask=live, other=0.0).to(tl.float32)
    if N_AHEAD > 0:
        _prefetch(ahead, row, tl.num_programs(0), N_AHEAD, N_THREADS)
    if PDL:
        gdc_wait()
    if EMBEDS:
        token_id = tl.load(token_ids + row).to(tl.int64)
        value = tl.load(table + token_id * C + channels, mask=inside, other=0.0).to(tl.float32)
    else:
        value = tl.load(x + at_row, mask=inside, other=0.0)
    for part in tl.static_range(N_PARTS):
        at_part = branch + part * B * C + at_row
        value += tl.load(at_part, mask=inside, other=0.0).to(tl.float32)
    if EMBEDS or N_PARTS > 0:
        tl.store(x + at_row, value, mask=inside)
    u = _normalized(value, inside, weight, bias, eps, C)
    if N_MIXES > 0:
        tl.store(at_shift, u.to(shift.dtype.element_ty), mask=live)
        delta = tl.where(slot >= 0, previous - u, 0.0)
        _store_mixed(out, at_row, u, delta, mix0, inside)
        if N_MIXES == 6:
            _store_mixed(out + B * C, at_row, u, delta, mix1, inside)
            _store_mixed(out + 2 * (B * C), at_row, u, delta, mix2, inside)
            _store_mixed(out + 3 * (B * C), at_row, u, delta, mix3, inside)
            _store_mixed(out + 4 * (B * C), at_row, u, delta, mix4, inside)
            _store_mixed(out + 5 * (B * C), at_row, u, delta, mix5, inside)
    else:
        tl.store(out + at_row, u.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    tiles,
    ahead,
    B,
    N,
    K,
    x_stride,
    input_stride,
    out_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N_SPLITS: tl.constexpr,
    BY_TILE: tl.constexpr,
    WHAT: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_B: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    N_AHEAD: tl.constexpr,
    N_THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per block of outputs, block of rows and part of the sum; see ``product``.

    The weights are the left operand, so that few rows still fill the matrix units.
    """
    n_row_blocks = tl.cdiv(B, BLOCK_B)
    row_block = tl.program_id(0) % n_row_blocks
    tile = tl.program_id(0) // n_row_blocks
    split = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    n = tl.arange(0, BLOCK_N)
    rows = row_block * BLOCK_B + tl.arange(0, BLOCK_B)
    k = tl.arange(0, BLOCK_K)
    if BY_TILE:
        at_tile = tiles + tile * 7
        x += tl.load(at_tile).to(tl.int64) * input_stride
        x += tl.multiple_of(tl.load(at_tile + 1), 16)
        weight += tl.multiple_of(tl.load(at_tile + 2), 16)
        length = tl.multiple_of(tl.load(at_tile + 3), 16)
        out += tl.multiple_of(tl.load(at_tile + 4), 16)
        out_stride = tl.multiple_of(tl.load(at_tile + 5), 16)
        columns = tl.load(at_tile + 6)
        what = columns % 4
        n_columns = tl.multiple_of(columns // 4, 16)
    else:
        weight += (tile * BLOCK_N).to(tl.int64) * K
        out += tile * BLOCK_N
        length = K
        what = WHAT
        n_columns = N - tile * BLOCK_N
    start = 0
    end = length
    if N_SPLITS > 1:
        part = tl.cdiv(tl.cdiv(length, N_SPLITS), BLOCK_K) * BLOCK_K
        start = split * part
        end = tl.minimum(length, start + part)
        out += split.to(tl.int64) * B * out_stride
    row_inside = rows < B
    at_weight = weight + n[:, None] * length + (start + k)[None, :]
    at_x = x + rows[None, :].to(tl.int64) * x_stride + (start + k)[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    if N_AHEAD > 0:
        program = split * tl.num_programs(0) + tl.program_id(0)
        _prefetch(ahead, program, tl.num_programs(0) * N_SPLITS, N_AHEAD, N_THREADS)
    if PDL:
        gdc_wait()
    for at in range(start, end, BLOCK_K):
        if EVEN_K:
            if EVEN_N:
                left = tl.load(at_weight)
            else:
                left = tl.load(at_weight, mask=(n < n_columns)[:, None], other=0.0)
            if EVEN_B:  # noqa: SIM108
                right = tl.load(at_x)
            else:
                right = tl.load(at_x, mask=row_inside[None, :], other=0.0)
        else:
            k_inside = k < end - at
            left_inside = k_inside[None, :] & (n < n_columns)[:, None]
            left = tl.load(at_weight, mask=left_inside, other=0.0)
            right = tl.load(at_x, mask=k_inside[:, None] & row_inside[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        at_weight += BLOCK_K
        at_x += BLOCK_K
    value = tl.trans(_applied(total, what))
    at_out = out + rows[:, None].to(tl.int64) * out_stride + n[None, :]
    inside = row_inside[:, None] & (n < n_columns)[None, :]
    tl.store(at_out, value.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def gemv_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
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
        weight += tl.multiple_of(tl.load(at_tile + 2), 16)
        out += tl.load(at_tile + 4)
        out_stride = tl.load(at_tile + 5)
        columns = tl.load(at_tile + 6)
        what = columns % 4
        n_inside = n < columns // 4
        if not MIXES:
            x += mix_index * (B * K)
    else:
        weight += (tile * BLOCK_N).to(tl.int64) * K
        out += tile * BLOCK_N
        what = WHAT
        n_inside = tile * BLOCK_N + n < N
    at_weight = weight + n[:, None] * K + k[None, :]
    if BLOCK_K == K:
        left = tl.load(at_weight, mask=n_inside[:, None], other=0.0, eviction_policy="evict_first")
    else:
        inside = n_inside[:, None] & k_inside[None, :]
        left = tl.load(at_weight, mask=inside, other=0.0, eviction_policy="evict_first")
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
        _prefetch(ahead, tile, tl.num_programs(0), N_AHEAD, N_THREADS)
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
            value = _normalized(value, k_inside, norm_w, norm_b, eps, K)
        if MIXES:
            if row == 0:
                previous = first_shift
            else:
                live = k < tl.where(slot >= 0, K, 0)
                previous = tl.load(shift + slot * shift_stride + k, mask=live, other=0.0)
            if tile == 0:
                tl.store(normed + row * K + k, value.to(normed.dtype.element_ty), mask=k_inside)
            value += tl.where(slot >= 0, previous.to(tl.float32) - value, 0.0) * mix
            # As in the products of many rows, operands have the model's dtype.
            value = value.to(weight.dtype.element_ty).to(tl.float32)
        total = _applied(tl.sum(left.to(tl.float32) * value[None, :], 1), what)
        if ADDS:
            at_residual = residual + row * out_stride + tile * BLOCK_N + n
            tl.store(at_residual, tl.load(at_residual, mask=n_inside) + total, mask=n_inside)
        else:
            tl.store(out + row * out_stride + n, total.to(out.dtype.element_ty), mask=n_inside)
        if MOVES:
            moved = tl.load(normed + row * out_stride + tile * BLOCK_N + n, mask=n_inside)
            at_shift = shift + slot * shift_stride + tile * BLOCK_N + n
            tl.store(at_shift, moved, mask=tile * BLOCK_N + n < tl.where(slot >= 0, N, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _matrix(weight, channels, inside, RANK: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The second matrix of a low-rank map for the channels of one head."""
    ranks = tl.arange(0, BLOCK)
    both = inside[:, None] & (ranks < RANK)[None, :]
    return tl.load(weight + channels[:, None] * RANK + ranks[None, :], mask=both, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _applied_to(matrix, hidden, RANK: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
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
    slots,
    state_stride,
    shift_stride,
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
    N_AHEAD: tl.constexpr,
    N_THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row and head, with the head's state in registers; see ``wkv``."""
    row = tl.program_id(0) // H
    head = tl.program_id(0) % H
    if PDL:
        gdc_launch_dependents()
    C: tl.constexpr = H * K
    keys = tl.arange(0, BLOCK)
    values = tl.arange(0, BLOCK)
    key_inside = keys < K
    value_inside = values < K
    slot = tl.load(slots + row).to(tl.int64)
    at_key = head * K + keys
    at_value = head * K + values
    row = row.to(tl.int64)
    inside = key_inside[:, None] & value_inside[None, :]
    at_state = state + slot * state_stride + head * (K * K) + keys[:, None] * K + values[None, :]
    if slot >= 0:
        # Nothing else in a step writes this layer's states, so this need not wait.
        if BLOCK == K:  # noqa: SIM108
            S = tl.load(at_state)
        else:
            S = tl.load(at_state, mask=inside, other=0.0)
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
            _prefetch(ahead, tl.program_id(0), tl.num_programs(0), N_AHEAD, N_THREADS)
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
                lerp = _applied_to(matrix_v, hidden, RANK_V, BLOCK_V)
            hidden += RANK_V
            w = _applied_to(matrix_w, hidden, RANK_W, BLOCK_W)
            hidden += RANK_W
            a = _applied_to(matrix_a, hidden, RANK_A, BLOCK_A)
            hidden += RANK_A
            g = _applied_to(matrix_g, hidden, RANK_G, BLOCK_G)
        else:
            at_row = second + row * (4 * C)
            if not IS_FIRST:
                lerp = tl.load(at_row + at_value, mask=value_inside, other=0.0).to(tl.float32)
            w = tl.load(at_row + C + at_key, mask=key_inside, other=0.0).to(tl.float32)
            a = tl.load(at_row + 2 * C + at_key, mask=key_inside, other=0.0).to(tl.float32)
            g = tl.load(at_row + 3 * C + at_value, mask=value_inside, other=0.0).to(tl.float32)
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
        of_key = tl.sum(k * r, 0)
        of_removal = tl.sum(away * r, 0)
        bonus = tl.sum(r * k * r_k, 0)
        # Both sums over the old state: what the new one adds to the output is rank one each.
        removed = tl.sum(kap[:, None] * S, 0)
        out = tl.sum((w * r)[:, None] * S, 0)
        S = w[:, None] * S - away[:, None] * removed[None, :] + k[:, None] * v[None, :]
        if BLOCK == K:
            tl.store(at_state, S)
        else:
            tl.store(at_state, S, mask=inside)
        out += of_key * v - of_removal * removed
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


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a product is cut up.

    Attributes:
        n, b, k: outputs, rows and terms of the sum in one block.
        n_splits: parts of the sum, each summed by a program of its own into its own output.
        n_warps, n_stages: of one program; blocks that are under way at a time.
    """

    n: int
    b: int
    k: int
    n_splits: int = 1
    n_warps: int = 4
    n_stages: int = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive rows of a packed weight that share an input.

    Attributes:
        input: which of the inputs.
        column: of the input, where the sum begins.
        weight: offset of the first weight.
        length: terms of the sum, which is also the distance from one row of weights to the next.
        n: rows of weights, which are columns of the output; a multiple of 16.
        out, out_stride: where the first of these columns is, and how far its rows are apart.
        what: applied to the product.
    """

    input: int
    column: int
    weight: int
    length: int
    n: int
    out: int
    out_stride: int
    what: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Groups cut into blocks of outputs.

    Attributes:
        table: ``[n_tiles, TILE_FIELDS]`` int32.
        n: outputs of a whole block.
        lengths: every length of a sum that occurs.
    """

    table: Tensor
    n: int
    lengths: frozenset[int]


def tiles_of(groups: Sequence[Group], n: int, device: torch.device | str) -> Tiles:
    """The groups cut into blocks of ``n`` outputs; the last block of a group may be smaller."""
    rows = [
        (
            group.input,
            group.column,
            group.weight + at * group.length,
            group.length,
            group.out + at,
            group.out_stride,
            min(n, group.n - at) * 4 + group.what,
        )
        for group in groups
        for at in range(0, group.n, n)
    ]
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    return Tiles(table, n, frozenset(group.length for group in groups))


def mix(
    x: Tensor,
    branch: Tensor | None,
    norm: tuple[Tensor, Tensor],
    eps: float,
    out: Tensor,
    slots: Tensor,
    *,
    shift: Tensor | None = None,
    mixes: Tensor | None = None,
    embedding: tuple[Tensor, Tensor] | None = None,
    ahead: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """End one branch of a layer and begin the next, in one launch.

    For each row, with p the slot's token shift:

        x <- x + sum of the parts of branch        (or the embedding of the row's id)
        u  = layer norm of x
        out[m] = u + (p - u) * mixes[m];  p <- u    (without mixes: out = u)

    Args:
        x: ``[B, C]`` float32; overwritten.
        branch: ``[n_parts, B, C]``; None adds nothing.
        norm: weight and bias, ``[C]`` each.
        out: ``[n_mixes, B, C]``, or ``[B, C]`` without mixes; overwritten.
        slots: ``[B]`` int32, distinct where not negative. For a negative one p is u, and nothing
            is written to ``shift``.
        shift: ``[N, C]``, any first stride. Slots in ``slots`` are overwritten, no other is read
            or written.
        mixes: ``[n_mixes, C]``.
        embedding: a table ``[V, C]``, and the ids ``[B]`` int64 of the rows; then x is not read.
        ahead: as in ``gemv``.
        pdl: launch while the kernel before this one may still run.
    """
    B, C = x.shape
    n_warps = 8
    table, token_ids = (x, x) if embedding is None else embedding
    mix_kernel[(B,)](
        x,
        table,
        token_ids,
        x if branch is None else branch,
        out,
        x if shift is None else shift,
        slots,
        *norm,
        x if mixes is None else mixes,
        x if ahead is None else ahead,
        0 if shift is None else shift.stride(0),
        B,
        eps,
        C=C,
        BLOCK=triton.next_power_of_2(C),
        EMBEDS=embedding is not None,
        N_PARTS=0 if branch is None else branch.shape[0],
        N_MIXES=0 if mixes is None else mixes.shape[0],
        N_AHEAD=_ahead(ahead),
        N_THREADS=n_warps * 32,
        PDL=pdl,
        num_warps=n_warps,
        **_launch(pdl),
    )


def product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    blocks: Blocks,
    *,
    what: int = NONE,
    tiles: Tiles | None = None,
    ahead: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """``out = what(x @ weight.T)`` for tens to hundreds of rows.

    Args:
        x: ``[B, K]``, or with tiles ``[n_inputs, B, K]``; contiguous.
        weight: ``[N, K]`` in the dtype of ``x``. With tiles: any, with ``blocks.n`` rows of
            anything after the last one.
        out: ``[B, N]``, or ``[n_splits, B, N]`` with parts of the sums; overwritten.
        tiles: from ``tiles_of`` with ``blocks.n``. Each names its input, weights and outputs.
        ahead: as in ``gemv``.
        pdl: as in ``mix``.
    """
    B, K = x.shape[-2:]
    N = weight.shape[0] if tiles is None else 0
    if tiles is not None and tiles.n != blocks.n:
        raise ValueError(f"tiles of {tiles.n} outputs, blocks of {blocks.n}")
    lengths = (K,) if tiles is None else tiles.lengths
    step = blocks.k * blocks.n_splits
    n_tiles = triton.cdiv(N, blocks.n) if tiles is None else len(tiles.table)
    n_programs = n_tiles * triton.cdiv(B, blocks.b)
    product_kernel[(n_programs, blocks.n_splits)](
        x,
        weight,
        out,
        x if tiles is None else tiles.table,
        x if ahead is None else ahead,
        B,
        N,
        K,
        x.stride(-2),
        x.stride(0) if x.dim() == 3 else 0,
        out.stride(-2) if out.dim() > 1 else 0,
        BLOCK_N=blocks.n,
        BLOCK_B=blocks.b,
        BLOCK_K=blocks.k,
        N_SPLITS=blocks.n_splits,
        BY_TILE=tiles is not None,
        WHAT=what,
        EVEN_N=tiles is not None or N % blocks.n == 0,
        EVEN_B=B % blocks.b == 0,
        EVEN_K=all(length % step == 0 for length in lengths),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        N_AHEAD=_ahead(ahead),
        N_THREADS=blocks.n_warps * 32,
        PDL=pdl,
        num_warps=blocks.n_warps,
        num_stages=blocks.n_stages,
        **_launch(pdl),
    )


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


@dataclass(frozen=True, slots=True)
class Move:
    """A token shift to overwrite, ``[N, C]``, and the ``[B, C]`` to overwrite its slots with.

    It is done one launch after the last one that reads the old: in there, programs would race.
    """

    shift: Tensor
    normed: Tensor


def gemv(
    x: Tensor,
    weight: Tensor,
    slots: Tensor,
    *,
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
        x: ``[B, K]``, float32 or the dtype of ``weight``; contiguous. With tiles and without mixes
            ``[n_inputs, B, K]``.
        weight: ``[N, K]``; with tiles, packed groups of which each has length K.
        slots: as in ``mix``.
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
        WHAT=what,
        NORMS=before is not None,
        MIXES=mixes is not None,
        EMBEDS=embedding is not None,
        ADDS=adds,
        MOVES=move is not None,
        N_AHEAD=_ahead(ahead),
        N_THREADS=n_warps * 32,
        PDL=pdl,
        num_warps=n_warps,
        **_launch(pdl),
    )


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
        state: ``[N, H, K, K]`` float32, any first stride. Slots in ``slots`` are overwritten, no
            other is read or written.
        slots: ``[B]`` int32, distinct where not negative.
        second: ``[B, 4, C]``: outputs of the four maps. If it is None they are computed here from
        second_weight: flat, the second matrices ``[C, rank]`` of the four maps one after another.
        is_first: of the layers: v is its own residual.
        move: a token shift to overwrite.
        ahead: as in ``gemv``.
        pdl: as in ``mix``.
    """
    B = rkv.shape[1]
    _, H, K, V = state.shape
    if K != V or state.stride()[1:] != (K * V, V, 1) or state.dtype != torch.float32:
        raise ValueError(f"a state {tuple(state.shape)}, {state.dtype}, strides {state.stride()}")
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
        slots,
        state.stride(0),
        0 if move is None else move.shift.stride(0),
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
        N_AHEAD=_ahead(ahead),
        N_THREADS=n_warps * 32,
        PDL=pdl,
        num_warps=n_warps,
        **_launch(pdl),
    )


def _ahead(ahead: Tensor | None) -> int:
    """Chunks of 4 KiB to bring into the cache."""
    if ahead is None:
        return 0
    return min(ahead.numel() * ahead.element_size(), AHEAD_BYTES) // 4096


def _either(*tensors: Tensor | None) -> Tensor:
    return next(tensor for tensor in tensors if tensor is not None)


def _launch(pdl: bool) -> dict[str, bool]:
    """Options of a launch. Where it is off it is not named: the interpreter does not know it."""
    return {"launch_pdl": True} if pdl else {}
