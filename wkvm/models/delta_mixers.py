"""The mixers of Gated DeltaNet as checkpoints store them: names, shapes, and what they become."""

from dataclasses import dataclass
from typing import Protocol

from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.delta import DeltaMixer, DeltaSizes, Gate

CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
"""Names of the convolutions where they are stored one by one."""

ONE_CONVOLUTION = ("conv1d",)
"""Its name where all are stored as one."""


class Packing(Protocol):
    """How the inputs of a mixer are stored."""

    def weights(self, name: str, sizes: DeltaSizes, width: int) -> Weights:
        """Names and shapes of the matrices of the mixer ``name``."""
        ...

    def linear(self, parameters: Parameters, name: str, sizes: DeltaSizes) -> Linear:
        """The product that ``DeltaMixer.project`` is."""
        ...


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A matrix for each input, as flash-linear-attention has it.

    Attributes:
        has_gate: whether there is one for gates.
    """

    has_gate: bool = True

    def weights(self, name: str, sizes: DeltaSizes, width: int) -> Weights:
        """See ``Packing``."""
        n_heads = sizes.n_value_heads
        weights: Weights = {
            f"{name}.q_proj.weight": (sizes.keys, width),
            f"{name}.k_proj.weight": (sizes.keys, width),
            f"{name}.v_proj.weight": (sizes.values, width),
        }
        if self.has_gate:
            weights[f"{name}.g_proj.weight"] = (sizes.values, width)
        weights[f"{name}.a_proj.weight"] = (n_heads, width)
        weights[f"{name}.b_proj.weight"] = (n_heads, width)
        return weights

    def linear(self, parameters: Parameters, name: str, sizes: DeltaSizes) -> Linear:
        """See ``Packing``."""
        return parameters.linear(*self.weights(name, sizes, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMixers:
    """All mixers of a checkpoint. They differ by their weights alone.

    Attributes:
        width: C, of the stream.
        packing: how their inputs are stored.
        norm_eps, gate, max_strength: as in ``DeltaMixer``.
        convolutions: names of the convolutions: ``CONVOLUTIONS`` or ``ONE_CONVOLUTION``.
        norm, output: names of the norm and of the last product.
    """

    width: int
    sizes: DeltaSizes
    packing: Packing
    norm_eps: float
    gate: Gate = "silu"
    max_strength: float = 1.0
    convolutions: tuple[str, ...] = CONVOLUTIONS
    norm: str = "o_norm"
    output: str = "o_proj"

    def weights(self, name: str) -> Weights:
        """Names and shapes of the mixer ``name``, in the order in which ``build`` takes them."""
        sizes = self.sizes
        weights = self.packing.weights(name, sizes, self.width)
        channels: tuple[int, ...] = (sizes.convolved,)
        if self.convolutions == CONVOLUTIONS:
            channels = (sizes.keys, sizes.keys, sizes.values)
        for part, n in zip(self.convolutions, channels, strict=True):
            weights[f"{name}.{part}.weight"] = (n, 1, sizes.n_taps)
        weights |= {f"{name}.{part}": (sizes.n_value_heads,) for part in ("A_log", "dt_bias")}
        weights[f"{name}.{self.norm}.weight"] = (sizes.value_size,)
        weights[f"{name}.{self.output}.weight"] = (self.width, sizes.values)
        return weights

    def build(self, parameters: Parameters, kernels: Kernels, name: str, layer: int) -> DeltaMixer:
        """Make the mixer ``name``, whose states are those of ``layer``."""
        convolutions = [f"{name}.{part}.weight" for part in self.convolutions]
        return DeltaMixer(
            kernels=kernels,
            sizes=self.sizes,
            layer=layer,
            project=self.packing.linear(parameters, name, self.sizes),
            conv_weight=parameters.matrix(*convolutions).squeeze(1),
            A=parameters.decays(f"{name}.A_log"),
            dt_bias=parameters.exact(f"{name}.dt_bias"),
            max_strength=self.max_strength,
            norm_weight=parameters.exact(f"{name}.{self.norm}.weight"),
            norm_eps=self.norm_eps,
            gate=self.gate,
            output=parameters.linear(f"{name}.{self.output}.weight"),
        )
