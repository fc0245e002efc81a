"""What the requests of a load come to: rates, and times as percentiles.

Names of figures in a line of results are those of ``vllm bench serve`` where they mean the same.
"""

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

BOUND_CPU = 0.8
"""From this share of a core on, the generator may be what is measured."""
BOUND_LATE_MS = 10.0
"""A generator that sends its requests later than this, or sees what comes later, and by more than a
tenth of what a request takes, changes what is measured."""
BOUND_CEILING = 0.5
"""From this share of what it can take from a server that does nothing, likewise."""
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(slots=True, kw_only=True)
class Streamed:
    """One request. Times are of ``time.perf_counter``.

    Attributes:
        due_at: when it was to be sent; its latencies count from here.
        sent_at: when it was.
        late_s: how much later that was than it could have been: the generator's doing.
        ended_at: when its end had come.
        arrivals: when its ids came, or the events that brought them.
        n_ids: how many ids came.
        n_prompt: ids of the prompt, as the server counts them.
        error: what went wrong, in a word or two.
        retry_after_s: when a server that refused it says to try again; None if it does not.
    """

    due_at: float
    sent_at: float = 0.0
    late_s: float = 0.0
    ended_at: float = 0.0
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    n_ids: int = 0
    n_prompt: int = 0
    error: str | None = None
    retry_after_s: float | None = None

    def seconds(self, metric: str) -> float | None:
        """One of ``METRICS`` but ``itl``, of which it has many; None where it has none."""
        if metric == "e2el":
            return self.ended_at - self.due_at
        if not self.arrivals:
            return None
        if metric == "ttft":
            return self.arrivals[0] - self.due_at
        if metric == "tpot" and self.n_ids > 1:
            return (self.arrivals[-1] - self.arrivals[0]) / (self.n_ids - 1)
        return None

    def keeps(self, bounds: Mapping[str, float]) -> bool:
        """Whether it is whole, and none of its times above its bound, in milliseconds."""
        if self.error is not None:
            return False
        times = ((self.seconds(metric), ms) for metric, ms in bounds.items())
        return all(seconds is None or seconds * 1e3 <= ms for seconds, ms in times)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in short, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    p95: float = 0.0
    std: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread | None":
        """None of no samples. The percentiles are samples: the nearest from above."""
        if not seconds:
            return None
        ranked = sorted(seconds)

        def at(share: float) -> float:
            return ranked[max(0, math.ceil(share * len(ranked)) - 1)] * 1e3

        mean, std = statistics.fmean(ranked) * 1e3, statistics.pstdev(ranked) * 1e3
        return cls(mean, at(0.5), at(0.9), at(0.99), at(0.95), std, ranked[-1] * 1e3)

    def record(self, name: str) -> dict[str, float]:
        """As a line of results has it."""
        names = {
            "mean": self.mean,
            "median": self.p50,
            "std": self.std,
            "p90": self.p90,
            "p95": self.p95,
            "p99": self.p99,
            "max": self.most,
        }
        return {f"{what}_{name}_ms": value for what, value in names.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What a load came to. Failed requests are in ``errors`` alone, and in no other figure.

    Attributes:
        n_streams: requests that were open at a time, at most.
        n_requests: sent, warm-up left out.
        errors: how many of them failed, by what went wrong.
        duration_s: from the first request to the last end.
        n_ids, n_prompt_ids: of all outputs, and of all prompts.
        steady_ids_per_s: output over the longest time in which all streams were between their
            first id and their last; None where there was none, or where requests came at a rate.
        n_arrivals: ids that came, or over HTTP the events that brought them.
        n_good: requests that kept all bounds; None without bounds.
        ttft: from when a request was due to its first id.
        tpot: of each request, from its first id to its last over the ids after the first.
        itl: between one id of a stream and its next. Over HTTP, between events.
        e2e: from when a request was due to its end.
        generator_cpu: cores that this process was busy with.
        generator_lag: how late this process's event loop turned: as much are times in doubt.
        generator_late: how late it sent requests.
    """

    n_streams: int
    n_requests: int
    errors: dict[str, int]
    duration_s: float
    n_ids: int
    n_prompt_ids: int
    steady_ids_per_s: float | None
    n_arrivals: int
    n_good: int | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    generator_cpu: float
    generator_lag: Spread | None
    generator_late: Spread | None

    @property
    def per_s(self) -> float:
        """What a count is multiplied with to be a rate."""
        return 1 / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def ids_per_s(self) -> float:
        """Output of all streams over the whole time."""
        return self.n_ids * self.per_s

    @property
    def n_completed(self) -> int:
        """Requests that did not fail."""
        return self.n_requests - sum(self.errors.values())

    @property
    def is_generator_bound(self) -> bool:
        """Whether the figures may be the generator's rather than the server's."""
        delays = (self.generator_late, self.generator_lag)
        late = max((one.p99 for one in delays if one is not None), default=0.0)
        whole = 0.0 if self.e2e is None else self.e2e.p50
        return self.generator_cpu >= BOUND_CPU or (late > BOUND_LATE_MS and late > whole / 10)

    def record(self, ceiling: float | None = None) -> dict[str, object]:
        """As a line of results has it.

        Args:
            ceiling: ids a second that the generator takes from a server that does nothing; None
                where that is not known.
        """
        arrivals_per_s = self.n_arrivals * self.per_s
        is_near = ceiling is not None and arrivals_per_s > BOUND_CEILING * ceiling
        times = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2el": self.e2e}
        lag, late = self.generator_lag, self.generator_late
        return {
            "num_prompts": self.n_requests,
            "completed": self.n_completed,
            "failed": self.n_requests - self.n_completed,
            "errors": self.errors,
            "duration": self.duration_s,
            "max_concurrent_requests": self.n_streams,
            "total_input_tokens": self.n_prompt_ids,
            "total_output_tokens": self.n_ids,
            "request_throughput": self.n_completed * self.per_s,
            "request_goodput": None if self.n_good is None else self.n_good * self.per_s,
            "output_throughput": self.ids_per_s,
            "total_token_throughput": (self.n_ids + self.n_prompt_ids) * self.per_s,
            "steady_output_throughput": self.steady_ids_per_s,
            **{
                name: value
                for metric, spread in times.items()
                if spread is not None
                for name, value in spread.record(metric).items()
            },
            "is_generator_bound": self.is_generator_bound or is_near,
            "generator": {
                "cores": self.generator_cpu,
                "arrivals_per_s": arrivals_per_s,
                "p99_lag_ms": None if lag is None else lag.p99,
                "p99_late_ms": None if late is None else late.p99,
                **({} if ceiling is None else {"ceiling_arrivals_per_s": ceiling}),
            },
        }


def summary(
    n_streams: int | None,
    done: Sequence[Streamed],
    *,
    generator_cpu: float,
    lags: Sequence[float],
    bounds: Mapping[str, float] = MappingProxyType({}),
) -> Rung:
    """Figures of a load from its requests, in whatever order they ended.

    Args:
        n_streams: requests that were open at a time; None counts them.
        bounds: in milliseconds, by metric: what a request must keep to be good.
    """
    good = [one for one in done if one.error is None]
    gaps = array("d")
    for one in good:
        times = one.arrivals
        gaps.extend(times[i] - times[i - 1] for i in range(1, len(times)))
    duration = 0.0
    if done:
        duration = max(one.ended_at for one in done) - min(one.due_at for one in done)
    n_open = most_open(done) if n_streams is None else n_streams
    return Rung(
        n_streams=n_open,
        n_requests=len(done),
        errors=dict(Counter(one.error for one in done if one.error is not None)),
        duration_s=duration,
        n_ids=sum(one.n_ids for one in good),
        n_prompt_ids=sum(one.n_prompt for one in good),
        # Requests that come when they like are at their most for a moment at best.
        steady_ids_per_s=None if n_streams is None else steady_rate(n_open, good),
        n_arrivals=sum(len(one.arrivals) for one in good),
        n_good=sum(one.keeps(bounds) for one in done) if bounds else None,
        ttft=_spread(good, "ttft"),
        tpot=_spread(good, "tpot"),
        itl=Spread.of(gaps),
        e2e=_spread(good, "e2el"),
        generator_cpu=generator_cpu,
        generator_lag=Spread.of(lags),
        generator_late=Spread.of([one.late_s for one in done]),
    )


def _spread(done: Sequence[Streamed], metric: str) -> Spread | None:
    times = (one.seconds(metric) for one in done)
    return Spread.of([seconds for seconds in times if seconds is not None])


def most_open(done: Sequence[Streamed]) -> int:
    """Of requests that had been sent and were not over, how many there were at most."""
    turns = [(one.sent_at, 1) for one in done] + [(one.ended_at, -1) for one in done]
    n_open = most = 0
    for _, change in sorted(turns):
        n_open += change
        most = max(most, n_open)
    return most


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
