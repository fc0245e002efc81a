"""How many of the things that were measured are at most how large."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate


def decades(first: int, n: int) -> tuple[int, ...]:
    """Bounds from ``first``, a multiple of 10, over ``n`` powers of ten: 10, 25, 50, 100, ..."""
    bounds = [first * 10**power * factor // 10 for power in range(n) for factor in (10, 25, 50)]
    return (*bounds, first * 10**n)


STEP_BOUNDS_US = decades(100, 5)
"""Of what a step takes: 100 us to 10 s."""

REQUEST_BOUNDS_US = decades(1000, 6)
"""Of what a request takes: 1 ms to 1,000 s."""

LENGTH_BOUNDS = (1, 2, 5, *decades(10, 5))
"""Of how many ids a request has: 1 to a million."""


class Histogram:
    """Counts, by bounds, of integers from 0 on. What is above the last bound counts too.

    Attributes:
        bounds: rising; each includes itself.
    """

    def __init__(self, name: str, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self._name = name
        self._names = [
            *(f"{name}_le_{bound}" for bound in self.bounds),
            f"{name}_count",
            f"{name}_sum",
        ]
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0
        self._by_name: dict[str, int] | None = None

    def observe(self, value: int, n: int = 1) -> None:
        """Count a value ``n`` times. Under a microsecond, whatever ``n``."""
        self._counts[bisect_left(self.bounds, value)] += n
        self._sum += value * n
        self._by_name = None

    def observe_s(self, seconds: float, n: int = 1) -> None:
        """Count a duration, in microseconds, ``n`` times."""
        self.observe(round(seconds * 1e6), n)

    def by_name(self) -> Mapping[str, int]:
        """How many there are up to each bound, ``..._le_BOUND``; ``..._count`` and ``..._sum``.

        Made anew only when something has been counted since.
        """
        if self._by_name is None:
            up_to = (*accumulate(self._counts), self._sum)
            self._by_name = dict(zip(self._names, up_to, strict=True))
        return self._by_name
