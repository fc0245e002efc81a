"""Requests that begin from a state and leave one: what goes on is what was never interrupted.

On a CPU, and through the runner of a GPU, which has two steps in flight, over the fake model.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.engine.driver import Driver, Outcome
from tests.engine.fake_gpu import (
    AheadDriver,
    SteppingGuestModel,
    SteppingModel,
    fake_gpu_runner,
)
from tests.fakes import FakeModel, GuestModel, fake_continuation, state_of
from wkvm.core.config import EngineConfig
from wkvm.core.errors import EmptyPromptError, InvalidParameterError
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Saved, Start
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.models.base import Model
from wkvm.state.arena import Arena

PROMPT = (5, 6, 7)

Make = Callable[..., Driver]


def config_of(**settings: object) -> EngineConfig:
    """Of a few slots, and of pages that suffice for few of them where there is a guest."""
    return EngineConfig(
        **{"n_slots": 8, "guest_tokens": 1024, "n_threads": 1, **settings},  # type: ignore[arg-type]
        poison_freed_slots=True,
    )


def on_cpu(**settings: object) -> Driver:
    return Driver(FakeModel(), config_of(**settings))


def with_guest_on_cpu(**settings: object) -> Driver:
    return Driver(GuestModel(), config_of(**settings))


def on_gpu(**settings: object) -> Driver:
    return ahead(SteppingModel(), config_of(**settings))


def with_guest_on_gpu(**settings: object) -> Driver:
    return ahead(SteppingGuestModel(), config_of(**settings))


def ahead(model: SteppingModel | SteppingGuestModel, config: EngineConfig) -> Driver:
    def make_runner(_: Model, arena: Arena, config: EngineConfig) -> GpuRunner:
        return fake_gpu_runner(model, arena, config)

    return AheadDriver(Engine(model, config, make_runner=make_runner))


both = pytest.mark.parametrize("make", [on_cpu, on_gpu, with_guest_on_cpu, with_guest_on_gpu])


def greedy(max_tokens: int, **others: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **others)  # type: ignore[arg-type]


def start_of(saved: Saved, *before: Saved) -> Start:
    log = [token_id for one in (*before, saved) for token_id in one.absorbed]
    assert len(log) == saved.n_computed
    return replace(start_of_any(saved), log=log)


def start_of_any(saved: Saved) -> Start:
    return Start(
        record=saved.record,
        n_computed=saved.n_computed,
        pending=saved.pending,
        memory=saved.memory,
    )


def hash_of(saved: Saved) -> int:
    return int(saved.record.view(torch.int64)[0]) % 2**64


def save(driver: Driver, prompt: tuple[int, ...], params: SamplingParams) -> Outcome:
    return driver.run_spec(RequestSpec(prompt=prompt, params=params, save=True))


@both
@pytest.mark.parametrize("k", [1, 2, 5, 11])
def test_a_continuation_gives_the_ids_of_the_run_that_was_not_interrupted(
    make: Make, k: int
) -> None:
    driver = make()
    first = save(driver, PROMPT, greedy(k))
    second = driver.run_spec(
        RequestSpec(prompt=(), params=greedy(12 - k), start=start_of(first.last))
    )
    assert first.ids + second.ids == fake_continuation(PROMPT, 12)


@both
def test_a_state_has_absorbed_all_but_the_id_that_was_sampled_last(make: Make) -> None:
    outcome = save(make(), PROMPT, greedy(4))
    saved = outcome.last
    assert outcome.status is Status.LENGTH
    assert list(saved.absorbed) == [*PROMPT, *outcome.ids[:3]]
    assert saved.pending == (outcome.ids[3],)
    assert saved.n_computed == 6
    assert hash_of(saved) == state_of(saved.absorbed)


@both
def test_a_stop_id_is_pending_and_not_absorbed(make: Make) -> None:
    ids = fake_continuation(PROMPT, 4)
    assert len(set(ids)) == 4
    outcome = save(make(), PROMPT, greedy(9, stop_ids=(ids[3],)))
    saved = outcome.last
    assert outcome.status is Status.STOPPED
    assert saved.pending == (ids[3],)
    assert list(saved.absorbed) == [*PROMPT, *ids[:3]]
    assert hash_of(saved) == state_of(saved.absorbed)


@both
def test_without_output_the_whole_prompt_is_absorbed_and_nothing_is_pending(make: Make) -> None:
    saved = save(make(), PROMPT, greedy(0)).last
    assert (list(saved.absorbed), saved.pending, saved.memory) == ([*PROMPT], (), None)
    assert hash_of(saved) == state_of(PROMPT)


@both
@pytest.mark.parametrize("n", [1, 2, 64, 65, 130])
def test_the_last_id_of_a_prompt_can_be_held_back_and_what_follows_is_the_same(
    make: Make, n: int
) -> None:
    prompt = tuple(i % 60 for i in range(n))
    driver = make()
    spec = RequestSpec(prompt=prompt, params=greedy(0), save=True, hold_back_last=True)
    saved = driver.run_spec(spec).last
    assert (list(saved.absorbed), saved.pending) == (list(prompt[:-1]), prompt[-1:])
    assert hash_of(saved) == state_of(prompt[:-1])
    went_on = driver.run_spec(RequestSpec(prompt=(), params=greedy(5), start=start_of(saved)))
    assert went_on.ids == fake_continuation(prompt, 5)


@both
@pytest.mark.parametrize("n", [1, 63, 64, 200])
def test_a_prompt_goes_on_after_what_was_pending(make: Make, n: int) -> None:
    driver = make()
    first = save(driver, PROMPT, greedy(3))
    more = tuple(range(n % 61)) + (9,) * (n - n % 61)
    second = driver.run_spec(
        RequestSpec(prompt=more, params=greedy(5), start=start_of(first.last), save=True)
    )
    assert second.ids == fake_continuation((*PROMPT, *first.ids, *more), 5)
    log = [*first.last.absorbed, *second.last.absorbed]
    assert log == [*PROMPT, *first.ids, *more, *second.ids[:4]]
    assert hash_of(second.last) == state_of(log)


@both
def test_what_is_saved_does_not_change_when_its_slot_goes_to_others(make: Make) -> None:
    driver = make(n_slots=1)
    saved = save(driver, PROMPT, greedy(3)).last
    before = saved.record.clone()
    save(driver, (9, 9), greedy(20))
    assert torch.equal(saved.record, before)
    assert hash_of(saved) == state_of(saved.absorbed)  # and was not the slot's rubbish before


@both
def test_what_a_request_starts_from_does_not_change(make: Make) -> None:
    driver = make()
    start = start_of(save(driver, PROMPT, greedy(3)).last)
    before = start.record.clone()
    driver.run_spec(RequestSpec(prompt=(), params=greedy(5), start=start, save=True))
    assert torch.equal(start.record, before)


@both
def test_the_slot_of_a_state_that_is_saved_is_free_again_while_others_wait(make: Make) -> None:
    driver = make(n_slots=1)
    specs = [
        RequestSpec(prompt=(at + 1, 2), params=greedy(at % 4 + 1), save=at % 2 == 0)
        for at in range(9)
    ]
    request_ids = [driver.begin(spec)[0] for spec in specs]
    driver.finish()
    for spec, request_id in zip(specs, request_ids, strict=True):
        outcome = driver.outcomes[request_id]
        assert outcome.ids == fake_continuation(spec.prompt, spec.params.max_tokens)
        if spec.save:
            assert hash_of(outcome.last) == state_of(outcome.last.absorbed)
    assert driver.engine.stats()["n_free_slots"] == 1


@both
def test_one_state_goes_to_many_slots_and_each_goes_its_own_way(make: Make) -> None:
    driver = make()
    first = save(driver, PROMPT, greedy(2))
    start = start_of(first.last)
    forks = [
        driver.begin(RequestSpec(prompt=(at,), params=greedy(6), start=start, save=True))[0]
        for at in range(20)
    ]
    driver.finish()
    for at, request_id in enumerate(forks):
        assert driver.outcomes[request_id].ids == fake_continuation((*PROMPT, *first.ids, at), 6)


@both
def test_many_states_that_begin_at_once_all_go_on(make: Make) -> None:
    driver = make()
    firsts = [save(driver, (at, 3), greedy(2)) for at in range(12)]
    seconds = [
        driver.begin(RequestSpec(prompt=(), params=greedy(4), start=start_of(one.last)))[0]
        for one in firsts
    ]
    driver.finish()
    for at, request_id in enumerate(seconds):
        ids = firsts[at].ids + driver.outcomes[request_id].ids
        assert ids == fake_continuation((at, 3), 6)


@both
def test_a_stop_id_that_was_pending_is_absorbed_before_a_turn(make: Make) -> None:
    ids = fake_continuation(PROMPT, 4)
    driver = make()
    first = save(driver, PROMPT, greedy(9, stop_ids=(ids[3],)))
    second = driver.run_spec(
        RequestSpec(prompt=(8, 9), params=greedy(3), start=start_of(first.last))
    )
    assert second.ids == fake_continuation((*PROMPT, *ids, 8, 9), 3)


@both
def test_an_empty_continuation_without_output_gives_the_same_state_back(make: Make) -> None:
    driver = make()
    first = save(driver, PROMPT, greedy(0))
    second = driver.run_spec(
        RequestSpec(prompt=(), params=greedy(0), start=start_of(first.last), save=True)
    )
    assert torch.equal(second.last.record, first.last.record)
    assert (second.last.n_computed, list(second.last.absorbed)) == (3, [])


@both
def test_an_empty_continuation_of_a_state_without_a_pending_id_is_refused(make: Make) -> None:
    driver = make()
    start = start_of(save(driver, PROMPT, greedy(0)).last)
    with pytest.raises(EmptyPromptError):
        driver.begin(RequestSpec(prompt=(), params=greedy(1), start=start))


@both
@pytest.mark.parametrize(
    "record",
    [
        torch.zeros(1, dtype=torch.uint8),
        torch.zeros(65536, dtype=torch.uint8),
        torch.zeros(1024, dtype=torch.uint8),
        torch.zeros(4),
        b"record",
    ],
)
def test_a_record_of_another_size_is_refused(make: Make, record: object) -> None:
    driver = make()
    start = Start(record=record, n_computed=1, pending=(1,))
    with pytest.raises(InvalidParameterError, match="host memory"):
        driver.begin(RequestSpec(prompt=(), params=greedy(1), start=start))


@both
def test_a_broken_state_ends_its_own_request_alone(make: Make) -> None:
    driver = make()
    saved = save(driver, PROMPT, greedy(1)).last
    record = saved.record.clone()
    record[256:512] = 0xFF  # the zeros of the fake model
    broken = replace(start_of(saved), record=record)
    ill = driver.begin(RequestSpec(prompt=(), params=greedy(4), start=broken, save=True))[0]
    well = driver.begin(RequestSpec(prompt=PROMPT, params=greedy(4), save=True))[0]
    driver.finish()
    assert driver.outcomes[ill].status is Status.FINISHED_ERROR
    assert driver.outcomes[ill].end.saved is None  # type: ignore[union-attr]
    assert driver.outcomes[well].ids == fake_continuation(PROMPT, 4)


@both
def test_a_request_that_is_cancelled_leaves_no_state(make: Make) -> None:
    driver = make()
    (request_id,) = driver.begin(RequestSpec(prompt=PROMPT, params=greedy(50), save=True))
    driver.step()
    driver.cancel(request_id)
    outcome = driver.outcomes[request_id]
    assert outcome.end is not None
    assert (outcome.status, outcome.end.saved) == (Status.CANCELLED, None)


@both
def test_the_positions_of_random_numbers_count_from_the_first_token_of_all(make: Make) -> None:
    driver = make()
    memory = save(driver, PROMPT, greedy(3)).last.memory
    assert memory is not None
    assert memory.position == 6
    assert memory.n_generated == 3


@both
@pytest.mark.parametrize("seed", range(12))
def test_sessions_side_by_side_that_are_interrupted_and_hibernate_keep_their_states(
    make: Make, seed: int
) -> None:
    rng = random.Random(seed)
    driver = make(n_slots=rng.randint(1, 3), max_hibernated=rng.randint(0, 2))
    logs, lasts = [list[int]() for _ in range(4)], list[Saved | None]([None] * 4)
    turns = dict[int, int]()

    def settle(*, is_over: bool) -> None:
        for request_id, session in list(turns.items()):
            outcome = driver.outcomes[request_id]
            if outcome.end is None:
                assert not is_over
                continue
            log = logs[session]
            for one in (*outcome.saved, outcome.last):
                known = [*log, *one.absorbed]
                assert (one.n_computed, hash_of(one)) == (len(known), state_of(known))
            log += outcome.last.absorbed
            known = [*log, *outcome.last.pending]
            n = len(outcome.ids)
            assert known[len(known) - n :] == outcome.ids
            assert outcome.ids == fake_continuation(known[: len(known) - n], n)
            lasts[session] = outcome.last
            del turns[request_id]

    for _ in range(60):
        session, what = rng.randrange(4), rng.random()
        last = lasts[session]
        if what < 0.4 and session not in turns.values():
            is_empty = last is not None and last.pending and rng.random() < 0.4
            n = 0 if is_empty else rng.choice((1, 3, 70))
            spec = RequestSpec(
                prompt=tuple(rng.randrange(64) for _ in range(n)),
                params=greedy(rng.randint(1, 9)),
                start=None if last is None else replace(start_of_any(last), log=logs[session]),
                save=True,
                checkpoint_every=rng.choice((None, 1, 7)),
                credit=rng.choice((None, 0, 2)),
                priority=rng.randint(0, 1),
            )
            turns[driver.begin(spec)[0]] = session
        elif what < 0.5 and turns:
            driver.engine.interrupt(rng.choice(list(turns)), driver.now)
        elif what < 0.6 and turns:
            driver.engine.snapshot(rng.choice(list(turns)))
        elif what < 0.7 and turns:
            driver.engine.grant(rng.choice(list(turns)), 2, driver.now)
        else:
            driver.step()
        driver.note(driver.engine.take_events())
        settle(is_over=False)
    for request_id in turns:
        driver.engine.grant(request_id, 99, driver.now)
    driver.finish()
    settle(is_over=True)
    if isinstance(driver, AheadDriver):
        driver.land()
    stats = driver.engine.stats()
    assert stats["n_free_slots"] == stats["n_slots"]
    assert stats.get("n_free_pages") == stats.get("n_pages")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("k", [1, 6])
def test_the_record_of_a_real_model_has_the_bits_of_one_run(
    bundled: Model, deterministic: bool, k: int
) -> None:
    config = EngineConfig(n_slots=2, poison_freed_slots=True, deterministic=deterministic)
    driver = Driver(bundled, config)
    prompt = tuple(range(100, 170))
    whole = save(driver, prompt, greedy(12))
    first = save(driver, prompt, greedy(k))
    second = driver.run_spec(
        RequestSpec(prompt=(), params=greedy(12 - k), start=start_of(first.last), save=True)
    )
    assert first.ids + second.ids == whole.ids
    assert torch.equal(second.last.record, whole.last.record)
