"""Gated DeltaNet as flash-linear-attention stores it: ``GatedDeltaNetForCausalLM``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import msgspec

from wkvm.core.errors import CorruptCheckpointError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others
from wkvm.models.delta_mixers import DeltaMixers, OneByOne
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.delta import DeltaSizes, Gate
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.stored_layers import gated_mlp, mlp_weights
from wkvm.models.weights import Checkpoint

GATES: dict[str, Gate] = {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"}
"""By ``output_gate_activation``."""


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation."""

    hidden_size: int = 2048
    expand_v: float = 2.0
    use_gate: bool = True
    allow_neg_eigval: bool = False
    conv_size: int = 4
    head_dim: int = 256
    num_heads: int = 6
    num_v_heads: int | None = None
    hidden_ratio: float | None = 4
    intermediate_size: int | None = None
    num_hidden_layers: int = 21
    norm_eps: Epsilon = 1e-6
    vocab_size: int = 32000
    output_gate_activation: str = "swish"
    tie_word_embeddings: bool = False

    @property
    def inner(self) -> int:
        """Channels within a dense layer."""
        if self.intermediate_size is not None:
            return self.intermediate_size
        ratio = 4 if self.hidden_ratio is None else self.hidden_ratio
        return -(-int(self.hidden_size * ratio * 2 / 3) // 256) * 256


@dataclass(frozen=True)
class GatedDeltaNet:
    """See ``wkvm.models.blueprint.Blueprint``."""

    config: Config

    @cached_property
    def mixers(self) -> DeltaMixers:
        """What each layer begins with."""
        config = self.config
        return DeltaMixers(
            width=config.hidden_size,
            sizes=DeltaSizes(
                n_key_heads=config.num_heads,
                n_value_heads=config.num_v_heads or config.num_heads,
                key_size=config.head_dim,
                value_size=round(config.head_dim * config.expand_v),
                n_taps=config.conv_size,
            ),
            packing=OneByOne(config.use_gate),
            norm_eps=config.norm_eps,
            gate=GATES[config.output_gate_activation] if config.use_gate else "none",
            max_strength=2.0 if config.allow_neg_eigval else 1.0,
        )

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        config, mixer = self.config, self.mixers.sizes
        return Sizes(
            architecture="gated_deltanet",
            vocab_size=config.vocab_size,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=mixer.n_value_heads,
            head_size=mixer.value_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        config = self.config
        C, V = config.hidden_size, config.vocab_size
        weights: Weights = {"model.embeddings.weight": (V, C)}
        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            weights[f"{layer}.attn_norm.weight"] = (C,)
            weights |= self.mixers.weights(f"{layer}.attn")
            weights[f"{layer}.mlp_norm.weight"] = (C,)
            weights |= mlp_weights(f"{layer}.mlp", C, config.inner)
        weights["model.norm.weight"] = (C,)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = (V, C)
        return weights

    def is_unused(self, name: str) -> bool:
        """A tied head is stored by some."""
        return self.config.tie_word_embeddings and name == "lm_head.weight"

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state."""
        n_layers = self.config.num_hidden_layers
        return StateLayout(self.mixers.sizes.tensors(n_layers, dtype, state.dtype))

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        config = self.config
        table = parameters.matrix("model.embeddings.weight")
        blocks = list[Part]()

        def norm(name: str) -> RmsNorm:
            return RmsNorm(kernels, parameters.exact(name), config.norm_eps, parameters.dtype)

        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            before = norm(f"{layer}.attn_norm.weight")
            mixer = self.mixers.build(parameters, kernels, f"{layer}.attn", index)
            blocks.append(Residual(before, mixer))
            before = norm(f"{layer}.mlp_norm.weight")
            blocks.append(Residual(before, gated_mlp(parameters, kernels, f"{layer}.mlp")))
        last = norm("model.norm.weight")
        return Network(
            table=table,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, None if config.tie_word_embeddings else "lm_head.weight"),
        )


def read(checkpoint: Checkpoint) -> GatedDeltaNet:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = read_config(checkpoint, Config, checkpoint.config)
    refuse_others(
        checkpoint,
        checkpoint.config,
        {
            "hidden_act": ("swish", "silu"),
            "output_gate_activation": tuple(GATES),
            "use_short_conv": (True,),
            "attn": (None,),
            "attnres_block_size": (None,),
        },
    )
    if not isfinite(config.expand_v) or not isfinite(config.hidden_ratio or 0):
        why = "config.json has an expand_v or hidden_ratio without end"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    model = GatedDeltaNet(config)
    mixer = model.mixers.sizes
    check_sizes(
        checkpoint,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        head_dim=config.head_dim,
        num_heads=config.num_heads,
        num_v_heads=mixer.n_value_heads,
        conv_size=config.conv_size - 1,
        intermediate_size=config.inner,
    )
    if mixer.n_value_heads % mixer.n_key_heads:
        why = f"config.json has num_v_heads {mixer.n_value_heads} for {mixer.n_key_heads} num_heads"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    if mixer.value_size < 1 or abs(config.head_dim * config.expand_v - mixer.value_size) > 1e-3:
        why = f"config.json has expand_v {config.expand_v} of a head_dim of {config.head_dim}"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return model
