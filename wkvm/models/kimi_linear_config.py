"""What ``config.json`` of Kimi-Linear says: its authors' fields, and those of transformers."""

from dataclasses import dataclass

import msgspec

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others, shown
from wkvm.models.parts.kda import KdaSizes
from wkvm.models.parts.mla import MlaSizes
from wkvm.models.weights import Checkpoint

KDA, MLA = "linear_attention", "full_attention"

DENSE, SPARSE = "dense", "sparse"

ALLOWED = {
    "hidden_act": ("silu", "swish"),
    "moe_router_activation_func": ("sigmoid",),
    "mla_use_nope": (True,),
    "mla_use_output_gate": (False, None),
    "moe_layer_freq": (1,),
    "routed_expert_hidden_size": (None,),
    "latent_moe_use_norm": (False, None),
    "attn_res_block_size": (None, 0),
    "tie_word_embeddings": (False,),
}
"""Fields that some publish, with the values that are run."""


class LinearConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``linear_attn_config``; layers are counted from 1."""

    kda_layers: tuple[int, ...] | None = None
    full_attn_layers: tuple[int, ...] | None = None
    head_dim: int | None = None
    num_heads: int | None = None
    short_conv_kernel_size: int | None = None


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation."""

    vocab_size: int = 163840
    hidden_size: int = 2304
    intermediate_size: int = 9216
    moe_intermediate_size: int = 1024
    num_hidden_layers: int = 27
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    num_shared_experts: int | None = 1
    routed_scaling_factor: float = 2.446
    kv_lora_rank: int = 512
    q_lora_rank: int | None = None
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    qk_nope_head_dim: int = 128
    num_expert_group: int = 1
    topk_group: int = 1
    num_experts_per_token: int = 8
    moe_renormalize: bool = True
    rms_norm_eps: Epsilon = 1e-5
    attention_bias: bool = False
    num_experts: int = 256
    first_k_dense_replace: int = 1
    num_nextn_predict_layers: int = 0
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    linear_head_dim: int = 128
    linear_num_heads: int = 32
    linear_conv_kernel_dim: int = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The layers of a model.

    Attributes:
        mixers: for each layer, ``KDA`` or ``MLA``.
        feed_forwards: for each layer, ``DENSE`` or ``SPARSE``.
    """

    config: Config
    kda: KdaSizes
    mla: MlaSizes
    mixers: tuple[str, ...]
    feed_forwards: tuple[str, ...]


def read_shape(checkpoint: Checkpoint) -> Shape:
    """Read ``config.json``.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = read_config(checkpoint, Config, checkpoint.config)
    refuse_others(checkpoint, checkpoint.config, ALLOWED)
    given = checkpoint.config.get("linear_attn_config") or {}
    if not isinstance(given, dict):
        why = "config.json: linear_attn_config is no object"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    if unknown := sorted(given.keys() - set(LinearConfig.__struct_fields__)):
        why = f"config.json has {unknown[0]} in linear_attn_config, which is not run"
        raise UnsupportedModelError(str(checkpoint.path), why)
    of_kda = read_config(checkpoint, LinearConfig, given)
    kda = KdaSizes(
        n_heads=of_kda.num_heads or config.linear_num_heads,
        head_size=of_kda.head_dim or config.linear_head_dim,
        n_taps=of_kda.short_conv_kernel_size or config.linear_conv_kernel_dim,
    )
    mla = MlaSizes(
        n_heads=config.num_attention_heads,
        latent=config.kv_lora_rank,
        own=config.qk_nope_head_dim,
        shared=config.qk_rope_head_dim,
        value=config.v_head_dim,
        query_latent=config.q_lora_rank or 0,
    )
    _check(checkpoint, config, kda, mla)
    n_layers, n_dense = config.num_hidden_layers, config.first_k_dense_replace
    feed_forwards = config.mlp_layer_types
    if feed_forwards is None:
        feed_forwards = tuple(DENSE if index < n_dense else SPARSE for index in range(n_layers))
    mixers = _mixers(checkpoint, config, of_kda)
    for name, kinds, known in (
        ("layer_types", mixers, {KDA, MLA}),
        ("mlp_layer_types", feed_forwards, {DENSE, SPARSE}),
    ):
        if len(kinds) != n_layers:
            why = f"config.json has {len(kinds)} {name} for {n_layers} layers"
            raise CorruptCheckpointError(str(checkpoint.path), why)
        if others := sorted(set(kinds) - known):
            raise UnsupportedModelError(str(checkpoint.path), f"{name} has {shown(others[0])}")
    return Shape(config, kda, mla, mixers, feed_forwards)


def _mixers(checkpoint: Checkpoint, config: Config, of_kda: LinearConfig) -> tuple[str, ...]:
    """Which mixer each layer has, by the first of: ``layer_types``, two lists, every fifth."""
    if config.layer_types is not None:
        return config.layer_types
    n_layers = config.num_hidden_layers
    if of_kda.kda_layers is None or of_kda.full_attn_layers is None:
        return tuple(MLA if index and index % 4 == 0 else KDA for index in range(n_layers))
    listed = dict.fromkeys(of_kda.kda_layers, KDA)
    listed |= dict.fromkeys(of_kda.full_attn_layers, MLA)
    numbers = sorted((*of_kda.kda_layers, *of_kda.full_attn_layers))
    if numbers != list(range(1, n_layers + 1)):
        why = "kda_layers and full_attn_layers of config.json do not name each layer once"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return tuple(listed[number] for number in numbers)


def _check(checkpoint: Checkpoint, config: Config, kda: KdaSizes, mla: MlaSizes) -> None:
    check_sizes(
        checkpoint,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        intermediate_size=config.intermediate_size,
        moe_intermediate_size=config.moe_intermediate_size,
        num_experts=config.num_experts,
        num_experts_per_token=config.num_experts_per_token,
        topk_group=config.topk_group,
        num_expert_group=config.num_expert_group,
        linear_num_heads=kda.n_heads,
        linear_head_dim=kda.head_size,
        linear_conv_kernel_dim=kda.n_taps - 1,
        num_attention_heads=mla.n_heads,
        kv_lora_rank=mla.latent,
        qk_nope_head_dim=mla.own,
        qk_rope_head_dim=mla.shared,
        v_head_dim=mla.value,
    )
    path = str(checkpoint.path)
    n_shared = config.num_key_value_heads
    if n_shared not in (None, config.num_attention_heads):
        why = f"config.json has num_key_value_heads {n_shared}; each head has keys of its own"
        raise UnsupportedModelError(path, why)
    n_experts, n_groups = config.num_experts, config.num_expert_group
    each, left_over = divmod(n_experts, n_groups)
    if left_over or (n_groups > 1 and each < 2) or config.topk_group > n_groups:
        why = f"config.json has {n_experts} experts, {config.topk_group} of {n_groups} groups"
        raise CorruptCheckpointError(path, why)
    if config.num_experts_per_token > each * config.topk_group:
        why = (
            f"config.json has {config.num_experts_per_token} of {each * config.topk_group} experts"
        )
        raise CorruptCheckpointError(path, why)
