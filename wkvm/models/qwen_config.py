"""What ``config.json`` of Qwen3-Next and Qwen3.5 says, and what of it is run."""

from collections.abc import Mapping
from typing import Any

import msgspec

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.config_file import Epsilon, check_sizes, refuse_others, shown
from wkvm.models.weights import Checkpoint

LINEAR, FULL = "linear_attention", "full_attention"

RUN: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "use_sliding_window": (False,),
}
"""Values of fields that change the computation, and can have no other here."""

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "full_attention_interval",
    "decoder_sparse_step",
)
"""Fields that are at least 1, beside those of linear attention."""

EXPERT_SIZES = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
"""And where there are experts."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What of ``config.json`` changes the computation. Defaults that differ are in subclasses."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int = 16
    num_key_value_heads: int
    head_dim: int = 256
    rms_norm_eps: Epsilon = 1e-6
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    layer_types: list[str] | None = None
    full_attention_interval: int = 4
    intermediate_size: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    tie_word_embeddings: bool = False


def types_of(config: Config) -> tuple[str, ...]:
    """``LINEAR`` or ``FULL`` for each layer; every fourth attends where the file says nothing."""
    if config.layer_types is not None:
        return tuple(config.layer_types)
    every = config.full_attention_interval
    return tuple(
        FULL if index % every == every - 1 else LINEAR for index in range(config.num_hidden_layers)
    )


def check_config(checkpoint: Checkpoint, text: Mapping[str, Any], config: Config) -> None:
    """Check the fields of a checkpoint's ``config.json``.

    Args:
        text: the part of it that ``config`` was read from.

    Raises:
        CorruptCheckpointError: it contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    path = str(checkpoint.path)
    refuse_others(checkpoint, text, RUN)
    names = [*SIZES, *(name for name in config.__struct_fields__ if name.startswith("linear_"))]
    if config.num_experts:
        names += EXPERT_SIZES
    fields = msgspec.structs.asdict(config)
    sizes = {name: fields[name] for name in names}
    check_sizes(checkpoint, **sizes)
    if config.linear_conv_kernel_dim < 2:
        raise CorruptCheckpointError(path, "config.json has linear_conv_kernel_dim 1")
    for many, few in (
        ("linear_num_value_heads", "linear_num_key_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ):
        if sizes[many] % sizes[few]:
            why = f"config.json has {many} {sizes[many]} for {few} {sizes[few]}"
            raise CorruptCheckpointError(path, why)
    if config.num_experts and config.num_experts_per_tok > config.num_experts:
        why = f"config.json has num_experts_per_tok {config.num_experts_per_tok}"
        raise CorruptCheckpointError(path, f"{why} of num_experts {config.num_experts}")
    types = types_of(config)
    if len(types) != config.num_hidden_layers or set(types) - {LINEAR, FULL}:
        raise CorruptCheckpointError(path, f"config.json has layer_types {shown(list(types))}")
    if absent := {LINEAR, FULL} - set(types):
        raise UnsupportedModelError(path, f"config.json has layer_types without {absent.pop()}")
