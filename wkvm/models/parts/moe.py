"""Mixtures of experts: feed-forward layers of which each token goes through a few."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.reference.routing import Shared
from wkvm.kernels.weight import Weight
from wkvm.models.parts.step import Part, Step

Router: TypeAlias = Callable[[Tensor, Kernels], tuple[Tensor, Tensor]]
"""``[T, C]`` to the shares ``[T, k]`` float32 and the numbers ``[T, k]`` int64 of k experts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxRouter:
    """See ``wkvm.kernels.reference.route_softmax``.

    Attributes:
        weight: ``[E, C]``, or ``[E + 1, C]`` with a gate; of the dtype in which logits are
            computed.
        n_chosen, is_renormalised, shared: of the function.
    """

    weight: Tensor
    n_chosen: int
    is_renormalised: bool
    shared: Shared = "none"

    def __call__(self, x: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        logits = torch.mm(x.to(self.weight.dtype), self.weight.t())
        return kernels.route_softmax(
            logits, self.n_chosen, is_renormalised=self.is_renormalised, shared=self.shared
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmoidRouter:
    """See ``wkvm.kernels.reference.route_sigmoid``.

    Attributes:
        weight: ``[E, C]`` float32, or ``[E + 1, C]`` with a gate.
        bias, n_chosen, n_groups, n_chosen_groups, is_renormalised, scale, shared: of the function.
    """

    weight: Tensor
    bias: Tensor
    n_chosen: int
    n_groups: int
    n_chosen_groups: int
    is_renormalised: bool
    scale: float
    shared: Shared = "none"

    def __call__(self, x: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """See ``Router``."""
        return kernels.route_sigmoid(
            torch.mm(x.float(), self.weight.t()),
            self.bias,
            self.n_chosen,
            n_groups=self.n_groups,
            n_chosen_groups=self.n_chosen_groups,
            is_renormalised=self.is_renormalised,
            scale=self.scale,
            shared=self.shared,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moe:
    """Routed experts, and a shared one that all tokens go through.

    A shared one of the shape of the others is the last of them, and the router's business.

    Attributes:
        first: ``[E, F, C]``, or ``[E, F | F, C]`` of gates and ups for ``swiglu``.
        second: ``[E, C, F]``.
        activation: between them.
        shared: one that is no such; None for none.
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
        shares, ids = self.router(x, self.kernels)
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
        gate = None if self.shared_gate is None else self.shared_gate(x)
        return self.kernels.add_shared(y, self.shared(x, step), gate)
