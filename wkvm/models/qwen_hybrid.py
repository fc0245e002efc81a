"""What Qwen3-Next and Qwen3.5 share: Gated DeltaNet, attention with gates, dense layers or experts.

Their modules say how each names and packs its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.attention_mixers import AttentionMixers
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import check_sizes
from wkvm.models.delta_mixers import ONE_CONVOLUTION, DeltaMixers, Packing
from wkvm.models.hybrids import ATTENTION, RECURRENT, Layer, in_order, layout_of
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import AttentionSizes
from wkvm.models.parts.delta import DeltaSizes
from wkvm.models.parts.moe import Moe, SoftmaxRouter
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.qwen_config import LINEAR, Config, check_config, types_of
from wkvm.models.rope_config import Rope, read_rope
from wkvm.models.stored_layers import gated_mlp, mlp_weights
from wkvm.models.weights import Checkpoint

TURNED_PART = 0.25
"""The part of a head that positions turn, where the file says nothing."""


@dataclass(frozen=True)
class QwenHybrid:
    """See ``wkvm.models.blueprint.Blueprint``.

    Attributes:
        prefix: of the names of all tensors but the head's.
        is_tied: whether the head is the embedding.
        are_stacked: whether the experts of a layer are stored as one tensor.
    """

    architecture: str
    config: Config
    packing: Packing
    prefix: str
    rope: Rope
    is_tied: bool
    are_stacked: bool

    @cached_property
    def layer_types(self) -> tuple[str, ...]:
        """``LINEAR`` or ``FULL`` for each layer."""
        return types_of(self.config)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, counted by their kind."""
        return in_order(RECURRENT if one == LINEAR else ATTENTION for one in self.layer_types)

    @cached_property
    def mixers(self) -> DeltaMixers:
        """Of the linear layers."""
        config = self.config
        return DeltaMixers(
            width=config.hidden_size,
            sizes=DeltaSizes(
                n_key_heads=config.linear_num_key_heads,
                n_value_heads=config.linear_num_value_heads,
                key_size=config.linear_key_head_dim,
                value_size=config.linear_value_head_dim,
                n_taps=config.linear_conv_kernel_dim,
            ),
            packing=self.packing,
            norm_eps=config.rms_norm_eps,
            convolutions=ONE_CONVOLUTION,
            norm="norm",
            output="out_proj",
        )

    @cached_property
    def attention(self) -> AttentionMixers:
        """Of the layers with attention."""
        config = self.config
        return AttentionMixers(
            width=config.hidden_size,
            sizes=AttentionSizes(
                n_heads=config.num_attention_heads,
                n_shared=config.num_key_value_heads,
                head_size=config.head_dim,
                is_gated=True,
            ),
            rope=self.rope,
            head_norms="each",
            norm_eps=config.rms_norm_eps,
            norm_offset=1.0,
        )

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        config = self.config
        return Sizes(
            architecture=self.architecture,
            vocab_size=config.vocab_size,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=config.linear_num_value_heads,
            head_size=config.linear_value_head_dim,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        C, V = self.config.hidden_size, self.config.vocab_size
        weights: Weights = {f"{self.prefix}.embed_tokens.weight": (V, C)}
        for index, (kind, _) in enumerate(self.layers):
            layer = f"{self.prefix}.layers.{index}"
            weights[f"{layer}.input_layernorm.weight"] = (C,)
            if kind == RECURRENT:
                weights |= self.mixers.weights(f"{layer}.linear_attn")
            else:
                weights |= self.attention.weights(f"{layer}.self_attn")
            weights[f"{layer}.post_attention_layernorm.weight"] = (C,)
            if self.has_experts(index):
                weights |= expert_weights(f"{layer}.mlp", self.config, self.are_stacked)
            else:
                weights |= mlp_weights(f"{layer}.mlp", C, self.config.intermediate_size)
        weights[f"{self.prefix}.norm.weight"] = (C,)
        if not self.is_tied:
            weights["lm_head.weight"] = (V, C)
        return weights

    def has_experts(self, index: int) -> bool:
        """Whether a layer has experts instead of one dense layer."""
        config = self.config
        if config.num_experts == 0 or index in (config.mlp_only_layers or ()):
            return False
        return (index + 1) % config.decoder_sparse_step == 0

    def is_unused(self, name: str) -> bool:
        """What sees pictures, what guesses further tokens, and a tied head that is stored."""
        if name == "lm_head.weight":
            return self.is_tied
        return name.startswith(("model.visual.", "mtp."))

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and its guest."""
        return layout_of(self.layers, self.mixers.sizes, self.attention.sizes, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        table = parameters.matrix(f"{self.prefix}.embed_tokens.weight")
        blocks = list[Part]()

        def norm(name: str) -> RmsNorm:
            weight = parameters.exact(name) + 1
            return RmsNorm(kernels, weight, self.config.rms_norm_eps, parameters.dtype)

        for index, (kind, place) in enumerate(self.layers):
            layer = f"{self.prefix}.layers.{index}"
            before = norm(f"{layer}.input_layernorm.weight")
            if kind == RECURRENT:
                name = f"{layer}.linear_attn"
                mixer: Part = self.mixers.build(parameters, kernels, name, place)
            else:
                name = f"{layer}.self_attn"
                mixer = self.attention.build(parameters, kernels, name, place)
            blocks.append(Residual(before, mixer))
            before = norm(f"{layer}.post_attention_layernorm.weight")
            blocks.append(Residual(before, self._feed_forward(parameters, kernels, layer, index)))
        last = norm(f"{self.prefix}.norm.weight")
        return Network(
            table=table,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, None if self.is_tied else "lm_head.weight"),
        )

    def _feed_forward(
        self, parameters: Parameters, kernels: Kernels, layer: str, index: int
    ) -> Part:
        if self.has_experts(index):
            return experts(parameters, kernels, f"{layer}.mlp", self.config, self.are_stacked)
        return gated_mlp(parameters, kernels, f"{layer}.mlp")


def expert_weights(name: str, config: Config, are_stacked: bool) -> Weights:
    """Of a layer with experts."""
    C, E, inner = config.hidden_size, config.num_experts, config.moe_intermediate_size
    weights: Weights = {
        f"{name}.gate.weight": (E, C),
        f"{name}.shared_expert_gate.weight": (1, C),
    }
    shared = mlp_weights(f"{name}.shared_expert", C, config.shared_expert_intermediate_size)
    each = [mlp_weights(f"{name}.experts.{expert}", C, inner) for expert in range(E)]
    if are_stacked:
        each = [
            {
                f"{name}.experts.gate_up_proj": (E, 2 * inner, C),
                f"{name}.experts.down_proj": (E, C, inner),
            }
        ]
    # As they are taken: what goes in of all of them, then what comes out.
    for one in (*each, shared):
        weights |= dict(list(one.items())[:-1])
    for one in (*each, shared):
        weights |= dict(list(one.items())[-1:])
    return weights


def experts(
    parameters: Parameters, kernels: Kernels, name: str, config: Config, are_stacked: bool
) -> Moe:
    """Such a layer."""
    # A shared expert of the shape of the others is one more of them, which all tokens choose.
    is_one_more = config.shared_expert_intermediate_size == config.moe_intermediate_size
    gates = (f"{name}.gate.weight", f"{name}.shared_expert_gate.weight")
    router = SoftmaxRouter(
        weight=parameters.matrix(*(gates if is_one_more else gates[:1])),
        n_chosen=config.num_experts_per_tok,
        is_renormalised=config.norm_topk_prob,
        shared="gated" if is_one_more else "none",
    )
    shared = f"{name}.shared_expert"
    each = [f"{name}.experts.{expert}" for expert in range(config.num_experts)]
    alone = [shared] if is_one_more else []
    n_experts = len(each) + len(alone)
    first, second = list[tuple[str, ...]](), list[tuple[str, ...]]()
    if are_stacked:
        first.append((f"{name}.experts.gate_up_proj",))
        second.append((f"{name}.experts.down_proj",))
        each = []
    for one in each + alone:
        first.append((f"{one}.gate_proj.weight", f"{one}.up_proj.weight"))
        second.append((f"{one}.down_proj.weight",))
    return Moe(
        kernels=kernels,
        router=router,
        first=parameters.experts(first, n_experts),
        second=parameters.experts(second, n_experts),
        activation="swiglu",
        shared=None if is_one_more else gated_mlp(parameters, kernels, shared),
        shared_gate=None if is_one_more else parameters.linear(gates[1]),
    )


def read_model(
    checkpoint: Checkpoint,
    text: Mapping[str, Any],
    config: Config,
    *,
    architecture: str,
    packing: Packing,
    is_tied: bool,
) -> QwenHybrid:
    """Check the sizes of a checkpoint and read what its names say.

    Args:
        text: the part of ``config.json`` that ``config`` was read from.

    Raises:
        CorruptCheckpointError: it contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    check_config(checkpoint, text, config)
    nested = "model.language_model.embed_tokens.weight" in checkpoint.stored
    prefix = "model.language_model" if nested else "model"
    model = QwenHybrid(
        architecture=architecture,
        config=config,
        packing=packing,
        prefix=prefix,
        rope=read_rope(checkpoint, text, config.head_dim, turned_part=TURNED_PART),
        is_tied=is_tied,
        are_stacked=any(name.endswith(".mlp.experts.gate_up_proj") for name in checkpoint.stored),
    )
    if not all(map(model.has_experts, range(config.num_hidden_layers))):
        check_sizes(checkpoint, intermediate_size=config.intermediate_size)
    return model
