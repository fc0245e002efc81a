"""Qwen3.5, dense and with experts: ``Qwen3_5ForCausalLM`` and ``Qwen3_5MoeForCausalLM``.

The same models are published with one that sees pictures around them
(``Qwen3_5ForConditionalGeneration``): of those the text part is run.
"""

from collections.abc import Mapping
from typing import Any

from wkvm.core.errors import CorruptCheckpointError
from wkvm.kernels.linear import Linear
from wkvm.models.config_file import read_config, refuse_others
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.delta import DeltaSizes
from wkvm.models.qwen_config import Config
from wkvm.models.qwen_hybrid import QwenHybrid, read_model
from wkvm.models.weights import Checkpoint

ALWAYS: dict[str, tuple[Any, ...]] = {
    "norm_topk_prob": (True,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
}
"""What Qwen3-Next can choose and these cannot."""


class DenseConfig(Config, frozen=True, kw_only=True):
    """With transformers' defaults."""

    vocab_size: int = 248320
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_key_value_heads: int = 4
    intermediate_size: int = 12288


class ExpertsConfig(Config, frozen=True, kw_only=True):
    """With transformers' defaults."""

    vocab_size: int = 248320
    hidden_size: int = 2048
    num_hidden_layers: int = 40
    num_key_value_heads: int = 2
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512


class Apart:
    """Four matrices: queries, keys and values; gates; strengths; decays."""

    def weights(self, name: str, sizes: DeltaSizes, width: int) -> Weights:
        """See ``Packing``."""
        return {
            f"{name}.in_proj_qkv.weight": (sizes.convolved, width),
            f"{name}.in_proj_z.weight": (sizes.values, width),
            f"{name}.in_proj_a.weight": (sizes.n_value_heads, width),
            f"{name}.in_proj_b.weight": (sizes.n_value_heads, width),
        }

    def linear(self, parameters: Parameters, name: str, sizes: DeltaSizes) -> Linear:
        """See ``Packing``."""
        return parameters.linear(
            *(f"{name}.in_proj_{part}.weight" for part in ("qkv", "z", "a", "b"))
        )


def read(checkpoint: Checkpoint) -> QwenHybrid:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    whole = checkpoint.config
    text: Mapping[str, Any] = whole.get("text_config", whole)
    if not isinstance(text, Mapping):
        raise CorruptCheckpointError(str(checkpoint.path), "config.json: text_config is no object")
    has_experts = "moe" in whole["model_type"]
    kind = ExpertsConfig if has_experts else DenseConfig
    config = read_config(checkpoint, kind, text)
    refuse_others(checkpoint, text, ALWAYS)
    return read_model(
        checkpoint,
        text,
        config,
        architecture="qwen3_5_moe" if has_experts else "qwen3_5",
        packing=Apart(),
        is_tied=bool(whole.get("tie_word_embeddings", config.tie_word_embeddings)),
    )
