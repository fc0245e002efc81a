"""The recurrence of Mamba-2 for one token a row, for a GPU, in Triton; states in place by slot.

What takes time is memory: each element of a state is read and written once, by the thread that
computes with it, and the rest is next to nothing. So a program is one warp with a few kilobytes of
one head's state in registers, and a multiprocessor has many of them under way at a time.

The choice of steps is done in the same launch. The convolution has one of its own before it: here
each program would make its own inputs, and once more those that its group shares.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.gpu.sizes import STATE_DTYPES
from wkvm.kernels.rows import Rows
from wkvm.kernels.rwkv7_decode.common import launch_options


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """``log(1 + exp(x))``, as exact as float32 is, also where it is small."""
    e = tl.exp(-tl.abs(x))
    # log(1 + e) by the series of the inverse hyperbolic tangent, here of at most a third: the
    # hardware's logarithm has no more than an absolute error around 1.
    s = e / (2.0 + e)
    square = s * s
    series = 1.0 / 15 + square * (1.0 / 17)
    for i in tl.static_range(7):
        series = 1.0 / (13 - 2 * i) + square * series
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit  # type: ignore[untyped-decorator]
def step_size(raw, bias, low, high, LIMITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The step that a projection's output stands for."""
    dt = softplus(raw.to(tl.float32) + bias)
    if LIMITS:
        dt = tl.minimum(tl.maximum(dt, low), high)
    return dt


