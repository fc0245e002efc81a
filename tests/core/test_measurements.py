"""What the scheduler measures, on a clock that the test sets."""

from tests.core.driver import make_scheduler, step, submit
from wkvm.core.errors import StepFailedError
from wkvm.core.plan import StepResult
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

LONG = SamplingParams(max_tokens=100)


def timed_step(scheduler: Scheduler, start: float, end: float) -> None:
    """A step that takes from ``start`` to ``end``, in which every row that samples gets an id."""
    plan = scheduler.plan(start)
    assert plan is not None
    token_ids = tuple(500 if row.samples else None for row in plan.rows)
    scheduler.commit(plan, StepResult(token_ids), end)


def measured(scheduler: Scheduler, name: str) -> tuple[int, int]:
    """How many values there were, and their sum."""
    stats = scheduler.stats()
    return stats[f"{name}_count"], stats[f"{name}_sum"]


def test_the_time_in_the_queue_ends_with_the_slot() -> None:
    scheduler = make_scheduler(n_slots=1)
    submit(scheduler, 0, 3, SamplingParams(max_tokens=1), now=10.0)
    submit(scheduler, 1, 3, SamplingParams(max_tokens=1), now=10.0)
    timed_step(scheduler, 10.5, 11.0)
    assert measured(scheduler, "queue_us") == (1, 500_000)
    timed_step(scheduler, 12.0, 13.0)
    assert measured(scheduler, "queue_us") == (2, 2_500_000)


def test_the_first_id_is_timed_from_submission_and_once() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, LONG, now=1.0)
    timed_step(scheduler, 2.0, 3.0)
    timed_step(scheduler, 3.0, 4.0)
    assert measured(scheduler, "first_token_us") == (1, 2_000_000)
    assert scheduler.stats()["first_token_us_le_1000000"] == 0
    assert scheduler.stats()["first_token_us_le_2500000"] == 1


def test_a_request_is_timed_and_its_ids_are_counted_when_it_ends_however_it_does() -> None:
    scheduler = make_scheduler(n_slots=2)
    submit(scheduler, 0, 3, SamplingParams(max_tokens=2), now=1.0)
    submit(scheduler, 1, 7, LONG, now=1.0)
    submit(scheduler, 2, 5, LONG, now=1.0)
    timed_step(scheduler, 1.0, 2.0)
    assert measured(scheduler, "request_us") == (0, 0)
    timed_step(scheduler, 2.0, 3.0)
    scheduler.cancel(2, 4.0)
    scheduler.cancel(1, 5.0)
    assert measured(scheduler, "request_us") == (3, (2 + 3 + 4) * 10**6)
    assert measured(scheduler, "prompt_length") == (3, 3 + 7 + 5)
    assert measured(scheduler, "output_length") == (3, 2 + 2 + 0)
    assert scheduler.stats()["output_length_le_1"] == 1


def test_ids_but_the_first_are_timed_from_the_step_before() -> None:
    scheduler = make_scheduler()
    for request_id in range(3):
        submit(scheduler, request_id, 3, LONG, now=0.0)
    timed_step(scheduler, 0.0, 1.0)
    assert measured(scheduler, "inter_token_us") == (0, 0)
    timed_step(scheduler, 1.5, 2.0)
    assert measured(scheduler, "inter_token_us") == (3, 3 * 1_000_000)
    submit(scheduler, 3, 3, LONG, now=2.0)
    timed_step(scheduler, 2.0, 2.2)
    assert measured(scheduler, "inter_token_us") == (6, 3 * 1_200_000)


def test_a_wait_for_credit_with_nothing_to_run_is_not_between_ids() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, LONG, credit=1)
    timed_step(scheduler, 0.0, 1.0)
    assert scheduler.plan(1.0) is None
    scheduler.grant(0, 5, 50.0)
    timed_step(scheduler, 50.0, 50.1)
    assert measured(scheduler, "inter_token_us") == (1, 100_000)


def test_every_step_is_timed_the_failed_too() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, LONG)
    timed_step(scheduler, 1.0, 1.25)
    plan = scheduler.plan(2.0)
    assert plan is not None
    scheduler.fail(plan, StepFailedError(), 2.5)
    assert measured(scheduler, "step_us") == (2, 750_000)
    assert scheduler.plan(9.0) is None
    assert scheduler.stats()["steps_total"] == 2


def test_as_many_are_measured_as_were_asked_for() -> None:
    scheduler = make_scheduler(n_slots=4)
    for request_id in range(10):
        submit(scheduler, request_id, 1 + request_id, SamplingParams(max_tokens=1 + request_id))
    while scheduler.stats()["n_running"] or scheduler.stats()["n_queued"]:
        step(scheduler)
    stats = scheduler.stats()
    for name in ("queue_us", "first_token_us", "request_us", "prompt_length", "output_length"):
        assert stats[f"{name}_count"] == 10, name
    assert stats["prompt_length_sum"] == stats["prompt_tokens_total"] == 55
    assert stats["output_length_sum"] == stats["output_tokens_total"] == 55
    assert stats["inter_token_us_count"] == 55 - 10
    assert stats["step_us_count"] == stats["steps_total"]


def test_with_two_in_flight_a_step_is_timed_from_the_end_of_the_one_before() -> None:
    scheduler = make_scheduler(depth=2)
    submit(scheduler, 0, 3, LONG)
    plans = [scheduler.plan(0.0), scheduler.plan(0.25)]
    for landed_at in (1.0, 2.5, 4.5):
        plan = plans.pop(0)
        assert plan is not None
        scheduler.commit(plan, StepResult((500,)), landed_at)
        plans.append(scheduler.plan(landed_at))
    assert measured(scheduler, "step_us") == (3, (1_000 + 1_500 + 2_000) * 1000)
    assert measured(scheduler, "first_token_us") == (1, 1_000_000)
    assert measured(scheduler, "inter_token_us") == (2, (1_500 + 2_000) * 1000)


def test_a_step_that_is_in_flight_is_not_idleness() -> None:
    scheduler = make_scheduler(depth=2)
    submit(scheduler, 0, 3, SamplingParams(max_tokens=2), credit=1)
    first = scheduler.plan(0.0)
    assert first is not None
    assert scheduler.plan(0.5) is None
    scheduler.grant(0, 5, 0.75)
    scheduler.commit(first, StepResult((500,)), 1.0)
    second = scheduler.plan(1.25)
    assert second is not None
    scheduler.commit(second, StepResult((500,)), 3.0)
    assert measured(scheduler, "inter_token_us") == (1, 2_000_000)
