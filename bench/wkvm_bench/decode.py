"""Decode of the bundled model, against the ``rwkv`` package on the same weights.

Both run in this process with as many threads as each other, in float32, greedily, and must
give the same ids before anything is timed. wkvm's side is whole steps of the engine:
scheduler, forward pass and sampler. The peer's is its forward pass and the argmax.
"""

import contextlib
import importlib
import importlib.util
import io
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig
from wkvm.core.request import Event, RequestSpec, TokensEvent
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm_bench.blink import write_pth
from wkvm_bench.harness import Bar, BenchError, Comparison, alternate

BARS = {1: Bar(2.0), 16: Bar(8.0)}
PROMPT = tuple(range(100, 110))
N_CHECKED = 24


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark."""
    if importlib.util.find_spec("rwkv") is None:
        raise BenchError("rwkv, the peer, is not installed")
    n_steps, n = (3, 1) if smoke else (96, 15)
    n_threads_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        model = load_model(BUNDLED, device="cpu", dtype="float32")
        peer = RwkvPackage(BUNDLED)
        if [peer.step()[0] for _ in range(N_CHECKED)] != first_ids(model):
            raise BenchError("the two sides give different ids for the same prompt")
        comparisons = list[Comparison]()
        for batch, bar in BARS.items():
            ours = Ours(model, batch, n_steps * (n + 1))

            async def of_wkvm(ours: Ours = ours) -> float:
                return ours.rate(n_steps)

            async def of_rwkv() -> float:
                return peer.rate(n_steps)

            a, b = await alternate(of_wkvm, of_rwkv, n)
            names = (f"wkvm, batch {batch}", "rwkv, one stream")
            comparisons.append(Comparison(f"batch {batch}", *names, "ids/s", a, b, bar))
    finally:
        torch.set_num_threads(n_threads_before)
    return comparisons


class Ours:
    """An engine with ``batch`` requests that decode, of which none ends before ``n_steps``."""

    def __init__(self, model: Model, batch: int, n_steps: int) -> None:
        self._batch = batch
        config = EngineConfig(
            n_slots=batch, request_timeout_s=1e6, n_threads=torch.get_num_threads()
        )
        self._engine = Engine(model, config)
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=n_steps + 2)
        for _ in range(batch):
            self._engine.submit(RequestSpec(prompt=PROMPT, params=params), 0.0)
        self._engine.step(0.0)

    def rate(self, n_steps: int) -> float:
        """Ids per second of all requests together."""
        start = time.perf_counter()
        n_ids = sum(len(ids_of(self._engine.step(0.0))) for _ in range(n_steps))
        rate = n_ids / (time.perf_counter() - start)
        if n_ids != n_steps * self._batch:
            raise BenchError(f"{n_ids} ids of {n_steps * self._batch}")
        return rate


class RwkvPackage:
    """The rwkv package with one stream."""

    def __init__(self, path: Path) -> None:
        # It reads these when it is imported.
        os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="1", RWKV_CUDA_ON="0")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            write_pth(path, Path(folder) / "model.pth")
            rwkv_model = importlib.import_module("rwkv.model")
            self._model: Any = rwkv_model.RWKV(
                model=str(Path(folder) / "model"), strategy="cpu fp32"
            )
        self.start(PROMPT)

    def rate(self, n_steps: int) -> float:
        """Ids per second."""
        start = time.perf_counter()
        for _ in range(n_steps):
            self.step()
        return n_steps / (time.perf_counter() - start)

    def start(self, prompt: Sequence[int]) -> None:
        """Absorb a prompt, and choose the first id."""
        self._state: Any = None
        self._absorb(list(prompt))

    def step(self) -> list[int]:
        """Absorb the id that was chosen last, which is returned, and choose the next."""
        ids = [self._id]
        self._absorb(ids)
        return ids

    def absorb(self, prompt: Sequence[int]) -> int:
        """The first id after a prompt of its own."""
        self.start(prompt)
        return self._id

    def close(self) -> None:
        """Nothing is held."""

    def _absorb(self, ids: list[int]) -> None:
        logits, self._state = self._model.forward(ids, self._state)
        self._id = int(logits.argmax())


def first_ids(model: Model) -> list[int]:
    """The first greedy ids after ``PROMPT``."""
    engine = Engine(model, EngineConfig(n_slots=1, n_threads=torch.get_num_threads()))
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=N_CHECKED)
    engine.submit(RequestSpec(prompt=PROMPT, params=params), 0.0)
    events = [event for _ in range(N_CHECKED) for event in engine.step(0.0)]
    return ids_of(events)


def ids_of(events: list[Event]) -> list[int]:
    """All ids of a step's events."""
    return [i for event in events if isinstance(event, TokensEvent) for i in event.token_ids]
