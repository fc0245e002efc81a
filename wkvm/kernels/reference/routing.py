"""Which experts a token goes through, and what part each has in the sum."""

import torch
from torch import Tensor


def route_softmax(logits: Tensor, n_chosen: int, *, is_renormalised: bool) -> tuple[Tensor, Tensor]:
    """The k most probable experts, by their probabilities.

    Args:
        logits: ``[T, E]``.
        n_chosen: k.
        is_renormalised: whether the k shares sum to 1. They are then also what a softmax over the
            k largest logits gives.

    Returns:
        Shares ``[T, k]`` float32, and ids ``[T, k]`` int64.
    """
    probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
    shares, ids = torch.topk(probabilities, n_chosen, dim=1)
    return shares / shares.sum(1, keepdim=True) if is_renormalised else shares, ids


def route_sigmoid(
    logits: Tensor,
    bias: Tensor,
    n_chosen: int,
    *,
    n_groups: int,
    n_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The k experts of the highest scores, each between 0 and 1 by itself, chosen with a bias.

    Args:
        logits: ``[T, E]``.
        bias: ``[E]`` float32: added to the scores to choose by, and not to the shares.
        n_chosen: k.
        n_groups: of E / n_groups experts in order; one group is as good as its two best experts.
        n_chosen_groups: experts are chosen from that many groups alone.
        is_renormalised: whether the k shares are made to sum to 1 before ``scale``.
        scale: what they are multiplied by.

    Returns:
        Shares ``[T, k]`` float32, and ids ``[T, k]`` int64.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437.
    """
    scores = logits.float().sigmoid()
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
    return shares * scale, ids
