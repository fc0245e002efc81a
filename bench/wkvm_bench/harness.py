"""Two sides measured by turns, and the ratio of each pair of turns.

A machine's clock, caches and neighbours drift by more than many a difference. Side A and
side B therefore alternate, each pair in the other order than the one before, and what
is reported is the median of the pairs' ratios beside each side's own figures.
"""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


class BenchError(Exception):
    """A benchmark cannot be run, or what it ran gave a wrong answer."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A side's samples in short."""

    median: float
    p10: float
    p90: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Summary":
        """The summary of at least one sample; percentiles are linear between samples."""
        return cls(
            _quantile(samples, 0.5), _quantile(samples, 0.1), _quantile(samples, 0.9), len(samples)
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio of A to B should reach: at least ``value``, or at most."""

    value: float
    at_least: bool = True

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio reaches the bar."""
        return ratio >= self.value if self.at_least else ratio <= self.value

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one case.

    Attributes:
        case: of the benchmark, such as ``batch 16``.
        a_name, b_name: the sides; A is wkvm.
        unit: of both sides' samples.
        a, b: the samples, in pairs.
        bar: for the ratio of A to B; None where there is none to be reached.
        besides: what else was measured, by name.
    """

    case: str
    a_name: str
    b_name: str
    unit: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    bar: Bar | None
    besides: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def ratio(self) -> Summary:
        """Of A to B, pair by pair."""
        return Summary.of([a / b for a, b in zip(self.a, self.b, strict=True)])


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure that stands for itself.

    Attributes:
        case: of the benchmark.
        unit: of the value.
        bar: for the value; None where there is none to be reached.
        besides: what else was measured, by name.
    """

    case: str
    value: float
    unit: str
    bar: Bar | None
    besides: Mapping[str, float] = field(default_factory=dict[str, float])


Side = Callable[[], Awaitable[float]]
"""Takes one sample."""


async def alternate(a: Side, b: Side, n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Take ``n`` samples of each side by turns, after one of each that does not count."""
    await a()
    await b()
    a_samples, b_samples = list[float](), list[float]()
    for pair in range(n):
        order = ((a, a_samples), (b, b_samples))
        for side, samples in order if pair % 2 == 0 else reversed(order):
            samples.append(await side())
    return tuple(a_samples), tuple(b_samples)


def _quantile(samples: Sequence[float], at: float) -> float:
    if len(samples) == 1:
        return samples[0]
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return cuts[round(at * 100) - 1]
