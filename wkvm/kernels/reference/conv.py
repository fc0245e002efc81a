"""The short causal convolution before a recurrence."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from wkvm.kernels.rows import Rows


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: Rows
) -> Tensor:
    """A causal convolution of each channel with a few taps, and silu; the window moves in place.

    With x[-1], x[-2], ... the inputs before the row, which are its slot's window:

        y[t] = silu(bias + sum_j weight[j] x[t - (W - 1) + j])

    Args:
        x: ``[T, C]``, any first stride.
        weight: ``[C, W]``, W at least 2, the dtype of ``x``.
        bias: ``[C]`` likewise; None for none.
        state: ``[N, W - 1, C]``, the dtype of ``x``: the last inputs, oldest first, zeros where
            there were none. Any first stride, contiguous within a slot. Slots of ``rows`` are
            overwritten; no other slot is read or written.
        rows: T is its ``n_tokens``.

    Returns:
        ``[T, C]``. Zeros for pad rows.
    """
    y = x.new_zeros(x.shape)
    n_taps = weight.shape[1]
    for row in rows.live:
        slot, start, end = rows.host_slots[row], rows.host_offsets[row], rows.host_offsets[row + 1]
        inputs = torch.cat((state[slot], x[start:end]))
        for t in range(start, end):
            window = inputs[t - start : t - start + n_taps]
            total = (window * weight.t()).sum(0)
            y[t] = silu(total if bias is None else total + bias)
        state[slot] = inputs[end - start :]
    return y
