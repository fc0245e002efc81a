"""What becomes of a step, and how requests end."""

from dataclasses import replace

import pytest

from tests.core.driver import (
    EOS_IDS,
    answer,
    ends,
    make_scheduler,
    prompt_of,
    shape,
    step,
    submit,
    tokens,
)
from wkvm.core.errors import NonFiniteError, StalledError, StepFailedError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import EndEvent, PromptLogprobsEvent, Status, TokenEvent, TokensEvent
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

LONG = SamplingParams(max_tokens=10**6)


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    assert plan is not None
    return plan


def test_an_id_is_reported_with_its_index() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, LONG)
    step(scheduler, token_id=40)
    step(scheduler, token_id=41)
    assert scheduler.take_events() == [TokensEvent([0], [0], [40]), TokensEvent([0], [1], [41])]
    assert scheduler.take_events() == []


def test_the_last_id_of_max_tokens_is_output_and_not_fed() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, SamplingParams(max_tokens=2))
    step(scheduler)
    step(scheduler)
    assert scheduler.plan(0.0) is None
    *out, end = scheduler.take_events()
    assert len(out) == 2
    assert isinstance(end, EndEvent)
    assert (end.status, end.stop_id, end.n_prompt, end.n_output) == (Status.LENGTH, None, 3, 2)


@pytest.mark.parametrize("stop_id", [9, *EOS_IDS])
def test_a_stop_id_is_reported_and_neither_output_nor_fed(stop_id: int) -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, SamplingParams(stop_ids=(9,)))
    step(scheduler, token_id=40)
    step(scheduler, token_id=stop_id)
    assert scheduler.plan(0.0) is None
    token, end = scheduler.take_events()
    assert token == TokensEvent([0], [0], [40])
    assert isinstance(end, EndEvent)
    assert (end.status, end.stop_id, end.n_output) == (Status.STOPPED, stop_id, 1)


def test_an_ignored_end_is_output() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, SamplingParams(ignore_eos=True))
    step(scheduler, token_id=EOS_IDS[0])
    assert step(scheduler).rows[0].ids == (EOS_IDS[0],)


def test_a_stop_id_before_min_tokens_is_output() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, SamplingParams(min_tokens=2))
    step(scheduler, token_id=0)
    step(scheduler, token_id=0)
    assert scheduler.status(0) == Status.RUNNING
    step(scheduler, token_id=0)
    assert scheduler.status(0) == Status.STOPPED
    (end,) = ends(scheduler.take_events())
    assert end.n_output == 2


def test_max_tokens_zero_absorbs_the_prompt_and_ends() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 130, SamplingParams(max_tokens=0), credit=0)
    rows = [step(scheduler).rows[0] for _ in range(3)]
    assert [len(row.ids) for row in rows] == [64, 64, 2]
    assert not any(row.samples for row in rows)
    (end,) = scheduler.take_events()
    assert isinstance(end, EndEvent)
    assert (end.status, end.n_output, end.first_token_s) == (Status.LENGTH, 0, None)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompt_ids_but_the_first_are_scored_once_however_it_is_cut(max_tokens: int) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 130, SamplingParams(max_tokens=max_tokens, prompt_logprobs=0))
    for _ in range(3):
        step(scheduler)
    events = [e for e in scheduler.take_events() if isinstance(e, PromptLogprobsEvent)]
    assert [event.first for event in events] == [1, 65, 129]
    scored = [logprobs.token_id for event in events for logprobs in event.logprobs]
    assert scored == list(prompt_of(130)[1:])


def test_a_prompt_of_one_id_has_nothing_to_score() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, SamplingParams(max_tokens=1, prompt_logprobs=0))
    step(scheduler)
    assert [type(event) for event in scheduler.take_events()] == [TokensEvent, EndEvent]


def test_a_row_that_is_not_finite_ends_alone() -> None:
    scheduler = make_scheduler()
    for request_id in range(3):
        submit(scheduler, request_id, 3 + request_id, LONG)
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult((40, None, 42), not_finite=frozenset({1})), 0.0)
    events = scheduler.take_events()
    (end,) = ends(events)
    assert (end.request_id, end.status, end.n_output) == (1, Status.FINISHED_ERROR, 0)
    assert isinstance(end.error, NonFiniteError)
    assert end.error.position == 4
    assert [(t.request_id, t.token_id) for t in tokens(events)] == [(0, 40), (2, 42)]
    assert shape(scheduler.plan(0.0)) == {0: 1, 2: 1}


