from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prompts import Served, cut, line_up, share

wants_lists = st.lists(st.integers(1, 700), max_size=12)
budgets = st.integers(0, 1500)


def in_line(wants: list[int], budget: int, for_first: int = 64) -> list[int]:
    """What prompts get that want all that they lack."""
    return line_up(wants, wants, budget, for_first)


def test_equal_wants_get_equal_shares() -> None:
    assert share([500, 500, 500], 192 * 3 + 63) == [192, 192, 192]


def test_what_the_short_ones_leave_goes_to_the_long_ones() -> None:
    assert share([10, 1000, 10], 1000) == [10, 960, 10]


def test_the_first_ones_get_a_cut_where_there_is_too_little_for_all() -> None:
    assert share([100, 100, 100], 130) == [64, 64, 0]


def test_an_end_that_fits_is_given_though_a_cut_does_not_fit() -> None:
    assert share([100, 20, 100], 90) == [64, 20, 0]


@given(wants=wants_lists, budget=budgets)
def test_shares_are_cuts_or_all_and_within_the_budget(wants: list[int], budget: int) -> None:
    shares = share(wants, budget)
    assert sum(shares) <= budget
    for want, given_ in zip(wants, shares, strict=True):
        assert given_ == want or (0 <= given_ < want and given_ % CUT_MULTIPLE == 0)


@given(wants=wants_lists, budget=budgets)
def test_nothing_useful_is_left_over(wants: list[int], budget: int) -> None:
    shares = share(wants, budget)
    left = budget - sum(shares)
    for want, given_ in zip(wants, shares, strict=True):
        assert given_ == want or left < min(CUT_MULTIPLE, want - given_)


@given(wants=wants_lists, budget=budgets)
def test_nobody_has_two_cuts_more_than_one_who_wants_more(wants: list[int], budget: int) -> None:
    shares = share(wants, budget)
    for want, given_ in zip(wants, shares, strict=True):
        if given_ < want:
            assert max(shares) <= given_ + 2 * CUT_MULTIPLE


def test_who_came_first_is_over_first_of_equal_ones() -> None:
    assert in_line([500, 500, 500], 640) == [500, 128, 0]


def test_a_short_one_is_over_at_once_and_then_who_is_over_soonest() -> None:
    assert in_line([1000, 800, 10], 640) == [64, 512, 10]
    assert in_line([800, 1000, 10], 640) == [576, 0, 10]


def test_who_stops_on_the_way_is_not_over_soon_for_that() -> None:
    assert line_up([100, 100, 300], [5000, 5000, 300], 448, 64) == [100, 0, 300]


@given(wants=wants_lists, budget=budgets, for_first=budgets)
def test_the_first_in_line_gets_what_is_kept_for_it_or_all_that_it_wants(
    wants: list[int], budget: int, for_first: int
) -> None:
    for want, given_ in zip(wants[:1], in_line(wants, budget, for_first), strict=False):
        assert given_ == want or given_ >= cut(min(for_first, budget))


@given(wants=wants_lists, budget=budgets, for_first=budgets)
def test_in_line_too_shares_are_cuts_or_all_and_nothing_useful_is_left(
    wants: list[int], budget: int, for_first: int
) -> None:
    shares = in_line(wants, budget, for_first)
    left = budget - sum(shares)
    assert left >= 0
    for want, given_ in zip(wants, shares, strict=True):
        assert given_ == want or (0 <= given_ < want and given_ % CUT_MULTIPLE == 0)
        assert given_ == want or left < min(CUT_MULTIPLE, want - given_)


def test_who_gets_more_than_is_fair_is_ahead_until_others_have_as_much() -> None:
    served = Served()
    served.note({"a": 128, "b": 64, "c": 10}, {"a", "b"})  # who wants little does not count
    assert [served.ahead(tenant) for tenant in "abcd"] == [32, -32, 0, 0]
    served.note({"a": 64, "b": 128}, {"a", "b"})
    assert [served.ahead(tenant) for tenant in "ab"] == [0, 0]


def test_who_gets_all_that_it_wants_begins_anew_and_is_owed_by_nobody() -> None:
    served = Served()
    served.note({"a": 64, "b": 0}, {"b"})
    assert [served.ahead(tenant) for tenant in "ab"] == [0, -32]
    served.note({"b": 500}, set())
    assert served.ahead("b") == 0


@given(n_tokens=st.integers(0, 10_000))
def test_a_cut_is_the_multiple_at_or_below(n_tokens: int) -> None:
    assert cut(n_tokens) % CUT_MULTIPLE == 0
    assert cut(n_tokens) <= n_tokens < cut(n_tokens) + CUT_MULTIPLE
