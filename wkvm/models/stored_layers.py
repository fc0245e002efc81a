"""Layers as many checkpoints name them: which tensors they are, and the parts that come of them."""

from wkvm.kernels.interface import Kernels
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.mlp import Mlp, gated


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
