"""How much of a step prompts get while others wait for their next id."""

from tests.core.driver import answer, make_scheduler, prompt_of, shape, step, submit, submit_spec
from tests.core.test_scheduler_grammar import Anything
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

LONG = SamplingParams(max_tokens=10**6)
N_PROMPT = 4096


def decoding(n: int, *, depth: int = 1, limit: int | None = 320) -> Scheduler:
    """A scheduler in which ``n`` requests decode, ids 1 to n."""
    scheduler = make_scheduler(n_slots=n + 3, decode_prompt_tokens=limit, depth=depth)
    for request_id in range(1, n + 1):
        submit(scheduler, request_id, 1, LONG)
    if n:
        step(scheduler)
    return scheduler


def test_beside_rows_that_decode_prompts_share_the_smaller_budget() -> None:
    scheduler = decoding(255)
    submit(scheduler, 1000, N_PROMPT, LONG)
    planned = shape(step(scheduler))
    assert planned.pop(1000) == 320
    assert planned == dict.fromkeys(range(1, 256), 1)
    submit(scheduler, 1001, N_PROMPT, LONG)
    assert shape(step(scheduler)) == planned | {1000: 320}


def test_without_rows_that_decode_prompts_have_the_whole_step() -> None:
    scheduler = decoding(0)
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(step(scheduler)) == {1000: 2048}


def test_one_row_that_decodes_is_enough_and_one_that_is_held_does_not_count() -> None:
    scheduler = decoding(1)
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(step(scheduler)) == {1: 1, 1000: 320}
    scheduler.hold(1, 0.0)
    assert shape(step(scheduler)) == {1000: 2048}
    scheduler.release(1, 0.0)
    assert shape(step(scheduler)) == {1: 1, 1000: 320}


def test_the_budget_of_a_step_stays_the_cap_of_both() -> None:
    scheduler = make_scheduler(
        n_slots=300, max_num_batched_tokens=400, decode_prompt_tokens=320, max_queue=300
    )
    for request_id in range(1, 201):
        submit(scheduler, request_id, 1, LONG)
    step(scheduler)
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(step(scheduler))[1000] == 192


def test_a_budget_below_a_cut_still_lets_prompts_advance() -> None:
    scheduler = decoding(1, limit=1)
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(step(scheduler)) == {1: 1, 1000: 64}


def test_without_a_limit_prompts_get_what_is_left() -> None:
    scheduler = decoding(1, limit=None)
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(step(scheduler)) == {1: 1, 1000: 1984}


def test_a_request_whose_grammar_waits_for_its_id_counts_as_decoding() -> None:
    scheduler = decoding(0, depth=2)
    spec = RequestSpec(prompt=(5,), params=LONG, grammar=Grammar("regex", "a"))
    scheduler.submit((1,), spec, seed=0, branches=(0,), now=0.0)
    scheduler.plan(0.0)
    scheduler.bind(1, Anything())
    first = scheduler.plan(0.0)
    assert first is not None
    submit(scheduler, 1000, N_PROMPT, LONG)
    second = scheduler.plan(0.0)
    assert shape(second) == {1000: 320}
    scheduler.commit(first, answer(first), 0.0)
    assert shape(scheduler.plan(0.0)) == {1: 1, 1000: 320}


def test_a_request_that_waits_for_its_last_id_takes_nothing_from_prompts() -> None:
    scheduler = decoding(0, depth=2)
    submit(scheduler, 1, 1, SamplingParams(max_tokens=1))
    assert shape(scheduler.plan(0.0)) == {1: 1}
    submit(scheduler, 1000, N_PROMPT, LONG)
    assert shape(scheduler.plan(0.0)) == {1000: 2048}


def test_equal_prompts_are_over_one_by_one() -> None:
    scheduler = make_scheduler(n_slots=4)
    for request_id in (1, 2, 3):
        submit(scheduler, request_id, 1600, LONG)
    assert shape(step(scheduler)) == {1: 1600, 2: 448}
    assert shape(step(scheduler)) == {1: 1, 2: 1152, 3: 832}


