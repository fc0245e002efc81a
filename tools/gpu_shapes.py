"""Shapes of published models, and what a decode step of them cannot be faster than on an H200."""

from math import prod
from typing import Any

import torch
from wkvm_bench.random_weights import blueprint

from wkvm.models.decoder import Decoder

COPY_RATE = 4.19e12
"""Bytes a second of a copy on an H200, read and written bytes together."""

MATRIX_RATE = 780e12
"""Operations a second of a large product in bfloat16."""

CONTEXT = 4096
"""Tokens that each sequence holds before the steps that are timed."""

SHAPES: dict[str, dict[str, Any]] = {
    "mamba2-2.7B": {
        "model_type": "mamba2",
        "vocab_size": 50_288,
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "tie_word_embeddings": True,
    },
    "qwen3.5-9B": {"model_type": "qwen3_5_text"},
    "qwen3-next-80B": {"model_type": "qwen3_next"},
    "tiny": {
        "model_type": "mamba2",
        "vocab_size": 101,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
    },
}
"""Configurations, as far as they differ from transformers' defaults."""

CHOSEN = {"qwen3-next-80B": 10 / 512}
"""The share of its routed experts that a token has; their weights are in float8."""


def is_tied(shape: str) -> bool:
    """Whether the head is the embedding."""
    return bool(SHAPES[shape].get("tie_word_embeddings", False))


class Floors:
    """What a step cannot be faster than: see the docstrings."""

    def __init__(self, shape: str, model: Decoder, n_rows: int, context: int) -> None:
        info, layout, guest = model.info, model.layout, model.layout.guest
        table = info.vocab_size * info.width
        kept = 0 if is_tied(shape) else table
        n_multiplied = info.n_parameters - kept
        item_bytes = getattr(torch, info.dtype).itemsize
        self.weight_bytes = info.weight_bytes - kept * item_bytes
        chosen = CHOSEN.get(shape)
        if chosen is not None:
            weights = blueprint(SHAPES[shape]).weights
            n_routed = sum(prod(size) for name, size in weights.items() if ".experts." in name)
            # One byte each; and those that no row has, if each has its own by chance.
            self.weight_bytes -= round(n_routed * (1 - chosen) ** n_rows)
            n_multiplied -= round(n_routed * (1 - chosen))
        self.state_bytes = layout.payload_bytes
        self.kv_bytes = 0 if guest is None else guest.token_bytes * context
        traffic = n_rows * (2 * self.state_bytes + self.kv_bytes) / COPY_RATE
        reading = self.weight_bytes / COPY_RATE
        products = 2 * n_multiplied * n_rows / MATRIX_RATE
        self.bandwidth_ms = (reading + traffic) * 1e3
        """One read of the weights and of the context, one read and one write of each state."""
        self.serial_ms = (max(reading, products) + traffic) * 1e3
        """The same, but nothing beside the products, which may take longer than reading."""
