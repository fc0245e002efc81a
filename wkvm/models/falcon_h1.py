"""Falcon-H1: Mamba-2 and attention beside each other in every layer: ``FalconH1ForCausalLM``.

Its many constant multipliers go into the weights when these are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from wkvm.core.errors import CorruptCheckpointError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.attention_mixers import AttentionMixers
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import Epsilon, Factor, check_sizes, read_config, refuse_others
from wkvm.models.hybrids import ATTENTION, RECURRENT, in_order, layout_of
from wkvm.models.mamba2_mixers import Mamba2Mixers
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import AttentionSizes
from wkvm.models.parts.mamba2 import Mamba2Sizes
from wkvm.models.parts.mlp import Mlp, gated
from wkvm.models.parts.parallel import Parallel
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.rope_config import read_rope
from wkvm.models.weights import Checkpoint

UNCHANGED = {
    "hidden_act": ("silu", "swish"),
    "mamba_use_mlp": (True,),
    "attn_layer_indices": (None,),
    "sliding_window": (None,),
}


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation, positions aside."""

    vocab_size: int = 128000
    tie_word_embeddings: bool = False
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    head_dim: int | None = None
    rms_norm_eps: Epsilon = 1e-5
    mamba_d_ssm: int | None = 1024
    mamba_n_heads: int = 128
    mamba_d_head: int | Literal["auto"] = "auto"
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    projectors_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    lm_head_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    mlp_multipliers: tuple[Factor, Factor] | None = None
    key_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    ssm_multipliers: tuple[Factor, Factor, Factor, Factor, Factor] | None = None
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0


