"""Nemotron-H: layers of Mamba-2, attention, feed-forward or experts: ``NemotronHForCausalLM``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.attention_mixers import AttentionMixers
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others
from wkvm.models.hybrids import ATTENTION, RECURRENT, Layer, in_order, known, layout_of
from wkvm.models.mamba2_mixers import Mamba2Mixers
from wkvm.models.nemotron_feed_forward import Experts, FeedForward
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import AttentionSizes
from wkvm.models.parts.mamba2 import Mamba2Sizes
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.weights import Checkpoint

MLP, MOE = "mlp", "moe"

LETTERS = {"M": RECURRENT, "*": ATTENTION, "-": MLP, "E": MOE}
"""Layers as ``hybrid_override_pattern`` has them."""

KINDS = {
    "linear_attention": RECURRENT,
    "mamba": RECURRENT,
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "mlp": MLP,
    "moe": MOE,
}
"""Layers as ``layers_block_type`` has them, now and before."""

FORMER_NAMES = {
    "layer_types": "layers_block_type",
    "num_local_experts": "n_routed_experts",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_limit": "time_step_limit",
    "mamba_conv_bias": "use_conv_bias",
}
"""Other names of fields. Where a file has both, these count, as in transformers."""

UNCHANGED = {
    "mamba_hidden_act": ("silu", "swish"),
    "mamba_proj_bias": (False,),
    "attention_bias": (False,),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
    "n_shared_experts": (1,),
}


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation.

    ``time_step_limit`` is honoured, as by those who published the models. transformers does not
    look at it, but raises the steps of prompts, and of prompts alone, to ``time_step_min``.
    """

    vocab_size: int = 131072
    hidden_size: int = 4096
    num_hidden_layers: int | None = None
    layers_block_type: tuple[str, ...] | None = None
    hybrid_override_pattern: str | None = None
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    intermediate_size: int = 21504
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    ssm_state_size: int = 128
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    n_groups: int = 8
    conv_kernel: int = 4
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    use_conv_bias: bool = True
    use_bias: bool = False
    n_routed_experts: int = 8
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    layer_norm_epsilon: Epsilon = 1e-5
    residual_in_fp32: bool = False


