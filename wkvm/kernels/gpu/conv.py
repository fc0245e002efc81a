"""The short causal convolution before a recurrence, for a GPU, in Triton: in place by slot."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.gpu.packing import n_pieces, piece_of
from wkvm.kernels.rows import Rows
from wkvm.kernels.rwkv7_decode.common import launch_options


@triton.jit  # type: ignore[untyped-decorator]
def conv_decode_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    state,
    y,
    slots,
    x_stride,
    state_stride,
    C: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row and block of channels; see ``causal_conv``."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < C
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at_y = y + row * C + channels
    if slot >= 0:
        window = state + slot * state_stride
        # What the taps see, oldest first: all asked for at once.
        inputs = ()
        for tap in tl.static_range(W - 1):
            inputs += (tl.load(window + tap * C + channels, mask=inside, other=0.0),)  # type: ignore[assignment]
        inputs += (tl.load(x + row * x_stride + channels, mask=inside, other=0.0),)  # type: ignore[assignment]
        if HAS_BIAS:
            total = tl.load(bias + channels, mask=inside, other=0.0).to(tl.float32)
        else:
            total = tl.zeros([BLOCK], tl.float32)
        for tap in tl.static_range(W):
            taps = tl.load(weight + channels * W + tap, mask=inside, other=0.0).to(tl.float32)
            total += inputs[tap].to(tl.float32) * taps
        tl.store(at_y, (total * tl.sigmoid(total)).to(y.dtype.element_ty), mask=inside)
        # Threads need not store what they have loaded themselves.
        tl.debug_barrier()
        for tap in tl.static_range(W - 1):
            tl.store(window + tap * C + channels, inputs[tap + 1], mask=inside)
    else:
        tl.store(at_y, tl.zeros([BLOCK], tl.float32).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def conv_prefill_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    state,
    y,
    slots,
    offsets,
    n_rows,
    state_stride,
    X_STRIDE: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """One program per piece of ``BLOCK_T`` tokens and block of channels; see ``causal_conv``."""
    row, piece = piece_of(offsets, n_rows, tl.program_id(0), BLOCK_T, BLOCK_ROWS)
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(offsets + row)
    n = tl.load(offsets + row + 1) - start
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channels < C
    begin = piece * BLOCK_T
    t = tl.arange(0, BLOCK_T)
    inside = (t < n - begin)[:, None] & is_channel[None, :]
    # Scalars to the pointers, and 32 bits for the rest: addresses would take most registers.
    x += start.to(tl.int64) * X_STRIDE
    at_x = x + begin.to(tl.int64) * X_STRIDE + (t[:, None] * X_STRIDE + channels[None, :])
    window = state + slot * state_stride
    total = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channels, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(W):
        source = begin + t - (W - 1 - tap)
        is_row = inside & (source >= 0)[:, None]
        value = tl.load(at_x - (W - 1 - tap) * X_STRIDE, mask=is_row, other=0.0)
        if (tap < W - 1) & (piece == 0) & (slot >= 0):
            # What the row's first tokens see of the tokens before it.
            at_window = window + (source[:, None] + W - 1) * C + channels[None, :]
            value += tl.load(at_window, mask=inside & (source < 0)[:, None], other=0.0)
        taps = tl.load(weight + channels * W + tap, mask=is_channel, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * taps[None, :]
    out = tl.where(slot >= 0, total * tl.sigmoid(total), 0.0).to(y.dtype.element_ty)
    at_y = y + (start + begin).to(tl.int64) * C + (t[:, None] * C + channels[None, :])
    tl.store(at_y, out, mask=inside)
    if (piece == 0) & (slot >= 0):
        # Only this program reads the window, so only this one may move it. Oldest first: what a
        # short row leaves of it is read before it is overwritten.
        tl.debug_barrier()
        for tap in tl.static_range(W - 1):
            kept = n - (W - 1) + tap
            if kept >= 0:
                last = tl.load(x + kept.to(tl.int64) * X_STRIDE + channels, mask=is_channel)
            else:
                last = tl.load(window + (kept + W - 1) * C + channels, mask=is_channel)
            tl.debug_barrier()
            tl.store(window + tap * C + channels, last, mask=is_channel)


@dataclass(frozen=True, slots=True)
class ConvCut:
    """How the convolution is cut up among programs.

    Attributes:
        decode: channels of a program in a step of one token a row, and its warps.
        tokens, channels, n_warps: of a program in a step with prompts; at least W - 1 tokens, so
            that the first program of a row alone reads its window.
    """

    decode: tuple[int, int] = (256, 2)
    tokens: int = 32
    channels: int = 128
    n_warps: int = 4


CONV_CUT = ConvCut()


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    rows: Rows,
    *,
    cut: ConvCut = CONV_CUT,
    pdl: bool = False,
) -> Tensor:
    """See ``reference.causal_conv``. One launch; the arithmetic is float32.

    Args:
        cut: of the work.
        pdl: of a step of one token a row: launched dependently: slots are read while the launch
            before still runs, and the launch after may begin.
    """
    T, C = x.shape
    W = weight.shape[1]
    _check(x, weight, bias, state, rows)
    y = x.new_empty(T, C)
    common = (x, weight, x if bias is None else bias, state, y, rows.slots)
    if rows.is_decode:
        block, n_warps = cut.decode
        block = min(block, triton.next_power_of_2(C))
        conv_decode_kernel[(T, triton.cdiv(C, block))](
            *common,
            x.stride(0),
            state.stride(0),
            C=C,
            W=W,
            BLOCK=block,
            HAS_BIAS=bias is not None,
            PDL=pdl,
            num_warps=n_warps,
            **launch_options(pdl),
        )
        return y
    if cut.tokens < W - 1:
        raise ValueError(f"pieces of {cut.tokens} tokens, a convolution of {W} taps")
    block = min(cut.channels, triton.next_power_of_2(C))
    conv_prefill_kernel[(n_pieces(rows, cut.tokens), triton.cdiv(C, block))](
        *common,
        rows.offsets,
        len(rows.lengths),
        state.stride(0),
        X_STRIDE=x.stride(0),
        C=C,
        W=W,
        BLOCK_T=cut.tokens,
        BLOCK_C=block,
        BLOCK_ROWS=128,
        HAS_BIAS=bias is not None,
        num_warps=cut.n_warps,
    )
    return y


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: Rows) -> None:
    (T, C), W = x.shape, weight.shape[1]
    if rows.n_tokens != T or x.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)}, strides {x.stride()}, of {rows.n_tokens} tokens")
    if weight.shape != (C, W) or W < 2 or not weight.is_contiguous():
        raise ValueError(f"weights {tuple(weight.shape)} of {C} channels")
    if bias is not None and bias.shape != (C,):
        raise ValueError(f"a bias {tuple(bias.shape)} of {C} channels")
    if state.shape[1:] != (W - 1, C) or state.stride()[1:] != (C, 1) or state.dtype != x.dtype:
        raise ValueError(f"windows {tuple(state.shape)}, {state.dtype}, strides {state.stride()}")
    if rows.slots.dtype != torch.int32:
        raise ValueError(f"slots are {rows.slots.dtype}")
