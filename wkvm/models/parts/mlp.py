"""Feed-forward layers: what each token goes through by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.step import Step

Activation: TypeAlias = Callable[[Tensor], Tensor]


def squared_relu(x: Tensor) -> Tensor:
    """``relu(x)^2``."""
    return relu(x).square()


ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "relu2": squared_relu,
    "gelu": gelu,
    "gelu_new": partial(gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(gelu, approximate="tanh"),
}
"""By the name that ``hidden_act`` has in ``config.json``."""


def gated(kernels: Kernels, name: str) -> Activation:
    """``[T, F | F]``, gate and up, to ``activation(gate) * up``; ``name`` is of ``ACTIVATIONS``."""
    activation = ACTIVATIONS[name]
    if activation is silu:
        return kernels.swiglu

    def of_both(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return activation(gate) * up

    return of_both


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mlp:
    """``output(activation(project(x)))``.

    Attributes:
        project: ``[T, C]`` to ``[T, F]``, or to ``[T, F | F]`` for an activation that is ``gated``.
        activation: to ``[T, F]``.
        output: to ``[T, C]``.
    """

    project: Linear
    activation: Activation
    output: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return self.output(self.activation(self.project(x)))
