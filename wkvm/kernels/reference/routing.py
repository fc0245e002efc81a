"""Which experts a token goes through, and what part each has in the sum."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Shared: TypeAlias = Literal["none", "whole", "gated"]
"""Whether all tokens go through expert E besides: with a share of 1, or with the sigmoid of a last
logit, number E."""


def route_softmax(
    logits: Tensor, n_chosen: int, *, is_renormalised: bool, shared: Shared = "none"
) -> tuple[Tensor, Tensor]:
    """The k most probable experts, by their probabilities.

    Args:
        logits: ``[T, E]``, or ``[T, E + 1]`` with the gate of a shared expert; any first stride.
        n_chosen: k.
        is_renormalised: whether the k shares sum to 1. They are then also what a softmax over the
            k largest logits gives.
        shared: whether there is one more choice, the last.

    Returns:
        Shares ``[T, k]`` float32, and ids ``[T, k]`` int64; with a shared expert ``[T, k + 1]``.
    """
    of_routed = logits[:, :-1] if shared == "gated" else logits
    probabilities = torch.softmax(of_routed, dim=1, dtype=torch.float32)
    shares, ids = torch.topk(probabilities, n_chosen, dim=1)
    if is_renormalised:
        shares = shares / shares.sum(1, keepdim=True)
    return _with_shared(shares, ids, logits, shared)


def route_sigmoid(
    logits: Tensor,
    bias: Tensor,
    n_chosen: int,
    *,
    n_groups: int,
    n_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
    shared: Shared = "none",
) -> tuple[Tensor, Tensor]:
    """The k experts of the highest scores, each between 0 and 1 by itself, chosen with a bias.

    Args:
        logits: ``[T, E]``, or ``[T, E + 1]`` with the gate of a shared expert; any first stride.
        bias: ``[E]`` float32: added to the scores to choose by, and not to the shares.
        n_chosen: k.
        n_groups: of E / n_groups experts in order; one group is as good as its two best experts.
        n_chosen_groups: experts are chosen from that many groups alone.
        is_renormalised: whether the k shares are made to sum to 1 before ``scale``.
        scale: what they are multiplied by.
        shared: whether there is one more choice, the last; neither bias nor scale is for it.

    Returns:
        Shares ``[T, k]`` float32, and ids ``[T, k]`` int64; with a shared expert ``[T, k + 1]``.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437.
    """
    scores = (logits[:, :-1] if shared == "gated" else logits).float().sigmoid()
    choice = scores + bias
    if n_chosen_groups < n_groups:
        grouped = choice.view(choice.shape[0], n_groups, -1)
        merits = grouped.topk(2, dim=2).values.sum(2)
        chosen = merits.topk(n_chosen_groups, dim=1).indices
        is_out = torch.ones_like(merits, dtype=torch.bool).scatter_(1, chosen, False)
        choice = grouped.masked_fill(is_out.unsqueeze(2), float("-inf")).view(choice.shape)
    ids = torch.topk(choice, n_chosen, dim=1).indices
    shares = scores.gather(1, ids)
    if is_renormalised:
        shares = shares / (shares.sum(1, keepdim=True) + 1e-20)
    return _with_shared(shares * scale, ids, logits, shared)


def _with_shared(
    shares: Tensor, ids: Tensor, logits: Tensor, shared: Shared
) -> tuple[Tensor, Tensor]:
    if shared == "none":
        return shares, ids
    if shared == "whole":
        share, number = torch.ones_like(shares[:, :1]), logits.shape[1]
    else:
        share, number = logits[:, -1:].float().sigmoid(), logits.shape[1] - 1
    return torch.cat((shares, share), 1), torch.cat((ids, torch.full_like(ids[:, :1], number)), 1)
