"""Feed-forward layers: what each token goes through by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mlp:
    """``output_scale * output(activation(project(x)))``."""

    project: Linear
    activation: Activation
    output: Linear
    output_scale: float = 1.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        y = self.output(self.activation(self.project(x)))
        return y if self.output_scale == 1.0 else y * self.output_scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedMlp:
    """``output_scale * output(activation(gate_scale * gate) * up)``.

    Attributes:
        project: ``[T, C]`` to ``[T, I | I]``: gate, up.
    """

    project: Linear
    activation: Activation
    output: Linear
    gate_scale: float = 1.0
    output_scale: float = 1.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        gate, up = self.project(x).chunk(2, dim=1)
        if self.gate_scale != 1.0:
            gate = gate * self.gate_scale
        y = self.output(self.activation(gate) * up)
        return y if self.output_scale == 1.0 else y * self.output_scale
