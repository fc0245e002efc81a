from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.deadlines import Deadlines


def test_the_earliest_comes_first_and_once() -> None:
    times = {1: 5.0, 2: 3.0, 3: 4.0}
    deadlines = Deadlines(times.__getitem__)
    for request_id, at in times.items():
        deadlines.set(request_id, at)
    assert deadlines.next() == 3.0
    assert deadlines.pop_due(4.0) == [2, 3]
    assert deadlines.pop_due(4.0) == []
    assert deadlines.next() == 5.0


def test_a_time_that_moved_back_is_not_due() -> None:
    times = {1: 5.0}
    deadlines = Deadlines(times.__getitem__)
    deadlines.set(1, 5.0)
    times[1] = 9.0
    assert deadlines.pop_due(6.0) == []
    assert deadlines.next() == 9.0


def test_a_time_that_moved_forward_is_heeded_once_told() -> None:
    times = {1: 5.0}
    deadlines = Deadlines(times.__getitem__)
    deadlines.set(1, 5.0)
    times[1] = 2.0
    deadlines.set(1, 2.0)
    assert deadlines.pop_due(2.0) == [1]
    assert deadlines.next() is None


def test_a_forgotten_request_is_never_due() -> None:
    deadlines = Deadlines({1: 5.0}.__getitem__)
    deadlines.set(1, 5.0)
    deadlines.forget(1)
    assert deadlines.next() is None


def test_short_requests_with_long_deadlines_leave_little_behind() -> None:
    times = dict.fromkeys(range(10_000), 600.0)
    deadlines = Deadlines(times.__getitem__)
    for request_id in times:
        deadlines.set(request_id, 600.0)
        deadlines.forget(request_id)
        assert len(deadlines) <= 66


def test_pauses_that_come_and_go_leave_little_behind() -> None:
    times = {1: 600.0}
    deadlines = Deadlines(times.__getitem__)
    deadlines.set(1, 600.0)
    for now in range(500):
        times[1] = min(600.0, now + 60.0)
        deadlines.set(1, times[1])
        assert deadlines.pop_due(float(now)) == []
        times[1] = 600.0
        assert len(deadlines) <= 12


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 4), st.none() | st.integers(0, 20)), min_size=1, max_size=60
    )
)
def test_the_heap_agrees_with_a_table(changes: list[tuple[int, int | None]]) -> None:
    times = dict[int, float]()
    deadlines = Deadlines(times.__getitem__)
    for request_id, at in changes:
        if at is None:
            times.pop(request_id, None)
            deadlines.forget(request_id)
        else:
            times[request_id] = float(at)
            deadlines.set(request_id, float(at))
        assert deadlines.next() == min(times.values(), default=None)
