"""A load of streams on a running server: who sends what when, and what came back when.

The streams of a rung are kept as columns of arrival times, one number an id; what they say of a
server is worked out when the clock has stopped.
"""

import asyncio
import gc
import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

WARM_UP_IDS = 16
"""Output of a request of the warm-up: enough for a server to have met the rung's sizes."""
BOUND_CPU = 0.8
"""From this share of a core on, the generator may be what is measured."""
LAG_INTERVAL_S = 0.01


class Source(Protocol):
    """Where streams come from: a connected backend."""

    @property
    def model(self) -> str:
        """The name of what is served."""
        ...

    async def stream(self, prompt: Sequence[int], n_out: int) -> "Streamed":
        """Send a request, and take all of its output. Failures are in what it returns."""
        ...


@dataclass(slots=True, kw_only=True)
class Streamed:
    """One request. Times are of ``time.perf_counter``.

    Attributes:
        due_at: when it was to be sent; its latencies count from here.
        ended_at: when its end had come.
        arrivals: when its ids came, or the events that brought them.
        n_ids: how many ids came.
        n_prompt: ids of the prompt, as the server counts them.
        error: what went wrong, in a word or two.
        retry_after_s: when a server that refused it says to try again; None if it does not.
    """

    due_at: float
    ended_at: float = 0.0
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    n_ids: int = 0
    n_prompt: int = 0
    error: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in short, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread | None":
        """None of no samples. The percentiles are samples: the nearest from above."""
        if not seconds:
            return None
        ranked = sorted(seconds)

        def at(share: float) -> float:
            return ranked[max(0, math.ceil(share * len(ranked)) - 1)] * 1e3

        return cls(sum(ranked) / len(ranked) * 1e3, at(0.5), at(0.9), at(0.99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What a number of streams at a time came to. Failed requests are in ``errors`` alone.

    Attributes:
        n_streams: at a time.
        n_requests: sent, warm-up left out.
        errors: how many of them failed, by what went wrong.
        duration_s: from the first request to the last end.
        ids_per_s: output of all streams over ``duration_s``.
        steady_ids_per_s: output over the longest time in which all streams were between their
            first id and their last; None where there was none.
        prompt_ids_per_s: ids of prompts over ``duration_s``.
        ttft: from when a request was due to its first id.
        itl: between one id of a stream and its next. Over HTTP, between events.
        e2e: from when a request was due to its end.
        generator_cpu: cores that this process was busy with.
        generator_lag: how late this process's event loop turned: as much are times in doubt.
    """

    n_streams: int
    n_requests: int
    errors: dict[str, int]
    duration_s: float
    ids_per_s: float
    steady_ids_per_s: float | None
    prompt_ids_per_s: float
    ttft: Spread | None
    itl: Spread | None
    e2e: Spread | None
    generator_cpu: float
    generator_lag: Spread | None

    @property
    def is_generator_bound(self) -> bool:
        """Whether the figures may be the generator's rather than the server's."""
        return self.generator_cpu >= BOUND_CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the streams of a rung send.

    Attributes:
        n_streams: requests that are open at a time.
        n_rounds: requests of each stream, one after the other.
        n_out: ids of output of each.
        rate: requests a second, at random times; None sends each as soon as a stream is free.
        seed: of these times.
    """

    n_streams: int
    n_rounds: int
    n_out: int
    rate: float | None
    seed: int


async def run_rung(
    source: Source, plan: Plan, prompts: Iterator[Sequence[int]], *, warm_up: bool = True
) -> Rung:
    """Warm up with a request of each stream that does not count, then send what was planned."""
    if warm_up:
        first = [next(prompts) for _ in range(plan.n_streams)]
        n_out = min(plan.n_out, WARM_UP_IDS)
        await asyncio.gather(*(source.stream(prompt, n_out) for prompt in first))
    n_requests = plan.n_streams * plan.n_rounds
    todo = [next(prompts) for _ in range(n_requests)]
    done = list[Streamed]()
    lags = array("d")
    gc.collect()
    gc.freeze()
    watch = asyncio.create_task(_watch_lag(lags))
    cpu, start = time.process_time(), time.perf_counter()
    queue = iter(list(zip(_due_times(plan, start, n_requests), todo, strict=True)))

    async def worker() -> None:
        for due_at, prompt in queue:
            if due_at is not None and (wait_s := due_at - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            streamed = await source.stream(prompt, plan.n_out)
            if due_at is not None:
                # one that had to wait for a free stream was late, and that is the server's doing
                streamed.due_at = due_at
            done.append(streamed)

    await asyncio.gather(*(worker() for _ in range(plan.n_streams)))
    wall, busy = time.perf_counter() - start, time.process_time() - cpu
    watch.cancel()
    gc.unfreeze()
    return summary(plan.n_streams, done, generator_cpu=busy / wall, lags=lags)


def summary(
    n_streams: int, done: Sequence[Streamed], *, generator_cpu: float, lags: Sequence[float]
) -> Rung:
    """Figures of a rung from its requests, in whatever order they ended."""
    good = [one for one in done if one.error is None]
    gaps = array("d")
    for one in good:
        times = one.arrivals
        gaps.extend(times[i] - times[i - 1] for i in range(1, len(times)))
    duration = 0.0
    if done:
        duration = max(one.ended_at for one in done) - min(one.due_at for one in done)
    per_s = 1 / duration if duration > 0 else 0.0
    return Rung(
        n_streams=n_streams,
        n_requests=len(done),
        errors=dict(Counter(one.error for one in done if one.error is not None)),
        duration_s=duration,
        ids_per_s=sum(one.n_ids for one in good) * per_s,
        steady_ids_per_s=steady_rate(n_streams, good),
        prompt_ids_per_s=sum(one.n_prompt for one in good) * per_s,
        ttft=Spread.of([one.arrivals[0] - one.due_at for one in good if one.arrivals]),
        itl=Spread.of(gaps),
        e2e=Spread.of([one.ended_at - one.due_at for one in good]),
        generator_cpu=generator_cpu,
        generator_lag=Spread.of(lags),
    )


def steady_rate(n_streams: int, done: Sequence[Streamed]) -> float | None:
    """Ids a second in the longest time in which ``n_streams`` were past their first id at once."""
    turns = list[tuple[float, int]]()
    for one in done:
        if len(one.arrivals) > 1:
            turns += [(one.arrivals[0], 1), (one.arrivals[-1], -1)]
    turns.sort()
    n_open, best = 0, (0.0, 0.0)
    for place, (at, change) in enumerate(turns):
        n_open += change
        if n_open == n_streams:
            until = turns[place + 1][0]
            best = max(best, (until - at, at))
    length, start = best
    if length <= 0:
        return None
    end = start + length
    # events may bring several ids each
    n_ids = sum(
        sum(start < at <= end for at in one.arrivals) * one.n_ids / len(one.arrivals)
        for one in done
        if one.arrivals
    )
    return n_ids / length


def random_prompts(seed: int, n_ids: int, vocab_size: int) -> Iterator[list[int]]:
    """Prompts of ``n_ids`` random ids each, always the same ones of a seed."""
    draw = random.Random(seed)
    while True:
        yield [draw.randrange(vocab_size) for _ in range(n_ids)]


def _due_times(plan: Plan, start: float, n: int) -> list[float | None]:
    if plan.rate is None:
        return [None] * n
    draw, at, times = random.Random(plan.seed), start, list[float | None]()
    for _ in range(n):
        times.append(at)
        at += draw.expovariate(plan.rate)
    return times


async def _watch_lag(lags: "array[float]") -> None:
    while True:
        due = time.perf_counter() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        lags.append(max(0.0, time.perf_counter() - due))
