"""The engine against the bare forward pass on the same device, and what it does beside prompts.

A model of random weights is written to disk and loaded as any other. One side is the whole
engine: scheduler, loop, sampling with temperature and top-p, and ids delivered to a consumer in
this process. The other is the forward pass alone, again and again on the same rows; on a GPU
that is a graph replayed.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from wkvm.core.config import EngineConfig
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.models.base import Batch, Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena
from wkvm_bench.consumer import Consumer
from wkvm_bench.gaps import Span, gaps_of, traced
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding, Summary, alternate
from wkvm_bench.random_model import write_suitable

N_ROWS = 256
PROMPT = tuple(range(1, 9))
LONG_PROMPT = 32 * 1024


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark on a GPU if there is one. ``n_threads`` are torch's on a CPU."""
    n_rows, n_out, n, n_long = (4, 12, 1, 96) if smoke else (N_ROWS, 200, 5, LONG_PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        device, size = write_suitable(path, smoke=smoke)
        model = load_model(path, device=device)
    config = EngineConfig(n_slots=n_rows, n_threads=n_threads, request_timeout_s=1e6)
    engine = Engine(model, config)
    bare = Bare(model, n_rows)
    case = f"{size} on {device}, {n_rows} rows"
    async with running(engine) as (loop, consumer):
        crowd = Crowd(loop, consumer, n_rows)
        cpu_times = list[float]()

        async def of_engine() -> float:
            before = time.process_time()
            rate = await crowd.rate(n_out)
            cpu_times.append((time.process_time() - before) / n_out)
            return rate

        async def of_bare() -> float:
            return bare.rate(n_out)

        a, b = await alternate(of_engine, of_bare, n)
        step_s = n_rows / Summary.of(a).median
        results: list[Comparison | Finding] = [
            Comparison(f"{case}", "engine", "bare forward", "ids/s", a, b, Bar(0.95)),
            Finding(
                f"{case}: CPU time of the host a step",
                Summary.of(cpu_times[1:]).median / step_s * 100,
                "% of the step",
                Bar(50.0, at_least=False),
                {"step, ms": step_s * 1e3},
            ),
        ]
        results += await beside_a_prompt(crowd, case, n_long, n_turns=1 if smoke else 2)
        if device == "cuda":
            results.append(await waits_for_the_host(crowd, case))
    gc.collect()
    return results


async def beside_a_prompt(
    crowd: "Crowd", case: str, n_prompt: int, *, n_turns: int
) -> list[Comparison | Finding]:
    """Times between ids while a prompt is absorbed, and its time, against each by itself."""
    alone_s = list[float]()
    for _ in range(n_turns + 1):
        alone_s.append(await crowd.first_id(n_prompt))
    between, undisturbed, beside_s = list[float](), list[float](), list[float]()
    for _ in range(n_turns):
        quiet, mixed, prompt_s = await crowd.beside_a_prompt(n_prompt)
        undisturbed += quiet
        between += mixed
        beside_s.append(prompt_s)
    p99, p99_quiet = _p99(between), _p99(undisturbed)
    return [
        Finding(
            f"{case}: p99 between ids beside a prompt of {n_prompt}, against undisturbed",
            p99 / p99_quiet,
            "times as long",
            Bar(2.0, at_least=False),
            {
                "p99 beside it, ms": p99 * 1e3,
                "p99 undisturbed, ms": p99_quiet * 1e3,
                "median beside it, ms": Summary.of(between).median * 1e3,
                "median undisturbed, ms": Summary.of(undisturbed).median * 1e3,
            },
        ),
        Finding(
            f"{case}: a prompt of {n_prompt} beside them, against alone",
            Summary.of(beside_s).median / Summary.of(alone_s[1:]).median,
            "times as long",
            Bar(3.0, at_least=False),
            {"beside, s": Summary.of(beside_s).median, "alone, s": Summary.of(alone_s[1:]).median},
        ),
    ]


async def waits_for_the_host(crowd: "Crowd", case: str) -> Finding:
    """Whether the device finds each step ready when the one before ends, by a trace.

    The profiler slows the host down, so the gaps are at most this long.
    """
    gaps = gaps_of(await crowd.trace(n_steps=60))
    share = 100 * sum(gaps.before) / (gaps.n_steps * gaps.step_us)
    return Finding(
        f"{case}: the device does nothing before a step",
        share,
        "% of the step",
        Bar(1.0, at_least=False),
        gaps.figures(),
    )


def _p99(samples: list[float]) -> float:
    return sorted(samples)[int(0.99 * (len(samples) - 1))]


class Bare:
    """Forward passes of one token a row, without anything around them."""

    def __init__(self, model: Model, n_rows: int) -> None:
        self._arena = Arena(model.layout, n_rows, model.info.device)
        self._model = model
        self._n_rows = n_rows
        self._graph: torch.cuda.CUDAGraph | None = None
        slots = torch.arange(n_rows, dtype=torch.int32, device=model.info.device)
        ids = torch.arange(n_rows, device=model.info.device) % model.info.vocab_size
        # Kept: the graph knows the step's own tensors by their addresses alone.
        self._step = step = model.decode_step(n_rows)
        if step is not None:
            self._inputs = ((step.token_ids, ids), (step.slots, slots))
            self._graph = torch.cuda.CUDAGraph()
            with torch.inference_mode():
                self._fill()
                step.launch(self._arena.views)
                with torch.cuda.graph(self._graph):
                    step.launch(self._arena.views)
        self._batch = Batch(ids, slots, (1,) * n_rows, tuple(range(n_rows)), torch.arange(n_rows))

    def rate(self, n_steps: int) -> float:
        """Rows a second."""
        self._fill()
        _wait()
        start = time.perf_counter()
        for _ in range(n_steps):
            if self._graph is None:
                self._model.forward(self._batch, self._arena.views)
            else:
                self._graph.replay()
        _wait()
        return n_steps * self._n_rows / (time.perf_counter() - start)

    def _fill(self) -> None:
        """Decode steps of a model share their buffers: the engine's have overwritten these."""
        if self._graph is not None:
            with torch.inference_mode():
                for target, source in self._inputs:
                    target.copy_(source)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[tuple[EngineLoop, Consumer]]:
    """An engine's loop that runs for the length of a block, and who takes its ids."""
    loop, consumer = EngineLoop(engine), Consumer()
    loop.deliver = consumer.take
    task = asyncio.create_task(loop.run())
    try:
        yield loop, consumer
    finally:
        loop.close()
        await task


class Crowd:
    """Requests that decode at once."""

    def __init__(self, loop: EngineLoop, consumer: Consumer, n_rows: int) -> None:
        self._loop = loop
        self._consumer = consumer
        self._n_rows = n_rows
        self._n_submitted = 0

    async def rate(self, n_out: int) -> float:
        """Ids a second of all rows, from when all run until the first one ends."""
        self._consumer.clear()
        self.submit(self._n_rows, n_out)
        await self._consumer.ended(self._n_rows)
        full = [step for step in self._consumer.steps if step.n_ids == self._n_rows]
        if len(full) < n_out // 2:
            raise BenchError(f"{len(full)} steps of {n_out} had ids of all {self._n_rows} rows")
        return self._n_rows * (len(full) - 1) / (full[-1].at - full[0].at)

    async def first_id(self, n_prompt: int) -> float:
        """Seconds from a prompt's submission to its first id, with nothing beside it."""
        self._consumer.clear()
        began = time.perf_counter()
        (request_id,) = self._loop.submit(_spec(n_prompt, 1, seed=1))
        await self._consumer.ended(1)
        return self._consumer.first_at[request_id] - began

    async def beside_a_prompt(self, n_prompt: int) -> tuple[list[float], list[float], float]:
        """Times between the steps of all rows but one, before and while a prompt is absorbed.

        Returns:
            The times before, the times meanwhile, and how long the prompt took.
        """
        self._consumer.clear()
        n = self._n_rows - 1
        self.submit(n, 1_000_000)
        await self._consumer.all_have_ids(n)
        await self._consumer.more_steps(10)
        quiet_from = self._consumer.steps[-1].at
        await self._consumer.more_steps(10 if n < 32 else 150)
        began = time.perf_counter()
        (request_id,) = self._loop.submit(_spec(n_prompt, 1, seed=2))
        while request_id not in self._consumer.first_at:
            await self._consumer.more_steps(1)
        ended = self._consumer.first_at[request_id]
        times = [step.at for step in self._consumer.steps if step.n_ids >= n]
        gaps = [(b, b - a) for a, b in pairwise(times)]
        quiet = [gap for at, gap in gaps if quiet_from < at <= began]
        mixed = [gap for at, gap in gaps if began < at <= ended]
        await self._cancel_all()
        return quiet, mixed, ended - began

    async def trace(self, n_steps: int) -> list[Span]:
        """What a GPU does in some steps of all rows."""
        self._consumer.clear()
        self.submit(self._n_rows, 1_000_000)
        await self._consumer.all_have_ids(self._n_rows)
        await self._consumer.more_steps(20)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            await self._consumer.more_steps(n_steps)
            _wait()
        await self._cancel_all()
        return traced(profiler)

    async def _cancel_all(self) -> None:
        for one in list(self._consumer.first_at):
            self._loop.cancel(one)
        await self._consumer.ended(len(self._consumer.first_at))

    def submit(self, n_rows: int, n_out: int) -> None:
        """Submit requests with short prompts, each with a seed of its own."""
        for _ in range(n_rows):
            self._n_submitted += 1
            self._loop.submit(_spec(len(PROMPT), n_out, seed=self._n_submitted))


def _spec(n_prompt: int, n_out: int, *, seed: int) -> RequestSpec:
    prompt = (PROMPT * (n_prompt // len(PROMPT) + 1))[:n_prompt]
    params = SamplingParams(
        temperature=0.8, top_p=0.9, max_tokens=n_out, ignore_eos=True, seed=seed
    )
    return RequestSpec(prompt=prompt, params=params)
