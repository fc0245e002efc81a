"""The short causal convolution on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from wkvm.kernels.rows import Rows


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.causal_conv``. A few operations a row, and as many for all rows of decode."""
    taps = weight.t()
    if rows.is_decode:
        return _decode(x, taps, bias, state, rows)
    y = torch.zeros_like(x)
    n_before = taps.shape[0] - 1
    for row in rows.live:
        slot, start, end = rows.host_slots[row], rows.host_offsets[row], rows.host_offsets[row + 1]
        inputs = torch.cat((state[slot], x[start:end]))
        n = end - start
        total = inputs[:n] * taps[0]
        for tap in range(1, n_before + 1):
            total.addcmul_(inputs[tap : tap + n], taps[tap])
        y[start:end] = silu(total if bias is None else total.add_(bias), inplace=True)
        state[slot] = inputs[n:]
    return y


def _decode(x: Tensor, taps: Tensor, bias: Tensor | None, state: Tensor, rows: Rows) -> Tensor:
    """One token a row."""
    all_live = len(rows.live) == len(rows.lengths)
    live = x if all_live else x.index_select(0, rows.live_starts)
    windows = torch.cat((state.index_select(0, rows.live_slots), live.unsqueeze(1)), 1)
    total = (windows * taps).sum(1)
    out = silu(total if bias is None else total.add_(bias), inplace=True)
    state.index_copy_(0, rows.live_slots, windows[:, 1:])
    if all_live:
        return out
    return torch.zeros_like(x).index_copy_(0, rows.live_starts, out)
