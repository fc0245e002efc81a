"""Requests with grammars in the scheduler: waiting for their constraint, and their ends."""

from typing import Any

import pytest

from tests.core.driver import make_scheduler, prompt_of, submit_spec
from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import MAX_GRAMMAR_BYTES, Grammar
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import EndEvent, RequestSpec, Status, TokenEvent, by_request
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

WRONG = InvalidParameterError("grammar", "no")


class Anything:
    """Stands for a constraint; the scheduler only carries it."""

    @property
    def may_end(self) -> bool:
        raise AssertionError

    def next_ids(self, *, may_stop: bool) -> bytes:
        raise AssertionError

    def advance(self, token_id: int) -> bool:
        raise AssertionError


def ask(scheduler: Scheduler, request_id: int = 1, n_prompt: int = 3, **params: Any) -> None:
    spec = RequestSpec(
        prompt=prompt_of(n_prompt), params=SamplingParams(**params), grammar=Grammar("regex", "a")
    )
    submit_spec(scheduler, request_id, spec)


def ends(scheduler: Scheduler) -> list[EndEvent]:
    return [event for event in scheduler.take_events() if isinstance(event, EndEvent)]


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    assert plan is not None
    return plan


def started(**params: Any) -> tuple[Scheduler, StepPlan]:
    """A request that is bound, and its first step."""
    scheduler = make_scheduler()
    ask(scheduler, **params)
    assert scheduler.plan(0.0) is None
    scheduler.bind(1, Anything())
    return scheduler, planned(scheduler)


def test_a_request_wants_its_constraint_once_and_only_when_it_has_a_slot() -> None:
    scheduler = make_scheduler(n_slots=1)
    ask(scheduler, 1)
    ask(scheduler, 2, n=1)
    assert scheduler.take_unbound() == []
    assert scheduler.plan(0.0) is None
    (wanted,) = scheduler.take_unbound()
    assert (wanted.request_id, wanted.grammar) == (1, Grammar("regex", "a"))
    assert wanted.stops == (0, 1)
    assert scheduler.take_unbound() == []
    scheduler.cancel(1, 0.0)
    scheduler.plan(0.0)
    assert [one.request_id for one in scheduler.take_unbound()] == [2]


@pytest.mark.parametrize("n_prompt", [1, 3, 64, 200])
def test_without_its_constraint_a_request_absorbs_what_leaves_its_last_cut_and_no_more(
    n_prompt: int,
) -> None:
    scheduler = make_scheduler()
    ask(scheduler, n_prompt=n_prompt)
    n_absorbed = (n_prompt - 1) // 64 * 64
    if n_absorbed:
        plan = planned(scheduler)
        assert [(len(row.ids), row.samples) for row in plan.rows] == [(n_absorbed, False)]
        assert plan.rows[0].awaits_constraint
        scheduler.commit(plan, StepResult((None,)), 0.0)
    assert scheduler.plan(0.0) is None
    constraint = Anything()
    scheduler.bind(1, constraint)
    (row,) = planned(scheduler).rows
    assert (row.position, len(row.ids), row.samples) == (n_absorbed, n_prompt - n_absorbed, True)
    assert row.constraint is constraint
    assert not row.awaits_constraint


def test_its_constraint_goes_with_every_later_row() -> None:
    scheduler, plan = started()
    scheduler.commit(plan, StepResult((500,)), 0.0)
    assert planned(scheduler).rows[0].constraint is plan.rows[0].constraint


def test_to_wait_for_a_constraint_is_no_stall() -> None:
    scheduler = make_scheduler(stall_timeout_s=5.0, request_timeout_s=100.0)
    ask(scheduler)
    assert scheduler.plan(0.0) is None
    assert scheduler.stats()["n_paused"] == 0
    assert scheduler.plan(99.0) is None
    assert ends(scheduler) == []
    assert scheduler.plan(100.0) is None
    assert [end.status for end in ends(scheduler)] == [Status.TIMED_OUT]


def test_a_request_whose_grammar_is_wrong_ends_with_the_reason() -> None:
    scheduler = make_scheduler()
    ask(scheduler)
    scheduler.plan(0.0)
    scheduler.refuse(1, WRONG, 1.0)
    (end,) = ends(scheduler)
    assert (end.status, end.error, end.n_output) == (Status.FINISHED_ERROR, WRONG, 0)
    assert scheduler.stats()["n_free_slots"] == 4


def test_what_comes_for_a_request_that_has_ended_is_ignored() -> None:
    scheduler = make_scheduler()
    ask(scheduler)
    scheduler.plan(0.0)
    scheduler.cancel(1, 0.0)
    scheduler.bind(1, Anything())
    scheduler.refuse(1, WRONG, 0.0)
    assert [end.status for end in ends(scheduler)] == [Status.CANCELLED]


@pytest.mark.parametrize("max_tokens", [1, 9])
def test_a_complete_output_stops_after_its_id(max_tokens: int) -> None:
    scheduler, plan = started(max_tokens=max_tokens)
    scheduler.commit(plan, StepResult((500,), complete=frozenset({0})), 0.0)
    token, end = by_request(scheduler.take_events())
    assert isinstance(token, TokenEvent)
    assert token.token_id == 500
    assert isinstance(end, EndEvent)
    assert (end.status, end.stop_id, end.n_output) == (Status.STOPPED, None, 1)


def test_a_complete_output_stops_without_an_id() -> None:
    scheduler, plan = started(min_tokens=2)
    scheduler.commit(plan, StepResult((None,), complete=frozenset({0})), 0.0)
    (end,) = ends(scheduler)
    assert (end.status, end.stop_id, end.n_output) == (Status.STOPPED, None, 0)


def test_a_grammar_that_is_not_met_ends_its_request_and_shows_no_id() -> None:
    scheduler, plan = started()
    scheduler.commit(plan, StepResult((500,), unmet={0: WRONG}), 0.0)
    (end,) = scheduler.take_events()
    assert isinstance(end, EndEvent)
    assert (end.status, end.error, end.n_output) == (Status.FINISHED_ERROR, WRONG, 0)


def test_a_row_that_has_no_id_needs_a_reason() -> None:
    scheduler, plan = started()
    with pytest.raises(ValueError, match="its result has no id"):
        scheduler.commit(plan, StepResult((None,)), 0.0)


@pytest.mark.parametrize("kind", ["", "json", "REGEX", "gbnf" * 100])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"^grammar: ") as raised:
        Grammar(kind, "a")
    assert len(str(raised.value)) < 100


@pytest.mark.parametrize("unit", ["a", "é", "€", "𝄞", "\ud800"])
def test_a_source_may_have_as_many_bytes_as_the_limit_and_no_more(unit: str) -> None:
    n_bytes = len(unit.encode("utf-8", "surrogatepass"))
    source = unit * (MAX_GRAMMAR_BYTES // n_bytes)
    source += "a" * (MAX_GRAMMAR_BYTES - MAX_GRAMMAR_BYTES // n_bytes * n_bytes)
    Grammar("regex", source)
    with pytest.raises(InvalidParameterError, match="65,536 bytes"):
        Grammar("regex", source + "a")