def test_a_failed_step_ends_its_rows_and_no_others() -> None:
    scheduler = make_scheduler(n_slots=2)
    for request_id in range(4):
        submit(scheduler, request_id)
    plan = planned(scheduler)
    scheduler.cancel(0, 0.0)
    error = StepFailedError()
    scheduler.fail(plan, error, 0.0)
    first, second = ends(scheduler.take_events())
    assert (first.request_id, first.status) == (0, Status.CANCELLED)
    assert (second.request_id, second.status) == (1, Status.FINISHED_ERROR)
    assert second.error is error
    assert set(shape(scheduler.plan(0.0))) == {2, 3}


def test_a_cancelled_request_ends_once_wherever_it_is() -> None:
    scheduler = make_scheduler(n_slots=1)
    for request_id in range(2):
        submit(scheduler, request_id, 3, LONG)
    plan = planned(scheduler)
    for _ in range(2):
        scheduler.cancel(0, 1.0)
        scheduler.cancel(1, 1.0)
    scheduler.commit(plan, answer(plan), 1.0)
    events = scheduler.take_events()
    assert [(e.request_id, e.status) for e in ends(events)] == [
        (0, Status.CANCELLED),
        (1, Status.CANCELLED),
    ]
    assert len(events) == 2
    assert scheduler.stats()["n_free_slots"] == 1
    assert scheduler.plan(1.0) is None


def test_what_comes_for_an_ended_row_touches_no_other() -> None:
    scheduler = make_scheduler()
    for request_id in range(2):
        submit(scheduler, request_id, 3 + request_id, LONG)
    plan = planned(scheduler)
    scheduler.cancel(0, 0.0)
    scheduler.commit(plan, StepResult((40, 41)), 0.0)
    assert tokens(scheduler.take_events()) == [TokenEvent(1, 0, 41)]
    (row,) = planned(scheduler).rows
    assert (row.request_id, row.ids, row.position) == (1, (41,), 4)


def test_times_are_counted_from_submission() -> None:
    scheduler = make_scheduler(n_slots=1)
    submit(scheduler, 0, 3, SamplingParams(max_tokens=1), now=1.0)
    submit(scheduler, 1, 3, SamplingParams(max_tokens=2), now=1.5)
    step(scheduler, 2.0)
    for now in (4.0, 8.0):
        step(scheduler, now)
    first, second = ends(scheduler.take_events())
    assert (first.queue_s, first.first_token_s, first.total_s) == (1.0, 1.0, 1.0)
    assert (second.queue_s, second.first_token_s, second.total_s) == (2.5, 2.5, 6.5)


def test_what_never_happened_has_no_time() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, now=1.0)
    scheduler.cancel(0, 2.0)
    (end,) = ends(scheduler.take_events())
    assert (end.queue_s, end.first_token_s, end.total_s) == (None, None, 1.0)


def test_overdue_requests_end_whether_they_wait_or_run() -> None:
    scheduler = make_scheduler(n_slots=1, request_timeout_s=10.0)
    submit(scheduler, 0, 3, LONG)
    submit(scheduler, 1, 3, LONG, timeout_s=5.0)
    submit(scheduler, 2, 3, LONG, timeout_s=20.0)
    step(scheduler)
    assert scheduler.next_deadline() == 5.0
    step(scheduler, 4.9)
    assert scheduler.status(1) == Status.QUEUED
    step(scheduler, 5.0)
    assert scheduler.status(1) == Status.TIMED_OUT
    assert scheduler.next_deadline() == 10.0
    assert shape(step(scheduler, 10.0)) == {2: 3}
    assert scheduler.status(0) == Status.TIMED_OUT


def test_a_request_without_credit_keeps_its_slot_for_so_long() -> None:
    scheduler = make_scheduler(stall_timeout_s=5.0)
    submit(scheduler, 0, 3, LONG, credit=1)
    submit(scheduler, 1, 3, LONG)
    step(scheduler, 1.0)
    assert scheduler.next_deadline() == 6.0
    step(scheduler, 5.9)
    assert scheduler.status(0) == Status.RUNNING
    step(scheduler, 6.0)
    (end,) = ends(scheduler.take_events())
    assert (end.request_id, end.status) == (0, Status.FINISHED_ERROR)
    assert isinstance(end.error, StalledError)
    assert scheduler.status(1) == Status.RUNNING