def test_a_short_prompt_waits_for_no_long_ones() -> None:
    scheduler = decoding(1)
    for request_id in (1000, 1001):
        submit(scheduler, request_id, N_PROMPT, LONG)
    submit(scheduler, 1002, 100, LONG)
    assert shape(step(scheduler)) == {1: 1, 1000: 192, 1002: 100}


def test_a_long_prompt_has_an_eighth_of_what_short_ones_would_take() -> None:
    scheduler = make_scheduler(n_slots=32)
    submit(scheduler, 0, 10**5, LONG)
    step(scheduler)
    for request_id in range(1, 21):
        submit(scheduler, request_id, 160, LONG)
    planned = shape(step(scheduler))
    assert planned.pop(0) == 256
    assert planned == dict.fromkeys(range(1, 12), 160)


def test_tenants_share_what_prompts_get_whoever_came_first() -> None:
    scheduler = decoding(1)
    for request_id in (1000, 1001):
        submit(scheduler, request_id, N_PROMPT, LONG, tenant="a")
    submit(scheduler, 1002, N_PROMPT, LONG, tenant="b")
    assert shape(step(scheduler)) == {1: 1, 1000: 192, 1002: 128}


def test_tenants_take_turns_where_there_is_less_than_a_cut_for_each() -> None:
    scheduler = decoding(1, limit=64)
    for at, tenant in enumerate("aba"):
        submit(scheduler, 1000 + at, N_PROMPT, LONG, tenant=tenant)
    turns = [shape(step(scheduler)) for _ in range(4)]
    assert turns == [{1: 1, request_id: 64} for request_id in (1000, 1001, 1000, 1001)]


def test_a_request_that_a_lower_priority_keeps_waiting_wins_its_tenant_nothing() -> None:
    scheduler = decoding(1, limit=64)
    submit(scheduler, 1000, N_PROMPT, LONG, tenant="a", priority=1)
    submit(scheduler, 1001, N_PROMPT, LONG, tenant="a")
    submit(scheduler, 1002, N_PROMPT, LONG, tenant="b")
    turns = [shape(step(scheduler)) for _ in range(4)]
    assert turns == [{1: 1, request_id: 64} for request_id in (1001, 1002, 1001, 1002)]


def test_a_cut_too_many_goes_to_each_tenant_in_turn() -> None:
    scheduler = decoding(1, limit=192)
    submit(scheduler, 1000, N_PROMPT, LONG, tenant="a")
    submit(scheduler, 1001, N_PROMPT, LONG, tenant="b")
    turns = [shape(step(scheduler)) for _ in range(2)]
    assert turns == [{1: 1, 1000: 128, 1001: 64}, {1: 1, 1000: 64, 1001: 128}]


def test_what_tenants_have_no_cut_for_goes_to_the_next() -> None:
    scheduler = decoding(4, limit=384)
    for at, tenant in enumerate("aabb"):
        submit(scheduler, 1000 + at, 94, LONG, tenant=tenant)
    submit(scheduler, 1004, N_PROMPT, LONG, tenant="c")
    planned = shape(step(scheduler))
    assert {at: planned[at] for at in planned if at >= 1000} == {1000: 94, 1002: 94, 1004: 192}


def test_a_prompt_with_checkpoints_on_the_way_is_not_taken_for_a_short_one() -> None:
    scheduler = decoding(1)
    spec = RequestSpec(prompt=prompt_of(N_PROMPT), params=LONG, checkpoint_every=64)
    submit(scheduler, 1000, N_PROMPT, LONG)
    submit_spec(scheduler, 1001, spec)
    submit(scheduler, 1002, 200, LONG)
    assert shape(step(scheduler)) == {1: 1, 1000: 64, 1002: 200}


def test_tenants_that_come_one_after_the_other_keep_nobody_waiting() -> None:
    scheduler = make_scheduler(n_slots=8, max_num_batched_tokens=64)
    submit(scheduler, 0, N_PROMPT, LONG, tenant="long")
    one, waited = SamplingParams(max_tokens=1), 0
    for request_id in range(1, 61):
        submit(scheduler, request_id, 64, one, tenant=f"new-{request_id}")
        waited = 0 if 0 in shape(step(scheduler)) else waited + 1
        assert waited < 8, "it has had less than an eighth, of eight at most"
