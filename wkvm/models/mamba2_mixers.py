"""The mixers of Mamba-2 as checkpoints store them: names, shapes, and what is made of them.

Pure Mamba-2 has them, and so have the hybrids with attention layers.
"""

from dataclasses import dataclass

import torch

from wkvm.core.errors import CorruptCheckpointError
from wkvm.kernels.interface import Kernels
from wkvm.models.config_file import check_sizes
from wkvm.models.parameters import Parameters, Scale, Weights
from wkvm.models.parts.mamba2 import Mamba2Mixer, Mamba2Sizes
from wkvm.models.weights import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mamba2Mixers:
    """All mixers of a checkpoint. They differ by their weights alone.

    Attributes:
        width: C, of the stream.
        project_bias, output_bias, conv_bias: which biases there are.
        dt_limits: the least and the largest step.
        norm_eps: of the gated norm.
        has_norm: whether there is one; else there is the gate alone.
        gate_first: whether the gate comes before the norm.
        input_scale: what a mixer's input is multiplied by.
        project_scales: what the outputs of the first product are multiplied by, bias included:
            gate, x, B, C and steps.
        output_scale: what a mixer's output is multiplied by.
    """

    width: int
    sizes: Mamba2Sizes
    project_bias: bool
    output_bias: bool
    conv_bias: bool
    dt_limits: tuple[float, float]
    norm_eps: float
    has_norm: bool = True
    gate_first: bool = True
    input_scale: float = 1.0
    project_scales: tuple[float, float, float, float, float] | None = None
    output_scale: float = 1.0

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that there are such mixers.

        Raises:
            CorruptCheckpointError: there are none.
        """
        sizes = self.sizes
        check_sizes(
            checkpoint,
            **{
                "the number of mamba heads": sizes.n_heads,
                "the size of mamba heads": sizes.head_size,
                "the number of groups": sizes.n_groups,
                "the size of the mamba state": sizes.state_size,
            },
        )
        if sizes.n_taps < 2:
            why = f"config.json has a convolution of {sizes.n_taps} taps"
            raise CorruptCheckpointError(str(checkpoint.path), why)
        if sizes.n_heads % sizes.n_groups:
            why = f"config.json has {sizes.n_heads} heads in {sizes.n_groups} groups"
            raise CorruptCheckpointError(str(checkpoint.path), why)
        low, high = self.dt_limits
        if not 0 <= low <= high:
            why = f"config.json has a time_step_limit from {low} to {high}"
            raise CorruptCheckpointError(str(checkpoint.path), why)

    def weights(self, name: str) -> Weights:
        """Names and shapes of the mixer ``name``, in the order in which ``build`` takes them."""
        sizes = self.sizes
        weights: Weights = {f"{name}.in_proj.weight": (sizes.projected, self.width)}
        if self.project_bias:
            weights[f"{name}.in_proj.bias"] = (sizes.projected,)
        weights[f"{name}.conv1d.weight"] = (sizes.convolved, 1, sizes.n_taps)
        if self.conv_bias:
            weights[f"{name}.conv1d.bias"] = (sizes.convolved,)
        for leaf in ("dt_bias", "A_log", "D"):
            weights[f"{name}.{leaf}"] = (sizes.n_heads,)
        if self.has_norm:
            weights[f"{name}.norm.weight"] = (sizes.inner,)
        weights[f"{name}.out_proj.weight"] = (self.width, sizes.inner)
        if self.output_bias:
            weights[f"{name}.out_proj.bias"] = (self.width,)
        return weights

    def build(self, parameters: Parameters, kernels: Kernels, name: str, layer: int) -> Mamba2Mixer:
        """Make the mixer ``name``, whose states are those of ``layer``.

        Constants that its inputs and outputs are multiplied by go into the weights.
        """
        scales: Scale = self.input_scale
        bias_scales: Scale = 1.0
        if self.project_scales is not None:
            sizes = self.sizes
            counts = (sizes.inner, sizes.inner, sizes.keys, sizes.keys, sizes.n_heads)
            bias_scales = torch.tensor(self.project_scales).repeat_interleave(torch.tensor(counts))
            scales = bias_scales * self.input_scale
        return Mamba2Mixer(
            kernels=kernels,
            sizes=self.sizes,
            layer=layer,
            project=parameters.linear(
                f"{name}.in_proj.weight",
                biases=(f"{name}.in_proj.bias",) if self.project_bias else (),
                scales=(scales,),
                bias_scales=(bias_scales,),
            ),
            conv_weight=parameters.matrix(f"{name}.conv1d.weight").squeeze(1),
            conv_bias=parameters.vector(f"{name}.conv1d.bias") if self.conv_bias else None,
            dt_bias=parameters.exact(f"{name}.dt_bias"),
            A=parameters.decays(f"{name}.A_log"),
            D=parameters.exact(f"{name}.D"),
            dt_limits=self.dt_limits,
            norm_weight=parameters.exact(f"{name}.norm.weight") if self.has_norm else None,
            norm_eps=self.norm_eps,
            gate_first=self.gate_first,
            output=parameters.linear(
                f"{name}.out_proj.weight",
                biases=(f"{name}.out_proj.bias",) if self.output_bias else (),
                scales=(self.output_scale,),
                bias_scales=(self.output_scale,),
            ),
        )
