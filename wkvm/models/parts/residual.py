"""How parts are joined with the stream of activations that goes through a model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.kernels.interface import Kernels
from wkvm.models.parts.step import Part, Step


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """A norm by the root of the mean square.

    Attributes:
        weight: ``[C]`` float32.
        dtype: of what it returns.
    """

    kernels: Kernels
    weight: Tensor
    eps: float
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return self.kernels.rms_norm(x, self.weight, self.eps, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """``x + scale * inner(norm(x))``, in the dtype of ``x``."""

    norm: RmsNorm
    inner: Part
    scale: float = 1.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return torch.add(x, self.inner(self.norm(x), step), alpha=self.scale)