@dataclass(frozen=True)
class FalconH1:
    """See ``wkvm.models.blueprint.Blueprint``."""

    config: Config
    mamba: Mamba2Mixers
    attention: AttentionMixers

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        config = self.config
        return Sizes(
            architecture="falcon_h1",
            vocab_size=config.vocab_size,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=self.mamba.sizes.n_heads,
            head_size=self.mamba.sizes.head_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        config = self.config
        C, V = config.hidden_size, config.vocab_size
        weights: Weights = {"model.embed_tokens.weight": (V, C)}
        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            weights[f"{layer}.input_layernorm.weight"] = (C,)
            weights |= self.mamba.weights(f"{layer}.mamba")
            weights |= self.attention.weights(f"{layer}.self_attn")
            weights[f"{layer}.pre_ff_layernorm.weight"] = (C,)
            weights |= self._mlp_weights(f"{layer}.feed_forward")
        weights["model.final_layernorm.weight"] = (C,)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = (V, C)
        return weights

    def _mlp_weights(self, name: str) -> Weights:
        C, inner, has_bias = (
            self.config.hidden_size,
            self.config.intermediate_size,
            self.config.mlp_bias,
        )
        weights: Weights = {}
        for leaf, shape in (
            ("gate_proj", (inner, C)),
            ("up_proj", (inner, C)),
            ("down_proj", (C, inner)),
        ):
            weights[f"{name}.{leaf}.weight"] = shape
            if has_bias:
                weights[f"{name}.{leaf}.bias"] = shape[:1]
        return weights

    def is_unused(self, name: str) -> bool:
        """A tied head is stored by some."""
        return self.config.tie_word_embeddings and name == "lm_head.weight"

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and its pages."""
        layers = in_order([RECURRENT, ATTENTION] * self.config.num_hidden_layers)
        return layout_of(layers, self.mamba.sizes, self.attention.sizes, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        config = self.config
        table = parameters.matrix("model.embed_tokens.weight")

        def residual(name: str, inner: Part) -> Residual:
            weight = parameters.exact(f"{name}.weight")
            return Residual(RmsNorm(kernels, weight, config.rms_norm_eps, parameters.dtype), inner)

        blocks = list[Part]()
        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            mixers = Parallel(
                self.mamba.build(parameters, kernels, f"{layer}.mamba", index),
                self.attention.build(parameters, kernels, f"{layer}.self_attn", index),
            )
            blocks += [
                residual(f"{layer}.input_layernorm", mixers),
                residual(
                    f"{layer}.pre_ff_layernorm",
                    self._mlp(parameters, kernels, f"{layer}.feed_forward"),
                ),
            ]
        last = parameters.exact("model.final_layernorm.weight")
        return Network(
            table=table,
            embedding_scale=config.embedding_multiplier,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=RmsNorm(kernels, last, config.rms_norm_eps, parameters.dtype),
            head=parameters.head(table, None if config.tie_word_embeddings else "lm_head.weight"),
            logit_scale=config.lm_head_multiplier,
        )

    def _mlp(self, parameters: Parameters, kernels: Kernels, name: str) -> Mlp:
        of_gate, of_output = self.config.mlp_multipliers or (1.0, 1.0)
        inputs = (f"{name}.gate_proj", f"{name}.up_proj")
        has_bias = self.config.mlp_bias
        return Mlp(
            project=parameters.linear(
                *(f"{one}.weight" for one in inputs),
                biases=tuple(f"{one}.bias" for one in inputs) if has_bias else (),
                scales=(of_gate, 1.0),
                bias_scales=(of_gate, 1.0),
            ),
            activation=gated(kernels, "silu"),
            output=parameters.linear(
                f"{name}.down_proj.weight",
                biases=(f"{name}.down_proj.bias",) if has_bias else (),
                scales=(of_output,),
                bias_scales=(of_output,),
            ),
        )


def read(checkpoint: Checkpoint) -> FalconH1:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = read_config(checkpoint, Config, checkpoint.config)
    refuse_others(checkpoint, checkpoint.config, UNCHANGED)
    check_sizes(
        checkpoint,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        mamba_n_heads=config.mamba_n_heads,
    )
    blueprint = FalconH1(config, _mamba(checkpoint, config), _attention(checkpoint, config))
    blueprint.mamba.check(checkpoint)
    blueprint.attention.check(checkpoint)
    return blueprint


def _mamba(checkpoint: Checkpoint, config: Config) -> Mamba2Mixers:
    inner = config.mamba_d_ssm
    if inner is None:
        inner = config.mamba_expand * config.hidden_size
    head_size = config.mamba_d_head
    if not isinstance(head_size, int):
        head_size = inner // config.mamba_n_heads
    if head_size * config.mamba_n_heads != inner:
        n_heads = config.mamba_n_heads
        why = f"config.json has {n_heads} mamba heads of {head_size} for {inner} channels"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    sizes = Mamba2Sizes(
        n_heads=config.mamba_n_heads,
        head_size=head_size,
        n_groups=config.mamba_n_groups,
        state_size=config.mamba_d_state,
        n_taps=config.mamba_d_conv,
    )
    return Mamba2Mixers(
        width=config.hidden_size,
        sizes=sizes,
        project_bias=config.mamba_proj_bias,
        output_bias=config.projectors_bias,
        conv_bias=config.mamba_conv_bias,
        dt_limits=config.time_step_limit,
        norm_eps=config.rms_norm_eps,
        has_norm=config.mamba_rms_norm,
        gate_first=not config.mamba_norm_before_gate,
        input_scale=config.ssm_in_multiplier,
        project_scales=config.ssm_multipliers,
        output_scale=config.ssm_out_multiplier,
    )


def _attention(checkpoint: Checkpoint, config: Config) -> AttentionMixers:
    n_heads, n_shared = config.num_attention_heads, config.num_key_value_heads
    head_size = config.head_dim or config.hidden_size // n_heads
    return AttentionMixers(
        width=config.hidden_size,
        sizes=AttentionSizes(
            n_heads=n_heads,
            n_shared=n_heads if n_shared is None else n_shared,
            head_size=head_size,
        ),
        has_biases=config.attention_bias,
        rope=read_rope(checkpoint, checkpoint.config, head_size, max_positions=8192),
        input_scale=config.attention_in_multiplier,
        key_scale=config.key_multiplier,
        output_scale=config.attention_out_multiplier,
    )
