"""The bundled model, and a larger random one, in wkvm and in others on a CPU: the same weights.

The peers are llama.cpp (through ``llama-cpp-python``; the checkpoint becomes a GGUF file here),
with large matrices in float16, as wkvm keeps them on a CPU, and all in float32; transformers (with
the model of ``rwkv7-hf``) and the package ``rwkv``, which has no batches, both in float32. States
and sums are in float32 everywhere. All have as many threads, choose greedily, and must give wkvm's
ids before anything is timed. wkvm's side is whole steps of the engine: scheduler, forward pass and
sampler. A peer's is its forward pass and the argmax. Peers that are not installed are left out.
"""

import importlib.util
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm_bench.decode import N_CHECKED, PROMPT, Ours, RwkvPackage, first_ids, ids_of
from wkvm_bench.harness import BenchError, Comparison, alternate
from wkvm_bench.random_model import SIZES, write_random_folder

STREAMS = (1, 16)
N_PROMPT = 512
LARGER = "0.2B"
"""A model of random weights whose step is more weights than calls."""
SAMPLE_S = 0.5
"""A peer that is slow takes fewer steps in a sample, as many as fit this time."""


class Peer(Protocol):
    """Sequences in another program."""

    def start(self, prompt: Sequence[int]) -> None:
        """Have every sequence absorb a prompt."""
        ...

    def step(self) -> list[int]:
        """Absorb the ids that were chosen last, which are returned, and choose the next."""
        ...

    def absorb(self, prompt: Sequence[int]) -> int:
        """The first id after a prompt of its own."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured of a model.

    Attributes:
        of: what cases call the model; empty for the bundled one.
        streams: at a time.
        n_steps: of a sample.
        n_checked: ids that all must agree on: of random weights the best logits are close, and
            llama.cpp rounds what it multiplies with float16 to float16 as well.
        has_transformers: whether transformers is among the peers.
    """

    of: str
    streams: Sequence[int]
    n_steps: int
    n_prompt: int
    n_pairs: int
    n_checked: int
    has_transformers: bool


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark.

    Raises:
        BenchError: no peer is installed, or one gives other ids.
    """
    n_threads_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        if smoke:
            return await _measured(BUNDLED, Counts("", (1,), 3, 16, 1, 8, True), n_threads)
        bundled = Counts("", STREAMS, 64, N_PROMPT, 9, N_CHECKED, True)
        comparisons = await _measured(BUNDLED, bundled, n_threads)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "model"
            write_random_folder(folder, SIZES[LARGER])
            larger = Counts(f"{LARGER}, ", STREAMS, 8, N_PROMPT // 4, 5, N_CHECKED // 6, False)
            return comparisons + await _measured(folder, larger, n_threads)
    finally:
        torch.set_num_threads(n_threads_before)


async def _measured(path: Path, counts: Counts, n_threads: int) -> list[Comparison]:
    """All peers on one model."""
    comparisons = list[Comparison]()
    model = load_model(path, device="cpu", dtype="float32")
    with tempfile.TemporaryDirectory() as name:
        for peer_name, n_streams, make in _peers(path, Path(name), counts, n_threads):
            peer = make()
            try:
                _check(model, peer_name, peer, counts.n_checked)
                comparisons.append(await _decoded(model, peer_name, n_streams, peer, counts))
                if n_streams == 1:
                    comparisons.append(await _absorbed(model, peer_name, peer, counts))
            finally:
                peer.close()
    if not comparisons:
        raise BenchError("none of the peers is installed: llama-cpp-python, rwkv7-hf, rwkv")
    return comparisons


def _peers(
    model: Path, folder: Path, counts: Counts, n_threads: int
) -> Iterator[tuple[str, int, Callable[[], Peer]]]:
    """Those that are installed: a name, how many sequences, and what makes it."""
    found = importlib.util.find_spec
    for n_streams in counts.streams:
        if found("llama_cpp") and found("gguf"):
            from wkvm_bench.peer_llama import LlamaCpp

            for name, is_half in (("llama.cpp", True), ("llama.cpp in float32", False)):
                path = folder / f"{name}.gguf"
                make = partial(LlamaCpp, model, path, is_half=is_half)
                yield name, n_streams, partial(make, n_streams=n_streams, n_threads=n_threads)
        if found("rwkv7_hf") and counts.has_transformers:
            from wkvm_bench.peer_hf import Transformers

            yield "transformers", n_streams, partial(Transformers, model, n_streams=n_streams)
    if found("rwkv"):
        yield "rwkv", 1, partial(RwkvPackage, model)


def _check(model: Model, name: str, peer: Peer, n: int) -> None:
    """The same ids for the same prompt, of every sequence."""
    expected = first_ids(model)
    peer.start(PROMPT)
    for token_id in expected[:n]:
        if set(peer.step()) != {token_id}:
            raise BenchError(f"{name} gives other ids for the same prompt")


async def _decoded(
    model: Model, name: str, n_streams: int, peer: Peer, counts: Counts
) -> Comparison:
    """Ids a second of so many streams at once, on both sides."""
    n_steps, n = counts.n_steps, counts.n_pairs
    ours = Ours(model, n_streams, n_steps * (n + 1))
    peer.start(PROMPT)

    async def of_wkvm() -> float:
        return ours.rate(n_steps)

    began = time.perf_counter()
    peer.step()
    n_theirs = min(n_steps, max(2, round(SAMPLE_S / (time.perf_counter() - began))))

    async def of_peer() -> float:
        start = time.perf_counter()
        n_ids = sum(len(peer.step()) for _ in range(n_theirs))
        return n_ids / (time.perf_counter() - start)

    a, b = await alternate(of_wkvm, of_peer, n)
    case = f"decode, {counts.of}{name}, {n_streams} stream{'s' if n_streams > 1 else ''}"
    return Comparison(case, "wkvm", name, "ids/s", a, b, None)


async def _absorbed(model: Model, name: str, peer: Peer, counts: Counts) -> Comparison:
    """Ids a second of prompts, one at a time."""
    n_prompt = counts.n_prompt
    engine = Engine(model, EngineConfig(n_slots=1, n_threads=torch.get_num_threads()))
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1)
    draw = random.Random(1)

    def prompt() -> tuple[int, ...]:
        # No two are alike: an engine goes on from what it has read before.
        return tuple(draw.randrange(2, model.info.vocab_size) for _ in range(n_prompt))

    async def of_wkvm() -> float:
        spec = RequestSpec(prompt=prompt(), params=params)
        start = time.perf_counter()
        engine.submit(spec, 0.0)
        while not ids_of(engine.step(0.0)):
            pass
        return n_prompt / (time.perf_counter() - start)

    async def of_peer() -> float:
        ids = prompt()
        start = time.perf_counter()
        peer.absorb(ids)
        return n_prompt / (time.perf_counter() - start)

    a, b = await alternate(of_wkvm, of_peer, counts.n_pairs)
    return Comparison(
        f"a prompt of {n_prompt}, {counts.of}{name}", "wkvm", name, "ids/s", a, b, None
    )
