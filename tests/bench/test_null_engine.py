import pytest
from wkvm_bench.null_engine import VOCAB_SIZE, NullEngine

from wkvm.core.errors import QueueFullError, StepFailedError
from wkvm.core.request import EndEvent, RequestSpec, Status, TokenEvent, by_request
from wkvm.core.sampling import SamplingParams


def submit(
    engine: NullEngine, *, last_id: int = 5, max_tokens: int = 10, credit: int | None = None
) -> int:
    params = SamplingParams(max_tokens=max_tokens)
    spec = RequestSpec(prompt=(1, last_id), params=params, credit=credit)
    (request_id,) = engine.submit(spec, 0.0)
    return request_id


def run(engine: NullEngine, n_steps: int) -> list[tuple[int, int]]:
    """Which request got which id."""
    ids = list[tuple[int, int]]()
    for _ in range(n_steps):
        plan = engine.plan(0.0)
        if plan is None:
            break
        engine.commit(plan, engine.collect(plan), 0.0)
        events = engine.take_events()
        tokens = [event for event in by_request(events) if isinstance(event, TokenEvent)]
        ids += [(token.request_id, token.token_id) for token in tokens]
    return ids


def test_every_request_gets_an_id_a_step_that_counts_up() -> None:
    engine = NullEngine()
    one, two = submit(engine, last_id=5), submit(engine, last_id=VOCAB_SIZE - 1)
    assert run(engine, 2) == [(one, 6), (two, 0), (one, 7), (two, 1)]


def test_a_request_ends_after_its_last_id() -> None:
    engine = NullEngine()
    submit(engine, max_tokens=2)
    assert len(run(engine, 1)) == 1
    plan = engine.plan(0.0)
    assert plan is not None
    engine.commit(plan, engine.collect(plan), 0.0)
    token, end = by_request(engine.take_events())
    assert isinstance(token, TokenEvent)
    assert isinstance(end, EndEvent)
    assert (token.index, end.status, end.n_prompt, end.n_output) == (1, Status.LENGTH, 2, 2)
    assert engine.plan(0.0) is None


def test_a_request_for_no_ids_ends_at_once() -> None:
    engine = NullEngine()
    submit(engine, max_tokens=0)
    (end,) = engine.take_events()
    assert isinstance(end, EndEvent)
    assert engine.plan(0.0) is None


def test_credit_and_holds_are_kept() -> None:
    engine = NullEngine()
    one, two = submit(engine, credit=1), submit(engine)
    engine.hold(two, 0.0)
    assert run(engine, 3) == [(one, 6)]
    engine.grant(one, 2, 0.0)
    engine.release(two, 0.0)
    assert run(engine, 3) == [(one, 7), (two, 6), (one, 8), (two, 7), (two, 8)]


def test_cancelled_and_failed_requests_end_once() -> None:
    engine = NullEngine()
    one, two = submit(engine), submit(engine)
    plan = engine.plan(0.0)
    assert plan is not None
    engine.cancel(one, 0.0)
    engine.cancel(one, 0.0)
    engine.fail(plan, StepFailedError(), 0.0)
    ends = [(e.request_id, e.status) for e in engine.take_events() if isinstance(e, EndEvent)]
    assert ends == [(one, Status.CANCELLED), (two, Status.FINISHED_ERROR)]


def test_slots_are_counted() -> None:
    engine = NullEngine(n_slots=1)
    submit(engine)
    with pytest.raises(QueueFullError):
        submit(engine)
    assert engine.stats() == {"n_slots": 1, "n_free_slots": 0, "n_queued": 0, "n_running": 1}


def test_choices_are_taken_all_or_none_and_have_ids_of_their_own() -> None:
    engine = NullEngine(n_slots=3)
    with pytest.raises(QueueFullError):
        engine.submit(RequestSpec(prompt=(5,), params=SamplingParams(n=4)), 0.0)
    assert engine.stats()["n_running"] == 0
    ids = engine.submit(RequestSpec(prompt=(5,), params=SamplingParams(n=3)), 0.0)
    assert run(engine, 1) == [(request_id, 6) for request_id in ids]
    assert len(set(ids)) == 3
