"""The gated delta rule within chunks: what each does to any state that enters it.

With G[t] the sum of the logarithms of decay of a chunk's tokens up to t, keys and queries
normalised, and S what enters the chunk:

    A[t, j] = beta[t] (k[t] e^(G[t] - G[j])) . k[j]   for j < t,     M = (1 + A)^-1
    P[t, j] = (q[t] e^(G[t] - G[j])) . k[j]           for j <= t
    written = M (beta v) - M (beta k e^G) S
    out     = (q e^G) S + P written
    S'      = diag(e^G[L]) S + (k e^(G[L] - G))^T written

This module makes all but what has S in it, for all chunks and heads side by side; ``delta_prefill``
takes the states through the chunks. Every exponent is at most 0, so that no decay overflows. Where
each channel has a decay of its own, A and P are not products of matrices, and ``scores_kernel``
makes them in blocks of 16 tokens: of a block and what is before it they are, relative to the first
token of the block; within a block they are added up pair by pair.

Source: Yang et al., "Gated Delta Networks", arXiv:2412.06464; "Kimi Linear", arXiv:2510.26692, of
which the blocks are.
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

from wkvm.kernels.gpu.packing import n_pieces, piece_of
from wkvm.kernels.gpu.sizes import LOG2_E, block_of
from wkvm.kernels.rows import Rows
from wkvm.kernels.rwkv7_prefill.within import inverse_of_one_minus

CHUNK = 64
"""Tokens of a chunk at most."""

EXACT_CHUNK = 16
"""Tokens of a chunk in float32: products of more would take minutes to compile."""

BLOCK_T = tl.constexpr(16)
"""Tokens of a block of ``scores_kernel``."""


OPERANDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def normalised(at, mask):  # type: ignore[no-untyped-def]
    """Rows of keys or queries, float32, divided by the roots of their sums of squares."""
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def scores_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    g,
    key_scores,
    query_scores,
    offsets,
    n_rows,
    q_stride,
    k_stride,
    g_stride,
    scale,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    L: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per block of a chunk and head: its rows of A, without beta, and of P."""
    n_blocks: tl.constexpr = L // BLOCK_T
    head = tl.program_id(0) % H
    block = tl.program_id(0) // H % n_blocks
    index = tl.program_id(0) // (H * n_blocks)
    row, chunk = piece_of(offsets, n_rows, index, L, 32)
    start = tl.load(offsets + row) + chunk * L
    length = tl.minimum(tl.load(offsets + row + 1) - start, L)
    if block * BLOCK_T < length:
        base = start.to(tl.int64)
        keys = tl.arange(0, BLOCK_K)
        is_key = keys < K
        all_tokens = tl.arange(0, L)
        ones = tl.arange(0, BLOCK_T)
        own = block * BLOCK_T + ones
        at_k = k + base * k_stride + (head // GROUP) * K + keys[None, :]
        at_q = q + base * q_stride + (head // GROUP) * K + keys[None, :]
        at_g = g + base * g_stride + head * K + keys[None, :]

        # Decays from a token before the block until the block, and from there to one of its own.
        is_before = all_tokens < block * BLOCK_T
        before = is_before[:, None] & is_key[None, :]
        inside = (own < length)[:, None] & is_key[None, :]
        log_w = tl.load(at_g + all_tokens[:, None] * g_stride, mask=before, other=0.0) * LOG2_E
        until = tl.sum(log_w, 0)[None, :] - tl.cumsum(log_w, 0)
        earlier = normalised(at_k + all_tokens[:, None] * k_stride, before)
        earlier = tl.trans((earlier * tl.exp2(until)).to(NARROW))
        log_w = tl.load(at_g + own[:, None] * g_stride, mask=inside, other=0.0) * LOG2_E
        since = tl.cumsum(log_w, 0)
        key = normalised(at_k + own[:, None] * k_stride, inside)
        query = normalised(at_q + own[:, None] * q_stride, inside) * scale
        grown = tl.exp2(since)
        of_keys = tl.dot((key * grown).to(NARROW), earlier, input_precision=PRECISION)
        of_queries = tl.dot((query * grown).to(NARROW), earlier, input_precision=PRECISION)

        # Pairs within the block, one column after the other.
        for j in range(BLOCK_T):
            is_j = (ones == j)[:, None]
            key_j = tl.sum(tl.where(is_j, key, 0.0), 0)
            since_j = tl.sum(tl.where(is_j, since, 0.0), 0)
            is_later = (ones >= j)[:, None]
            decay = tl.exp2(tl.where(is_later, since - since_j[None, :], 0.0))
            decay *= tl.where(is_later, key_j[None, :], 0.0)
            is_column = (all_tokens == block * BLOCK_T + j)[None, :]
            of_keys = tl.where(is_column, tl.sum(key * decay, 1)[:, None], of_keys)
            of_queries = tl.where(is_column, tl.sum(query * decay, 1)[:, None], of_queries)
        at_score = ((base + own)[:, None] * H + head) * L + all_tokens[None, :]
        inside = (own < length)[:, None] & (all_tokens < L)[None, :]
        tl.store(key_scores + at_score, of_keys, mask=inside)
        tl.store(query_scores + at_score, of_queries.to(query_scores.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def within_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    g,
    beta,
    key_scores,
    query_scores,
    queries,
    leaving,
    removing,
    written,
    decays,
    offsets,
    n_rows,
    q_stride,
    k_stride,
    v_stride,
    g_stride,
    beta_stride,
    scale,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    L: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    NARROW: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk and head; see ``Effects``."""
    head = tl.program_id(0) % H
    index = tl.program_id(0) // H
    row, chunk = piece_of(offsets, n_rows, index, L, 32)
    start = tl.load(offsets + row) + chunk * L
    length = tl.minimum(tl.load(offsets + row + 1) - start, L)
    base = start.to(tl.int64)
    tokens = tl.arange(0, L)
    keys = tl.arange(0, BLOCK_K)
    is_token = tokens < length
    is_key = keys < K
    live = is_token[:, None] & is_key[None, :]
    at_key = (head // GROUP) * K + keys[None, :]
    # A token that is not there decays nothing and writes nothing.
    strength = tl.load(beta + (base + tokens) * beta_stride + head, mask=is_token, other=0.0)
    if BY_CHANNEL:
        at_g = g + base * g_stride + head * K + tokens[:, None] * g_stride + keys[None, :]
        log_w = tl.load(at_g, mask=live, other=0.0) * LOG2_E
        last = tl.sum(log_w, 0)
        since = tl.cumsum(log_w, 0)
        rest = last[None, :] - since
        at_decay = decays + (index.to(tl.int64) * H + head) * K + keys
        tl.store(at_decay, tl.exp2(last), mask=is_key)
    else:
        at_g = g + (base + tokens) * g_stride + head
        log_w = tl.load(at_g, mask=is_token, other=0.0) * LOG2_E
        last = tl.sum(log_w, 0)
        sums = tl.cumsum(log_w, 0)
        since = sums[:, None]
        rest = last - since
        tl.store(decays + index.to(tl.int64) * H + head, tl.exp2(last))
    at = (base * H + head) * K + tokens[:, None] * (H * K) + keys[None, :]
    key = normalised(k + base * k_stride + tokens[:, None] * k_stride + at_key, live)
    query = normalised(q + base * q_stride + tokens[:, None] * q_stride + at_key, live) * scale
    tl.store(leaving + at, (key * tl.exp2(rest)).to(leaving.dtype.element_ty), mask=live)
    tl.store(queries + at, (query * tl.exp2(since)).to(queries.dtype.element_ty), mask=live)
    at_score = (base * H + head) * L + tokens[:, None] * (H * L) + tokens[None, :]
    is_earlier = tokens[:, None] > tokens[None, :]
    if BY_CHANNEL:
        A = tl.load(key_scores + at_score, mask=is_token[:, None] & is_earlier, other=0.0)
    else:
        is_seen = tokens[:, None] >= tokens[None, :]
        decay = tl.exp2(tl.where(is_seen, since - sums[None, :], 0.0))
        narrow = tl.trans(key.to(NARROW))
        P = tl.dot(query.to(NARROW), narrow, input_precision=PRECISION) * decay
        P = tl.where(is_seen, P, 0.0).to(query_scores.dtype.element_ty)
        tl.store(query_scores + at_score, P, mask=is_token[:, None] & (tokens < L)[None, :])
        A = tl.dot(key.to(NARROW), narrow, input_precision=PRECISION) * decay
    A = tl.where(is_earlier, -strength[:, None] * A, 0.0)
    M = inverse_of_one_minus(A, L, 8, NARROW, PRECISION)
    removed = (key * tl.exp2(since) * strength[:, None]).to(NARROW)
    remove = tl.dot(M.to(NARROW), removed, input_precision=PRECISION)
    tl.store(removing + at, remove.to(removing.dtype.element_ty), mask=live)
    M = M.to(OPERAND)
    for block in tl.static_range((V + BLOCK_V - 1) // BLOCK_V):
        values = block * BLOCK_V + tl.arange(0, BLOCK_V)
        inside = is_token[:, None] & (values < V)[None, :]
        at_v = v + base * v_stride + head * V + tokens[:, None] * v_stride + values[None, :]
        value = tl.load(at_v, mask=inside, other=0.0).to(tl.float32) * strength[:, None]
        write = tl.dot(M, value.to(OPERAND), input_precision=PRECISION)
        at_v = (base * H + head) * V + tokens[:, None] * (H * V) + values[None, :]
        tl.store(written + at_v, write.to(written.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Effects:
    """What chunks do to a state that enters them, for all heads.

    Attributes:
        key_scores: ``[T, H, L]`` float32: A without beta. Only with a decay for each channel.
        query_scores: ``[T, H, L]``: P.
        queries: ``[T, H, K]``: q e^G, of S to the outputs.
        leaving: ``[T, H, K]``: k e^(G[L] - G), of what is written to S'.
        removing: ``[T, H, K]``: M (beta k e^G), of S to what is not written.
        written: ``[T, H, V]``: M (beta v).
        decays: ``[n_chunks, H, 1 or K]`` float32: e^G[L].
    """

    key_scores: Tensor
    query_scores: Tensor
    queries: Tensor
    leaving: Tensor
    removing: Tensor
    written: Tensor
    decays: Tensor

    @classmethod
    def empty(cls, v: Tensor, K: int, L: int, n_chunks: int, *, by_channel: bool) -> "Effects":
        """Room for those of values ``[T, H, V]``."""
        T, H, V = v.shape

        def new(*sizes: int, dtype: torch.dtype = v.dtype) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=v.device)

        return cls(
            new(*((T, H, L) if by_channel else (1,)), dtype=torch.float32),
            new(T, H, L),
            new(T, H, K),
            new(T, H, K),
            new(T, H, K),
            new(T, H, V),
            new(n_chunks, H, K if by_channel else 1, dtype=torch.float32),
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """How packed rows are cut into chunks, and the sizes that kernels take.

    Attributes:
        chunk: L, tokens of a chunk at most.
        n_chunks: of all rows.
        precision: of products.
    """

    chunk: int
    n_chunks: int
    precision: str

    @classmethod
    def of(cls, rows: Rows, dtype: torch.dtype) -> "Cut":
        """That of rows of a dtype."""
        exact = dtype == torch.float32
        L = EXACT_CHUNK if exact else CHUNK
        return cls(L, n_pieces(rows, L), "ieee" if exact else "tf32")


def within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    rows: Rows,
    cut: Cut,
    *,
    n_warps: int = 8,
    n_score_warps: int = 4,
) -> Effects:
    """What each chunk does to the state that enters it; one launch, or two by channel.

    The other arguments are those of ``gated_delta``.
    """
    (Hk, K), (H, V) = q.shape[1:], v.shape[1:]
    by_channel, n_rows = g.dim() == 3, len(rows.lengths)
    effects = Effects.empty(v, K, cut.chunk, cut.n_chunks, by_channel=by_channel)
    narrow = tl.float32 if v.dtype == torch.float32 else tl.float16
    block_k = block_of(K)
    if by_channel:
        scores_kernel[(cut.n_chunks * (cut.chunk // BLOCK_T.value) * H,)](
            q,
            k,
            g,
            effects.key_scores,
            effects.query_scores,
            rows.offsets,
            n_rows,
            q.stride(0),
            k.stride(0),
            g.stride(0),
            K**-0.5,
            H=H,
            GROUP=H // Hk,
            K=K,
            BLOCK_K=block_k,
            L=cut.chunk,
            NARROW=narrow,
            PRECISION=cut.precision,
            num_warps=n_score_warps,
        )
    within_kernel[(cut.n_chunks * H,)](
        q,
        k,
        v,
        g,
        beta,
        effects.key_scores,
        effects.query_scores,
        effects.queries,
        effects.leaving,
        effects.removing,
        effects.written,
        effects.decays,
        rows.offsets,
        n_rows,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        g.stride(0),
        beta.stride(0),
        K**-0.5,
        H=H,
        GROUP=H // Hk,
        K=K,
        V=V,
        BLOCK_K=block_k,
        BLOCK_V=min(block_of(V), 128),
        L=cut.chunk,
        BY_CHANNEL=by_channel,
        NARROW=narrow,
        OPERAND=OPERANDS[v.dtype],
        PRECISION=cut.precision,
        num_warps=n_warps,
    )
    return effects