@dataclass(frozen=True)
class NemotronH:
    """See ``wkvm.models.blueprint.Blueprint``.

    Attributes:
        root: what the names of all tensors but the head's begin with.
    """

    config: Config
    root: str
    layers: tuple[Layer, ...]
    mamba: Mamba2Mixers
    attention: AttentionMixers
    feed_forward: FeedForward
    experts: Experts

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        return Sizes(
            architecture="nemotron_h",
            vocab_size=self.config.vocab_size,
            n_layers=len(self.layers),
            width=self.config.hidden_size,
            n_heads=self.mamba.sizes.n_heads,
            head_size=self.mamba.sizes.head_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        C, V = self.config.hidden_size, self.config.vocab_size
        weights: Weights = {f"{self.root}.embeddings.weight": (V, C)}
        for index, layer in enumerate(self.layers):
            name = f"{self.root}.layers.{index}"
            weights[f"{name}.norm.weight"] = (C,)
            weights |= self._mixer_weights(f"{name}.mixer", layer.kind)
        weights[f"{self.root}.norm_f.weight"] = (C,)
        weights["lm_head.weight"] = (V, C)
        return weights

    def _mixer_weights(self, name: str, kind: str) -> Weights:
        if kind == RECURRENT:
            return self.mamba.weights(name)
        if kind == ATTENTION:
            return self.attention.weights(name)
        return (self.experts if kind == MOE else self.feed_forward).weights(name)

    def is_unused(self, name: str) -> bool:
        """Further layers, that predict several tokens at once."""
        return name.startswith("mtp.")

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and its pages."""
        return layout_of(self.layers, self.mamba.sizes, self.attention.sizes, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        config = self.config
        table = parameters.matrix(f"{self.root}.embeddings.weight")

        def norm(name: str) -> RmsNorm:
            weight = parameters.exact(f"{name}.weight")
            return RmsNorm(kernels, weight, config.layer_norm_epsilon, parameters.dtype)

        blocks = list[Part]()
        for index, layer in enumerate(self.layers):
            name = f"{self.root}.layers.{index}"
            first = norm(f"{name}.norm")
            blocks.append(Residual(first, self._mixer(parameters, kernels, f"{name}.mixer", layer)))
        last = norm(f"{self.root}.norm_f")
        return Network(
            table=table,
            stream_dtype=torch.float32 if config.residual_in_fp32 else parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, "lm_head.weight"),
        )

    def _mixer(self, parameters: Parameters, kernels: Kernels, name: str, layer: Layer) -> Part:
        if layer.kind == RECURRENT:
            return self.mamba.build(parameters, kernels, name, layer.place)
        if layer.kind == ATTENTION:
            return self.attention.build(parameters, kernels, name, layer.place)
        if layer.kind == MOE:
            return self.experts.build(parameters, kernels, name)
        return self.feed_forward.build(parameters, name)


def read(checkpoint: Checkpoint) -> NemotronH:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    fields = dict(checkpoint.config)
    for former, name in FORMER_NAMES.items():
        if former in fields:
            fields[name] = fields[former]
    if "attention_head_dim" in fields:  # as the first models have it
        fields.setdefault("head_dim", fields["attention_head_dim"])
    config = read_config(checkpoint, Config, fields)
    refuse_others(checkpoint, fields, UNCHANGED)
    layers = _layers(checkpoint, config)
    check_sizes(
        checkpoint,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
    )
    experts = _experts(config)
    blueprint = NemotronH(
        config=config,
        root="model" if "model.embeddings.weight" in checkpoint.stored else "backbone",
        layers=layers,
        mamba=_mamba(config),
        attention=_attention(config),
        feed_forward=_feed_forward(config, config.intermediate_size),
        experts=experts,
    )
    blueprint.mamba.check(checkpoint)
    blueprint.attention.check(checkpoint)
    blueprint.feed_forward.check(checkpoint)
    if any(layer.kind == MOE for layer in layers):
        experts.check(checkpoint)
    return blueprint


def _layers(checkpoint: Checkpoint, config: Config) -> tuple[Layer, ...]:
    if config.layers_block_type is not None:
        kinds = known(checkpoint, config.layers_block_type, KINDS)
    elif config.hybrid_override_pattern is not None:
        kinds = known(checkpoint, config.hybrid_override_pattern, LETTERS)
    else:
        kinds = [RECURRENT, MOE, ATTENTION, MLP]
    n_layers = config.num_hidden_layers
    if not kinds or (n_layers is not None and n_layers != len(kinds)):
        why = f"config.json has a pattern of {len(kinds)} layers for {n_layers} layers"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    if not {RECURRENT, ATTENTION} & set(kinds):
        why = "config.json has no layer that remembers anything"
        raise UnsupportedModelError(str(checkpoint.path), why)
    return in_order(kinds)


def _mamba(config: Config) -> Mamba2Mixers:
    return Mamba2Mixers(
        width=config.hidden_size,
        sizes=Mamba2Sizes(
            n_heads=config.mamba_num_heads,
            head_size=config.mamba_head_dim,
            n_groups=config.n_groups,
            state_size=config.ssm_state_size,
            n_taps=config.conv_kernel,
        ),
        project_bias=config.use_bias,
        output_bias=config.use_bias,
        conv_bias=config.use_conv_bias,
        dt_limits=config.time_step_limit,
        norm_eps=config.layer_norm_epsilon,
    )


def _attention(config: Config) -> AttentionMixers:
    n_heads, n_shared = config.num_attention_heads, config.num_key_value_heads
    return AttentionMixers(
        width=config.hidden_size,
        sizes=AttentionSizes(
            n_heads=n_heads,
            n_shared=n_heads if n_shared is None else n_shared,
            head_size=config.head_dim or config.hidden_size // n_heads,
        ),
    )


def _feed_forward(config: Config, inner: int) -> FeedForward:
    return FeedForward(
        width=config.hidden_size,
        inner=inner,
        activation=config.mlp_hidden_act,
        has_biases=config.mlp_bias,
    )


def _experts(config: Config) -> Experts:
    return Experts(
        width=config.hidden_size,
        latent=config.moe_latent_size,
        inner=config.moe_intermediate_size,
        n_experts=config.n_routed_experts,
        n_chosen=config.num_experts_per_tok,
        n_groups=config.n_group,
        n_chosen_groups=config.topk_group,
        is_renormalised=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        shared=_feed_forward(config, config.moe_shared_expert_intermediate_size),
    )
