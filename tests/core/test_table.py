import pytest

from wkvm.core.request import TRANSITIONS, RequestSpec, Status
from wkvm.core.table import Request, RequestTable, choices_of


def make_request(request_id: int) -> Request:
    spec = RequestSpec(prompt=(5,))
    (request,) = choices_of(
        [request_id], spec, seed=0, branches=[0], stops=(), vocab_size=64, now=0.0, deadline=1.0
    )
    return request


@pytest.mark.parametrize("source", Status)
@pytest.mark.parametrize("target", Status)
def test_only_transitions_of_the_table_are_made(source: Status, target: Status) -> None:
    table, request = RequestTable(10), make_request(1)
    table.add(request)
    request.status = source
    if target in TRANSITIONS[source]:
        table.move(request, target)
        assert table.status(1) == target
    else:
        with pytest.raises(ValueError, match="request 1"):
            table.move(request, target)
        assert request.status == source
        assert table.get(1) is request


def test_every_status_has_transitions_and_every_one_is_reached() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert set[Status]().union(*TRANSITIONS.values()) == set(Status)


def test_an_id_is_taken_while_its_request_is_remembered() -> None:
    table = RequestTable(1)
    table.add(make_request(1))
    with pytest.raises(ValueError, match="exists"):
        table.add(make_request(1))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_oldest_finished_request_is_forgotten_first(limit: int) -> None:
    table = RequestTable(limit)
    for request_id in range(5):
        request = make_request(request_id)
        table.add(request)
        table.move(request, Status.CANCELLED)
    kept = [i for i in range(5) if table.status(i) is not None]
    assert kept == list(range(5 - limit, 5))
    assert table.n_completed == limit
    assert not table.live


def test_a_live_request_is_never_forgotten() -> None:
    table = RequestTable(0)
    table.add(make_request(0))
    ended = make_request(1)
    table.add(ended)
    table.move(ended, Status.CANCELLED)
    assert table.status(0) == Status.QUEUED
