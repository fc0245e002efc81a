"""How often tenants may do something."""

import pytest

from wkvm.core.errors import RateLimitedError
from wkvm.core.rates import MAX_TENANTS, Rate


@pytest.mark.parametrize(("n", "fits"), [(9, True), (10, True), (11, False)])
def test_a_tenant_does_it_so_many_times_in_a_second(n: int, fits: bool) -> None:
    rate = Rate(10, "forks")
    for _ in range(n if fits else n - 1):
        rate.take("a", 1, 5.0)
    if not fits:
        with pytest.raises(RateLimitedError, match="10 forks a second") as caught:
            rate.take("a", 1, 5.0)
        assert caught.value.retry_after_s == pytest.approx(0.1)


def test_what_is_let_in_after_the_time_that_was_told_is_let_in() -> None:
    rate = Rate(10, "forks")
    rate.take("a", 10, 5.0)
    with pytest.raises(RateLimitedError) as caught:
        rate.take("a", 4, 5.0)
    assert caught.value.retry_after_s is not None
    rate.take("a", 4, 5.0 + caught.value.retry_after_s + 1e-9)


def test_what_was_not_used_is_not_saved_beyond_a_second() -> None:
    rate = Rate(10, "forks")
    rate.take("a", 10, 5.0)
    rate.take("a", 10, 500.0)
    with pytest.raises(RateLimitedError):
        rate.take("a", 1, 500.0)


def test_more_at_once_than_a_second_has_are_let_in_and_owed() -> None:
    rate = Rate(10, "forks")
    rate.take("a", 64, 5.0)
    with pytest.raises(RateLimitedError):
        rate.take("a", 1, 10.0)
    rate.take("a", 1, 10.6)


def test_one_tenant_takes_nothing_from_another() -> None:
    rate = Rate(10, "forks")
    rate.take("a", 10, 5.0)
    rate.take("b", 10, 5.0)


def test_without_a_limit_there_is_none() -> None:
    rate = Rate(0, "forks")
    for _ in range(1000):
        rate.take("a", 64, 5.0)


def test_memory_is_bounded_however_many_tenants_there_are() -> None:
    rate = Rate(1, "forks")
    for n in range(MAX_TENANTS + 10):
        rate.take(str(n), 1, 5.0)
    rate.take("0", 1, 5.0)  # taken for rested
    with pytest.raises(RateLimitedError):
        rate.take(str(MAX_TENANTS), 1, 5.0)
