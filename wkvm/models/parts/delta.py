"""The mixer of Gated DeltaNet: projections, a short convolution, the gated delta rule, a gate."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wkvm.core.layout import TensorSpec
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.step import Step

DELTA, CONV = "gdn.delta", "gdn.conv"

Gate = Literal["silu", "sigmoid", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The sizes of a mixer.

    Attributes:
        n_key_heads: of queries and keys. n_value_heads: a multiple of that; each has a matrix.
        key_size, value_size: of a head.
        n_taps: W, of the convolution.
    """

    n_key_heads: int
    n_value_heads: int
    key_size: int
    value_size: int
    n_taps: int

    @property
    def keys(self) -> int:
        """Channels of the keys of all heads, and of the queries."""
        return self.n_key_heads * self.key_size

    @property
    def values(self) -> int:
        """Channels of the values of all heads, and of the gate."""
        return self.n_value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    def tensors(self, n_layers: int, dtype: str, state_dtype: str) -> tuple[TensorSpec, ...]:
        """What ``n_layers`` such mixers have in a state."""
        matrices = (n_layers, self.n_value_heads, self.key_size, self.value_size)
        windows = (n_layers, self.n_taps - 1, self.convolved)
        return TensorSpec(DELTA, matrices, state_dtype), TensorSpec(CONV, windows, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaMixer:
    """One mixer.

    Attributes:
        layer: its index among the layers of ``gdn.delta``.
        project: ``[T, C]`` to ``[T, q | k | v | gate | decay | strength]``; without the gate where
            there is none.
        conv_weight: ``[q | k | v, W]``.
        A, dt_bias: ``[Hv]`` float32, A negative: a token's log decay is
            ``A softplus(decay + dt_bias)``.
        max_strength: how much of what a key held a token may overwrite: 1, or 2 where eigenvalues
            may be negative.
        norm_weight: ``[V]`` float32, of the norm of each head's output.
        gate: the activation of the gate, which comes after the norm; ``none`` for no gate.

    Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464;
    ``Qwen3NextGatedDeltaNet`` of transformers and ``GatedDeltaNet`` of fla for what it leaves open.
    """

    kernels: Kernels
    sizes: DeltaSizes
    layer: int
    project: Linear
    conv_weight: Tensor
    A: Tensor
    dt_bias: Tensor
    max_strength: float
    norm_weight: Tensor
    norm_eps: float
    gate: Gate
    output: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        sizes, states = self.sizes, step.states
        n_gates, n_heads = 0 if self.gate == "none" else sizes.values, sizes.n_value_heads
        mixed, z, decay, strength = torch.split(
            self.project(x), [sizes.convolved, n_gates, n_heads, n_heads], dim=1
        )
        y = self.kernels.delta_mix(
            mixed,
            decay,
            strength,
            self.conv_weight,
            states[CONV][:, self.layer],
            self.A,
            self.dt_bias,
            states[DELTA][:, self.layer],
            step.rows,
            sizes.n_key_heads,
            max_strength=self.max_strength,
        )
        if self.gate == "none":
            y = self.kernels.rms_norm(y, self.norm_weight, self.norm_eps)
        else:
            y = self.kernels.gated_rms_norm(
                y,
                z.view(-1, n_heads, sizes.value_size),
                self.norm_weight,
                self.norm_eps,
                group=sizes.value_size,
                gate=self.gate,
                gate_first=False,
            )
        return self.output(y.flatten(1))
