"""The mixer of Mamba-2: a short convolution, a state space with scalar decays, a gated norm."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from wkvm.core.layout import TensorSpec
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parts.step import Step

SSM, CONV = "mamba2.ssm", "mamba2.conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Sizes:
    """The sizes of a mixer.

    Attributes:
        n_heads: H. head_size: P. n_groups: G, of heads that share B and C. state_size: N.
        n_taps: W, of the convolution.
    """

    n_heads: int
    head_size: int
    n_groups: int
    state_size: int
    n_taps: int

    @property
    def inner(self) -> int:
        """Channels of x, and of the gate."""
        return self.n_heads * self.head_size

    @property
    def keys(self) -> int:
        """Channels of B, and of C."""
        return self.n_groups * self.state_size

    @property
    def convolved(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.keys

    @property
    def projected(self) -> int:
        """Outputs of the first product: gate, x, B, C and steps."""
        return self.inner + self.convolved + self.n_heads

    def tensors(self, n_layers: int, dtype: str, state_dtype: str) -> tuple[TensorSpec, ...]:
        """What ``n_layers`` such mixers have in a state."""
        ssm = (n_layers, self.n_heads, self.head_size, self.state_size)
        conv = (n_layers, self.n_taps - 1, self.convolved)
        return TensorSpec(SSM, ssm, state_dtype), TensorSpec(CONV, conv, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mamba2Mixer:
    """One mixer.

    Attributes:
        layer: its index among the layers of ``mamba2.ssm``.
        project: ``[T, C]`` to ``[T, I | I + 2 G N | H]``: gate, what is convolved, steps.
        conv_weight: ``[I + 2 G N, W]``. conv_bias: ``[I + 2 G N]`` or None.
        dt_bias, A, D: ``[H]`` float32; A is negative.
        dt_limits: the least and the largest step.
        norm_weight: ``[I]`` float32; None where there is a gate and no norm.
        gate_first: whether the gate comes before the norm.

    Source: Dao and Gu, arXiv:2405.21060; ``Mamba2Mixer`` of transformers for what the paper leaves
    open. That one limits steps in prompts alone; here each step is limited, as in training.
    """

    kernels: Kernels
    sizes: Mamba2Sizes
    layer: int
    project: Linear
    conv_weight: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    dt_limits: tuple[float, float]
    norm_weight: Tensor | None
    norm_eps: float
    gate_first: bool
    output: Linear

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``[T, C]`` to ``[T, C]``."""
        sizes, states = self.sizes, step.states
        z, convolved, dt = torch.split(
            self.project(x), [sizes.inner, sizes.convolved, sizes.n_heads], dim=1
        )
        y = self.kernels.ssd_mix(
            convolved,
            dt,
            self.conv_weight,
            self.conv_bias,
            states[CONV][:, self.layer],
            self.dt_bias,
            self.dt_limits,
            self.A,
            self.D,
            states[SSM][:, self.layer],
            step.rows,
        )
        return self.output(self._gated(y.reshape(-1, sizes.inner), z))

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        if self.norm_weight is None:
            return (y.float() * silu(z.float())).to(z.dtype)
        return self.kernels.gated_rms_norm(
            y,
            z,
            self.norm_weight,
            self.norm_eps,
            group=self.sizes.inner // self.sizes.n_groups,
            gate_first=self.gate_first,
        )
