"""transformers on the weights of a checkpoint, with the model of the package ``rwkv7-hf``."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

KERNELS = ("fla", "mamba_ssm", "causal_conv1d")
"""Imported by transformers where they are installed, and no use without a GPU."""


class Transformers:
    """Sequences that all decode at once, each step a call of the model with its cache.

    Args:
        folder: of the checkpoint.
        n_streams: sequences.
    """

    def __init__(self, folder: Path, *, n_streams: int) -> None:
        hidden = [name for name in KERNELS if name not in sys.modules]
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]
        try:
            talk: Any = importlib.import_module("transformers.utils.logging")
            talk.set_verbosity_error()
            talk.disable_progress_bar()
            package: Any = importlib.import_module("rwkv7_hf")
            self._model: Any = package.RWKV7ForCausalLM.from_pretrained(
                folder, dtype=torch.float32
            ).eval()
        finally:
            for name in hidden:
                del sys.modules[name]
        self._n_streams = n_streams
        self._cache: Any = None
        self._next = torch.zeros(n_streams, 1, dtype=torch.long)

    def start(self, prompt: Sequence[int]) -> None:
        """Have every sequence absorb a prompt, and choose its first id."""
        self._cache = None
        self._run(torch.tensor([list(prompt)] * self._n_streams))

    def step(self) -> list[int]:
        """The ids that were chosen last are absorbed, and returned; the next ones are chosen."""
        ids: list[int] = self._next[:, 0].tolist()
        self._run(self._next)
        return ids

    def absorb(self, prompt: Sequence[int]) -> int:
        """The first id after a prompt of its own."""
        self.start(prompt)
        return int(self._next[0])

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, ids: torch.Tensor) -> None:
        with torch.inference_mode():
            out = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        self._next = out.logits[:, -1:].argmax(-1)
