"""Which rows a step has."""

import pytest

from tests.core.driver import EOS_IDS, answer, make_scheduler, prompt_of, shape, step, submit
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.errors import QueueFullError
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams

LONG = SamplingParams(max_tokens=10**6)


def test_nothing_to_run_is_no_plan() -> None:
    assert make_scheduler().plan(0.0) is None


def test_a_row_says_all_that_the_runner_needs() -> None:
    scheduler = make_scheduler()
    params = SamplingParams(min_tokens=1, max_tokens=9, stop_ids=(30, 0), prompt_logprobs=0)
    submit(scheduler, 5, prompt_of(70), params)
    (row,) = step(scheduler, token_id=333).rows
    assert (row.request_id, row.ids, row.position, row.n_prompt) == (5, prompt_of(70), 0, 70)
    assert (row.fresh, row.samples, row.n_output, row.params) == (True, True, 0, params)
    assert (row.seed, row.branch, row.next_id, row.banned_ids) == (7, 0, None, (30, 0, 1))
    (later,) = step(scheduler).rows
    assert later == row._replace(ids=(333,), position=70, fresh=False, n_output=1, banned_ids=())


def test_a_tenant_holds_no_more_slots_than_it_may() -> None:
    scheduler = make_scheduler(n_slots=4, max_slots_per_tenant=2, max_queue=1)
    for request_id in range(3):
        submit(scheduler, request_id, 1, LONG, tenant="a")
    with pytest.raises(QueueFullError):
        submit(scheduler, 99, 1, LONG, tenant="a")
    submit(scheduler, 3, 1, LONG, tenant="b")
    assert set(shape(step(scheduler))) == {0, 1, 3}
    scheduler.cancel(0, 0.0)
    assert set(shape(step(scheduler))) == {1, 2, 3}


def test_the_lower_priority_gets_the_slot() -> None:
    scheduler = make_scheduler(n_slots=1)
    submit(scheduler, 0, priority=1)
    submit(scheduler, 1, priority=0)
    assert shape(scheduler.plan(0.0)) == {1: 3}


def test_tenants_take_turns_for_slots() -> None:
    scheduler = make_scheduler(n_slots=3)
    for request_id, tenant in enumerate("aaab"):
        submit(scheduler, request_id, tenant=tenant)
    assert set(shape(scheduler.plan(0.0))) == {0, 1, 3}


def test_a_request_waits_iff_no_slot_is_free() -> None:
    scheduler = make_scheduler(n_slots=2)
    for request_id in range(3):
        submit(scheduler, request_id)
    assert set(shape(step(scheduler))) == {0, 1}
    scheduler.cancel(0, 0.0)
    assert set(shape(step(scheduler))) == {1, 2}


def test_a_slot_freed_in_flight_is_reported_and_handed_out_at_once() -> None:
    scheduler = make_scheduler(n_slots=1)
    submit(scheduler, 0)
    submit(scheduler, 1)
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert plan.freed == ()
    scheduler.cancel(0, 0.0)
    scheduler.commit(plan, answer(plan), 0.0)
    later = scheduler.plan(0.0)
    assert later is not None
    assert later.freed == (plan.rows[0].slot,)
    assert (later.rows[0].request_id, later.rows[0].slot) == (1, plan.rows[0].slot)
    scheduler.commit(later, answer(later), 0.0)
    again = scheduler.plan(0.0)
    assert again is not None
    assert again.freed == ()


def test_a_prompt_is_cut_at_multiples_counted_from_its_start() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=100)
    submit(scheduler, 0, 200, LONG)
    assert [shape(step(scheduler))[0] for _ in range(5)] == [64, 64, 72, 1, 1]


@pytest.mark.parametrize("budget", [1, 63, 64])
def test_a_budget_below_a_cut_is_rounded_up(budget: int) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=budget)
    submit(scheduler, 0, 130, LONG)
    assert [shape(step(scheduler))[0] for _ in range(3)] == [64, 64, 2]


def test_ids_are_absorbed_in_order_and_each_once() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 150, LONG)
    rows = [step(scheduler, token_id=300 + i).rows[0] for i in range(5)]
    absorbed = [i for row in rows for i in row.ids]
    assert absorbed == [*prompt_of(150), 302, 303]
    assert [row.position for row in rows] == [0, 64, 128, 150, 151]
    assert [row.samples for row in rows] == [False, False, True, True, True]


def test_decode_never_waits_for_a_prompt_nor_for_the_budget() -> None:
    scheduler = make_scheduler(n_slots=9, max_num_batched_tokens=4)
    for request_id in range(8):
        submit(scheduler, request_id, 1, LONG)
    step(scheduler)
    submit(scheduler, 8, 1000, LONG)
    for _ in range(3):
        assert shape(step(scheduler)) == {**dict.fromkeys(range(8), 1), 8: CUT_MULTIPLE}


def test_the_first_prompt_gets_what_decode_leaves() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64 * 4 + 1)
    submit(scheduler, 0, 1, LONG)
    step(scheduler)
    submit(scheduler, 1, 1000, LONG)
    submit(scheduler, 2, 1000, LONG)
    assert shape(step(scheduler)) == {0: 1, 1: 256}
    submit(scheduler, 3, 1, LONG)
    assert shape(step(scheduler)) == {0: 1, 3: 1, 1: 192}


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 6400, LONG)
    step(scheduler)
    submit(scheduler, 1, 60, LONG)
    started = [set(shape(step(scheduler))) for _ in range(2)]
    assert {1} in started