@triton.jit  # type: ignore[untyped-decorator]
def ssd_decode_kernel(  # type: ignore[no-untyped-def]
    x,
    B,
    C,
    dt,
    dt_bias,
    A,
    D,
    y,
    state,
    slots,
    x_stride,
    B_stride,
    C_stride,
    dt_stride,
    state_stride,
    dt_low,
    dt_high,
    H: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RAW: tl.constexpr,
    LIMITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per row, head and block of P; see ``ssd_decode``."""
    n_blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    block = tl.program_id(0) % n_blocks
    head = (tl.program_id(0) // n_blocks) % H
    row = (tl.program_id(0) // (n_blocks * H)).to(tl.int64)
    group = head // (H // G)
    slot = tl.load(slots + row).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
    p = block * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    is_p = p < P
    is_n = n < N
    at_y = y + row * (H * P) + head * P + p
    if slot >= 0:
        at_state = state + slot * state_stride + head * (P * N) + p[:, None] * N + n[None, :]
        # Nothing else in a step writes this layer's states, so this need not wait.
        if (P % BLOCK_P == 0) & (N == BLOCK_N):
            S = tl.load(at_state)
        else:
            S = tl.load(at_state, mask=is_p[:, None] & is_n[None, :], other=0.0)
        S = S.to(tl.float32)
        rate = tl.load(A + head)
        skip = tl.load(D + head)
        if RAW:
            of_dt = tl.load(dt_bias + head)
        if PDL:
            gdc_wait()
        values = tl.load(x + row * x_stride + head * P + p, mask=is_p, other=0.0)
        keys = tl.load(B + row * B_stride + group * N + n, mask=is_n, other=0.0)
        queries = tl.load(C + row * C_stride + group * N + n, mask=is_n, other=0.0)
        size = tl.load(dt + row * dt_stride + head)
        if RAW:
            size = step_size(size, of_dt, dt_low, dt_high, LIMITS)
        values = values.to(tl.float32)
        keys = keys.to(tl.float32)
        queries = queries.to(tl.float32)
        S = S * tl.exp(size * rate) + (size * values)[:, None] * keys[None, :]
        if (P % BLOCK_P == 0) & (N == BLOCK_N):
            tl.store(at_state, S.to(state.dtype.element_ty))
        else:
            inside = is_p[:, None] & is_n[None, :]
            tl.store(at_state, S.to(state.dtype.element_ty), mask=inside)
        out = tl.sum(S * queries[None, :], 1) + skip * values
        tl.store(at_y, out.to(y.dtype.element_ty), mask=is_p)
    else:
        if PDL:
            gdc_wait()
        tl.store(at_y, tl.zeros([BLOCK_P], tl.float32).to(y.dtype.element_ty), mask=is_p)


@dataclass(frozen=True, slots=True)
class DecodeCut:
    """How a step of one token a row is cut up among programs.

    Attributes:
        n_bytes: of a state in one program, at most; a power of two.
        n_warps: of one program.
    """

    n_bytes: int
    n_warps: int = 1


DECODE_CUTS = ((4, DecodeCut(4096, 1)), (32, DecodeCut(8192, 1)))
"""By the most rows that they are for: few rows want more programs, many want larger ones."""

MANY_ROWS = DecodeCut(16384, 1)


def decode_cut(n_rows: int) -> DecodeCut:
    """The cut for so many rows."""
    return next((cut for most, cut in DECODE_CUTS if n_rows <= most), MANY_ROWS)


@dataclass(frozen=True, slots=True)
class RawSteps:
    """How steps are made of a projection's outputs: ``softplus(dt + bias)``, within limits.

    Attributes:
        bias: ``[H]`` float32.
        low, high: the limits; 0 and infinity for none.
    """

    bias: Tensor
    low: float = 0.0
    high: float = float("inf")

    @property
    def has_limits(self) -> bool:
        """Whether a step could be outside of them."""
        return self.low > 0.0 or self.high < float("inf")


def ssd_decode(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    rows: Rows,
    *,
    raw: RawSteps | None = None,
    cut: DecodeCut | None = None,
    pdl: bool = False,
) -> Tensor:
    """``reference.ssd`` of rows of one token. One launch; the arithmetic is float32.

    Args:
        x, B, C: their first strides are free.
        dt: any first stride; float32, or with ``raw`` of any dtype, as the projection gave it.
        raw: how steps are made of ``dt``.
        cut: of the work; None for that of ``decode_cut``.
        pdl: launched dependently: slots and states are read while the launch before still runs,
            and the launch after may begin. What wrote them must have ended: between it and this
            there must be a launch that is not dependent.
    """
    n_rows, H, P = x.shape
    G, N = B.shape[1:]
    check_tensors(x, dt, B, C, state, rows, raw)
    cut = cut or decode_cut(n_rows)
    block_n = triton.next_power_of_2(N)
    fitting = cut.n_bytes // (4 * block_n)
    block_p = min(triton.next_power_of_2(P), max(1, fitting))
    y = x.new_empty(n_rows, H, P)
    ssd_decode_kernel[(n_rows * H * triton.cdiv(P, block_p),)](
        x,
        B,
        C,
        dt,
        A if raw is None else raw.bias,
        A,
        D,
        y,
        state,
        rows.slots,
        x.stride(0),
        B.stride(0),
        C.stride(0),
        dt.stride(0),
        state.stride(0),
        0.0 if raw is None else raw.low,
        0.0 if raw is None else raw.high,
        H=H,
        P=P,
        N=N,
        G=G,
        BLOCK_P=block_p,
        BLOCK_N=block_n,
        RAW=raw is not None,
        LIMITS=raw is not None and raw.has_limits,
        PDL=pdl,
        num_warps=cut.n_warps,
        **launch_options(pdl),
    )
    return y


def check_tensors(
    x: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    rows: Rows,
    raw: RawSteps | None,
) -> None:
    """Raise a ValueError unless these are the arguments of ``reference.ssd``."""
    (T, H, P), (G, N) = x.shape, B.shape[1:]
    if state.stride()[1:] != (P * N, N, 1) or state.dtype not in STATE_DTYPES:
        raise ValueError(f"a state {tuple(state.shape)}, {state.dtype}, strides {state.stride()}")
    if rows.slots.dtype != torch.int32:
        raise ValueError(f"slots are {rows.slots.dtype}")
    if rows.n_tokens != T or state.shape[1:] != (H, P, N) or x.stride()[1:] != (P, 1):
        raise ValueError(f"x {tuple(x.shape)}, strides {x.stride()}, of {tuple(state.shape)}")
    if B.shape != (T, G, N) or C.shape != B.shape or H % G:
        raise ValueError(f"B {tuple(B.shape)} and C {tuple(C.shape)} of {H} heads")
    if B.stride()[1:] != (N, 1) or C.stride()[1:] != (N, 1) or B.dtype != C.dtype:
        raise ValueError(f"strides {B.stride()} of B, {C.stride()} of C; {B.dtype}, {C.dtype}")
    if dt.shape != (T, H) or dt.stride(1) != 1 or (raw is None and dt.dtype != torch.float32):
        raise ValueError(f"steps {tuple(dt.shape)}, {dt.dtype}, strides {dt.stride()}")
