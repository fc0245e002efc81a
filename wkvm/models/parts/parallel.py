"""Mixers that read the same tokens beside each other."""

from dataclasses import dataclass

from torch import Tensor

from wkvm.models.parts.step import Part, Step


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """The sum of what two parts make of their common input."""

    one: Part
    other: Part

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        return self.one(x, step) + self.other(x, step)
