"""What is sampled from a state that goes on is what would have been sampled: with random numbers,
penalties and grammars. On a CPU, and with the sampler of a GPU in Triton's interpreter.
"""

import importlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.driver import Driver
from tests.engine.fake_gpu import AheadDriver, SteppingModel
from tests.engine.grammar_rig import Rig as GrammarRig
from tests.engine.grammar_rig import regex
from tests.engine.test_states import start_of
from tests.fakes import FakeModel
from tests.interpreter import INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from wkvm.core.config import EngineConfig
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Saved
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.engine.graphs import DecodeGraphs
from wkvm.models.base import Model
from wkvm.state.arena import Arena

PROMPT = (5, 6, 7, 6)
N = 6 if INTERPRETED else 14

PARAMS = [
    SamplingParams(temperature=0, ignore_eos=True),
    SamplingParams(seed=2**63 + 5, top_p=0.9, ignore_eos=True),
    SamplingParams(seed=3, top_k=20, repetition_penalty=1.4, ignore_eos=True),
    SamplingParams(
        temperature=0,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        penalty_decay=0.9,
        ignore_eos=True,
    ),
    SamplingParams(
        seed=9,
        repetition_penalty=1.2,
        frequency_penalty=1.0,
        penalty_decay=0.7,
        logit_bias=((4, 3.0),),
        ignore_eos=True,
    ),
]

if INTERPRETED:
    PARAMS = PARAMS[-1:]  # the one that needs all kernels; a step takes a tenth of a second


def on_cpu(**settings: Any) -> Driver:
    return Driver(FakeModel(), EngineConfig(poison_freed_slots=True, **settings))


def on_gpu(**settings: Any) -> Driver:
    """The runner of a GPU with its own sampler, over the fake model."""
    config, model = EngineConfig(poison_freed_slots=True, **settings), SteppingModel()
    table: Any = importlib.import_module("wkvm.engine.slot_table")

    def make_runner(_: Model, arena: Arena, config: EngineConfig) -> GpuRunner:
        sampler = table.SlotTable(config.n_slots, 64, "cpu", max_rows=16)
        graphs = DecodeGraphs(model, arena.views, sampler, n_slots=config.n_slots)
        graphs.capture()
        return GpuRunner(model, arena, sampler, graphs, poison_freed=True)

    return AheadDriver(Engine(model, config, make_runner=make_runner))


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter what a program has at a time costs by its size."""
    if INTERPRETED:
        launch = importlib.import_module("wkvm.kernels.device_sampling.launch")
        sizes = {"CHUNK": 64, "GROUP": 2, "MANY_ROWS": 4, "LIST": 64, "SAMPLES": 64, "OF_WARP": 16}
        for name, size in sizes.items():
            monkeypatch.setattr(launch, name, size)


Make = Callable[..., Driver]
MAKERS = pytest.mark.parametrize(
    "make",
    [pytest.param(on_gpu, id="interpreter")] if INTERPRETED else [pytest.param(on_cpu, id="cpu")],
)


@starts_the_interpreter
def test_the_sampler_of_a_gpu_goes_on_likewise() -> None:
    run_in_the_interpreter(__file__, "interpreter")


def go_on(driver: Driver, saved: list[Saved], params: SamplingParams, n: int) -> list[int]:
    """A continuation with the state's own random numbers."""
    spec = RequestSpec(
        prompt=(),
        params=replace(params, seed=None, max_tokens=n),
        start=start_of(saved[-1], *saved[:-1]),
        save=True,
    )
    outcome = driver.run_spec(spec)
    saved.append(outcome.last)
    return outcome.ids


@MAKERS
@pytest.mark.parametrize("params", PARAMS)
def test_cut_anywhere_the_ids_are_those_of_one_run(make: Make, params: SamplingParams) -> None:
    driver = make(n_slots=4)
    whole = driver.run(PROMPT, replace(params, max_tokens=N)).ids
    for k in (2,) if INTERPRETED else range(1, N):
        first = driver.run_spec(
            RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=k), save=True)
        )
        saved = [first.last]
        ids = first.ids + go_on(driver, saved, params, min(3, N - k))
        if len(ids) < N:
            ids += go_on(driver, saved, params, N - len(ids))
        assert ids == whole, k


@MAKERS
@pytest.mark.parametrize("params", PARAMS)
def test_interrupted_at_any_step_among_others_the_ids_are_those_of_one_run(
    make: Make, params: SamplingParams
) -> None:
    rng = random.Random(4)
    driver = make(n_slots=6)
    whole = driver.run(PROMPT, replace(params, max_tokens=N)).ids
    for k in (3,) if INTERPRETED else range(1, 9):
        for _ in range(rng.randrange(4)):
            other = replace(rng.choice(PARAMS), max_tokens=rng.randrange(1, 5))
            driver.submit(tuple(rng.choices(range(64), k=rng.randrange(1, 5))), other)
        spec = RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=N), save=True)
        (request_id,) = driver.begin(spec)
        for _ in range(k):
            driver.step()
        driver.engine.interrupt(request_id, driver.now)
        driver.finish()
        outcome = driver.outcomes[request_id]
        assert outcome.status is Status.CANCELLED
        n_left = N - len(outcome.ids)
        assert n_left > 0
        assert outcome.ids + go_on(driver, [outcome.last], params, n_left) == whole


