"""How many sessions of a given context stay resident under a cap of memory, and at what rate.

One side is the engine on the bundled model, with as many slots as states fit the cap. The other
is a transformer of as many parameters, layers and width with random weights, run by transformers
with its own static cache, as many sessions as caches fit the cap. On both sides all resident
sessions decode at once, greedily, in this process with as many threads. States, caches and sums
are in float32; so are the transformer's weights, of which wkvm keeps large matrices in float16.

A session's past is not what is timed: the transformer's cache is filled with random keys and
values, and wkvm's sessions have read eight tokens: a state takes as many bytes, and a step as
long, whatever was read before.
"""

import importlib
import importlib.util
import time
from typing import Any

import torch

from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig
from wkvm.core.request import RequestSpec, TokensEvent
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm_bench.harness import BenchError, Comparison, alternate

CAP_BYTES = 1 << 28
CONTEXTS = (256, 1024, 4096, 16_384)
PROMPT = tuple(range(100, 108))
N_STEPS = 2
"""Of a sample."""


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark."""
    if importlib.util.find_spec("transformers") is None:
        raise BenchError("transformers, the peer, is not installed")
    cap_bytes, contexts, n = (4 << 20, (64,), 1) if smoke else (CAP_BYTES, CONTEXTS, 5)
    n_threads_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        model = load_model(BUNDLED, device="cpu", dtype="float32")
        n_sessions = cap_bytes // model.layout.payload_bytes
        ours = _Resident(model, n_sessions, n_steps=N_STEPS * (n + 1) * len(contexts))
        return [
            await _compared(ours, Transformer(model, context, cap_bytes), n) for context in contexts
        ]
    finally:
        torch.set_num_threads(n_threads_before)


async def _compared(ours: "_Resident", peer: "Transformer", n: int) -> Comparison:
    """Both sides by turns, at one context."""

    async def of_wkvm() -> float:
        return ours.rate(N_STEPS)

    async def of_peer() -> float:
        return peer.rate(N_STEPS)

    a, b = await alternate(of_wkvm, of_peer, n)
    besides = {
        "context, tokens": float(peer.context),
        "cap, MiB": peer.cap_bytes / 2**20,
        "sessions, wkvm": float(ours.n_sessions),
        "sessions, transformer": float(peer.n_sessions),
        "bytes of a session, wkvm": float(ours.session_bytes),
        "bytes of a session, transformer": float(peer.session_bytes),
        "parameters, wkvm": float(ours.n_parameters),
        "parameters, transformer": float(peer.n_parameters),
    }
    return Comparison(
        f"sessions of {peer.context:,} tokens in {peer.cap_bytes >> 20:,} MiB",
        f"wkvm, {ours.n_sessions:,} sessions",
        f"transformer, {peer.n_sessions:,}",
        "ids/s",
        a,
        b,
        None,
        besides,
    )


class _Resident:
    """An engine all of whose slots decode, for a number of steps at least."""

    def __init__(self, model: Model, n_sessions: int, n_steps: int) -> None:
        self.n_sessions = n_sessions
        self.session_bytes = model.layout.payload_bytes
        self.n_parameters = model.info.n_parameters
        config = EngineConfig(
            n_slots=n_sessions,
            max_queue=n_sessions,
            request_timeout_s=1e6,
            n_threads=torch.get_num_threads(),
        )
        self._engine = Engine(model, config)
        length = n_steps + len(PROMPT) * n_sessions
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length)
        for _ in range(n_sessions):
            self._engine.submit(RequestSpec(prompt=PROMPT, params=params), 0.0)
        while self._step() < n_sessions:
            pass

    def rate(self, n_steps: int) -> float:
        """Ids a second of all sessions together."""
        start = time.perf_counter()
        n_ids = sum(self._step() for _ in range(n_steps))
        rate = n_ids / (time.perf_counter() - start)
        if n_ids != n_steps * self.n_sessions:
            raise BenchError(f"{n_ids} ids of {n_steps * self.n_sessions}")
        return rate

    def _step(self) -> int:
        events = self._engine.step(0.0)
        return sum(len(event.token_ids) for event in events if isinstance(event, TokensEvent))


class Transformer:
    """A transformer of a model's size, with as many sessions of a context as fit a cap.

    Raises:
        BenchError: not one fits.
    """

    def __init__(self, model: Model, context: int, cap_bytes: int) -> None:
        transformers: Any = importlib.import_module("transformers")
        info = model.info
        width, n_layers = info.width, info.n_layers
        kept = 2 * info.vocab_size * width
        # A layer has four squares of the width, and three matrices of its inner width.
        inner = ((info.n_parameters - kept) // n_layers - 4 * width**2) // (3 * width)
        self.context, self.cap_bytes = context, cap_bytes
        length = context + 64
        config = transformers.LlamaConfig(
            vocab_size=info.vocab_size,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=n_layers,
            num_attention_heads=info.n_heads,
            max_position_embeddings=length,
        )
        self._model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32
        ).eval()
        self.n_parameters = sum(one.numel() for one in self._model.parameters())
        self.session_bytes = 2 * n_layers * width * context * 4
        self.n_sessions = cap_bytes // self.session_bytes
        if not self.n_sessions:
            raise BenchError(f"no session of {context} tokens fits {cap_bytes} bytes")
        self._cache = transformers.StaticCache(config, max_cache_len=length)
        size = (self.n_sessions, info.n_heads, context, width // info.n_heads)
        with torch.inference_mode():
            for layer in self._cache.layers:
                layer.update(torch.randn(size), torch.randn(size))
        self._ids = torch.arange(self.n_sessions)[:, None] % info.vocab_size

    def rate(self, n_steps: int) -> float:
        """Ids a second of all sessions together."""
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(n_steps):
                out = self._model(self._ids, cache=self._cache, use_cache=True)
                self._ids = out.logits[:, -1:].argmax(-1)
        return n_steps * self.n_sessions / (time.perf_counter() - start)
