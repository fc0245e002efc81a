import asyncio

import pytest
from wkvm_bench.harness import Bar, Comparison, Side, Summary, alternate


def recorder(name: str, turns: list[str]) -> Side:
    async def side() -> float:
        turns.append(name)
        return float(len(turns))

    return side


def test_sides_alternate_in_changing_order_after_one_turn_that_does_not_count() -> None:
    turns = list[str]()
    a, b = asyncio.run(alternate(recorder("a", turns), recorder("b", turns), 3))
    assert "".join(turns) == "ab" + "ab" + "ba" + "ab"
    assert (a, b) == ((3.0, 6.0, 7.0), (4.0, 5.0, 8.0))


def test_a_summary_has_the_median_and_the_tenths() -> None:
    assert Summary.of([float(i) for i in range(11)]) == Summary(5.0, 1.0, 9.0, 11)
    assert Summary.of([3.0]) == Summary(3.0, 3.0, 3.0, 1)
    assert Summary.of([1.0, 2.0]).median == 1.5


def test_the_ratio_is_that_of_the_pairs_and_not_of_the_medians() -> None:
    comparison = Comparison("x", "a", "b", "s", (1.0, 20.0, 6.0), (1.0, 10.0, 2.0), Bar(1.0))
    assert comparison.ratio == Summary(2.0, 1.2, 2.8, 3)


@pytest.mark.parametrize(("at_least", "ratio", "met"), [(True, 1.9, False), (False, 1.9, True)])
def test_a_bar_is_met_on_its_own_side(at_least: bool, ratio: float, met: bool) -> None:
    bar = Bar(2.0, at_least=at_least)
    assert bar.is_met(ratio) == met
    assert bar.is_met(2.0)
