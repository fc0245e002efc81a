"""The recurrence of Mamba-2 over prompts, for a GPU, in Triton; states in place by slot.

Rows are cut into chunks from their start. With a[t] the logarithm of the decays of a chunk's tokens
up to t, and S what enters the chunk,

    y[t] = exp(a[t]) S C[t] + sum over s <= t of exp(a[t] - a[s]) dt[s] (C[t] B[s]) x[s] + D x[t]
    S'   = exp(a[L]) S + sum over s of exp(a[L] - a[s]) dt[s] x[s] B[s]^T

which are matrix products over the tokens of a chunk. A program takes a *span* of chunks in order,
with the state of its head in registers; decays, products within the chunk and outputs are made on
the way, so that nothing goes through memory but what comes in, y and the states at the ends.

Where rows and heads are too few to fill the device, rows are cut into spans, and a kernel before
takes the states alone through the rows and leaves those that enter the spans. Both do the same
arithmetic to a state: no bit depends on spans, nor on cuts of a prompt at multiples of the chunk.

Source: Dao and Gu, "Transformers are SSMs", arXiv:2405.21060, section 6.
"""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from wkvm.kernels.gpu.packing import n_pieces, piece_of
from wkvm.kernels.gpu.sizes import LOG2_E, block_of
from wkvm.kernels.gpu.ssd_decode import RawSteps, check_tensors, step_size
from wkvm.kernels.rows import Rows

WHOLE = 1 << 30
"""As a span: all of a row."""

