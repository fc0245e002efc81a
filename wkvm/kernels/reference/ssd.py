"""The recurrence of Mamba-2, a state space with a scalar decay for each head."""

import torch
from torch import Tensor

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
        x: ``[T, H, P]``.
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
