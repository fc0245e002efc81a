"""Rotary positions: by which angles the elements of queries and keys are turned, for each token."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """See ``wkvm.kernels.reference.rotary``.

    Attributes:
        frequencies: ``[R]`` float32, radians a token.
        scaling: what turned elements are multiplied by.
    """

    frequencies: Tensor
    scaling: float
