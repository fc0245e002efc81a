"""The recurrence of Mamba-2 on a CPU: prompts in chunks, so that most of it is matrix products."""

import torch
from torch import Tensor

from wkvm.kernels.cpu.decays import spans, sums_after
from wkvm.kernels.rows import Rows

CHUNK = 64
"""Tokens whose inputs meet each other in one matrix."""


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.ssd``."""
    y = torch.zeros_like(x)
    log_decay = dt * A
    per_group = x.shape[1] // B.shape[1]
    for row in rows.live:
        stored = state[rows.host_slots[row]]
        S = stored.to(dt.dtype)
        start, end = rows.host_offsets[row], rows.host_offsets[row + 1]
        for at in range(start, end, CHUNK):
            tokens = slice(at, min(at + CHUNK, end))
            keys = B[tokens].to(dt.dtype).repeat_interleave(per_group, 1)
            queries = C[tokens].to(dt.dtype).repeat_interleave(per_group, 1)
            inputs = x[tokens].to(dt.dtype)
            step = _token if at + 1 == tokens.stop else _chunk
            out, S = step(inputs, dt[tokens], log_decay[tokens], keys, queries, S)
            y[tokens] = out.addcmul_(inputs, D[:, None])
        stored.copy_(S)
    return y


def _token(
    x: Tensor, dt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    added = torch.bmm((dt[0, :, None] * x[0]).unsqueeze(2), B[0].unsqueeze(1))
    S = torch.addcmul(added, S, log_decay[0].exp()[:, None, None])
    return torch.bmm(S, C[0].unsqueeze(2)).squeeze(2).unsqueeze(0), S


def _chunk(
    x: Tensor, dt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens ``[T, H, ...]`` after the state ``S``: their outputs without D, and the new state."""
    by_head = log_decay.t().unsqueeze(2)
    from_start = by_head.cumsum(1).exp_()
    queries, keys, inputs = C.transpose(0, 1), B.transpose(0, 1), (dt.unsqueeze(2) * x)
    inputs = inputs.transpose(0, 1)
    meet = torch.bmm(queries, keys.transpose(1, 2)).mul_(spans(by_head).squeeze(3))
    out = torch.bmm(meet, inputs)
    out.addcmul_(torch.bmm(queries, S.transpose(1, 2)), from_start)
    left = sums_after(by_head).exp_()
    added = torch.bmm((inputs * left).transpose(1, 2), keys)
    return out.transpose(0, 1), torch.addcmul(added, S, from_start[:, -1:])
