"""The kernels that models are written against: one module of them for each kind of device."""

from typing import Protocol

import torch
from torch import Tensor

from wkvm.kernels.reference.experts import ExpertActivation
from wkvm.kernels.reference.norms import GateActivation
from wkvm.kernels.reference.routing import Shared
from wkvm.kernels.rows import Rows
from wkvm.kernels.weight import Weight


class Kernels(Protocol):
    """A module such as ``wkvm.kernels.cpu``: what parts of models call of it.

    ``wkvm.kernels.reference`` has the contracts, and those of what these are composed of.
    """

    def ssd_mix(
        self,
        projected: Tensor,
        dt: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        conv_state: Tensor,
        dt_bias: Tensor,
        dt_limits: tuple[float, float],
        A: Tensor,
        D: Tensor,
        state: Tensor,
        rows: Rows,
    ) -> Tensor:
        """A short convolution of x, B and C, the choice of steps, and the recurrence of Mamba-2."""
        ...

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        pages: Tensor,
        table: Tensor,
        lengths: Tensor,
        rows: Rows,
        *,
        scale: float,
        window: int | None = None,
        value_dim: int | None = None,
    ) -> Tensor:
        """Attention over pages, into which the new keys and values go first."""
        ...

    def delta_mix(
        self,
        projected: Tensor,
        decay: Tensor,
        strength: Tensor,
        conv_weight: Tensor,
        conv_state: Tensor,
        A: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        rows: Rows,
        n_key_heads: int,
        *,
        max_strength: float = 1.0,
    ) -> Tensor:
        """A short convolution of queries, keys and values, and the gated delta rule."""
        ...

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """A gate's silu times what it opens."""
        ...

    def experts(
        self,
        x: Tensor,
        first: Weight,
        second: Weight,
        ids: Tensor,
        shares: Tensor,
        *,
        activation: ExpertActivation,
    ) -> Tensor:
        """Each token through the experts it was given."""
        ...

    def route_softmax(
        self, logits: Tensor, n_chosen: int, *, is_renormalised: bool, shared: Shared = "none"
    ) -> tuple[Tensor, Tensor]:
        """Experts by their probabilities."""
        ...

    def route_sigmoid(
        self,
        logits: Tensor,
        bias: Tensor,
        n_chosen: int,
        *,
        n_groups: int,
        n_chosen_groups: int,
        is_renormalised: bool,
        scale: float,
        shared: Shared = "none",
    ) -> tuple[Tensor, Tensor]:
        """Experts by scores of their own, with a bias, within groups."""
        ...

    def open_gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """Heads times the sigmoids of their gates."""
        ...

    def add_shared(self, y: Tensor, shared: Tensor, gate: Tensor | None) -> Tensor:
        """What routed experts gave, and the shared one by its gate."""
        ...

    def rotary(
        self,
        q: Tensor,
        k: Tensor,
        frequencies: Tensor,
        positions: Tensor,
        scaling: float = 1.0,
    ) -> None:
        """Queries and keys turned by their positions, in place."""
        ...

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A norm by the root of the mean square."""
        ...

    def add_rms_norm(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        *,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A sum, and its norm."""
        ...

    def gated_rms_norm(
        self,
        y: Tensor,
        z: Tensor,
        weight: Tensor,
        eps: float,
        *,
        group: int,
        gate: GateActivation = "silu",
        gate_first: bool,
    ) -> Tensor:
        """Such a norm of groups, with a gate before it or after."""
        ...
