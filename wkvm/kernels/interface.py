"""The kernels that models are written against: one module of them for each kind of device."""

from typing import Protocol

import torch
from torch import Tensor

from wkvm.kernels.rows import Rows


class Kernels(Protocol):
    """A module such as ``wkvm.kernels.cpu``. ``wkvm.kernels.reference`` has the contracts."""

    @staticmethod
    def causal_conv(
        x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: Rows
    ) -> Tensor:
        """A short convolution over time, and silu; its window moves in place."""
        ...

    @staticmethod
    def ssd(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: Rows
    ) -> Tensor:
        """The recurrence of Mamba-2, in place."""
        ...

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        """A norm by the root of the mean square."""
        ...

    @staticmethod
    def gated_rms_norm(
        y: Tensor,
        z: Tensor,
        weight: Tensor,
        eps: float,
        *,
        group: int,
        gate: str = "silu",
        gate_first: bool,
    ) -> Tensor:
        """Such a norm of groups, with a gate before it or after."""
        ...
