"""Granite 4: Mamba-2 or attention, then experts, in each layer: ``GraniteMoeHybridForCausalLM``."""

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
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others
from wkvm.models.hybrids import ATTENTION, RECURRENT, Layer, in_order, known, layout_of
from wkvm.models.mamba2_mixers import Mamba2Mixers
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import AttentionSizes
from wkvm.models.parts.mamba2 import Mamba2Sizes
from wkvm.models.parts.mlp import Mlp, gated
from wkvm.models.parts.moe import Moe, SoftmaxRouter
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.rope_config import read_rope
from wkvm.models.weights import Checkpoint

UNCHANGED = {
    "hidden_act": ("silu", "swish"),
    "normalization_function": ("rmsnorm",),
}

KINDS = {
    "mamba": RECURRENT,
    "linear_attention": RECURRENT,
    "attention": ATTENTION,
    "full_attention": ATTENTION,
}


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation, positions aside."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    embedding_multiplier: float = 1.0
    logits_scaling: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] | None = None
    layers_block_type: tuple[str, ...] | None = None
    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int | Literal["auto"] = "auto"
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, float] = (0.0, float("inf"))


@dataclass(frozen=True)
class GraniteMoeHybrid:
    """See ``wkvm.models.blueprint.Blueprint``."""

    config: Config
    layers: tuple[Layer, ...]
    mamba: Mamba2Mixers
    attention: AttentionMixers

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        return Sizes(
            architecture="granitemoehybrid",
            vocab_size=self.config.vocab_size,
            n_layers=len(self.layers),
            width=self.config.hidden_size,
            n_heads=self.mamba.sizes.n_heads,
            head_size=self.mamba.sizes.head_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        config = self.config
        C, V = config.hidden_size, config.vocab_size
        weights: Weights = {"model.embed_tokens.weight": (V, C)}
        for index, layer in enumerate(self.layers):
            name = f"model.layers.{index}"
            weights[f"{name}.input_layernorm.weight"] = (C,)
            if layer.kind == RECURRENT:
                weights |= self.mamba.weights(f"{name}.mamba")
            else:
                weights |= self.attention.weights(f"{name}.self_attn")
            weights[f"{name}.post_attention_layernorm.weight"] = (C,)
            weights |= self._feed_forward_weights(name)
        weights["model.norm.weight"] = (C,)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = (V, C)
        return weights

    def _feed_forward_weights(self, name: str) -> Weights:
        config = self.config
        C, E = config.hidden_size, config.num_local_experts
        weights: Weights = {}
        if E:
            moe, inner = f"{name}.block_sparse_moe", config.intermediate_size
            weights[f"{moe}.router.layer.weight"] = (E, C)
            weights[f"{moe}.input_linear.weight"] = (E, 2 * inner, C)
            weights[f"{moe}.output_linear.weight"] = (E, C, inner)
        inner = config.shared_intermediate_size
        weights[f"{name}.shared_mlp.input_linear.weight"] = (2 * inner, C)
        weights[f"{name}.shared_mlp.output_linear.weight"] = (C, inner)
        return weights

    def is_unused(self, name: str) -> bool:
        """A tied head is stored by some."""
        return self.config.tie_word_embeddings and name == "lm_head.weight"

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and its pages."""
        return layout_of(self.layers, self.mamba.sizes, self.attention.sizes, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        config = self.config
        table = parameters.matrix("model.embed_tokens.weight")

        def norm(name: str) -> RmsNorm:
            weight = parameters.exact(f"{name}.weight")
            return RmsNorm(kernels, weight, config.rms_norm_eps, parameters.dtype)

        blocks = list[Part]()
        for index, layer in enumerate(self.layers):
            name, scale = f"model.layers.{index}", config.residual_multiplier
            first = norm(f"{name}.input_layernorm")
            blocks.append(Residual(first, self._mixer(parameters, kernels, name, layer), scale))
            second = norm(f"{name}.post_attention_layernorm")
            blocks.append(Residual(second, self._feed_forward(parameters, kernels, name), scale))
        last = norm("model.norm")
        return Network(
            table=table,
            embedding_scale=config.embedding_multiplier,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, None if config.tie_word_embeddings else "lm_head.weight"),
            logit_scale=1.0 / config.logits_scaling,
        )

    def _mixer(self, parameters: Parameters, kernels: Kernels, name: str, layer: Layer) -> Part:
        if layer.kind == RECURRENT:
            return self.mamba.build(parameters, kernels, f"{name}.mamba", layer.place)
        return self.attention.build(parameters, kernels, f"{name}.self_attn", layer.place)

    def _feed_forward(self, parameters: Parameters, kernels: Kernels, name: str) -> Part:
        moe, config = f"{name}.block_sparse_moe", self.config
        if not config.num_local_experts:
            return _shared(parameters, kernels, name)
        return Moe(
            kernels=kernels,
            router=SoftmaxRouter(
                weight=parameters.matrix(f"{moe}.router.layer.weight"),
                n_chosen=config.num_experts_per_tok,
                is_renormalised=True,
            ),
            first=parameters.experts([(f"{moe}.input_linear.weight",)]),
            second=parameters.experts([(f"{moe}.output_linear.weight",)]),
            activation="swiglu",
            shared=_shared(parameters, kernels, name),
        )


def _shared(parameters: Parameters, kernels: Kernels, name: str) -> Mlp:
    return Mlp(
        project=parameters.linear(f"{name}.shared_mlp.input_linear.weight"),
        activation=gated(kernels, "silu"),
        output=parameters.linear(f"{name}.shared_mlp.output_linear.weight"),
    )


def read(checkpoint: Checkpoint) -> GraniteMoeHybrid:
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
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        mamba_n_heads=config.mamba_n_heads,
        shared_intermediate_size=config.shared_intermediate_size,
    )
    path = str(checkpoint.path)
    if config.num_local_experts:
        check_sizes(
            checkpoint,
            intermediate_size=config.intermediate_size,
            num_local_experts=config.num_local_experts,
            num_experts_per_tok=config.num_experts_per_tok,
        )
        if config.num_experts_per_tok > config.num_local_experts:
            why = (
                f"config.json chooses {config.num_experts_per_tok} of "
                f"{config.num_local_experts} experts"
            )
            raise CorruptCheckpointError(path, why)
    if config.logits_scaling == 0:
        raise CorruptCheckpointError(path, "config.json divides logits by 0")
    blueprint = GraniteMoeHybrid(
        config,
        _layers(checkpoint, config),
        _mamba(checkpoint, config),
        _attention(checkpoint, config),
    )
    blueprint.mamba.check(checkpoint)
    blueprint.attention.check(checkpoint)
    return blueprint


def _layers(checkpoint: Checkpoint, config: Config) -> tuple[Layer, ...]:
    names = config.layer_types or config.layers_block_type
    if names is None:
        names = ("mamba",) * config.num_hidden_layers
    if len(names) != config.num_hidden_layers:
        why = f"config.json has {len(names)} layer_types for {config.num_hidden_layers} layers"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return in_order(known(checkpoint, names, KINDS))


def _mamba(checkpoint: Checkpoint, config: Config) -> Mamba2Mixers:
    inner, n_heads = config.mamba_expand * config.hidden_size, config.mamba_n_heads
    head_size = config.mamba_d_head
    if not isinstance(head_size, int):
        head_size = inner // n_heads
    if head_size * n_heads != inner:
        why = f"config.json has {n_heads} mamba heads of {head_size} for {inner} channels"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return Mamba2Mixers(
        width=config.hidden_size,
        sizes=Mamba2Sizes(
            n_heads=n_heads,
            head_size=head_size,
            n_groups=config.mamba_n_groups,
            state_size=config.mamba_d_state,
            n_taps=config.mamba_d_conv,
        ),
        project_bias=config.mamba_proj_bias,
        output_bias=config.mamba_proj_bias,
        conv_bias=config.mamba_conv_bias,
        dt_limits=config.time_step_limit,
        norm_eps=config.rms_norm_eps,
    )


def _attention(checkpoint: Checkpoint, config: Config) -> AttentionMixers:
    n_heads, n_shared = config.num_attention_heads, config.num_key_value_heads
    head_size = config.head_dim or config.hidden_size // n_heads
    rope = None
    # Any other word, such as "nope", leaves positions untold: so transformers has it.
    if config.position_embedding_type == "rope":
        rope = read_rope(checkpoint, checkpoint.config, head_size, max_positions=2048)
    return AttentionMixers(
        width=config.hidden_size,
        sizes=AttentionSizes(
            n_heads=n_heads,
            n_shared=n_heads if n_shared is None else n_shared,
            head_size=head_size,
        ),
        has_biases=config.attention_bias,
        scale=config.attention_multiplier,
        rope=rope,
    )
