"""llama.cpp through ``llama-cpp-python``, on the weights of a checkpoint of wkvm's."""

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wkvm_bench.gguf_model import write_gguf
from wkvm_bench.harness import BenchError

MAX_PROMPT = 512


class LlamaCpp:
    """A context of sequences, which all decode at once.

    Args:
        folder: of the checkpoint.
        path: for the file that is made of it.
        is_half: whether its large matrices are in float16.
        n_streams: sequences.

    Raises:
        BenchError: the file cannot be loaded.
    """

    def __init__(
        self, folder: Path, path: Path, *, is_half: bool, n_streams: int, n_threads: int
    ) -> None:
        # Untyped: its functions are found in a library when it is imported.
        self._lib: Any = importlib.import_module("llama_cpp")
        # Kept: the library calls it for as long as it lives.
        self._log = self._lib.llama_log_callback(lambda *_: None)
        self._lib.llama_log_set(self._log, None)
        if not path.exists():
            write_gguf(folder, path, is_half=is_half)
        lib, self._n_streams = self._lib, n_streams
        self._model = lib.llama_model_load_from_file(
            str(path).encode(), lib.llama_model_default_params()
        )
        settings = lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = MAX_PROMPT
        settings.n_seq_max = n_streams
        settings.n_threads = settings.n_threads_batch = n_threads
        self._context = lib.llama_init_from_model(self._model, settings) if self._model else None
        if not self._context:
            raise BenchError("llama.cpp does not load the checkpoint")
        self._n_ids = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._next, self._position = [0] * n_streams, 0

    def start(self, prompt: Sequence[int]) -> None:
        """Have every sequence absorb a prompt, and choose its first id."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        for stream in range(self._n_streams):
            last = len(prompt) - 1
            self._run((one, stream, at, at == last) for at, one in enumerate(prompt))
            self._next[stream] = self._best(last)
        self._position = len(prompt)

    def step(self) -> list[int]:
        """The ids that were chosen last are absorbed, and returned; the next ones are chosen."""
        ids = list(self._next)
        self._run((one, stream, self._position, True) for stream, one in enumerate(ids))
        self._position += 1
        self._next = [self._best(stream) for stream in range(self._n_streams)]
        return ids

    def absorb(self, prompt: Sequence[int]) -> int:
        """The first id after a prompt of its own."""
        self.start(prompt)
        return self._next[0]

    def close(self) -> None:
        """Free what the library holds."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def _run(self, tokens: Iterable[tuple[int, int, int, bool]]) -> None:
        """Absorb tokens: id, sequence, position, and whether its logits are wanted."""
        with self._batch() as batch:
            for at, (token_id, stream, position, wanted) in enumerate(tokens):
                batch.token[at], batch.pos[at] = token_id, position
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, stream
                batch.logits[at] = wanted
                batch.n_tokens = at + 1
            if code := self._lib.llama_decode(self._context, batch):
                raise BenchError(f"llama.cpp: decode gave {code}")

    @contextlib.contextmanager
    def _batch(self) -> Iterator[Any]:
        batch = self._lib.llama_batch_init(MAX_PROMPT, 0, 1)
        try:
            yield batch
        finally:
            self._lib.llama_batch_free(batch)

    def _best(self, at: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, (self._n_ids,)).argmax())
