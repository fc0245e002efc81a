"""Kimi-Linear, as its authors publish it and as transformers stores it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear, linear
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.hybrids import ATTENTION, RECURRENT, Layer, in_order, layout_of
from wkvm.models.kimi_linear_config import DENSE, KDA, Shape, read_shape
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.kda import KdaMixer
from wkvm.models.parts.mla import MlaMixer
from wkvm.models.parts.moe import Moe, SigmoidRouter
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.parts.step import Part
from wkvm.models.stored_layers import gated_mlp, mlp_weights
from wkvm.models.weights import Checkpoint


@dataclass(frozen=True)
class KimiLinear:
    """See ``wkvm.models.blueprint.Blueprint``.

    Attributes:
        dense_names: for each layer, what a dense one is stored under.
    """

    shape: Shape
    dense_names: tuple[str, ...]

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        return Sizes(
            architecture="kimi_linear",
            vocab_size=self.shape.config.vocab_size,
            n_layers=self.shape.config.num_hidden_layers,
            width=self.shape.config.hidden_size,
            n_heads=self.shape.kda.n_heads,
            head_size=self.shape.kda.head_size,
        )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, counted by their kind."""
        return in_order(RECURRENT if one == KDA else ATTENTION for one in self.shape.mixers)

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        C, V = self.shape.config.hidden_size, self.shape.config.vocab_size
        weights: Weights = {"model.embed_tokens.weight": (V, C)}
        for index, (mixer, kind) in enumerate(
            zip(self.shape.mixers, self.shape.feed_forwards, strict=True)
        ):
            layer = f"model.layers.{index}"
            weights[f"{layer}.input_layernorm.weight"] = (C,)
            attention = f"{layer}.self_attn"
            of_mixer = self._kda_weights if mixer == KDA else self._mla_weights
            weights |= {f"{attention}.{name}": shape for name, shape in of_mixer().items()}
            weights[f"{layer}.post_attention_layernorm.weight"] = (C,)
            if kind == DENSE:
                name = f"{layer}.{self.dense_names[index]}"
                weights |= mlp_weights(name, C, self.shape.config.intermediate_size)
            else:
                weights |= self._moe_weights(f"{layer}.block_sparse_moe")
        weights["model.norm.weight"] = (C,)
        weights["lm_head.weight"] = (V, C)
        return weights

    def _kda_weights(self) -> Weights:
        C, sizes = self.shape.config.hidden_size, self.shape.kda
        inner, K = sizes.inner, sizes.head_size
        projections = {f"{name}_proj.weight": (inner, C) for name in "qkv"}
        convolutions = {f"{name}_conv1d.weight": (inner, 1, sizes.n_taps) for name in "qkv"}
        return {
            **projections,
            "f_a_proj.weight": (K, C),
            "g_a_proj.weight": (K, C),
            "b_proj.weight": (sizes.n_heads, C),
            **convolutions,
            "f_b_proj.weight": (inner, K),
            "g_b_proj.weight": (inner, K),
            "A_log": (1, 1, sizes.n_heads, 1),
            "dt_bias": (inner,),
            "o_norm.weight": (K,),
            "o_proj.weight": (C, inner),
        }

    def _mla_weights(self) -> Weights:
        C, sizes, has_bias = (
            self.shape.config.hidden_size,
            self.shape.mla,
            self.shape.config.attention_bias,
        )
        weights: Weights = {}
        if not sizes.query_latent:
            weights["q_proj.weight"] = (sizes.queries, C)
        else:
            weights["q_a_proj.weight"] = (sizes.query_latent, C)
            if has_bias:
                weights["q_a_proj.bias"] = (sizes.query_latent,)
        weights["kv_a_proj_with_mqa.weight"] = (sizes.kept, C)
        if has_bias:
            weights["kv_a_proj_with_mqa.bias"] = (sizes.kept,)
        if sizes.query_latent:
            weights["q_a_layernorm.weight"] = (sizes.query_latent,)
            weights["q_b_proj.weight"] = (sizes.queries, sizes.query_latent)
        weights["kv_a_layernorm.weight"] = (sizes.latent,)
        weights["kv_b_proj.weight"] = (sizes.n_heads * (sizes.own + sizes.value), sizes.latent)
        weights["o_proj.weight"] = (C, sizes.n_heads * sizes.value)
        if has_bias:
            weights["o_proj.bias"] = (C,)
        return weights

    def _moe_weights(self, name: str) -> Weights:
        config = self.shape.config
        C, inner, n_experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
        weights: Weights = {
            f"{name}.gate.weight": (n_experts, C),
            f"{name}.gate.e_score_correction_bias": (n_experts,),
        }
        n_shared = config.num_shared_experts
        shared = mlp_weights(f"{name}.shared_experts", C, inner * n_shared) if n_shared else {}
        # As they are taken: what goes in of all of them, then what comes out.
        for parts in _experts(name, n_experts, "w1", "w3"):
            weights |= dict.fromkeys(parts, (inner, C))
        weights |= dict(list(shared.items())[:-1])
        for parts in _experts(name, n_experts, "w2"):
            weights |= dict.fromkeys(parts, (C, inner))
        weights |= dict(list(shared.items())[-1:])
        return weights

    def is_unused(self, name: str) -> bool:
        """Layers behind the last one predict further tokens, which is not done here."""
        n_layers, n_further = (
            self.shape.config.num_hidden_layers,
            self.shape.config.num_nextn_predict_layers,
        )
        return any(
            name.startswith(f"model.layers.{index}.")
            for index in range(n_layers, n_layers + n_further)
        )

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state, and the latents of its tokens."""
        return layout_of(self.layers, self.shape.kda, self.shape.mla, dtype, state)

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        eps = self.shape.config.rms_norm_eps
        table = parameters.matrix("model.embed_tokens.weight")

        def norm(name: str) -> RmsNorm:
            return RmsNorm(kernels, parameters.exact(name), eps, parameters.dtype)

        blocks = list[Part]()
        for index, (kind, place) in enumerate(self.layers):
            layer = f"model.layers.{index}"
            of_mixer = self._kda if kind == RECURRENT else self._mla
            before = norm(f"{layer}.input_layernorm.weight")
            attention = of_mixer(parameters, kernels, f"{layer}.self_attn", place)
            blocks.append(Residual(before, attention))
            before = norm(f"{layer}.post_attention_layernorm.weight")
            blocks.append(Residual(before, self._feed_forward(parameters, kernels, index)))
        return Network(
            table=table,
            stream_dtype=parameters.dtype,
            blocks=tuple(blocks),
            norm=norm("model.norm.weight"),
            head=parameters.head(table, "lm_head.weight"),
        )

    def _kda(self, parameters: Parameters, kernels: Kernels, name: str, layer: int) -> Part:
        sizes = self.shape.kda
        inputs = ("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")
        convolutions = ("q_conv1d", "k_conv1d", "v_conv1d")
        return KdaMixer(
            kernels=kernels,
            sizes=sizes,
            layer=layer,
            project=parameters.linear(*(f"{name}.{part}.weight" for part in inputs)),
            conv_weight=parameters.matrix(
                *(f"{name}.{part}.weight" for part in convolutions)
            ).squeeze(1),
            # Small ones, and decays are sensitive: not quantised.
            decays=linear(parameters.matrix(f"{name}.f_b_proj.weight")),
            gates=linear(parameters.matrix(f"{name}.g_b_proj.weight")),
            A=parameters.decays(f"{name}.A_log").view(-1),
            dt_bias=parameters.exact(f"{name}.dt_bias").view(sizes.n_heads, sizes.head_size),
            norm_weight=parameters.exact(f"{name}.o_norm.weight"),
            norm_eps=self.shape.config.rms_norm_eps,
            output=parameters.linear(f"{name}.o_proj.weight"),
        )

    def _mla(self, parameters: Parameters, kernels: Kernels, name: str, layer: int) -> Part:
        sizes, has_bias = self.shape.mla, self.shape.config.attention_bias
        project = self._mla_inputs(parameters, name)
        query_norm, make_queries = None, None
        if sizes.query_latent:
            query_norm = parameters.exact(f"{name}.q_a_layernorm.weight")
            make_queries = parameters.linear(f"{name}.q_b_proj.weight")
        latent_norm = parameters.exact(f"{name}.kv_a_layernorm.weight")
        by_head = parameters.matrix(f"{name}.kv_b_proj.weight").view(
            sizes.n_heads, sizes.own + sizes.value, sizes.latent
        )
        to_keys, to_values = torch.split(by_head, [sizes.own, sizes.value], dim=1)
        return MlaMixer(
            kernels=kernels,
            sizes=sizes,
            layer=layer,
            project=project,
            query_norm=query_norm,
            make_queries=make_queries,
            latent_norm=latent_norm,
            to_keys=to_keys.contiguous(),
            to_values=to_values.transpose(1, 2).contiguous(),
            output=parameters.linear(
                f"{name}.o_proj.weight", biases=(f"{name}.o_proj.bias",) if has_bias else ()
            ),
        )

    def _mla_inputs(self, parameters: Parameters, name: str) -> Linear:
        sizes = self.shape.mla
        first = f"{name}.q_a_proj" if sizes.query_latent else f"{name}.q_proj"
        latent = f"{name}.kv_a_proj_with_mqa"
        names = (f"{first}.weight", f"{latent}.weight")
        if not self.shape.config.attention_bias:
            return parameters.linear(*names)
        if sizes.query_latent:
            return parameters.linear(*names, biases=(f"{first}.bias", f"{latent}.bias"))
        # Queries that are made of the token itself have no bias.
        weight, bias = parameters.matrix(*names), parameters.vector(f"{latent}.bias")
        bias = torch.cat((bias.new_zeros(sizes.queries), bias))
        return parameters.products.linear(weight, bias)

    def _feed_forward(self, parameters: Parameters, kernels: Kernels, index: int) -> Part:
        layer = f"model.layers.{index}"
        if self.shape.feed_forwards[index] == DENSE:
            return gated_mlp(parameters, kernels, f"{layer}.{self.dense_names[index]}")
        config, name = self.shape.config, f"{layer}.block_sparse_moe"
        # A shared expert of the shape of the others is one more of them, which all tokens choose.
        is_one_more = config.num_shared_experts == 1
        shared = f"{name}.shared_experts"
        router = SigmoidRouter(
            weight=parameters.exact(f"{name}.gate.weight"),
            bias=parameters.exact(f"{name}.gate.e_score_correction_bias"),
            n_chosen=config.num_experts_per_token,
            n_groups=config.num_expert_group,
            n_chosen_groups=config.topk_group,
            is_renormalised=config.moe_renormalize,
            scale=config.routed_scaling_factor,
            shared="whole" if is_one_more else "none",
        )
        first = _experts(name, config.num_experts, "w1", "w3")
        second = _experts(name, config.num_experts, "w2")
        if is_one_more:
            first.append((f"{shared}.gate_proj.weight", f"{shared}.up_proj.weight"))
            second.append((f"{shared}.down_proj.weight",))
        has_others = bool(config.num_shared_experts) and not is_one_more
        return Moe(
            kernels=kernels,
            router=router,
            first=parameters.experts(first),
            second=parameters.experts(second),
            activation="swiglu",
            shared=gated_mlp(parameters, kernels, shared) if has_others else None,
        )


def read(checkpoint: Checkpoint) -> KimiLinear:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError, UnsupportedModelError: as ``read_shape``.
    """
    shape = read_shape(checkpoint)
    # transformers writes a dense layer under the name of sparse ones.
    stored = {".".join(name.split(".")[:4]) for name in checkpoint.stored}
    dense_names = tuple(
        "block_sparse_moe" if f"model.layers.{index}.block_sparse_moe" in stored else "mlp"
        for index in range(shape.config.num_hidden_layers)
    )
    return KimiLinear(shape, dense_names)


def _experts(name: str, n_experts: int, *parts: str) -> list[tuple[str, ...]]:
    return [
        tuple(f"{name}.experts.{expert}.{part}.weight" for part in parts)
        for expert in range(n_experts)
    ]
