"""OLMo-Hybrid: ``OlmoHybridForCausalLM``. Gated DeltaNet, and attention that knows no positions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.attention_mixers import AttentionMixers
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others, shown
from wkvm.models.delta_mixers import CONVOLUTIONS, ONE_CONVOLUTION, DeltaMixers, OneByOne
from wkvm.models.hybrids import ATTENTION, RECURRENT, Layer, in_order, layout_of
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import AttentionSizes
from wkvm.models.parts.delta import DeltaSizes
from wkvm.models.parts.residual import PostNormResidual, Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.rope_config import Rope, read_rope
from wkvm.models.stored_layers import gated_mlp, mlp_weights
from wkvm.models.weights import Checkpoint

LINEAR, FULL = "linear_attention", "full_attention"

O_NORM_EPS = 1e-5
"""Of the norm within a Gated DeltaNet, whatever ``rms_norm_eps`` is."""

FIRST_NORM = ("attention_layer_norm", "input_layernorm")
SECOND_NORM = ("feedforward_layer_norm", "post_attention_layernorm")
"""Names of norms of layers with a Gated DeltaNet: as published, and as transformers has them."""

AFTER_ATTENTION = ("post_attention_layernorm", "feedforward_layer_norm")
"""As published, and as transformers writes it."""


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation."""

    vocab_size: int = 100352
    hidden_size: int = 3840
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 30
    num_key_value_heads: int | None = None
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    layer_types: list[str] | None = None
    linear_num_key_heads: int | None = None
    linear_num_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel_dim: int = 4
    linear_allow_neg_eigval: bool = True
    head_dim: int | None = None


@dataclass(frozen=True)
class OlmoHybrid:
    """See ``wkvm.models.blueprint.Blueprint``.

    Attributes:
        rope: None where attention knows no positions, as published.
        stored: names of all tensors of the checkpoint, of which some have two.
    """

    config: Config
    rope: Rope | None
    stored: frozenset[str]

    @cached_property
    def layer_types(self) -> tuple[str, ...]:
        """``LINEAR`` or ``FULL`` for each layer: every fourth attends if the file says nothing."""
        if self.config.layer_types is not None:
            return tuple(self.config.layer_types)
        n_layers = self.config.num_hidden_layers
        types = [FULL if index % 4 == 3 else LINEAR for index in range(n_layers)]
        return (*types[:-1], types[-1] if FULL in types else FULL)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, counted by their kind."""
        return in_order(RECURRENT if one == LINEAR else ATTENTION for one in self.layer_types)

    @cached_property
    def mixers(self) -> DeltaMixers:
        """Of the linear layers. transformers stores their convolutions as one."""
        config = self.config
        n_key_heads = config.linear_num_key_heads or config.num_attention_heads
        key_size = config.linear_key_head_dim or int(0.75 * config.hidden_size / n_key_heads)
        is_one = any(name.endswith(".linear_attn.conv1d.weight") for name in self.stored)
        return DeltaMixers(
            width=config.hidden_size,
            sizes=DeltaSizes(
                n_key_heads=n_key_heads,
                n_value_heads=config.linear_num_value_heads or config.num_attention_heads,
                key_size=key_size,
                value_size=config.linear_value_head_dim or 2 * key_size,
                n_taps=config.linear_conv_kernel_dim,
            ),
            packing=OneByOne(),
            norm_eps=O_NORM_EPS,
            max_strength=2.0 if config.linear_allow_neg_eigval else 1.0,
            convolutions=ONE_CONVOLUTION if is_one else CONVOLUTIONS,
        )

    @cached_property
    def attention(self) -> AttentionMixers:
        """Of the layers with attention."""
        config = self.config
        n_heads = config.num_attention_heads
        return AttentionMixers(
            width=config.hidden_size,
            sizes=AttentionSizes(
                n_heads=n_heads,
                n_shared=config.num_key_value_heads or n_heads,
                head_size=config.head_dim or config.hidden_size // n_heads,
            ),
            rope=self.rope,
            head_norms="all",
            norm_eps=config.rms_norm_eps,
        )

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        config = self.config
        return Sizes(
            architecture="olmo_hybrid",
            vocab_size=config.vocab_size,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=self.mixers.sizes.n_value_heads,
            head_size=self.mixers.sizes.value_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        config = self.config
        C, V = config.hidden_size, config.vocab_size
        weights: Weights = {"model.embed_tokens.weight": (V, C)}
        for index, (kind, _) in enumerate(self.layers):
            layer = f"model.layers.{index}"
            if kind == RECURRENT:
                weights[self._norm_name(layer, FIRST_NORM)] = (C,)
                weights |= self.mixers.weights(f"{layer}.linear_attn")
                weights[self._norm_name(layer, SECOND_NORM)] = (C,)
                weights |= mlp_weights(f"{layer}.mlp", C, config.intermediate_size)
            else:
                weights |= self.attention.weights(f"{layer}.self_attn")
                weights[self._norm_name(layer, AFTER_ATTENTION)] = (C,)
                weights |= mlp_weights(f"{layer}.mlp", C, config.intermediate_size)
                weights[f"{layer}.post_feedforward_layernorm.weight"] = (C,)
        weights["model.norm.weight"] = (C,)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = (V, C)
        return weights

    def is_unused(self, name: str) -> bool:
        """What guesses further tokens, and a tied head that is stored."""
        if name == "lm_head.weight":
            return self.config.tie_word_embeddings
        return name.startswith("mtp.")

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and its guest."""
        return layout_of(self.layers, self.mixers.sizes, self.attention.sizes, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        table = parameters.matrix("model.embed_tokens.weight")
        blocks = list[Part]()

        def norm(name: str) -> RmsNorm:
            eps = self.config.rms_norm_eps
            return RmsNorm(kernels, parameters.exact(name), eps, parameters.dtype)

        for index, (kind, place) in enumerate(self.layers):
            layer = f"model.layers.{index}"
            if kind == RECURRENT:
                before = norm(self._norm_name(layer, FIRST_NORM))
                name = f"{layer}.linear_attn"
                mixer: Part = self.mixers.build(parameters, kernels, name, place)
                blocks.append(Residual(before, mixer))
                before = norm(self._norm_name(layer, SECOND_NORM))
                blocks.append(Residual(before, gated_mlp(parameters, kernels, f"{layer}.mlp")))
            else:
                name = f"{layer}.self_attn"
                mixer = self.attention.build(parameters, kernels, name, place)
                after = norm(self._norm_name(layer, AFTER_ATTENTION))
                blocks.append(PostNormResidual(after, mixer))
                inner = gated_mlp(parameters, kernels, f"{layer}.mlp")
                after = norm(f"{layer}.post_feedforward_layernorm.weight")
                blocks.append(PostNormResidual(after, inner))
        last = norm("model.norm.weight")
        is_tied = self.config.tie_word_embeddings
        return Network(
            table=table,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, None if is_tied else "lm_head.weight"),
        )

    def _norm_name(self, layer: str, names: Iterable[str]) -> str:
        """Of the names that a norm may have, that which is stored; the first if none is."""
        full = [f"{layer}.{name}.weight" for name in names]
        return next((name for name in full if name in self.stored), full[0])


