"""Mixtures of experts: feed-forward layers of which each token goes through a few."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.weight import Weight
from wkvm.models.parts.step import Part, Step

Router: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""``[T, C]`` to the shares ``[T, k]`` float32 and the numbers ``[T, k]`` int64 of k experts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxRouter:
    """The k most probable experts, by their probabilities.

    Attributes:
        weight: ``[E, C]``, of the dtype in which logits are computed.
        n_chosen: k.
        is_renormalised: whether the k shares sum to 1. They are then also what a softmax over the
            k largest logits gives.
    """

    weight: Tensor
    n_chosen: int
    is_renormalised: bool

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        logits = torch.mm(x.to(self.weight.dtype), self.weight.t())
        probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
        shares, ids = torch.topk(probabilities, self.n_chosen, dim=1)
        if self.is_renormalised:
            shares = shares / shares.sum(1, keepdim=True)
        return shares, ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmoidRouter:
    """The k experts of the highest scores, each between 0 and 1 by itself, chosen with a bias.

    Attributes:
        weight: ``[E, C]`` float32.
        bias: ``[E]`` float32: added to the scores to choose by, and not to the shares.
        n_chosen: k.
        n_groups: of E / n_groups experts in order; one group is as good as its two best experts.
        n_chosen_groups: experts are chosen from that many groups alone.
        is_renormalised: whether the k shares are made to sum to 1 before ``scale``.
        scale: what they are multiplied by.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437.
    """

    weight: Tensor
    bias: Tensor
    n_chosen: int
    n_groups: int
    n_chosen_groups: int
    is_renormalised: bool
    scale: float

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        scores = torch.mm(x.float(), self.weight.t()).sigmoid()
        choice = scores + self.bias
        if self.n_chosen_groups < self.n_groups:
            choice = self._within_groups(choice)
        ids = torch.topk(choice, self.n_chosen, dim=1).indices
        shares = scores.gather(1, ids)
        if self.is_renormalised:
            shares = shares / (shares.sum(1, keepdim=True) + 1e-20)
        return shares * self.scale, ids

    def _within_groups(self, choice: Tensor) -> Tensor:
        grouped = choice.view(choice.shape[0], self.n_groups, -1)
        merits = grouped.topk(2, dim=2).values.sum(2)
        chosen = merits.topk(self.n_chosen_groups, dim=1).indices
        is_out = torch.ones_like(merits, dtype=torch.bool).scatter_(1, chosen, False)
        return grouped.masked_fill(is_out.unsqueeze(2), float("-inf")).view(choice.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moe:
    """Routed experts, and a shared one that all tokens go through.

    Attributes:
        first: ``[E, F, C]``, or ``[E, F | F, C]`` of gates and ups for ``swiglu``.
        second: ``[E, C, F]``.
        activation: between them.
        shared: None for none.
        shared_gate: ``[T, C]`` to ``[T, 1]``: the sigmoid of it weighs the shared one; or None.
        narrow, widen: the width at which routed experts work, there and back; or None. The router
            and the shared one see the token as it is.
    """

    kernels: Kernels
    router: Router
    first: Weight
    second: Weight
    activation: ExpertActivation
    shared: Part | None = None
    shared_gate: Linear | None = None
    narrow: Linear | None = None
    widen: Linear | None = None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        shares, ids = self.router(x)
        y = self.kernels.experts(
            x if self.narrow is None else self.narrow(x),
            self.first,
            self.second,
            ids,
            shares,
            activation=self.activation,
        )
        if self.widen is not None:
            y = self.widen(y)
        if self.shared is None:
            return y
        shared = self.shared(x, step)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return y + shared