@MAKERS
@pytest.mark.parametrize("params", PARAMS)
def test_a_request_that_gave_up_its_slot_gives_the_ids_of_one_that_did_not(
    make: Make, params: SamplingParams
) -> None:
    driver = make(n_slots=1, max_hibernated=1)
    whole = driver.run(PROMPT, replace(params, max_tokens=N)).ids
    spec = RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=N), credit=4)
    (request_id,) = driver.begin(spec)
    while len(driver.outcomes[request_id].ids) < 4:
        driver.step()
    other = driver.submit((1, 2), replace(PARAMS[-1], max_tokens=3))
    while driver.outcomes[other].end is None:
        driver.step()
    driver.engine.grant(request_id, 50, driver.now)
    driver.finish()
    assert driver.outcomes[request_id].ids == whole
    assert driver.engine.stats()["hibernated_total"] == 1


@MAKERS
@pytest.mark.parametrize("params", PARAMS[-3:])
def test_a_state_without_its_last_prompt_id_gives_what_the_whole_prompt_gives(
    make: Make, params: SamplingParams
) -> None:
    driver = make(n_slots=2)
    whole = driver.run(PROMPT, replace(params, max_tokens=N)).ids
    created = RequestSpec(
        prompt=PROMPT, params=SamplingParams(max_tokens=0), save=True, hold_back_last=True
    )
    saved = driver.run_spec(created).last
    spec = RequestSpec(
        prompt=(), params=replace(params, max_tokens=N), start=start_of(saved), save=True
    )
    assert driver.run_spec(spec).ids == whole


@MAKERS
def test_an_id_that_was_output_counts_before_a_turn_and_the_turn_counts_as_a_prompt(
    make: Make,
) -> None:
    driver = make(n_slots=2)
    params = replace(PARAMS[-2 % len(PARAMS)], max_tokens=3, penalty_decay=0.9)
    first = driver.run_spec(RequestSpec(prompt=PROMPT, params=params, save=True))
    second = driver.run_spec(
        RequestSpec(prompt=(1, 2), params=params, start=start_of(first.last), save=True)
    )
    memory = second.last.memory
    assert memory is not None
    counts = dict.fromkeys((*first.ids, *second.ids), 0.0)
    for token_id in (*first.ids, *second.ids[:-1]):
        counts = {one: n * 0.9 for one, n in counts.items()}
        counts[token_id] += 1
    known = dict(memory.counts)
    counts = {one: n for one, n in counts.items() if n}
    assert known == pytest.approx(counts, rel=1e-6)


@MAKERS
def test_forks_draw_random_numbers_of_their_own_and_a_continuation_its_states(make: Make) -> None:
    driver = make(n_slots=8)
    params = replace(PARAMS[1 % len(PARAMS)], max_tokens=2)
    saved = driver.run_spec(RequestSpec(prompt=PROMPT, params=params, save=True)).last
    spec = RequestSpec(
        prompt=(), params=replace(params, seed=None, max_tokens=8), start=start_of(saved)
    )
    twice = [driver.run_spec(spec).ids for _ in range(2)]
    forks = [driver.run_spec(replace(spec, fresh_key=True)).ids for _ in range(4)]
    choices = driver.begin(replace(spec, params=replace(spec.params, n=3)))
    driver.finish()
    forks += [driver.outcomes[one].ids for one in choices]
    assert twice[0] == twice[1]
    assert len({tuple(ids) for ids in (*forks, twice[0])}) == 8


@pytest.mark.skipif(INTERPRETED, reason="needs no kernels")
@pytest.mark.parametrize("k", range(1, 8))
def test_a_grammar_goes_on_where_it_was(k: int) -> None:
    rig, grammar = GrammarRig(), regex("(abc|xyz){4}")
    params = SamplingParams(seed=5, max_tokens=20)
    whole = rig.follow(grammar, seed=5, max_tokens=20)
    first = rig.run_spec(
        RequestSpec(
            prompt=(72, 105), params=replace(params, max_tokens=k), grammar=grammar, save=True
        )
    )
    second = rig.run_spec(
        RequestSpec(
            prompt=(),
            params=replace(params, seed=None),
            grammar=grammar,
            start=start_of(first.last),
            save=True,
        )
    )
    assert first.ids + second.ids == whole.ids
    assert second.status is Status.STOPPED
    assert second.last.memory is not None
    assert second.last.memory.grammar is None


@pytest.mark.skipif(INTERPRETED, reason="needs no kernels")
def test_a_grammar_begins_anew_with_a_new_turn() -> None:
    rig, grammar = GrammarRig(), regex("(abc|xyz){2}")
    params = SamplingParams(seed=5, max_tokens=20)
    first = rig.run_spec(RequestSpec(prompt=(72,), params=params, grammar=grammar, save=True))
    second = rig.run_spec(
        RequestSpec(prompt=(9,), params=params, grammar=grammar, start=start_of(first.last))
    )
    assert [first.status, second.status] == [Status.STOPPED] * 2
    assert len(first.ids) == len(second.ids) == 6
