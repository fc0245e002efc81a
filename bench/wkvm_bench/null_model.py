"""A model without weights: the next id is the last one and one more."""

import torch
from torch import Tensor

from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.models.base import Batch, ModelInfo, StateViews


class CountingModel:
    """Counts. Its state holds nothing of use, but there is one, and so there are slots."""

    def __init__(self, vocab_size: int = 256) -> None:
        self._layout = StateLayout((TensorSpec("count.last", (1,), "float32"),))
        self._info = ModelInfo(
            name="null",
            vocab_size=vocab_size,
            n_layers=1,
            width=1,
            n_heads=1,
            head_size=1,
            n_parameters=0,
            weight_bytes=0,
            dtype="float32",
            device="cpu",
            digest="0" * 64,
            eos_ids=(),
        )

    @property
    def info(self) -> ModelInfo:
        """What it is."""
        return self._info

    @property
    def layout(self) -> StateLayout:
        """One number for each state."""
        return self._layout

    def decode_step(self, n_rows: int, *, apart: bool = False) -> None:
        """It has none."""

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """Nobody counts it."""
        return 0

    def capture_prompts(self, states: StateViews) -> None:
        """Nothing is captured."""

    def prompt_graph_bytes(self) -> int:
        """Zero."""
        return 0

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        """The logits that make the next number the likeliest by far."""
        del states
        following = (batch.token_ids[batch.logit_rows] + 1) % self._info.vocab_size
        logits = torch.zeros(len(following), self._info.vocab_size)
        return logits.scatter_(1, following[:, None], 100.0)
