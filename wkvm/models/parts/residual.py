"""How parts are joined with the stream of activations that goes through a model."""

from dataclasses import dataclass
from typing import NamedTuple

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

    def after(self, x: Tensor, added: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        """``x + scale * added``, and its norm. Nothing is added for None."""
        if added is None:
            return x, self(x)
        return self.kernels.add_rms_norm(
            x, added, self.weight, self.eps, scale=scale, dtype=self.dtype
        )


class Pending(NamedTuple):
    """The stream between two blocks: ``x + scale * added``, the sum left to whoever reads it.

    Most blocks begin with a norm, and a sum with its norm is one kernel.

    Attributes:
        x, added: ``[T, C]``; nothing is added for None.
    """

    x: Tensor
    added: Tensor | None = None
    scale: float = 1.0

    def settled(self) -> Tensor:
        """The sum."""
        if self.added is None:
            return self.x
        return torch.add(self.x, self.added, alpha=self.scale).to(self.x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """``x + scale * inner(norm(x))``, in the dtype of ``x``."""

    norm: RmsNorm
    inner: Part
    scale: float = 1.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return self.go_on(Pending(x), step).settled()

    def go_on(self, stream: Pending, step: Step) -> Pending:
        """The same, the sums of the block before and of this one put together with norms."""
        x, normed = self.norm.after(*stream)
        return Pending(x, self.inner(normed, step), self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class PostNormResidual:
    """``x + norm(inner(x))``, in the dtype of ``x``."""

    norm: RmsNorm
    inner: Part

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return x + self.norm(self.inner(x, step))
