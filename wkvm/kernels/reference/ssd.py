"""The recurrence of Mamba-2, a state space with a scalar decay for each head."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from wkvm.kernels.reference.conv import causal_conv
from wkvm.kernels.rows import Rows


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """The recurrence of Mamba-2, over packed rows, in place.

    For each token of a row in order, with S the matrix of its slot and head, and B and C those of
    the head's group, ``h // (H // G)``:

        S <- exp(dt A) S + dt x B^T
        y  = S C + D x                    (the new S)

    Args:
        x: ``[T, H, P]``; of it, of B and of C any first stride.
        dt: ``[T, H]`` float32: the step, positive, after softplus and limits.
        A: ``[H]`` float32, negative.
        B, C: ``[T, G, N]``, the dtype of ``x``.
        D: ``[H]`` float32.
        state: ``[S, H, P, N]`` float32, float16 or bfloat16, any first stride, contiguous within a
            slot. Slots of ``rows`` are overwritten, rounded once after all tokens of their row;
            no other slot is read or written.
        rows: T is its ``n_tokens``.

    Returns:
        ``[T, H, P]``, the dtype of ``x``; the arithmetic is at least float32. Zeros for pad rows.

    Source: Dao and Gu, "Transformers are SSMs", arXiv:2405.21060.
    """
    y = torch.zeros_like(x)
    exact = dt.dtype
    per_group = x.shape[1] // B.shape[1]
    for row in rows.live:
        S = state[rows.host_slots[row]].to(exact, copy=True)
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            inputs = x[t].to(exact)
            keys = B[t].to(exact).repeat_interleave(per_group, 0)
            queries = C[t].to(exact).repeat_interleave(per_group, 0)
            decay = torch.exp(dt[t] * A)[:, None, None]
            S = decay * S + (dt[t][:, None] * inputs).unsqueeze(2) * keys.unsqueeze(1)
            y[t] = (torch.einsum("hpn,hn->hp", S, queries) + D[:, None] * inputs).to(x.dtype)
        state[rows.host_slots[row]] = S
    return y


def ssd_mix(
    projected: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    conv_state: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float],
    A: Tensor,
    D: Tensor,
    state: Tensor,
    rows: Rows,
) -> Tensor:
    """``causal_conv`` of x, B and C, ``ssd_steps``, and ``ssd`` of what comes of them.

    Args:
        projected: ``[T, H P | G N | G N]``: x, B and C. Any first stride.
        dt: ``[T, H]``, any first stride: the steps before softplus.
        conv_weight: ``[H P | G N | G N, W]``, the dtype of ``projected``.
        conv_bias: ``[H P | G N | G N]`` likewise; None for none.
        conv_state: ``[N, W - 1, H P | G N | G N]``, as in ``causal_conv``.
        dt_bias: ``[H]`` float32.
        dt_limits: the least and the largest step; 0 and infinity for none.
        A, D, state, rows: as in ``ssd``.

    Returns:
        ``[T, H, P]``, the dtype of ``projected``. Zeros for pad rows.
    """
    convolved = causal_conv(projected, conv_weight, conv_bias, conv_state, rows)
    x, B, C = heads_of(convolved, state)
    return ssd(x, ssd_steps(dt, dt_bias, dt_limits), A, B, C, D, state, rows)


def ssd_steps(dt: Tensor, bias: Tensor, limits: tuple[float, float]) -> Tensor:
    """``softplus(dt + bias)`` within limits, ``[T, H]`` in the dtype of ``bias``, contiguous."""
    steps = softplus(dt.to(bias.dtype) + bias)
    return steps if limits == (0.0, float("inf")) else steps.clamp_(*limits)


def heads_of(convolved: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, B and C of ``[T, H P | G N | G N]``, as views ``[T, H, P]`` and ``[T, G, N]``."""
    _, H, P, N = state.shape
    keys = (convolved.shape[1] - H * P) // 2
    x, B, C = torch.split(convolved, [H * P, keys, keys], dim=1)
    T = len(x)
    return x.view(T, H, P), B.view(T, -1, N), C.view(T, -1, N)
