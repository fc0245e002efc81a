"""The kernels of RWKV-7 on a CPU."""

import torch
from torch import Tensor

from wkvm.kernels.rows import Rows


def token_shift(x: Tensor, state: Tensor, rows: Rows) -> Tensor:
    """See ``reference.token_shift``."""
    if x.shape[0] == 1 and rows.live:
        previous = state[rows.host_slots[0]]
        delta = previous - x
        previous.copy_(x[0])
        return delta
    if rows.is_decode and len(rows.live) == len(rows.lengths):
        delta = state.index_select(0, rows.live_slots).sub_(x)
        state.index_copy_(0, rows.live_slots, x)
        return delta
    previous = torch.empty_like(x)
    previous[1:] = x[:-1]
    previous.index_copy_(0, rows.live_starts, state.index_select(0, rows.live_slots))
    state.index_copy_(0, rows.live_slots, x.index_select(0, rows.live_ends))
    return previous.sub_(x).index_fill_(0, rows.pad_tokens, 0)


def wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kap: Tensor, a: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.wkv7``. Five operations a token, on a float32 state where it lies."""
    if v.shape[0] == 1 and rows.live:
        return _one_token(r, w, k, v, kap, a, state[rows.host_slots[0]])
    y = torch.empty_like(v)
    # Views are taken for all tokens at once: one by one they cost as much as the arithmetic.
    reads, outputs = kap.unsqueeze(2).unbind(0), y.unsqueeze(2).unbind(0)
    queries, values = r.unsqueeze(2).unbind(0), v.unsqueeze(2).unbind(0)
    decays, keys = w.unsqueeze(3).unbind(0), k.unsqueeze(3).unbind(0)
    removals = (kap * a).unsqueeze(3).unbind(0)
    for row, slot in enumerate(rows.host_slots):
        start, end = rows.host_offsets[row], rows.host_offsets[row + 1]
        if slot < 0:
            y[start:end] = 0
            continue
        stored = state[slot]
        S = stored.to(r.dtype)
        for t in range(start, end):
            removed = torch.bmm(reads[t], S)
            S.mul_(decays[t]).addcmul_(removals[t], removed, value=-1)
            S.addcmul_(keys[t], values[t])
            torch.bmm(queries[t], S, out=outputs[t])
        if S.dtype != stored.dtype:
            stored.copy_(S)
    return y


def _one_token(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kap: Tensor, a: Tensor, stored: Tensor
) -> Tensor:
    """``wkv7`` of a single row of one token: the same operations without lists of views."""
    S = stored.to(r.dtype)
    columns = (r.shape[1], r.shape[2], 1)
    removed = torch.bmm(kap.transpose(0, 1), S)
    S.mul_(w.view(columns)).addcmul_((kap * a).view(columns), removed, value=-1)
    S.addcmul_(k.view(columns), v.transpose(0, 1))
    if S.dtype != stored.dtype:
        stored.copy_(S)
    return torch.bmm(r.transpose(0, 1), S).transpose(0, 1)
