"""The gated delta rule, of Gated DeltaNet and (a decay of each channel) Kimi Delta Attention."""

import torch
from torch import Tensor

from wkvm.kernels.rows import Rows

NORM_EPS = 1e-6
"""Added to the sum of the squares of a query or key before its root is taken."""


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """The gated delta rule over packed rows, in place.

    Queries and keys are divided by the roots of their sums of squares, and queries by the root
    of K. For each token of a row in order, with S the matrix of its slot and value head, and q
    and k those of the key head that serves it, ``h // (Hv // Hk)``:

        S <- diag(exp(g)) S
        S <- S + k (beta (v - S^T k))^T
        o  = S^T q

    Args:
        q, k: ``[T, Hk, K]``, the dtype of ``v``.
        v: ``[T, Hv, V]``; Hv is a multiple of Hk.
        g: the log of the decay, at most 0: ``[T, Hv]`` float32, or ``[T, Hv, K]``, one for each
            row of S.
        beta: ``[T, Hv]`` float32: how much of what a key held is overwritten, 0 to 1, or to 2
            where a model allows negative eigenvalues.
        state: ``[N, Hv, K, V]`` float32, float16 or bfloat16, any first stride, contiguous within
            a slot. Slots of ``rows`` are overwritten, rounded once after all tokens of their row;
            no other slot is read or written.
        rows: T is its ``n_tokens``.

    Returns:
        ``[T, Hv, V]``, the dtype of ``v``; the arithmetic is at least float32. Zeros for pad rows.

    Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464; "Kimi Linear",
    arXiv:2510.26692.
    """
    y = torch.zeros_like(v)
    exact = g.dtype
    queries, keys = unit(q, exact) * k.shape[2] ** -0.5, unit(k, exact)
    per_key = v.shape[1] // k.shape[1]
    for row in rows.live:
        S = state[rows.host_slots[row]].to(exact, copy=True)
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            query, key = (each[t].repeat_interleave(per_key, 0) for each in (queries, keys))
            decay = torch.exp(g[t])
            S = S * (decay[:, None, None] if g.dim() == 2 else decay[:, :, None])
            held = torch.einsum("hkv,hk->hv", S, key)
            written = beta[t][:, None] * (v[t].to(exact) - held)
            S = S + key.unsqueeze(2) * written.unsqueeze(1)
            y[t] = torch.einsum("hkv,hk->hv", S, query).to(v.dtype)
        state[rows.host_slots[row]] = S
    return y


def unit(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``, divided by the root of the sum of its squares over the last axis."""
    exact = x.to(dtype)
    return exact * torch.rsqrt(exact.square().sum(-1, keepdim=True) + NORM_EPS)