def test_a_held_request_keeps_its_slot_for_so_long() -> None:
    scheduler = make_scheduler(stall_timeout_s=5.0)
    submit(scheduler, 0, 3, LONG)
    step(scheduler, 0.0)
    scheduler.hold(0, 1.0)
    scheduler.hold(0, 4.0)
    assert scheduler.plan(5.9) is None
    assert scheduler.plan(6.0) is None
    assert scheduler.status(0) == Status.FINISHED_ERROR


def test_credit_in_time_starts_the_clock_anew() -> None:
    scheduler = make_scheduler(stall_timeout_s=5.0)
    submit(scheduler, 0, 3, LONG, credit=1)
    step(scheduler, 0.0)
    scheduler.grant(0, 1, 4.0)
    assert scheduler.next_deadline() == 600.0
    step(scheduler, 4.0)
    assert scheduler.next_deadline() == 9.0
    assert scheduler.plan(8.9) is None
    assert scheduler.status(0) == Status.RUNNING


def test_a_request_that_waits_for_a_slot_does_not_stall() -> None:
    scheduler = make_scheduler(n_slots=1, stall_timeout_s=5.0)
    submit(scheduler, 0, 3, LONG)
    submit(scheduler, 1, 3, LONG, credit=0)
    step(scheduler, 0.0)
    step(scheduler, 50.0)
    scheduler.cancel(0, 50.0)
    assert scheduler.plan(50.0) is None
    assert scheduler.next_deadline() == 55.0


def test_no_requests_have_no_deadline() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0)
    scheduler.cancel(0, 0.0)
    assert scheduler.next_deadline() is None


def test_finished_requests_are_remembered_up_to_the_limit() -> None:
    scheduler = make_scheduler(max_completed_requests=2)
    for request_id in range(4):
        submit(scheduler, request_id)
        scheduler.cancel(request_id, 0.0)
    assert [scheduler.status(i) for i in range(4)] == [None, None, *[Status.CANCELLED] * 2]


def test_counters_add_up() -> None:
    scheduler = make_scheduler(n_slots=2)
    submit(scheduler, 0, 70, SamplingParams(max_tokens=2))
    submit(scheduler, 1, 5, LONG, credit=1)
    submit(scheduler, 2, 5, LONG)
    step(scheduler)
    expected = {
        "n_slots": 2,
        "n_free_slots": 0,
        "n_queued": 1,
        "n_running": 2,
        "n_paused": 1,
        "n_completed_remembered": 0,
        "draining": 0,
        "requests_total": 3,
        "stopped_total": 0,
        "length_total": 0,
        "cancelled_total": 0,
        "timed_out_total": 0,
        "finished_error_total": 0,
        "prompt_tokens_total": 75,
        "output_tokens_total": 2,
        "steps_total": 1,
    }
    assert scheduler.stats() == {**scheduler.stats(), **expected}
    step(scheduler)
    scheduler.cancel(1, 0.0)
    stats = scheduler.stats()
    assert (stats["length_total"], stats["cancelled_total"], stats["n_queued"]) == (1, 1, 1)
    assert (stats["prompt_tokens_total"], stats["output_tokens_total"]) == (75, 3)


def test_a_result_must_fit_the_plan_in_flight() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0)
    plan = planned(scheduler)
    with pytest.raises(ValueError, match="2 results for 1 rows"):
        scheduler.commit(plan, StepResult((1, 2)), 0.0)
    with pytest.raises(ValueError, match="not the oldest in flight"):
        scheduler.commit(StepPlan(plan.rows), answer(plan), 0.0)
    with pytest.raises(ValueError, match="no id"):
        scheduler.commit(plan, StepResult((None,)), 0.0)
    with pytest.raises(ValueError, match="not the oldest in flight"):
        scheduler.fail(plan, StepFailedError(), 0.0)


def test_a_row_that_failed_alone_ends_its_request_alone() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 200)
    submit(scheduler, 1, 3)
    plan = planned(scheduler)
    error = StepFailedError()
    index = [row.request_id for row in plan.rows].index(0)
    scheduler.commit(plan, replace(answer(plan), failed={index: error}), 0.0)
    (end,) = ends(scheduler.take_events())
    assert (end.request_id, end.status, end.error) == (0, Status.FINISHED_ERROR, error)
    assert shape(scheduler.plan(0.0)) == {1: 1}