def read(checkpoint: Checkpoint) -> OlmoHybrid:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    path, raw = str(checkpoint.path), checkpoint.config
    config = read_config(checkpoint, Config, raw)
    refuse_others(checkpoint, raw, {"hidden_act": ("silu",), "attention_bias": (False,)})
    check_sizes(
        checkpoint,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
    )
    model = OlmoHybrid(config, None, frozenset(checkpoint.stored))
    mixer, attention, types = model.mixers.sizes, model.attention.sizes, model.layer_types
    check_sizes(
        checkpoint,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_key_value_heads=attention.n_shared,
        head_dim=attention.head_size,
        linear_num_key_heads=mixer.n_key_heads,
        linear_num_value_heads=mixer.n_value_heads,
        linear_key_head_dim=mixer.key_size,
        linear_value_head_dim=mixer.value_size,
        linear_conv_kernel_dim=config.linear_conv_kernel_dim - 1,
    )
    if len(types) != config.num_hidden_layers or set(types) != {LINEAR, FULL}:
        raise CorruptCheckpointError(path, f"config.json has layer_types {shown(list(types))}")
    for name, many, few in (
        ("linear_num_value_heads", mixer.n_value_heads, mixer.n_key_heads),
        ("num_attention_heads", attention.n_heads, attention.n_shared),
    ):
        if many % few:
            raise CorruptCheckpointError(
                path, f"config.json has {name} {many}, no multiple of {few}"
            )
    return OlmoHybrid(config, _rope(checkpoint, attention.head_size), model.stored)


def _rope(checkpoint: Checkpoint, head_size: int) -> Rope | None:
    """None where ``rope_theta`` is null, as published.

    Raises:
        UnsupportedModelError: nothing is said of it: releases of transformers differ on what that
            means.
    """
    config = checkpoint.config
    given = config.get("rope_parameters") or {}
    if not isinstance(given, dict) or ("rope_theta" not in given and "rope_theta" not in config):
        why = "config.json has no rope_theta in rope_parameters; null is for no positions"
        raise UnsupportedModelError(str(checkpoint.path), why)
    if given.get("rope_theta", config.get("rope_theta")) is None:
        return None
    return read_rope(checkpoint, config, head_size)