def test_prompts_that_do_not_all_fit_are_over_one_by_one() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    for request_id in range(3):
        submit(scheduler, request_id, 128, SamplingParams(max_tokens=0))
    assert [list(shape(step(scheduler))) for _ in range(6)] == [[0], [0], [1], [1], [2], [2]]


def test_every_eighth_cut_is_that_of_a_long_prompt_that_came_first() -> None:
    scheduler = make_scheduler(n_slots=50, max_num_batched_tokens=64)
    submit(scheduler, 0, 6400, LONG)
    for request_id in range(1, 41):
        submit(scheduler, request_id, 64, SamplingParams(max_tokens=0))
    turns = [0 in shape(step(scheduler)) for _ in range(40)]
    assert turns == ([False] * 7 + [True]) * 5


def test_newcomers_cannot_starve_a_long_prompt() -> None:
    scheduler = make_scheduler(n_slots=50, max_num_batched_tokens=64)
    submit(scheduler, 0, 64 * 5, SamplingParams(max_tokens=0))
    for request_id in range(1, 40):
        submit(scheduler, request_id, 64, SamplingParams(max_tokens=0))
        step(scheduler)
    assert scheduler.status(0) == Status.LENGTH


def test_the_lower_priority_takes_what_it_can_use_of_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=256)
    submit(scheduler, 0, 1000, LONG, priority=1)
    submit(scheduler, 1, 192, LONG, priority=0)
    assert shape(step(scheduler)) == {1: 192, 0: 64}


def test_a_priority_takes_no_budget_from_another_tenant() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=256)
    submit(scheduler, 0, 1000, LONG, tenant="a", priority=-9)
    submit(scheduler, 1, 1000, LONG, tenant="a", priority=-9)
    submit(scheduler, 2, 1000, LONG, tenant="b")
    assert shape(step(scheduler)) == {0: 128, 2: 128}


def test_without_credit_a_prompt_is_absorbed_up_to_its_last_cut() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 130, LONG, credit=0)
    submit(scheduler, 1, 128, LONG, credit=0)
    submit(scheduler, 2, 64, LONG, credit=0)
    assert shape(step(scheduler)) == {0: 128, 1: 64}
    assert scheduler.plan(0.0) is None
    for request_id in range(3):
        scheduler.grant(request_id, 1, 0.0)
    plan = step(scheduler)
    assert shape(plan) == {0: 2, 1: 64, 2: 64}
    assert all(row.samples for row in plan.rows)
    assert scheduler.plan(0.0) is None


def test_credit_is_one_id_each() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, LONG, credit=2)
    step(scheduler)
    step(scheduler)
    assert scheduler.plan(0.0) is None
    scheduler.grant(0, 1, 0.0)
    step(scheduler)
    assert scheduler.plan(0.0) is None


def test_unlimited_credit_stays_unlimited_when_granted_more() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, LONG)
    scheduler.grant(0, 1, 0.0)
    for _ in range(5):
        step(scheduler)


def test_a_grant_of_nothing_is_a_bug() -> None:
    with pytest.raises(ValueError, match="grant"):
        make_scheduler().grant(0, 0, 0.0)


def test_a_held_request_produces_nothing_until_released() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, LONG, credit=100)
    step(scheduler)
    scheduler.hold(0, 0.0)
    scheduler.hold(0, 0.0)
    scheduler.grant(0, 1, 0.0)
    assert scheduler.plan(0.0) is None
    scheduler.release(0, 0.0)
    assert shape(step(scheduler)) == {0: 1}


def test_a_hold_on_one_leaves_the_others_alone() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, LONG)
    submit(scheduler, 1, 1, LONG)
    scheduler.hold(0, 0.0)
    assert shape(step(scheduler)) == {1: 1}


def test_a_request_held_while_it_waits_is_held_once_admitted() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 1, LONG)
    scheduler.hold(0, 0.0)
    assert scheduler.plan(0.0) is None
    assert scheduler.stats()["n_running"] == 1
    scheduler.release(0, 0.0)
    assert shape(step(scheduler)) == {0: 1}


def test_a_held_request_scores_no_prompt() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 130, SamplingParams(prompt_logprobs=1))
    scheduler.hold(0, 0.0)
    assert scheduler.plan(0.0) is None


def test_unknown_requests_are_ignored() -> None:
    scheduler = make_scheduler()
    scheduler.cancel(3, 0.0)
    scheduler.grant(3, 1, 0.0)
    scheduler.hold(3, 0.0)
    scheduler.release(3, 0.0)
    assert scheduler.take_events() == []


def test_stops_are_banned_until_min_tokens_where_an_id_is_sampled() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 70, SamplingParams(min_tokens=2, stop_ids=(9,)))
    banned = [step(scheduler).rows[0].banned_ids for _ in range(4)]
    assert banned == [(), (9, *EOS_IDS), (9, *EOS_IDS), ()]


def test_ignored_ends_are_not_banned() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0, 3, SamplingParams(min_tokens=2, stop_ids=(9, 9), ignore_eos=True))
    assert step(scheduler).rows[0].banned_ids == (9,)


def test_the_next_prompt_id_is_given_where_it_is_scored() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=64)
    submit(scheduler, 0, 70, SamplingParams(prompt_logprobs=0))
    assert [step(scheduler).rows[0].next_id for _ in range(3)] == [prompt_of(70)[64], None, None]


def test_planning_during_a_step_is_a_bug() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0)
    scheduler.plan(0.0)
    with pytest.raises(ValueError, match="in flight"):
        scheduler.plan(0.0)
