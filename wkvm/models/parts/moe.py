"""Mixtures of experts: feed-forward layers of which each token goes through a few."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.kernels.grouped import GroupedLinear
from wkvm.kernels.linear import Linear
from wkvm.models.parts.mlp import Activation
from wkvm.models.parts.step import Part, Step

Router: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""``[T, C]`` to the weights ``[T, k]`` float32 and the numbers ``[T, k]`` int64 of k experts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxRouter:
    """The k most probable experts, by their probabilities.

    Attributes:
        weight: ``[E, C]``, of the dtype in which logits are computed.
        n_chosen: k.
        is_renormalised: whether the k weights sum to 1. They are then also what a softmax over the
            k largest logits gives.
    """

    weight: Tensor
    n_chosen: int
    is_renormalised: bool

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        logits = torch.mm(x.to(self.weight.dtype), self.weight.t())
        probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
        weights, experts = torch.topk(probabilities, self.n_chosen, dim=1)
        if self.is_renormalised:
            weights = weights / weights.sum(1, keepdim=True)
        return weights, experts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmoidRouter:
    """The k experts of the highest scores, each between 0 and 1 by itself, chosen with a bias.

    Attributes:
        weight: ``[E, C]`` float32.
        bias: ``[E]`` float32: added to the scores to choose by, and not to the weights.
        n_chosen: k.
        n_groups: of E / n_groups experts in order; one group is as good as its two best experts.
        n_chosen_groups: experts are chosen from that many groups alone.
        is_renormalised: whether the k weights are made to sum to 1 before ``scale``.
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
        experts = torch.topk(choice, self.n_chosen, dim=1).indices
        weights = scores.gather(1, experts)
        if self.is_renormalised:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
        return weights * self.scale, experts

    def _within_groups(self, choice: Tensor) -> Tensor:
        grouped = choice.view(choice.shape[0], self.n_groups, -1)
        merits = grouped.topk(2, dim=2).values.sum(2)
        chosen = merits.topk(self.n_chosen_groups, dim=1).indices
        is_out = torch.ones_like(merits, dtype=torch.bool).scatter_(1, chosen, False)
        return grouped.masked_fill(is_out.unsqueeze(2), float("-inf")).view(choice.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experts:
    """Feed-forward layers side by side.

    Attributes:
        n_experts: E.
        project: ``[E, I, C]``, or ``[E, 2 I, C]`` of gates and ups if ``is_gated``.
        output: ``[E, C, I]``.
    """

    n_experts: int
    project: GroupedLinear
    activation: Activation
    output: GroupedLinear
    is_gated: bool

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """The weighted sum of what the chosen experts make of each token.

        Rows are sorted by their experts and put back in order: no sum depends on other tokens, and
        nothing on a GPU waits for the host.

        Args:
            x: ``[T, C]``. weights, experts: ``[T, k]``, of a router.
        """
        n_tokens, n_chosen = experts.shape
        sorted_experts, order = experts.flatten().sort(stable=True)
        numbers = torch.arange(self.n_experts, device=x.device)
        ends = torch.searchsorted(sorted_experts, numbers, right=True, out_int32=True)
        hidden = self.project(x.index_select(0, order // n_chosen), ends)
        if self.is_gated:
            gate, up = hidden.chunk(2, dim=1)
            hidden = self.activation(gate) * up
        else:
            hidden = self.activation(hidden)
        sorted_rows = self.output(hidden, ends)
        rows = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)
        by_token = rows.view(n_tokens, n_chosen, -1)
        return torch.bmm(weights.to(rows.dtype).unsqueeze(1), by_token).squeeze(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moe:
    """Routed experts, and a shared one that all tokens go through.

    Attributes:
        shared: None for none.
        shared_gate: ``[T, C]`` to ``[T, 1]``: the sigmoid of it weighs the shared one; or None.
        narrow, widen: the width at which routed experts work, there and back; or None. The router
            and the shared one see the token as it is.
    """

    router: Router
    experts: Experts
    shared: Part | None = None
    shared_gate: Linear | None = None
    narrow: Linear | None = None
    widen: Linear | None = None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        weights, experts = self.router(x)
        y = self.experts(x if self.narrow is None else self.narrow(x), weights, experts)
        if self.widen is not None:
            y = self.widen(y)
        if self.shared is None:
            return y
        shared = self.shared(x, step)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return y + shared
