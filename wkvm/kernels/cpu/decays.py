"""Decays between the tokens of a chunk, on a CPU.

Each is made of the logarithms that it is made of and of no others: differences of one running sum
would have lost their digits after a strong decay.
"""

import torch
from torch import Tensor


def sums_after(g: Tensor) -> Tensor:
    """For each token of ``[H, T, C]`` the sum of those after it."""
    sums = torch.zeros_like(g)
    sums[:, :-1] = g[:, 1:].flip(1).cumsum(1).flip(1)
    return sums


def spans(g: Tensor) -> Tensor:
    """The decay from token s to token t, ``[H, T, T, C]`` at t, s; 0 where s is after t."""
    n = g.shape[1]
    after = torch.ones(n, n, dtype=torch.bool, device=g.device).tril_(-1)[:, :, None]
    sums = torch.where(after, g.unsqueeze(2), 0).cumsum(1)
    return sums.masked_fill_(after.transpose(0, 1), float("-inf")).exp_()
