"""What a load's arrival times come to, and how its requests are spread over time."""

import asyncio
import time
from array import array
from collections.abc import Sequence
from itertools import count

import pytest
from wkvm_bench.load import (
    WARM_UP_IDS,
    Plan,
    Spread,
    Streamed,
    random_prompts,
    run_rung,
    steady_rate,
    summary,
)


def streamed(
    *arrivals: float, due_at: float = 0.0, ended_at: float = 9.0, n_ids: int | None = None
) -> Streamed:
    return Streamed(
        due_at=due_at,
        ended_at=ended_at,
        arrivals=array("d", arrivals),
        n_ids=len(arrivals) if n_ids is None else n_ids,
        n_prompt=5,
    )


class Instant:
    """A source whose requests take ``seconds``; it notes when they came and how many were open."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.n_open = self.most_open = 0

    @property
    def model(self) -> str:
        return "instant"

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        one = Streamed(due_at=time.perf_counter())
        self.asked.append((tuple(prompt), n_out))
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        await asyncio.sleep(self.seconds)
        self.n_open -= 1
        one.arrivals.append(time.perf_counter())
        one.n_ids, one.ended_at = 1, time.perf_counter()
        return one


def test_percentiles_are_samples_in_milliseconds() -> None:
    spread = Spread.of([i / 1000 for i in range(100, 0, -1)])
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99) == (50.0, 90.0, 99.0)
    assert spread.mean == pytest.approx(50.5)
    assert Spread.of([]) is None
    assert Spread.of([0.002]) == Spread(2.0, 2.0, 2.0, 2.0)


def test_a_summary_by_hand() -> None:
    done = [
        streamed(1.0, 2.0, 4.0, ended_at=4.5),
        streamed(3.0, due_at=0.5, ended_at=5.0),
        Streamed(due_at=0.0, ended_at=2.0, error="QueueFullError"),
        Streamed(due_at=0.0, ended_at=2.0, error="QueueFullError"),
    ]
    rung = summary(2, done, generator_cpu=0.5, lags=[])
    assert (rung.n_requests, rung.errors) == (4, {"QueueFullError": 2})
    assert rung.duration_s == 5.0
    assert (rung.ids_per_s, rung.prompt_ids_per_s) == (4 / 5, 10 / 5)
    assert rung.ttft is not None
    assert rung.itl is not None
    assert rung.e2e is not None
    assert (rung.ttft.p50, rung.ttft.p99) == (1000.0, 2500.0)
    assert (rung.itl.p50, rung.itl.p99) == (1000.0, 2000.0)
    assert (rung.e2e.p50, rung.e2e.p99) == (4500.0, 4500.0)
    assert not rung.is_generator_bound
    assert summary(2, done, generator_cpu=0.9, lags=[]).is_generator_bound


def test_the_steady_rate_is_of_the_time_when_all_streams_had_begun_and_none_had_ended() -> None:
    done = [streamed(1.0, 2.0, 3.0, 4.0), streamed(2.5, 3.5, 4.5, 5.5)]
    # from 2.5 to 4.0: ids at 3.0, 3.5 and 4.0
    assert steady_rate(2, done) == pytest.approx(3 / 1.5)
    assert steady_rate(3, done) is None


def test_events_of_several_ids_count_as_so_many() -> None:
    done = [streamed(1.0, 2.0, 3.0, n_ids=6)]
    assert steady_rate(1, done) == pytest.approx(4 / 2.0)


async def test_as_many_requests_are_open_as_there_are_streams_and_the_warm_up_is_left_out() -> None:
    source = Instant(0.001)
    plan = Plan(n_streams=3, n_rounds=2, n_out=50, rate=None, seed=0)
    prompts = ([i] for i in count())
    rung = await run_rung(source, plan, prompts)
    assert source.most_open == 3
    assert [n_out for _, n_out in source.asked] == [WARM_UP_IDS] * 3 + [50] * 6
    assert sorted(prompt for prompt, _ in source.asked) == [(i,) for i in range(9)]
    assert rung.n_requests == 6


async def test_a_rate_sends_at_its_times_and_counts_from_when_a_request_was_due() -> None:
    # one stream for requests that take far longer than the time between them
    source = Instant(0.02)
    plan = Plan(n_streams=1, n_rounds=4, n_out=1, rate=1e6, seed=1)
    rung = await run_rung(source, plan, random_prompts(0, 1, 10), warm_up=False)
    assert rung.e2e is not None
    assert rung.e2e.p99 >= 70.0
    assert rung.e2e.p50 >= 35.0


def test_prompts_are_those_of_the_seed() -> None:
    one, same, other = (random_prompts(seed, 4, 1000) for seed in (1, 1, 2))
    first = [next(one), next(one)]
    assert first == [next(same), next(same)]
    assert first != [next(other), next(other)]
    assert all(len(prompt) == 4 and max(prompt) < 1000 for prompt in first)
