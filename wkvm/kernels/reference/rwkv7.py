"""What the kernels of RWKV-7 compute."""

import torch
from torch import Tensor

from wkvm.kernels.rows import Rows


def token_shift(x: Tensor, state: Tensor, rows: Rows) -> Tensor:
    """The difference from each token to the one before it; the state is the token before.

    Args:
        x: ``[T, C]``, contiguous.
        state: ``[N, C]``, the dtype of ``x``; any first stride, contiguous within a slot. Slots of
            ``rows`` are overwritten with the last token of their row; no other slot is
            read or written.
        rows: T is its ``n_tokens``.

    Returns:
        ``[T, C]``: ``x[t - 1] - x[t]``, where the token before the first of a row is its slot's
        state. Zeros for pad rows.
    """
    delta = torch.zeros_like(x)
    for row in rows.live:
        slot, start, end = rows.host_slots[row], rows.host_offsets[row], rows.host_offsets[row + 1]
        previous = torch.cat((state[slot].unsqueeze(0), x[start : end - 1]))
        delta[start:end] = previous - x[start:end]
        state[slot] = x[end - 1]
    return delta


def wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kap: Tensor, a: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """The recurrence of RWKV-7, over packed rows, in place.

    For each token of a row in order, with S the matrix of its slot and head:

        S <- diag(w) S - (kap * a) (S^T kap)^T + k v^T      (all from the old S)
        y  = S^T r                                           (the new S)

    Args:
        r, w, k, kap, a: ``[T, H, K]``, float32, contiguous. ``w`` is the decay itself, in (0, 1);
            ``kap`` has length 1 per head; ``a`` is the rate of removal, in [0, 1].
        v: ``[T, H, V]``, float32, contiguous.
        state: ``[N, H, K, V]`` float32, float16 or bfloat16, any first stride, contiguous within a
            slot. Slots of ``rows`` are overwritten, rounded once after all tokens of their row;
            no other slot is read or written.
        rows: T is its ``n_tokens``.

    Returns:
        ``[T, H, V]``. Zeros for pad rows.

    Source: Peng et al., "RWKV-7 Goose", arXiv:2503.14456. BlinkDL's S is the transpose of this one.
    """
    y = torch.zeros_like(v)
    for row in rows.live:
        S = state[rows.host_slots[row]].to(r.dtype, copy=True)
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            removed = torch.einsum("hkv,hk->hv", S, kap[t])
            S = (
                w[t].unsqueeze(2) * S
                - (kap[t] * a[t]).unsqueeze(2) * removed.unsqueeze(1)
                + k[t].unsqueeze(2) * v[t].unsqueeze(1)
            )
            y[t] = torch.einsum("hkv,hk->hv", S, r[t])
        state[rows.host_slots[row]] = S
    return y
