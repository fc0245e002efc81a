"""Residual sum, layer norm, token shift and mixes: from one product of a step to the next."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.rwkv7_decode.common import launch_options, normalized


@triton.jit
def _store_mixed(out, at_row, u, delta, mix, inside):  # type: ignore[no-untyped-def]
    value = u + delta * mix.to(tl.float32)
    tl.store(out + at_row, value.to(out.dtype.element_ty), mask=inside)


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
    shift_stride,
    B,
    eps,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    EMBEDS: tl.constexpr,
    N_PARTS: tl.constexpr,
    N_MIXES: tl.constexpr,
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
    u = normalized(value, inside, weight, bias, eps, C)
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
    n_warps: int = 8,
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
        pdl: launch while the kernel before this one may still run.
    """
    B, C = x.shape
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
        0 if shift is None else shift.stride(0),
        B,
        eps,
        C=C,
        BLOCK=triton.next_power_of_2(C),
        EMBEDS=embedding is not None,
        N_PARTS=0 if branch is None else branch.shape[0],
        N_MIXES=0 if mixes is None else mixes.shape[0],
        PDL=pdl,
        num_warps=n_warps,
        **launch_options(pdl),
    )
