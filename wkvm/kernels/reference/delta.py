"""The gated delta rule, of Gated DeltaNet and (a decay of each channel) Kimi Delta Attention."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from wkvm.kernels.reference.conv import causal_conv
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
        q, k: ``[T, Hk, K]``, the dtype of ``v``; of all three any first stride.
        v: ``[T, Hv, V]``; Hv is a multiple of Hk.
        g: the log of the decay, at most 0: ``[T, Hv]`` float32, or ``[T, Hv, K]``, one for each
            row of S.
        beta: ``[T, Hv]`` float32: how much of what a key held is overwritten, 0 to 1, or to 2
            where a model allows negative eigenvalues.
        state: ``[N, Hv, K, V]`` float32, float16 or bfloat16, any first stride, contiguous within
            a slot. Slots of ``rows`` are overwritten, and no other is read or written. They are
            rounded once after all tokens of their row; a GPU rounds them after each 64 tokens (16
            in float32) too, as if the row were cut there.
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
    """``causal_conv`` of queries, keys and values, and ``gated_delta`` by ``delta_gates``.

    Args:
        projected: ``[T, Hk K | Hk K | Hv V]``: queries, keys and values of all heads. Any first
            stride.
        decay, strength, A, dt_bias, max_strength: as in ``delta_gates``.
        conv_weight: ``[Hk K | Hk K | Hv V, W]``, the dtype of ``projected``.
        conv_state: ``[N, W - 1, Hk K | Hk K | Hv V]``, as in ``causal_conv``.
        state, rows: as in ``gated_delta``.
        n_key_heads: Hk.

    Returns:
        ``[T, Hv, V]``, the dtype of ``projected``. Zeros for pad rows.
    """
    g, beta = delta_gates(decay, strength, A, dt_bias, max_strength)
    convolved = causal_conv(projected, conv_weight, None, conv_state, rows)
    q, k, v = heads_of(convolved, state, n_key_heads)
    return gated_delta(q, k, v, g, beta, state, rows)


def delta_gates(
    decay: Tensor, strength: Tensor, A: Tensor, dt_bias: Tensor, max_strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What ``gated_delta`` is steered by.

    Args:
        decay: ``[T, Hv]`` or ``[T, Hv, K]``, any first stride.
        strength: ``[T, Hv]``, any first stride.
        A: ``[Hv]`` float32, negative.
        dt_bias: float32, ``[Hv]`` or ``[Hv, K]``, as ``decay``.
        max_strength: 1, or 2 where eigenvalues may be negative.

    Returns:
        float32: ``g``, ``A softplus(decay + dt_bias)``, and ``beta``, ``max_strength
        sigmoid(strength)``, in the shapes of ``decay`` and ``strength``, contiguous.
    """
    slopes = A if decay.dim() == 2 else A[:, None]
    g = slopes * softplus(decay.to(A.dtype) + dt_bias)
    return g, torch.sigmoid(strength.to(A.dtype)) * max_strength


def heads_of(convolved: Tensor, state: Tensor, n_key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys ``[T, Hk, K]`` and values ``[T, Hv, V]``, views of what lies side by side.

    Args:
        state: ``[N, Hv, K, V]``, which has the sizes.
    """
    _, n_value_heads, key_size, value_size = state.shape
    keys, values = n_key_heads * key_size, n_value_heads * value_size
    q, k, v = torch.split(convolved, [keys, keys, values], dim=1)
    by_key = (-1, n_key_heads, key_size)
    return q.view(by_key), k.view(by_key), v.view(-1, n_value_heads, value_size)


def unit(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``, divided by the root of the sum of its squares over the last axis."""
    exact = x.to(dtype)
    return exact * torch.rsqrt(exact.square().sum(-1, keepdim=True) + NORM_EPS)
