"""The kernels in plain torch, arranged for few operations on a CPU.

Signatures and contracts are those of ``reference``. The order of the sums differs from it, and
depends on nothing but the row itself.
"""

import torch
from torch import Tensor

from wkvm.kernels.rows import Rows


def token_shift(x: Tensor, state: Tensor, rows: Rows) -> Tensor:
    """See ``reference.token_shift``."""
    if x.shape[0] == 1 and rows.live:
        previous = state[rows.slot_list[0]]
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
    """See ``reference.wkv7``. Three operations a token, which read the state once and write it twice.

    From the old S come both S^T kap and S^T (w * r) in one product; the output needs no second
    look at the state, since

        y = S_new^T r = S^T (w * r) - (r . kap a) S^T kap + (r . k) v

    The three vectors of each head are stacked, with zeros where a product has no term, so that
    the product, the decay and the rank-2 update are one call each.
    """
    T, H, K = r.shape
    reads = torch.zeros(T, H, 3, K)  # kap, w r, 0
    adds = torch.zeros(T, H, 3, v.shape[2])  # 0, 0, -v
    writes = torch.zeros(T, H, 3, K)  # kap a, 0, k
    reads[:, :, 0] = kap
    torch.mul(w, r, out=reads[:, :, 1])
    torch.neg(v, out=adds[:, :, 2])
    torch.mul(kap, a, out=writes[:, :, 0])
    writes[:, :, 2] = k
    columns = writes.transpose(2, 3)
    decay = w.unsqueeze(3)
    seen = torch.zeros_like(adds)  # S^T kap, S^T (w r), -v
    for row in rows.live:
        S = state[rows.slot_list[row]]
        for t in range(rows.host_offsets[row], rows.host_offsets[row + 1]):
            at = torch.baddbmm(adds[t], reads[t], S, out=seen[t])
            S.mul_(decay[t]).baddbmm_(columns[t], at, alpha=-1)
    weights = torch.matmul(writes, r.unsqueeze(3))
    return seen[:, :, 1] - (weights * seen).sum(2)
