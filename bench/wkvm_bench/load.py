"""A load of streams on a running server: who sends what when, and what came back when.

The streams of a load are kept as columns of arrival times, one number an id; what they say of a
server is worked out when the clock has stopped.
"""

import asyncio
import gc
import itertools
import random
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wkvm_bench.figures import Rung, Streamed, summary

WARM_UP_IDS = 16
"""Output of a request of the warm-up: enough for a server to have met the load's sizes."""
N_WARM_UP = 4
"""Requests of it where no number of streams is given."""
LAG_INTERVAL_S = 0.01


class Source(Protocol):
    """Where streams come from: a connected backend."""

    @property
    def model(self) -> str:
        """The name of what is served."""
        ...

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        """Send a request, and take all of its output. Failures are in what it returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent when.

    Attributes:
        n_streams: requests that are open at a time; None, with a rate, is any number.
        n_rounds: requests of each stream, one after the other, if ``n_requests`` says no other
            number.
        n_requests: in all.
        n_out: ids of output of each.
        rate: requests a second, at random times; None sends each as soon as a stream is free.
        burstiness: the shape of the gamma distribution of the times between them: 1 is a Poisson
            process, less comes in bursts, more is more even.
        seed: of these times.
        bounds: in milliseconds, by metric: what a request must keep to be good.
    """

    n_streams: int | None
    n_rounds: int = 1
    n_requests: int | None = None
    n_out: int = 0
    rate: float | None
    burstiness: float = 1.0
    seed: int | str
    bounds: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def n_sent(self) -> int:
        """Requests in all."""
        return self.n_requests or (self.n_streams or 1) * self.n_rounds


async def run_rung(
    source: Source,
    plan: Plan,
    prompts: Iterator[Sequence[int]],
    *,
    outputs: Iterator[int] | None = None,
    warm_up: bool = True,
    n_warm_up: int | None = None,
) -> Rung:
    """Warm up with requests that do not count, then send what was planned.

    With a rate, a request is sent when it is due, whether or not those before it are over, as long
    as a stream is free; its times count from when it was due even so.

    Args:
        source: where the requests go.
        plan: what is sent when.
        prompts: at least as many as there are requests.
        outputs: how long their outputs are; all of ``plan.n_out`` if there are none.
        warm_up: whether there is one.
        n_warm_up: its requests; by default one of each stream.
    """
    lengths = itertools.repeat(plan.n_out) if outputs is None else outputs
    if warm_up:
        n_first = (plan.n_streams or N_WARM_UP) if n_warm_up is None else n_warm_up
        first = [(next(prompts), min(next(lengths), WARM_UP_IDS)) for _ in range(n_first)]
        await asyncio.gather(*(source.stream(prompt, n_out) for prompt, n_out in first))
    n_requests = plan.n_sent
    todo = [(next(prompts), next(lengths)) for _ in range(n_requests)]
    done = list[Streamed]()
    lags = array("d")
    gc.collect()
    gc.freeze()
    watch = asyncio.create_task(_watch_lag(lags))
    cpu, start = time.process_time(), time.perf_counter()
    queue = iter(list(zip(_due_times(plan, start, n_requests), todo, strict=True)))

    async def worker() -> None:
        free_at = start
        for due_at, (prompt, n_out) in queue:
            if due_at is not None and (wait_s := due_at - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            streamed = await source.stream(prompt, n_out)
            streamed.sent_at = streamed.due_at
            streamed.late_s = max(0.0, streamed.sent_at - max(free_at, due_at or 0.0))
            if due_at is not None:
                # one that had to wait for a free stream was late, and that is the server's doing
                streamed.due_at = due_at
            done.append(streamed)
            free_at = streamed.ended_at

    n_workers = n_requests if plan.n_streams is None else plan.n_streams
    await asyncio.gather(*(worker() for _ in range(n_workers)))
    wall, busy = time.perf_counter() - start, time.process_time() - cpu
    watch.cancel()
    gc.unfreeze()
    n_open = None if plan.rate is not None else plan.n_streams
    return summary(n_open, done, generator_cpu=busy / wall, lags=lags, bounds=plan.bounds)


def random_prompts(seed: int, n_ids: int, vocab_size: int) -> Iterator[list[int]]:
    """Prompts of ``n_ids`` random ids each, always the same ones of a seed."""
    return prompts_of(seed, itertools.repeat(n_ids), vocab_size)


def prompts_of(seed: int | str, lengths: Iterator[int], vocab_size: int) -> Iterator[list[int]]:
    """Prompts of these lengths, of random ids, always the same ones of a seed."""
    draw = random.Random(seed)
    for n_ids in lengths:
        yield [draw.randrange(vocab_size) for _ in range(n_ids)]


def _due_times(plan: Plan, start: float, n: int) -> list[float | None]:
    if plan.rate is None:
        return [None] * n
    draw, at, times = random.Random(plan.seed), start, list[float | None]()
    shape = plan.burstiness
    for _ in range(n):
        times.append(at)
        # of mean 1 / rate, whatever the shape; of shape 1 an exponential distribution
        at += draw.gammavariate(shape, 1 / (plan.rate * shape))
    return times


async def _watch_lag(lags: "array[float]") -> None:
    while True:
        due = time.perf_counter() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        lags.append(max(0.0, time.perf_counter() - due))
