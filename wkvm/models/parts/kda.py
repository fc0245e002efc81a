"""Kimi Delta Attention: the gated delta rule with a decay of each channel of a key."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.core.layout import TensorSpec
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.step import Step

DELTA, CONV = "kda.delta", "kda.conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class KdaSizes:
    """The sizes of a mixer.

    Attributes:
        n_heads: H. head_size: K, of queries, keys and values; also the rank of decays and gates.
        n_taps: W, of the convolution.
    """

    n_heads: int
    head_size: int
    n_taps: int

    @property
    def inner(self) -> int:
        """Channels of the queries of all heads, of the keys, and of the values."""
        return self.n_heads * self.head_size

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 3 * self.inner

    def tensors(self, n_layers: int, dtype: str, state_dtype: str) -> tuple[TensorSpec, ...]:
        """What ``n_layers`` such mixers have in a state."""
        matrices = (n_layers, self.n_heads, self.head_size, self.head_size)
        windows = (n_layers, self.n_taps - 1, self.convolved)
        return TensorSpec(DELTA, matrices, state_dtype), TensorSpec(CONV, windows, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KdaMixer:
    """One mixer.

    Attributes:
        layer: its index among the layers of ``kda.delta``.
        project: ``[T, C]`` to ``[T, q | k | v | decay | gate | strength]``, decay and gate of K
            channels each.
        conv_weight: ``[q | k | v, W]``.
        decays, gates: ``[T, K]`` to ``[T, H K]``.
        A: ``[H]`` float32, negative. dt_bias: ``[H, K]`` float32. The log decay of a channel is
            ``A softplus(decay + dt_bias)``.
        norm_weight: ``[K]`` float32, of the norm of each head's output; the sigmoid of the gate
            comes after it.
        output: ``[T, H K]`` to ``[T, C]``.

    Source: Kimi Team, "Kimi Linear", arXiv:2510.26692; ``KimiLinearDeltaAttention`` of transformers
    for what the paper leaves open.
    """

    kernels: Kernels
    sizes: KdaSizes
    layer: int
    project: Linear
    conv_weight: Tensor
    decays: Linear
    gates: Linear
    A: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    norm_eps: float
    output: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        sizes, states = self.sizes, step.states
        K = sizes.head_size
        mixed, decay, gate, strength = torch.split(
            self.project(x), [sizes.convolved, K, K, sizes.n_heads], dim=1
        )
        by_head = (-1, sizes.n_heads, K)
        decay = self.decays(decay).view(by_head)
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
            sizes.n_heads,
        )
        y = self.kernels.gated_rms_norm(
            y,
            self.gates(gate).view(by_head),
            self.norm_weight,
            self.norm_eps,
            group=K,
            gate="sigmoid",
            gate_first=False,
        )
        return self.output(y.flatten(1))