FILLING = 264
"""Programs that fill a device: two for each multiprocessor."""


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def ssd_decays_kernel(  # type: ignore[no-untyped-def]
    dt,
    dt_bias,
    A,
    decays,
    offsets,
    n_rows,
    dt_stride,
    dt_low,
    dt_high,
    H: tl.constexpr,
    L: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    RAW: tl.constexpr,
    LIMITS: tl.constexpr,
):
    """One program per chunk and block of heads: steps, and decays up to each token.

    Decays are logarithms to base 2. A token that is not there takes no step: it decays nothing and
    adds nothing.
    """
    row, chunk = piece_of(offsets, n_rows, tl.program_id(0), L, BLOCK_ROWS)
    start = tl.load(offsets + row)
    n_tokens = tl.load(offsets + row + 1) - start
    t = tl.arange(0, L)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = heads < H
    inside = (t < n_tokens - chunk * L)[:, None] & is_head[None, :]
    token = (start + chunk * L).to(tl.int64)
    at_dt = dt + token * dt_stride + t[:, None] * dt_stride + heads[None, :]
    size = tl.load(at_dt, mask=inside, other=0.0).to(tl.float32)
    if RAW:
        bias = tl.load(dt_bias + heads, mask=is_head, other=0.0)
        size = tl.where(inside, step_size(size, bias[None, :], dt_low, dt_high, LIMITS), 0.0)
    rate = tl.load(A + heads, mask=is_head, other=0.0) * LOG2_E
    # Beyond this a decay is 0 in float32, and its neighbours would lose their digits to it.
    until = tl.cumsum(tl.maximum(size * rate[None, :], -150.0), 0)
    first = (start // L + row + chunk).to(tl.int64)
    at = decays + (first * H + heads[None, :]) * (2 * L) + t[:, None]
    tl.store(at, size, mask=is_head[None, :])
    tl.store(at + L, until, mask=is_head[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def absorbed(  # type: ignore[no-untyped-def]
    S, values, keys, size, until, total, STATE: tl.constexpr, PRECISION: tl.constexpr
):
    """The state ``[N, P]`` after a chunk, of which ``total`` is the decay."""
    weights = size * tl.exp2(total - until)
    weighted = (values.to(tl.float32) * weights[:, None]).to(keys.dtype)
    S = tl.dot(tl.trans(keys), weighted, S * tl.exp2(total), input_precision=PRECISION)
    # As it would be if the row were cut here.
    return S.to(STATE).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def ssd_states_kernel(  # type: ignore[no-untyped-def]
    x,
    B,
    decays,
    entering,
    state,
    slots,
    offsets,
    state_stride,
    X_STRIDE: tl.constexpr,
    B_STRIDE: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    L: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """One program per row, head and block of a state; see ``ssd_prefill``."""
    n_p: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    n_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) % (n_p * n_n)
    head = (tl.program_id(0) // (n_p * n_n)) % H
    row = tl.program_id(0) // (n_p * n_n * H)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        group = head // (H // G)
        start = tl.load(offsets + row)
        n_tokens = tl.load(offsets + row + 1) - start
        p = (block % n_p) * BLOCK_P + tl.arange(0, BLOCK_P)
        n = (block // n_p) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_p = p < P
        is_n = n < N
        t = tl.arange(0, L)
        square = is_n[:, None] & is_p[None, :]
        at_state = state + slot * state_stride + head * (P * N) + p[None, :] * N + n[:, None]
        S = tl.load(at_state, mask=square, other=0.0).to(tl.float32)
        at_decays = decays + ((start // L + row).to(tl.int64) * H + head) * (2 * L)
        first = start // SPAN + row
        at_entering = entering + head * (N * P) + n[:, None] * P + p[None, :]
        for at in tl.range(0, n_tokens, L, num_stages=N_STAGES):
            token = (start + at).to(tl.int64)
            inside = t < n_tokens - at
            at_values = x + token * X_STRIDE + head * P + (t[:, None] * X_STRIDE + p[None, :])
            at_keys = B + token * B_STRIDE + group * N + (t[:, None] * B_STRIDE + n[None, :])
            values = tl.load(at_values, mask=inside[:, None] & is_p[None, :], other=0.0)
            keys = tl.load(at_keys, mask=inside[:, None] & is_n[None, :], other=0.0)
            size = tl.load(at_decays + t)
            until = tl.load(at_decays + L + t)
            total = tl.load(at_decays + 2 * L - 1)
            at_decays += H * 2 * L
            of_first = p < tl.where((token - start) % SPAN == 0, P, 0)
            at_span = at_entering + (first + (token - start) // SPAN) * (H * N * P)
            tl.store(at_span, S, mask=is_n[:, None] & of_first[None, :])
            S = absorbed(S, values, keys, size, until, total, state.dtype.element_ty, PRECISION)
        tl.store(at_state, S.to(state.dtype.element_ty), mask=square)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def ssd_outputs_kernel(  # type: ignore[no-untyped-def]
    x,
    B,
    C,
    decays,
    D,
    y,
    entering,
    state,
    slots,
    offsets,
    n_rows,
    state_stride,
    X_STRIDE: tl.constexpr,
    B_STRIDE: tl.constexpr,
    C_STRIDE: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    L: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    ENTERS: tl.constexpr,
    PRECISION: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """One program per span, head and block of P; see ``ssd_prefill``."""
    n_p: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    head = (tl.program_id(0) // n_p) % H
    group = head // (H // G)
    row, span = piece_of(offsets, n_rows, tl.program_id(0) // (n_p * H), SPAN, BLOCK_ROWS)
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(offsets + row)
    n_tokens = tl.load(offsets + row + 1) - start
    p = (tl.program_id(0) % n_p) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    is_p = p < P
    is_n = n < N
    t = tl.arange(0, L)
    is_past = t[:, None] >= t[None, :]
    square = is_n[:, None] & (p < tl.where(slot >= 0, P, 0))[None, :]
    at_state = state + slot * state_stride + head * (P * N) + p[None, :] * N + n[:, None]
    if ENTERS:
        first = (start // SPAN + row + span).to(tl.int64)
        at_entering = entering + (first * H + head) * (N * P) + n[:, None] * P + p[None, :]
        S = tl.load(at_entering, mask=square, other=0.0)
    else:
        S = tl.load(at_state, mask=square, other=0.0).to(tl.float32)
    skip = tl.load(D + head)
    begin = span * SPAN
    end = tl.minimum(n_tokens, begin + SPAN)
    at_decays = decays + ((start // L + row + begin // L).to(tl.int64) * H + head) * (2 * L)
    for at in tl.range(begin, end, L, num_stages=N_STAGES):
        token = (start + at).to(tl.int64)
        inside = t < end - at
        at_values = x + token * X_STRIDE + head * P + (t[:, None] * X_STRIDE + p[None, :])
        at_keys = B + token * B_STRIDE + group * N + (t[:, None] * B_STRIDE + n[None, :])
        at_queries = C + token * C_STRIDE + group * N + (t[:, None] * C_STRIDE + n[None, :])
        values = tl.load(at_values, mask=inside[:, None] & is_p[None, :], other=0.0)
        keys = tl.load(at_keys, mask=inside[:, None] & is_n[None, :], other=0.0)
        queries = tl.load(at_queries, mask=inside[:, None] & is_n[None, :], other=0.0)
        size = tl.load(at_decays + t)
        until = tl.load(at_decays + L + t)
        total = tl.load(at_decays + 2 * L - 1)
        at_decays += H * 2 * L
        meet = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        # Towards the past a decay would be undone, and could overflow.
        spans = tl.where(is_past, until[:, None] - until[None, :], float("-inf"))
        meet = (meet * tl.exp2(spans) * size[None, :]).to(values.dtype)
        out = tl.dot(queries, S.to(queries.dtype), input_precision=PRECISION)
        out *= tl.exp2(until)[:, None]
        out = tl.dot(meet, values, out, input_precision=PRECISION)
        out += skip * values.to(tl.float32)
        out = tl.where(slot >= 0, out, 0.0).to(y.dtype.element_ty)
        at_y = y + token * (H * P) + head * P + (t[:, None] * (H * P) + p[None, :])
        tl.store(at_y, out, mask=inside[:, None] & is_p[None, :])
        S = absorbed(S, values, keys, size, until, total, state.dtype.element_ty, PRECISION)
    if not ENTERS:
        tl.store(at_state, S.to(state.dtype.element_ty), mask=square)


@dataclass(frozen=True, slots=True)
class PrefillCut:
    """How prompts are cut up among programs.

    Attributes:
        chunk: tokens of a chunk; a power of two of at least 16. What is computed depends on it in
            its last bits, and on nothing else here.
        span: tokens of a span, a multiple of the chunk; ``WHOLE`` for no spans.
        p, n_warps, n_stages: of the kernel of outputs: columns of P and warps of a program, and
            chunks that are under way at a time.
        states: likewise of the kernel of states: p, rows of N, warps and stages.
    """

    chunk: int = 64
    span: int = WHOLE
    p: int = 64
    n_warps: int = 4
    n_stages: int = 2
    states: tuple[int, int, int, int] = (64, 64, 4, 3)


EXACT_CUT = PrefillCut(chunk=16, p=32, n_warps=4, n_stages=1, states=(32, 64, 4, 1))
"""In float32 models: plain float32 products of more would not fit the registers."""

SPAN = 512
"""Tokens of a span, where there are spans."""


def prefill_cut(dtype: torch.dtype, H: int, P: int, N: int, rows: Rows) -> PrefillCut:
    """The cut for these rows. Its chunk depends on nothing but the dtype."""
    cut = EXACT_CUT if dtype == torch.float32 else PrefillCut()
    if N > 128:
        # As many registers for a state of more rows.
        cut = replace(cut, p=cut.p // 2, n_warps=8)
    n_programs = len(rows.lengths) * H * triton.cdiv(P, cut.p)
    is_long = max(rows.lengths) > 2 * SPAN
    return replace(cut, span=SPAN) if is_long and n_programs < FILLING else cut


def ssd_prefill(
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
    cut: PrefillCut | None = None,
) -> Tensor:
    """``reference.ssd`` of rows of any lengths. Two launches, or three with spans.

    Products have operands in the dtype of ``x`` and sums in float32; all else is float32. A state
    is rounded to its dtype after each chunk.

    Args:
        x, B, C: their first strides are free.
        dt: any first stride; float32, or with ``raw`` of any dtype, as the projection gave it.
        raw: how steps are made of ``dt``.
        cut: of the work; None for that of ``prefill_cut``.
    """
    (T, H, P), (G, N) = x.shape, B.shape[1:]
    check_tensors(x, dt, B, C, state, rows, raw)
    cut = cut or prefill_cut(x.dtype, H, P, N, rows)
    has_spans = cut.span < WHOLE
    n_rows = len(rows.lengths)
    y = x.new_empty(T, H, P)
    n_entering = T // cut.span + n_rows if has_spans else 0
    entering = torch.empty(n_entering, H, N, P, dtype=torch.float32, device=x.device)
    n_chunks = T // cut.chunk + n_rows
    decays = torch.empty(n_chunks, H, 2, cut.chunk, dtype=torch.float32, device=x.device)
    block_h = min(16, triton.next_power_of_2(H))
    ssd_decays_kernel[(n_pieces(rows, cut.chunk), triton.cdiv(H, block_h))](
        dt,
        A if raw is None else raw.bias,
        A,
        decays,
        rows.offsets,
        n_rows,
        dt.stride(0),
        0.0 if raw is None else raw.low,
        0.0 if raw is None else raw.high,
        H=H,
        L=cut.chunk,
        BLOCK_H=block_h,
        BLOCK_ROWS=128,
        RAW=raw is not None,
        LIMITS=raw is not None and raw.has_limits,
        num_warps=4,
    )
    sizes = {"H": H, "P": P, "N": N, "G": G, "L": cut.chunk, "SPAN": cut.span}
    sizes |= {"X_STRIDE": x.stride(0), "B_STRIDE": B.stride(0)}
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    if has_spans:
        block_p = min(cut.states[0], block_of(P))
        block_n = min(cut.states[1], block_of(N))
        n_blocks = triton.cdiv(P, block_p) * triton.cdiv(N, block_n)
        ssd_states_kernel[(n_rows * H * n_blocks,)](
            x,
            B,
            decays,
            entering,
            state,
            rows.slots,
            rows.offsets,
            state.stride(0),
            **sizes,
            BLOCK_P=block_p,
            BLOCK_N=block_n,
            PRECISION=precision,
            N_STAGES=cut.states[3],
            num_warps=cut.states[2],
        )
    block_p = min(cut.p, block_of(P))
    n_programs = n_pieces(rows, cut.span) * H * triton.cdiv(P, block_p)
    ssd_outputs_kernel[(n_programs,)](
        x,
        B,
        C,
        decays,
        D,
        y,
        entering,
        state,
        rows.slots,
        rows.offsets,
        n_rows,
        state.stride(0),
        **sizes,
        C_STRIDE=C.stride(0),
        BLOCK_P=block_p,
        BLOCK_N=block_of(N),
        BLOCK_ROWS=128,
        ENTERS=has_spans,
        PRECISION=precision,
        N_STAGES=cut.n_stages,
        num_warps=cut.n_warps,
    )
    return y
