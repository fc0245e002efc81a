"""What a load's arrival times come to, and how its requests are spread over time."""

import asyncio
import statistics
import time
from array import array
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from wkvm_bench.figures import Spread, Streamed, most_open, steady_rate, summary
from wkvm_bench.load import (
    N_WARM_UP,
    WARM_UP_IDS,
    Plan,
    _due_times,
    prompts_of,
    random_prompts,
    run_rung,
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
    assert Spread.of([0.002]) == Spread(2.0, 2.0, 2.0, 2.0, p95=2.0, std=0.0, most=2.0)
    assert (spread.p95, spread.most, round(spread.std, 2)) == (95.0, 100.0, 28.87)


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
    assert rung.ids_per_s == pytest.approx(4 / 5)
    assert rung.n_prompt_ids == 10
    assert rung.ttft is not None
    assert rung.itl is not None
    assert rung.e2e is not None
    assert (rung.ttft.p50, rung.ttft.p99) == (1000.0, 2500.0)
    assert (rung.itl.p50, rung.itl.p99) == (1000.0, 2000.0)
    assert (rung.e2e.p50, rung.e2e.p99) == (4500.0, 4500.0)
    assert rung.tpot is not None
    assert (rung.tpot.p50, rung.tpot.most) == (1500.0, 1500.0)
    assert (rung.n_completed, rung.n_good) == (2, None)


def test_a_generator_that_is_busy_or_sends_late_is_told() -> None:
    def with_late(late_s: float, cpu: float = 0.1) -> bool:
        one = streamed(0.05, ended_at=0.1)
        one.late_s = late_s
        return summary(1, [one], generator_cpu=cpu, lags=[]).is_generator_bound

    assert not with_late(0.0)
    assert with_late(0.0, cpu=0.8)
    assert with_late(0.011)
    assert not with_late(0.010)  # a tenth of the request, and no more
    slow = streamed(5.0, ended_at=9.0)
    slow.late_s = 0.5
    assert not summary(1, [slow], generator_cpu=0.1, lags=[0.5]).is_generator_bound
    assert summary(1, [slow], generator_cpu=0.1, lags=[1.0]).is_generator_bound


def test_more_than_half_of_what_a_generator_takes_at_most_is_told() -> None:
    rung = summary(1, [streamed(1.0, ended_at=1.0)], generator_cpu=0.1, lags=[])
    assert rung.record(ceiling=2.0)["is_generator_bound"] is False
    assert rung.record(ceiling=1.9)["is_generator_bound"] is True
    assert rung.record()["is_generator_bound"] is False


@pytest.mark.parametrize(
    ("bounds", "n_good"),
    [
        ({"ttft": 1000.0}, 1),
        ({"ttft": 999.9}, 0),
        ({"ttft": 2000.0}, 2),
        ({"ttft": 2000.0, "tpot": 1000.0}, 1),
        ({"e2el": 4000.0}, 1),
        ({"e2el": 1e6}, 2),
    ],
)
def test_a_request_is_good_that_is_whole_and_keeps_all_its_bounds(
    bounds: dict[str, float], n_good: int
) -> None:
    done = [
        streamed(1.0, 3.0, ended_at=4.0),  # 2 s an id
        streamed(2.0, 3.0, ended_at=5.0),  # 1 s an id
        Streamed(due_at=0.0, ended_at=0.1, error="QueueFullError"),
    ]
    rung = summary(2, done, generator_cpu=0.0, lags=[], bounds=bounds)
    assert rung.n_good == n_good
    assert rung.record()["request_goodput"] == n_good / 5.0


def test_a_line_has_the_names_that_vllms_own_has() -> None:
    done = [streamed(1.0, 2.0, ended_at=2.0)]
    record = summary(1, done, generator_cpu=0.0, lags=[], bounds={"ttft": 1.0}).record()
    wanted = {"duration", "completed", "failed", "request_throughput", "request_goodput"}
    wanted |= {"output_throughput", "total_token_throughput", "max_concurrent_requests"}
    wanted |= {"total_input_tokens", "total_output_tokens", "num_prompts"}
    kinds = ("mean", "median", "std", "p99")
    wanted |= {f"{kind}_{m}_ms" for kind in kinds for m in ("ttft", "tpot", "itl", "e2el")}
    assert wanted - set(record) == set()
    assert (record["output_throughput"], record["total_token_throughput"]) == (1.0, 3.5)


def test_requests_that_are_open_at_once_are_counted_from_when_they_were_sent() -> None:
    times = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (5.0, 6.0)]
    done = [Streamed(due_at=0.0, sent_at=sent, ended_at=end) for sent, end in times]
    assert most_open(done) == 2


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


async def test_a_rate_without_a_number_of_streams_waits_for_none() -> None:
    # all are sent at once, although each takes far longer than the time between them
    source = Instant(0.05)
    plan = Plan(n_streams=None, n_requests=8, n_out=1, rate=1e6, seed=1)
    rung = await run_rung(source, plan, random_prompts(0, 1, 10))
    assert len(source.asked) == 8 + N_WARM_UP
    assert source.most_open == rung.n_streams == 8
    assert rung.steady_ids_per_s is None


async def test_outputs_have_the_lengths_that_are_drawn() -> None:
    source = Instant()
    plan = Plan(n_streams=1, n_requests=3, rate=None, seed=0)
    prompts = prompts_of(0, iter([2, 3, 4, 5]), 10)
    await run_rung(source, plan, prompts, outputs=iter([20, 1, 2, 3]), n_warm_up=1)
    assert [(len(prompt), n_out) for prompt, n_out in source.asked] == [
        (2, WARM_UP_IDS),
        (3, 1),
        (4, 2),
        (5, 3),
    ]


@pytest.mark.parametrize(("burstiness", "low", "high"), [(1.0, 0.9, 1.1), (0.25, 1.8, 2.2)])
def test_times_between_requests_have_the_mean_and_the_spread_of_their_law(
    burstiness: float, low: float, high: float
) -> None:
    plan = Plan(n_streams=None, rate=50.0, burstiness=burstiness, seed=3)
    times = [at for at in _due_times(plan, 0.0, 5000) if at is not None]
    gaps = [b - a for a, b in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.1)
    # of a Poisson process as large as the mean; of shape 1/4 twice that
    assert low < statistics.pstdev(gaps) * 50 < high


def test_prompts_are_those_of_the_seed() -> None:
    one, same, other = (random_prompts(seed, 4, 1000) for seed in (1, 1, 2))
    first = [next(one), next(one)]
    assert first == [next(same), next(same)]
    assert first != [next(other), next(other)]
    assert all(len(prompt) == 4 and max(prompt) < 1000 for prompt in first)
