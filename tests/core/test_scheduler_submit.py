"""What is taken and what is refused at the door."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.core.driver import (
    EOS_IDS,
    VOCAB_SIZE,
    make_scheduler,
    prompt_of,
    shape,
    step,
    submit,
    submit_spec,
)
from wkvm.core.config import EngineConfig
from wkvm.core.errors import (
    DrainingError,
    EmptyPromptError,
    InvalidParameterError,
    PromptTooLongError,
    QueueFullError,
    TokenOutOfRangeError,
    WkvmError,
)
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

GOOD: dict[str, Any] = {"prompt": (5, 6), "params": SamplingParams()}


def refusal(scheduler: Scheduler, **fields: object) -> WkvmError:
    """The error that a request with these fields raises, which must leave no trace."""
    before = trace(scheduler)
    with pytest.raises(WkvmError) as caught:
        submit_spec(scheduler, 99, RequestSpec(**{**GOOD, **fields}))
    assert trace(scheduler) == before
    assert scheduler.status(99) is None
    return caught.value


def trace(scheduler: Scheduler) -> tuple[Mapping[str, int], float | None]:
    stats = {name: n for name, n in scheduler.stats().items() if name != "refused_total"}
    return stats, scheduler.next_deadline()


def test_an_empty_prompt_is_refused() -> None:
    assert isinstance(refusal(make_scheduler(), prompt=()), EmptyPromptError)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**31, 2**63 - 1])
@pytest.mark.parametrize("at", [0, 1])
def test_prompt_ids_out_of_the_vocabulary_are_named(token_id: int, at: int) -> None:
    prompt = (token_id, 5) if at == 0 else (5, token_id)
    error = refusal(make_scheduler(), prompt=prompt)
    assert isinstance(error, TokenOutOfRangeError)
    assert (error.field, error.token_id) == ("prompt", token_id)


@pytest.mark.parametrize("token_id", [True, 1.0, "1"])
def test_prompt_ids_that_are_no_integers_are_refused(token_id: Any) -> None:
    error = refusal(make_scheduler(), prompt=(5, token_id))
    assert isinstance(error, InvalidParameterError)
    assert error.field == "prompt"


def test_the_whole_vocabulary_is_allowed() -> None:
    submit(make_scheduler(), 0, (0, VOCAB_SIZE - 1))


@pytest.mark.parametrize("field", ["logit_bias", "allowed_ids", "stop_ids"])
def test_ids_of_the_parameters_are_checked(field: str) -> None:
    ids: Any = ((VOCAB_SIZE, 0.5),) if field == "logit_bias" else (VOCAB_SIZE,)
    values: dict[str, Any] = {field: ids}
    error = refusal(make_scheduler(), params=SamplingParams(**values))
    assert isinstance(error, TokenOutOfRangeError)
    assert error.field == field


def test_prompt_and_max_tokens_together_may_reach_the_limit() -> None:
    scheduler = make_scheduler(max_model_len=10)
    submit(scheduler, 0, 6, SamplingParams(max_tokens=4))
    submit(scheduler, 1, 10, SamplingParams(max_tokens=0))
    error = refusal(scheduler, prompt=prompt_of(6), params=SamplingParams(max_tokens=5))
    assert isinstance(error, PromptTooLongError)
    assert (error.n_prompt, error.max_tokens, error.limit) == (6, 5, 10)


BAD_FIELDS: list[tuple[str, object]] = [
    *(
        ("timeout_s", value)
        for value in (0, 0.0, -1.0, math.nan, math.inf, True, "1", 10**400, 2**63 + 1)
    ),
    *(("credit", value) for value in (-1, True, 1.0)),
    *(("priority", value) for value in (math.nan, 1.0, True)),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_bad_values_are_refused_by_name(field: str, value: object) -> None:
    error = refusal(make_scheduler(), **{field: value})
    assert isinstance(error, InvalidParameterError)
    assert error.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("timeout_s", 0.001), ("timeout_s", 5), ("credit", 0), ("priority", -3)]
)
def test_values_at_the_limit_are_taken(field: str, value: object) -> None:
    submit_spec(make_scheduler(), 0, RequestSpec(**{**GOOD, field: value}))


def test_min_tokens_must_leave_something_to_sample() -> None:
    scheduler = make_scheduler()
    only_stops = SamplingParams(min_tokens=1, stop_ids=(7,), allowed_ids=(7, EOS_IDS[0]))
    error = refusal(scheduler, params=only_stops)
    assert isinstance(error, InvalidParameterError)
    assert error.field == "min_tokens"
    free = SamplingParams(min_tokens=1, stop_ids=(7,), allowed_ids=(7, 0), ignore_eos=True)
    submit(scheduler, 0, (5,), free)
    submit(scheduler, 1, (5,), SamplingParams(stop_ids=(7,), allowed_ids=(7, EOS_IDS[0])))


def test_an_id_in_use_is_a_bug() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0)
    before = trace(scheduler)
    with pytest.raises(ValueError, match="exists"):
        submit(scheduler, 0)
    assert trace(scheduler) == before


def test_those_that_a_free_slot_takes_do_not_count_as_waiting() -> None:
    scheduler = make_scheduler(n_slots=2, max_queue=1)
    for request_id in range(3):
        submit(scheduler, request_id)
    error = refusal(scheduler)
    assert isinstance(error, QueueFullError)
    assert error.limit == 1


def test_the_prompt_ids_that_wait_have_a_bound() -> None:
    scheduler = make_scheduler(n_slots=1, max_queued_tokens=10)
    submit(scheduler, 0, 1000)
    step(scheduler)
    submit(scheduler, 1, 7)
    submit(scheduler, 2, 3)
    error = refusal(scheduler, prompt=(5,))
    assert isinstance(error, QueueFullError)
    assert error.limit == 10
    scheduler.cancel(2, 0.0)
    submit(scheduler, 3, 3)


def test_allowed_ids_that_wait_count_like_those_of_prompts() -> None:
    scheduler = make_scheduler(n_slots=1, max_queued_tokens=10)
    submit(scheduler, 0, 1000)
    step(scheduler)
    submit(scheduler, 1, 3, SamplingParams(allowed_ids=(5, 6, 7, 8)))
    four = SamplingParams(allowed_ids=(5, 6, 7))
    assert isinstance(refusal(scheduler, prompt=(5,), params=four), QueueFullError)
    submit(scheduler, 2, (5,), SamplingParams(allowed_ids=(5, 6)))


class Counted(list[int]):
    """Ids that know how often all of them were looked at."""

    n_looks = 0

    def __iter__(self) -> Iterator[int]:
        self.n_looks += 1
        return super().__iter__()


def test_the_ids_of_several_choices_are_checked_once() -> None:
    looks = list[tuple[int, int]]()
    for n in (1, 64):
        prompt, allowed_ids = Counted([5, 6]), Counted([7, 8])
        params = SamplingParams(n=n, allowed_ids=allowed_ids, min_tokens=1)
        submit_spec(make_scheduler(), 0, RequestSpec(prompt=prompt, params=params))
        looks.append((prompt.n_looks, allowed_ids.n_looks))
    assert looks[0] == looks[1]
    assert all(looks[0])


def test_choices_are_requests_of_their_own_with_branches_in_order() -> None:
    scheduler = make_scheduler(n_slots=3)
    spec = RequestSpec(prompt=(5, 6), params=SamplingParams(n=3))
    scheduler.submit((4, 2, 9), spec, seed=1, branches=range(30, 33), now=0.0)
    assert scheduler.stats()["requests_total"] == 3
    plan = step(scheduler)
    assert [(row.request_id, row.seed, row.branch) for row in plan.rows] == [
        (4, 1, 30),
        (2, 1, 31),
        (9, 1, 32),
    ]
    assert len({row.slot for row in plan.rows}) == 3


def test_choices_are_taken_all_or_none() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue=2)
    submit(scheduler, 0)
    error = refusal(scheduler, params=SamplingParams(n=3))
    assert isinstance(error, QueueFullError)
    assert error.limit == 2
    submit(scheduler, 1, 1, SamplingParams(n=2))
    assert scheduler.stats()["n_queued"] == 3
    assert isinstance(refusal(scheduler), QueueFullError)


def test_free_slots_and_the_queue_hold_choices_together() -> None:
    scheduler = make_scheduler(n_slots=2, max_queue=3)
    assert isinstance(refusal(scheduler, params=SamplingParams(n=6)), QueueFullError)
    submit(scheduler, 0, 1, SamplingParams(n=5))


def test_choices_that_wait_count_the_ids_they_share_once() -> None:
    scheduler = make_scheduler(n_slots=1, max_queued_tokens=10)
    submit(scheduler, 0)
    step(scheduler)
    submit(scheduler, 1, 5, SamplingParams(n=64, allowed_ids=(5, 6)))
    assert isinstance(refusal(scheduler, prompt=prompt_of(4)), QueueFullError)
    submit(scheduler, 100, 3)


def test_the_ids_of_choices_count_until_the_last_has_left_the_queue() -> None:
    scheduler = make_scheduler(n_slots=1, max_queued_tokens=10)
    submit(scheduler, 0)
    step(scheduler)
    submit(scheduler, 1, 10, SamplingParams(n=3))
    for request_id in (2, 0):  # one goes, and one gets the slot
        scheduler.cancel(request_id, 0.0)
        step(scheduler)
        assert isinstance(refusal(scheduler), QueueFullError)
    scheduler.cancel(3, 0.0)
    submit(scheduler, 4, 10)


@pytest.mark.parametrize(
    ("request_ids", "branches"),
    [((1, 2, 0), (0, 1, 2)), ((1, 2, 2), (0, 1, 2)), ((1, 2), (0, 1)), ((1, 2, 3), (0, 1))],
)
def test_choices_without_an_id_or_a_branch_of_their_own_are_a_bug(
    request_ids: tuple[int, ...], branches: tuple[int, ...]
) -> None:
    scheduler = make_scheduler()
    submit(scheduler, 0)
    before = trace(scheduler)
    spec = RequestSpec(prompt=(5,), params=SamplingParams(n=3))
    with pytest.raises(ValueError):  # noqa: PT011
        scheduler.submit(request_ids, spec, seed=1, branches=branches, now=0.0)
    assert trace(scheduler) == before
    assert scheduler.status(1) is None


def test_a_tenant_that_fills_its_queue_leaves_room_to_others() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue=1)
    submit(scheduler, 0, tenant="a")
    submit(scheduler, 1, tenant="a")
    assert isinstance(refusal(scheduler, tenant="a"), QueueFullError)
    submit(scheduler, 2, tenant="b")


def test_all_tenants_together_have_a_limit_that_keeps_out_who_has_its_share() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue_of_all=6)
    submit(scheduler, 0)
    step(scheduler)
    submit(scheduler, 1, 1, SamplingParams(n=6), tenant="first")
    full = refusal(scheduler, tenant="first")
    assert isinstance(full, QueueFullError)
    assert "6 requests of all tenants" in str(full)
    # Who takes less than its share is not kept out: 3 of 6, then 2.
    assert isinstance(refusal(scheduler, tenant="second", params=SamplingParams(n=4)), WkvmError)
    submit(scheduler, 10, 1, SamplingParams(n=3), tenant="second")
    assert isinstance(refusal(scheduler, tenant="second"), QueueFullError)
    submit(scheduler, 20, 1, SamplingParams(n=2), tenant="third")
    assert isinstance(refusal(scheduler, tenant="third"), QueueFullError)
    # Where there is room nobody's share is looked at.
    for request_id in range(1, 7):
        scheduler.cancel(request_id, 0.0)
    submit(scheduler, 30, 1, tenant="third")
    assert isinstance(refusal(scheduler, tenant="third"), QueueFullError)


def test_without_a_queue_a_free_slot_is_enough() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue=0)
    submit(scheduler, 0)
    assert isinstance(refusal(scheduler), QueueFullError)
    step(scheduler)
    assert isinstance(refusal(scheduler), QueueFullError)
    scheduler.cancel(0, 0.0)
    submit(scheduler, 1)


def test_a_cancelled_request_makes_room_in_the_queue() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue=1)
    submit(scheduler, 0)
    submit(scheduler, 1)
    assert isinstance(refusal(scheduler), QueueFullError)
    scheduler.cancel(1, 0.0)
    submit(scheduler, 2)


def test_draining_refuses_the_new_and_runs_the_old() -> None:
    scheduler = make_scheduler(n_slots=1)
    submit(scheduler, 0, 1, SamplingParams(max_tokens=1))
    submit(scheduler, 1, 1, SamplingParams(max_tokens=1))
    scheduler.drain()
    assert isinstance(refusal(scheduler), DrainingError)
    assert shape(step(scheduler)) == {0: 1}
    assert shape(step(scheduler)) == {1: 1}
    assert scheduler.status(1) == Status.LENGTH


def test_a_wrong_request_is_told_so_even_where_there_is_no_room() -> None:
    scheduler = make_scheduler(n_slots=1, max_queue=0)
    submit(scheduler, 0)
    scheduler.drain()
    assert isinstance(refusal(scheduler, prompt=()), EmptyPromptError)


@pytest.mark.parametrize(("n", "fits"), [(3, True), (4, True), (5, False)])
def test_a_request_has_as_many_choices_as_it_may(n: int, fits: bool) -> None:
    scheduler = Scheduler(EngineConfig(max_n=4), vocab_size=VOCAB_SIZE, eos_ids=())
    if fits:
        submit_spec(scheduler, 1, RequestSpec(**{**GOOD, "params": SamplingParams(n=n)}))
        assert scheduler.stats()["n_queued"] == n
    else:
        error = refusal(scheduler, params=SamplingParams(n=n))
        assert isinstance(error, InvalidParameterError)
        assert error.field == "n"
