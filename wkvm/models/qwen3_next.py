"""Qwen3-Next: ``Qwen3NextForCausalLM``. The inputs of a Gated DeltaNet are packed by key head."""

import torch
from torch import Tensor

from wkvm.kernels.linear import Linear
from wkvm.models.config_file import read_config
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.delta import DeltaSizes
from wkvm.models.qwen_config import Config
from wkvm.models.qwen_hybrid import QwenHybrid, read_model
from wkvm.models.weights import Checkpoint


class NextConfig(Config, frozen=True, kw_only=True):
    """With transformers' defaults."""

    vocab_size: int = 151936
    hidden_size: int = 2048
    num_hidden_layers: int = 48
    num_key_value_heads: int = 2
    intermediate_size: int = 5632
    num_experts: int = 512
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512


class PackedByHead:
    """Two matrices: for each key head its query, key, values and gates; strengths and decays."""

    def weights(self, name: str, sizes: DeltaSizes, width: int) -> Weights:
        """See ``Packing``."""
        return {
            f"{name}.in_proj_qkvz.weight": (sizes.convolved + sizes.values, width),
            f"{name}.in_proj_ba.weight": (2 * sizes.n_value_heads, width),
        }

    def linear(self, parameters: Parameters, name: str, sizes: DeltaSizes) -> Linear:
        """See ``Packing``."""
        of_key = sizes.n_value_heads // sizes.n_key_heads
        values = of_key * sizes.value_size

        def unpacked(part: str, *outputs: int) -> tuple[Tensor, ...]:
            matrix = parameters.matrix(f"{name}.{part}.weight")
            by_head = matrix.view(sizes.n_key_heads, -1, matrix.shape[1])
            return tuple(each.flatten(0, 1) for each in torch.split(by_head, list(outputs), dim=1))

        inputs = unpacked("in_proj_qkvz", sizes.key_size, sizes.key_size, values, values)
        strength, decay = unpacked("in_proj_ba", of_key, of_key)
        return parameters.products.linear(torch.cat((*inputs, decay, strength)))


def read(checkpoint: Checkpoint) -> QwenHybrid:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = read_config(checkpoint, NextConfig, checkpoint.config)
    return read_model(
        checkpoint,
        checkpoint.config,
        config,
        architecture="qwen3_next",
        packing=PackedByHead(),
        is_tied=config.tie_word_embeddings,
    )
