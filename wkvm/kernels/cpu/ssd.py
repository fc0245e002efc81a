"""The recurrence of Mamba-2 on a CPU: prompts in chunks, so that most of it is matrix products."""

import torch
from torch import Tensor

from wkvm.kernels.cpu.conv import causal_conv
from wkvm.kernels.cpu.decays import spans, sums_after
from wkvm.kernels.reference.ssd import heads_of, ssd_steps
from wkvm.kernels.rows import Rows

CHUNK = 64
"""Tokens whose inputs meet each other in one matrix."""


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
) -> Tensor:
    """See ``reference.ssd``. A few operations a token of decode, in place if float32."""
    y = torch.zeros_like(x)
    log_decay = dt * A
    inputs, keys, queries = (each.to(dt.dtype) for each in (x, B, C))
    for row in rows.live:
        stored = state[rows.host_slots[row]]
        S = stored.to(dt.dtype)
        start, end = rows.host_offsets[row], rows.host_offsets[row + 1]
        for at in range(start, end, CHUNK):
            tokens = slice(at, min(at + CHUNK, end))
            step = _token if at + 1 == tokens.stop else _chunk
            x = inputs[tokens]
            out = step(x, dt[tokens], log_decay[tokens], keys[tokens], queries[tokens], S)
            y[tokens] = out.addcmul_(x, D[:, None])
        if S.dtype != stored.dtype:
            stored.copy_(S)
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
    """See ``reference.ssd_mix``."""
    convolved = causal_conv(projected, conv_weight, conv_bias, conv_state, rows)
    x, B, C = heads_of(convolved, state)
    return ssd(x, ssd_steps(dt, dt_bias, dt_limits), A, B, C, D, state, rows)


def _token(x: Tensor, dt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, S: Tensor) -> Tensor:
    """The output without D; ``S`` is advanced."""
    G, N = B.shape[1:]
    by_group = S.view(G, -1, N)
    S.mul_(log_decay.exp().view(-1, 1, 1))
    by_group.addcmul_((dt[0, :, None] * x[0]).view(G, -1, 1), B.view(G, 1, N))
    return torch.bmm(by_group, C.view(G, N, 1)).view(x.shape)


def _chunk(x: Tensor, dt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, S: Tensor) -> Tensor:
    """The outputs of tokens ``[T, H, ...]`` without D; ``S`` is advanced.

    What the heads of a group share is one product for all of them.
    """
    (T, H, P), (G, N) = x.shape, B.shape[1:]
    by_head = log_decay.t().unsqueeze(2)
    from_start = by_head.cumsum(1).exp_()
    queries, keys = C.transpose(0, 1), B.transpose(0, 1)
    meet = spans(by_head).view(G, -1, T, T)
    meet.mul_(torch.bmm(queries, keys.transpose(1, 2)).unsqueeze(1))
    inputs = (dt.unsqueeze(2) * x).transpose(0, 1)
    out = torch.bmm(meet.view(H, T, T), inputs)
    by_group = S.view(G, -1, N)
    before = torch.bmm(queries, by_group.transpose(1, 2)).view(G, T, -1, P).transpose(1, 2)
    out.view(G, -1, T, P).addcmul_(before, from_start.view(G, -1, T, 1))
    left = inputs * sums_after(by_head).exp_()
    left = left.view(G, -1, T, P).transpose(2, 3).reshape(G, -1, T)
    S.mul_(from_start[:, -1:])
    by_group.baddbmm_(left, keys)
    return out.transpose(0, 1)
