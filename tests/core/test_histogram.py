"""Histograms count by bounds, and cost a step the same whatever its rows."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.histogram import LENGTH_BOUNDS, REQUEST_BOUNDS_US, STEP_BOUNDS_US, Histogram

VALUES = st.integers(0, 3000)


@given(st.lists(st.tuples(VALUES, st.integers(1, 5))))
def test_a_bound_counts_what_is_at_most_as_large(observed: list[tuple[int, int]]) -> None:
    histogram = Histogram("x", (10, 100, 1000))
    for value, n in observed:
        histogram.observe(value, n)
    values = [value for value, n in observed for _ in range(n)]
    assert histogram.by_name() == {
        **{f"x_le_{bound}": sum(v <= bound for v in values) for bound in (10, 100, 1000)},
        "x_count": len(values),
        "x_sum": sum(values),
    }


def test_what_was_read_once_is_up_to_date_after_the_next_value() -> None:
    histogram = Histogram("x", (10,))
    histogram.observe(1)
    assert histogram.by_name()["x_count"] == 1
    histogram.observe(11, 2)
    assert histogram.by_name() == {"x_le_10": 1, "x_count": 3, "x_sum": 23}


def test_what_was_read_does_not_change_afterwards() -> None:
    histogram = Histogram("x", (10,))
    before = histogram.by_name()
    histogram.observe(1)
    assert before["x_count"] == 0


def test_seconds_are_counted_in_microseconds() -> None:
    histogram = Histogram("x", (10,))
    histogram.observe_s(0.0000104, 3)
    assert histogram.by_name() == {"x_le_10": 3, "x_count": 3, "x_sum": 30}


@pytest.mark.parametrize(
    ("bounds", "last"),
    [(STEP_BOUNDS_US, 10**7), (REQUEST_BOUNDS_US, 10**9), (LENGTH_BOUNDS, 10**6)],
)
def test_bounds_rise_by_at_most_two_and_a_half(bounds: tuple[int, ...], last: int) -> None:
    factors = [above / below for below, above in itertools.pairwise(bounds)]
    assert all(1 < factor <= 2.5 for factor in factors)
    assert bounds[-1] == last
