"""Layers as many checkpoints name them: which tensors they are, and the parts that come of them."""

from collections.abc import Sequence

from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.delta import DeltaMixer, DeltaSizes, Gate
from wkvm.models.parts.mlp import Mlp, gated

GATED_DELTANET = ("q_proj", "k_proj", "v_proj", "g_proj", "a_proj", "b_proj")
"""Inputs of a Gated DeltaNet that are stored one by one, in the order of ``DeltaMixer.project``."""

CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
"""Its convolutions, stored one by one."""


def mlp_weights(name: str, width: int, inner: int) -> Weights:
    """Of a dense layer with a gate: ``gate_proj``, ``up_proj`` and ``down_proj``."""
    return {
        f"{name}.gate_proj.weight": (inner, width),
        f"{name}.up_proj.weight": (inner, width),
        f"{name}.down_proj.weight": (width, inner),
    }


def gated_mlp(parameters: Parameters, kernels: Kernels, name: str) -> Mlp:
    """Such a layer, with silu."""
    return Mlp(
        project=parameters.linear(f"{name}.gate_proj.weight", f"{name}.up_proj.weight"),
        activation=gated(kernels, "silu"),
        output=parameters.linear(f"{name}.down_proj.weight"),
    )


def delta_weights(name: str, sizes: DeltaSizes, width: int, *, has_gate: bool) -> Weights:
    """Of a Gated DeltaNet whose inputs and convolutions are stored one by one, as fla has it."""
    outputs = dict(zip(GATED_DELTANET, _outputs(sizes), strict=True))
    if not has_gate:
        del outputs["g_proj"]
    weights: Weights = {f"{name}.{part}.weight": (n, width) for part, n in outputs.items()}
    for part, n in zip(CONVOLUTIONS, (sizes.keys, sizes.keys, sizes.values), strict=True):
        weights[f"{name}.{part}.weight"] = (n, 1, sizes.n_taps)
    weights |= {f"{name}.{part}": (sizes.n_value_heads,) for part in ("A_log", "dt_bias")}
    weights[f"{name}.o_norm.weight"] = (sizes.value_size,)
    weights[f"{name}.o_proj.weight"] = (width, sizes.values)
    return weights


def delta_inputs(parameters: Parameters, name: str, *, has_gate: bool) -> Linear:
    """``DeltaMixer.project`` of such a layer."""
    parts = [part for part in GATED_DELTANET if has_gate or part != "g_proj"]
    return parameters.linear(*(f"{name}.{part}.weight" for part in parts))


def delta_mixer(
    parameters: Parameters,
    kernels: Kernels,
    name: str,
    *,
    sizes: DeltaSizes,
    layer: int,
    project: Linear,
    convolutions: Sequence[str] = CONVOLUTIONS,
    norm: str = "o_norm",
    norm_eps: float,
    output: str = "o_proj",
    gate: Gate = "silu",
    max_strength: float = 1.0,
) -> DeltaMixer:
    """The Gated DeltaNet ``name``. Attributes as in ``DeltaMixer``; names of its other tensors.

    Args:
        convolutions: stored one by one, or as one.
    """
    return DeltaMixer(
        kernels=kernels,
        sizes=sizes,
        layer=layer,
        project=project,
        conv_weight=parameters.matrix(*(f"{name}.{part}.weight" for part in convolutions)).squeeze(
            1
        ),
        A=parameters.decays(f"{name}.A_log"),
        dt_bias=parameters.exact(f"{name}.dt_bias"),
        max_strength=max_strength,
        norm_weight=parameters.exact(f"{name}.{norm}.weight"),
        norm_eps=norm_eps,
        gate=gate,
        output=parameters.linear(f"{name}.{output}.weight"),
    )


def _outputs(sizes: DeltaSizes) -> tuple[int, ...]:
    n_heads = sizes.n_value_heads
    return sizes.keys, sizes.keys, sizes.values, sizes.values, n_heads, n_heads
