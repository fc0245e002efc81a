from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prompts import cut, share

wants_lists = st.lists(st.integers(1, 700), max_size=12)
budgets = st.integers(0, 1500)


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


@given(n_tokens=st.integers(0, 10_000))
def test_a_cut_is_the_multiple_at_or_below(n_tokens: int) -> None:
    assert cut(n_tokens) % CUT_MULTIPLE == 0
    assert cut(n_tokens) <= n_tokens < cut(n_tokens) + CUT_MULTIPLE
