"""The gated delta rule on a CPU: prompts in chunks, so that most of it is matrix products.

With S the state before a chunk, G[t] the sum of the log decays of its tokens up to t, and u[t] what
token t writes, ``beta (v - S^T k)``, the rule unrolls to

    u[t] = beta[t] (v[t] - (exp(G[t]) k[t])^T S - sum_{s<t} (k[t] . exp(G[t] - G[s]) k[s]) u[s])
    o[t] = (exp(G[t]) q[t])^T S + sum_{s<=t} (q[t] . exp(G[t] - G[s]) k[s]) u[s]

which is a triangular system for all u of a chunk, and products. No decay is undone: each exponent
is a sum of log decays, made of those alone that it is of, so that nothing overflows and a strong
decay leaves its neighbours their digits.
"""

import torch
from torch import Tensor

from wkvm.kernels.cpu.conv import causal_conv
from wkvm.kernels.cpu.decays import spans, sums_after
from wkvm.kernels.reference.delta import delta_gates, heads_of, unit
from wkvm.kernels.rows import Rows

CHUNK = 64
"""Tokens whose keys meet each other in one triangular system."""

BLOCK = 8
"""Tokens of a chunk whose decays by channel are made for each pair; other pairs meet halfway."""


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.gated_delta``. A few operations a token of decode, in place if float32."""
    y = torch.zeros_like(v)
    exact = g.dtype
    n_repeats = v.shape[1] // k.shape[1]
    # [T, Hv, 2, K]: a key and its query are read against the same matrices.
    pairs = unit(torch.stack((k, q), 2), exact)
    pairs[:, :, 1].mul_(k.shape[2] ** -0.5)
    if n_repeats > 1:
        pairs = pairs.repeat_interleave(n_repeats, 1)
    values, strengths = v.to(exact), beta[:, :, None, None]
    decays = g.view(*g.shape[:2], -1)
    for row in rows.live:
        stored = state[rows.host_slots[row]]
        S = stored.to(exact)
        start, end = rows.host_offsets[row], rows.host_offsets[row + 1]
        for at in range(start, end, CHUNK):
            tokens = slice(at, min(at + CHUNK, end))
            if tokens.stop == at + 1:
                y[at] = _token(pairs[at], values[at], decays[at], strengths[at], S)
            else:
                y[tokens] = _chunk(
                    pairs[tokens], values[tokens], decays[tokens], beta[tokens], S
                ).transpose(0, 1)
        if S.dtype != stored.dtype:
            stored.copy_(S)
    return y


def delta_mix(
    projected: Tensor,
    decay: Tensor,
    strength: Tensor,
    conv_weight: Tensor,
    conv_state: Tensor,
    A: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: Rows,
    n_key_heads: int,
    *,
    max_strength: float = 1.0,
) -> Tensor:
    """See ``reference.delta_mix``."""
    g, beta = delta_gates(decay, strength, A, dt_bias, max_strength)
    convolved = causal_conv(projected, conv_weight, None, conv_state, rows)
    q, k, v = heads_of(convolved, state, n_key_heads)
    return gated_delta(q, k, v, g, beta, state, rows)


def _token(pair: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> Tensor:
    """One token, ``[Hv, 2, K]``, ``[Hv, V]``, ``[Hv, 1 or K]``, ``[Hv, 1, 1]``; moves ``S``."""
    S.mul_(g.exp().unsqueeze(2))
    held = torch.bmm(pair, S)
    written = (v.unsqueeze(1) - held[:, :1]).mul_(beta)
    key, query = pair[:, :1], pair[:, 1:]
    S.addcmul_(key.transpose(1, 2), written)
    # S^T q of the new S, from that of the old one: the matrices are not read again.
    return torch.addcmul(held[:, 1], (key * query).sum(2), written.squeeze(1))


def _chunk(pairs: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> Tensor:
    """Tokens ``[T, Hv, ...]`` after the state ``S``: their outputs ``[Hv, T, V]``; moves ``S``."""
    n, n_heads, _, size = pairs.shape
    both = pairs.permute(1, 2, 0, 3)
    by_head = g.transpose(0, 1)
    meet = _meet_scalar(both, by_head) if g.shape[2] == 1 else _meet_channels(both, by_head)
    from_start = by_head.cumsum(1)
    to_end = sums_after(by_head)
    read = torch.bmm((both * from_start.exp().unsqueeze(1)).reshape(n_heads, 2 * n, size), S)
    strengths = beta.t().unsqueeze(2)
    wanted = (v.transpose(0, 1) - read[:, :n]) * strengths
    written = torch.linalg.solve_triangular(
        meet[:, 0] * strengths, wanted, upper=False, unitriangular=True
    )
    out = read[:, n:].baddbmm_(meet[:, 1], written)
    S.mul_(from_start[:, -1].exp().unsqueeze(2))
    S.baddbmm_((both[:, 0] * to_end.exp()).transpose(1, 2), written)
    return out


def _meet_scalar(both: Tensor, g: Tensor) -> Tensor:
    """Keys and queries ``[Hv, 2, T, K]`` by keys, decayed by ``[Hv, T, 1]``: ``[Hv, 2, T, T]``."""
    n_heads, _, n, size = both.shape
    products = torch.bmm(both.reshape(n_heads, 2 * n, size), both[:, 0].transpose(1, 2))
    return products.view(n_heads, 2, n, n).mul_(spans(g).squeeze(3).unsqueeze(1))


def _meet_channels(both: Tensor, g: Tensor) -> Tensor:
    """As ``_meet_scalar``, where each channel has a decay of its own: ``g`` is ``[Hv, T, K]``.

    Pairs within a block are weighed one by one. To keys before its block a token is decayed from
    the block's start, and they up to there: two factors of at most 1.
    """
    n_heads, _, n, size = both.shape
    meet = both.new_zeros(n_heads, 2, n, n)
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        decays, own = g[:, block], both[:, :, block]
        weighed = spans(decays) * own[:, 0].unsqueeze(1)
        meet[:, :, block, block] = torch.einsum("htsk,hptk->hpts", weighed, own)
        if start == 0:
            continue
        since = (own * decays.cumsum(1).exp().unsqueeze(1)).reshape(n_heads, -1, size)
        until = both[:, 0, :start] * sums_after(g[:, :start]).exp()
        products = torch.bmm(since, until.transpose(1, 2))
        meet[:, :, block, :start] = products.view(n_heads, 2, -1, start)
    return meet
