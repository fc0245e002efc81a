import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.core.table import Request, choices_of
from wkvm.core.waiting import WaitingLine


def make_request(request_id: int, tenant: str = "a", priority: int = 0) -> Request:
    spec = RequestSpec(prompt=(5,), tenant=tenant, priority=priority)
    (request,) = choices_of(
        [request_id], spec, seed=0, branches=[0], stops=(), vocab_size=64, now=0.0, deadline=1.0
    )
    return request


def pop(line: WaitingLine) -> Request:
    request = line.pop(lambda request: True)
    assert request is not None
    return request


def drain(line: WaitingLine) -> list[int]:
    return [pop(line).request_id for _ in range(len(line))]


def test_one_tenant_goes_by_arrival() -> None:
    line = WaitingLine()
    for request_id in (3, 1, 2):
        line.push(make_request(request_id))
    assert drain(line) == [3, 1, 2]


def test_lower_priorities_go_first_whenever_they_come() -> None:
    line = WaitingLine()
    for request_id, priority in enumerate([5, 0, -1, 5, 0]):
        line.push(make_request(request_id, priority=priority))
    assert drain(line) == [2, 1, 4, 0, 3]


def test_tenants_take_turns() -> None:
    line = WaitingLine()
    for request_id, tenant in enumerate("aaaabbc"):
        line.push(make_request(request_id, tenant))
    assert drain(line) == [0, 4, 6, 1, 5, 2, 3]


def test_a_tenant_that_comes_back_stands_last() -> None:
    line = WaitingLine()
    for request_id, tenant in enumerate("aab"):
        line.push(make_request(request_id, tenant))
    assert pop(line).request_id == 0
    assert pop(line).request_id == 2
    line.push(make_request(3, "b"))
    assert drain(line) == [1, 3]


def test_a_priority_takes_no_turn_from_another_tenant() -> None:
    line = WaitingLine()
    for request_id, (tenant, priority) in enumerate([("b", 0), ("a", -9), ("a", -9), ("b", 5)]):
        line.push(make_request(request_id, tenant, priority))
    assert drain(line) == [0, 1, 3, 2]


def test_a_line_counts_what_each_tenant_has_waiting() -> None:
    line = WaitingLine()
    for request_id, tenant in enumerate("aab"):
        line.push(make_request(request_id, tenant, priority=request_id))
    assert (line.n_requests("a"), line.n_ids("a")) == (2, 2)
    pop(line)
    assert (line.n_requests("a"), line.n_ids("a")) == (1, 1)
    assert (line.n_requests("b"), line.n_ids("b")) == (1, 1)
    assert (line.n_requests("c"), line.n_ids("c")) == (0, 0)


def test_ids_that_requests_share_count_once_while_one_of_them_waits() -> None:
    spec = RequestSpec(prompt=(5, 6, 7), tenant="a", params=SamplingParams(n=2))
    line = WaitingLine()
    for request in choices_of(
        [0, 1], spec, seed=0, branches=[0, 1], stops=(), vocab_size=64, now=0.0, deadline=1.0
    ):
        line.push(request)
    counts = [(line.n_requests("a"), line.n_ids("a"))]
    while line:
        pop(line)
        counts.append((line.n_requests("a"), line.n_ids("a")))
    assert counts == [(2, 3), (1, 3), (0, 0)]


def test_an_empty_line_has_nobody() -> None:
    assert WaitingLine().pop(lambda request: True) is None


def test_a_tenant_that_may_not_go_is_passed_over_and_keeps_its_turn() -> None:
    line = WaitingLine()
    for request_id, tenant in enumerate("aabb"):
        line.push(make_request(request_id, tenant))
    first = line.pop(lambda request: request.tenant != "a")
    assert first is not None
    assert first.request_id == 2
    assert line.pop(lambda request: False) is None
    assert drain(line) == [0, 3, 1]


@given(
    pushed=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1)), max_size=12),
    data=st.data(),
)
def test_removal_leaves_the_order_of_the_others(
    pushed: list[tuple[str, int]], data: st.DataObject
) -> None:
    requests = [make_request(i, *who) for i, who in enumerate(pushed)]
    gone = {r.request_id for r in requests if data.draw(st.booleans())}
    line = WaitingLine()
    for request in requests:
        line.push(request)
    for request in requests:
        if request.request_id in gone:
            line.remove(request)
    left = [pop(line) for _ in range(len(line))]
    assert {r.request_id for r in left} == {r.request_id for r in requests} - gone
    for tenant in "abc":
        of_one = [(r.priority, r.request_id) for r in left if r.tenant == tenant]
        assert of_one == sorted(of_one)


def test_a_line_that_emptied_holds_nothing() -> None:
    line = WaitingLine()
    request = make_request(0)
    line.push(request)
    line.remove(request)
    assert len(line) == 0
    with pytest.raises(KeyError):
        line.remove(request)
