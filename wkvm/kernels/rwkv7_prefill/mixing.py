"""Layer norm, token shift and mixes over packed rows."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.rwkv7_decode.common import normalized
from wkvm.kernels.rwkv7_prefill.tables import Tables


@triton.jit
def _store_mixed(out, at, u, delta, mixes, channels, inside):  # type: ignore[no-untyped-def]
    mix = tl.load(mixes + channels, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (u + delta * mix).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def mix_kernel(  # type: ignore[no-untyped-def]
    x,
    table,
    token_ids,
    out,
    shift,
    last,
    moved_shift,
    moved_last,
    norm_weight,
    norm_bias,
    mixes,
    rows,
    chunks,
    shift_stride,
    moved_stride,
    out_stride,
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    N_TOKENS: tl.constexpr,
    N_MIXES: tl.constexpr,
    EMBEDS: tl.constexpr,
    MOVES: tl.constexpr,
):
    """One program per few tokens of a chunk; see ``mix``."""
    chunk = tl.program_id(0)
    begin = tl.program_id(1) * N_TOKENS
    length = tl.load(chunks + chunk * 4 + 1)
    if begin < length:
        start = tl.load(chunks + chunk * 4).to(tl.int64)
        row = tl.load(chunks + chunk * 4 + 2).to(tl.int64)
        slot = tl.load(rows + row * 4).to(tl.int64)
        first_chunk = tl.load(rows + row * 4 + 1)
        n_chunks = tl.load(rows + row * 4 + 2)
        channels = tl.arange(0, BLOCK)
        inside = channels < C
        weight = tl.load(norm_weight + channels, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(norm_bias + channels, mask=inside, other=0.0).to(tl.float32)
        begins_row = (begin == 0) & (chunk == first_chunk)
        if begins_row:
            live = channels < tl.where(slot >= 0, C, 0)
            at_shift = shift + slot * shift_stride + channels
            previous = tl.load(at_shift, mask=live, other=0.0).to(tl.float32)
        else:
            # Once more what the program before this one makes: cheaper than waiting for it.
            token = start + begin - 1
            if EMBEDS:
                at_value = table + tl.load(token_ids + token) * C + channels
            else:
                at_value = x + token * C + channels
            value = tl.load(at_value, mask=inside, other=0.0).to(tl.float32)
            u = normalized(value, inside, weight, bias, eps, C)
            previous = u.to(shift.dtype.element_ty).to(tl.float32)
        end = tl.minimum(begin + N_TOKENS, length)
        for at_token in range(begin, end):
            token = start + at_token
            at = token * C + channels
            if EMBEDS:
                at_table = table + tl.load(token_ids + token) * C + channels
                value = tl.load(at_table, mask=inside, other=0.0).to(tl.float32)
                tl.store(x + at, value, mask=inside)
            else:
                value = tl.load(x + at, mask=inside, other=0.0)
            u = normalized(value, inside, weight, bias, eps, C)
            has_previous = (slot >= 0) | (at_token > begin) | (begins_row == 0)
            delta = tl.where(has_previous, previous - u, 0.0)
            for index in tl.static_range(N_MIXES):
                at_mix = mixes + index * C
                _store_mixed(out + index * out_stride, at, u, delta, at_mix, channels, inside)
            previous = u.to(shift.dtype.element_ty).to(tl.float32)
        if (end == length) & (chunk == first_chunk + n_chunks - 1):
            at_last = last + row * C + channels
            tl.store(at_last, previous.to(last.dtype.element_ty), mask=inside)
            if MOVES:
                live = channels < tl.where(slot >= 0, C, 0)
                moved = tl.load(moved_last + row * C + channels, mask=inside)
                tl.store(moved_shift + slot * moved_stride + channels, moved, mask=live)


@dataclass(frozen=True, slots=True)
class Move:
    """A token shift to overwrite, ``[N, C]``, with ``[B, C]``: what ``mix`` left in ``last``.

    It is done one launch after the last one that reads the old: in there, programs would race.
    """

    shift: Tensor
    last: Tensor


def mix(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    eps: float,
    mixes: Tensor,
    out: Tensor,
    shift: Tensor,
    last: Tensor,
    tables: Tables,
    *,
    embedding: tuple[Tensor, Tensor] | None = None,
    move: Move | None = None,
) -> None:
    """Layer norm u of each token, and its mixes with that of the token before.

        out[m, t] = u[t] + (u[t - 1] - u[t]) * mixes[m]

    Before the first token of a row is its slot's token shift; for a pad row, that token itself.

    Args:
        x: ``[T, C]`` float32.
        norm: weight and bias, ``[C]`` each.
        mixes: ``[n_mixes, C]``.
        out: ``[n_mixes, T, C]``, overwritten; its first stride is free.
        shift: ``[N, C]``, any first stride; only read, and only at the slots of rows.
        last: ``[B, C]`` in the dtype of ``shift``, overwritten with the last u of each row.
        embedding: a table ``[V, C]`` and ids ``[T]`` int64: then ``x`` is overwritten with the
            embeddings of the ids.
        move: a token shift to overwrite.
    """
    T, C = x.shape
    n_tokens = 1 if T <= 1024 else 8
    table, token_ids = (x, x) if embedding is None else embedding
    mix_kernel[(len(tables.chunks), tables.chunk // n_tokens)](
        x,
        table,
        token_ids,
        out,
        shift,
        last,
        shift if move is None else move.shift,
        last if move is None else move.last,
        *norm,
        mixes,
        tables.rows,
        tables.chunks,
        shift.stride(0),
        0 if move is None else move.shift.stride(0),
        out.stride(0),
        eps,
        C=C,
        BLOCK=triton.next_power_of_2(C),
        N_TOKENS=n_tokens,
        N_MIXES=len(mixes),
        EMBEDS=embedding is not None,
        MOVES=move is not None,
        num_warps=8 if C <= 2048 else 16,
    )


@triton.jit  # type: ignore[untyped-decorator]
def move_kernel(shift, last, rows, shift_stride, C: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per row; see ``move_last``."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows + row * 4).to(tl.int64)
    channels = tl.arange(0, BLOCK)
    if (slot >= 0) & (tl.load(rows + row * 4 + 2) > 0):
        value = tl.load(last + row * C + channels, mask=channels < C)
        tl.store(shift + slot * shift_stride + channels, value, mask=channels < C)


def move_last(move: Move, tables: Tables) -> None:
    """Do a move that no launch is left for. The slots of rows with tokens are overwritten."""
    C = move.shift.shape[1]
    move_kernel[(len(tables.rows),)](
        move.shift,
        move.last,
        tables.rows,
        move.shift.stride(0),
        C=C,
        BLOCK=triton.next_power_of_2(C),
        num_warps=4,
    )
