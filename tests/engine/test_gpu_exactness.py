"""On a GPU, one step ahead: a request's ids are those that it gets alone. Needs a GPU."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Outcome, greedy
from tests.engine.fake_gpu import AheadDriver
from tests.engine.test_exactness import text_ids
from wkvm.core.config import EngineConfig
from wkvm.core.grammar import Grammar
from wkvm.core.plan import StepPlan
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.engine.grammars import GrammarCompiler
from wkvm.models.base import Batch, Model, StateViews
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

NEAR = 1e-4
"""Nats. Two ids as close as this may change places where other kernels add up a product."""


@pytest.fixture(scope="module")
def model() -> Model:
    torch.backends.cuda.matmul.allow_tf32 = False
    return load_model(BUNDLED, device="cuda", dtype="float32")


@pytest.fixture(scope="module")
def alone(model: Model) -> AheadDriver:
    return AheadDriver(Engine(model, EngineConfig(n_slots=1)))


@pytest.fixture(scope="module")
def crowded(model: Model) -> Engine:
    """Few slots and a small budget: prompts are cut, slots change hands, and are poisoned."""
    config = EngineConfig(n_slots=16, max_num_batched_tokens=96, poison_freed_slots=True)
    return Engine(model, config)


def run_crowd(
    engine: Engine, seed: int, params_of: Callable[[random.Random], SamplingParams]
) -> list[tuple[tuple[int, ...], SamplingParams, Outcome]]:
    """64 requests with text that arrive at random; every fourth is cancelled at random."""
    rng, text = random.Random(seed), text_ids()
    driver = AheadDriver(engine)
    asked = dict[int, tuple[tuple[int, ...], SamplingParams]]()
    while len(asked) < 64 or not driver.is_idle:
        for _ in range(min(rng.randrange(4), 64 - len(asked))):
            start, n = rng.randrange(len(text) - 150), rng.randint(1, 150)
            prompt, params = tuple(text[start : start + n]), params_of(rng)
            asked[driver.submit(prompt, params)] = prompt, params
        if rng.random() < 0.1:
            driver.cancel(rng.choice([i for i in asked if i % 4 == 0] or [-1]))
        driver.step()
    driver.land()
    assert engine.stats()["n_free_slots"] == engine.info.n_slots
    return [(*asked[request_id], outcome) for request_id, outcome in driver.outcomes.items()]


def check_against_alone(
    alone: AheadDriver, results: list[tuple[tuple[int, ...], SamplingParams, Outcome]]
) -> None:
    """Ids are equal, or part where two were nearly as likely, which may happen once or twice."""
    deviations = list[str]()
    for prompt, params, outcome in results:
        expected = alone.run(prompt, replace(params, logprobs=2))
        n = len(outcome.ids)
        if outcome.ids == expected.ids[:n]:
            is_whole = n == len(expected.ids) and outcome.status is expected.status
            assert is_whole or outcome.status is Status.CANCELLED
            continue
        at = next(
            i for i, (a, b) in enumerate(zip(outcome.ids, expected.ids, strict=False)) if a != b
        )
        told = expected.logprobs[at]
        assert told is not None
        gap = told.top[0].logprob - told.top[1].logprob
        deviations.append(f"prompt of {len(prompt)}, id {at}: {gap:.2e} nats apart")
        assert gap < NEAR, deviations
    print(f"{len(deviations)} of {len(results)} deviate: {deviations}")
    assert len(deviations) <= 2


def test_64_requests_that_come_and_go_get_the_ids_that_the_model_gives_alone(
    crowded: Engine, alone: AheadDriver
) -> None:
    results = run_crowd(crowded, 1, lambda rng: greedy(rng.randint(1, 20)))
    check_against_alone(alone, results)
    assert sum(outcome.status is Status.CANCELLED for *_, outcome in results) >= 3


def test_stops_and_least_lengths_hold_with_a_step_in_flight(
    crowded: Engine, alone: AheadDriver
) -> None:
    stops = tuple(range(0, 2000, 7))[:200]

    def params_of(rng: random.Random) -> SamplingParams:
        least = rng.choice((0, 0, 5))
        return replace(greedy(24), stop_ids=stops, min_tokens=least)

    results = run_crowd(crowded, 2, params_of)
    check_against_alone(alone, results)
    assert sum(outcome.status is Status.STOPPED for *_, outcome in results) >= 10
    for _, params, outcome in results:
        assert not set(outcome.ids[params.min_tokens :]) & set(stops)


def test_sampled_ids_depend_on_the_request_alone(crowded: Engine, alone: AheadDriver) -> None:
    def params_of(rng: random.Random) -> SamplingParams:
        return SamplingParams(
            temperature=rng.choice((0.5, 0.8, 1.3)),
            top_p=rng.choice((1.0, 0.9)),
            top_k=rng.choice((0, 40)),
            presence_penalty=rng.choice((0.0, 0.4)),
            frequency_penalty=rng.choice((0.0, 0.2)),
            max_tokens=16,
            ignore_eos=True,
            seed=rng.getrandbits(60),
        )

    equal, n = 0, 0
    for prompt, params, outcome in run_crowd(crowded, 3, params_of):
        expected = alone.run(prompt, params).ids
        n += 1
        equal += outcome.ids == expected[: len(outcome.ids)]
    # A draw parts where rounding moves a boundary across the random number: about one in 10^5.
    assert equal >= n - 2


def test_more_requests_than_the_largest_graph_are_several_replays(
    model: Model, alone: AheadDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.engine.graphs.BUCKETS", (1, 4, 8))
    text = text_ids()
    driver = AheadDriver(Engine(model, EngineConfig(n_slots=21)))
    asked = {driver.submit(tuple(text[i : i + 20]), greedy(12)): i for i in range(21)}
    driver.finish()
    results = [
        (tuple(text[i : i + 20]), greedy(12), driver.outcomes[request_id])
        for request_id, i in asked.items()
    ]
    check_against_alone(alone, results)


def runner_of(engine: Engine) -> GpuRunner:
    runner = engine._runner
    assert isinstance(runner, GpuRunner)
    return runner


@pytest.mark.parametrize("ends_by", ["length", "stop"])
def test_nothing_is_written_past_the_end_of_a_request(model: Model, ends_by: str) -> None:
    engine = Engine(model, EngineConfig(n_slots=1))
    driver, prompt = AheadDriver(engine), tuple(text_ids()[:40])
    ids = driver.run(prompt, greedy(12)).ids
    params = greedy(8)
    if ends_by == "stop":
        at = max(i for i in range(11) if ids[i] not in ids[:i])
        params = replace(greedy(12), stop_ids=(ids[at],))
        ids = ids[: at + 1]
    else:
        ids = ids[:8]
    driver.run(prompt, params)
    arena = runner_of(engine)._arena
    state = arena.read(0)
    arena.zero([0])
    absorbed = (*prompt, *ids[:-1])
    batch = Batch(
        torch.tensor(absorbed, device="cuda"),
        torch.zeros(1, dtype=torch.int32, device="cuda"),
        (len(absorbed),),
        (0,),
        torch.tensor([0], device="cuda"),
    )
    model.forward(batch, arena.views)
    for name, expected in arena.read(0).items():
        if expected.dtype.is_floating_point:
            error = (state[name].double() - expected.double()).norm() / expected.double().norm()
            assert float(error) < 1e-4, name


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_launch_waits_for_the_device(model: Model) -> None:
    engine = Engine(
        model, EngineConfig(n_slots=8, max_num_batched_tokens=64, poison_freed_slots=True)
    )
    driver, text = AheadDriver(engine), text_ids()
    launch = engine.launch

    def guarded(plan: StepPlan) -> None:
        with no_waiting():
            launch(plan)

    engine.launch = guarded  # type: ignore[method-assign]
    for at, params in enumerate(
        (
            greedy(5),
            SamplingParams(max_tokens=6, top_p=0.9, presence_penalty=0.3, seed=1),
            SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=2, min_p=0.1),
            SamplingParams(max_tokens=4, logit_bias=((5, 2.0),), stop_ids=tuple(range(60))),
            SamplingParams(max_tokens=4, allowed_ids=list(range(100))),
        )
        * 3
    ):
        driver.submit(tuple(text[at : at + 30 + at]), params)
    driver.finish()
    assert all(
        outcome.status in (Status.LENGTH, Status.STOPPED) for outcome in driver.outcomes.values()
    )


def test_a_prompt_that_fails_leaves_decoding_requests_alone(
    model: Model, alone: AheadDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, text = AheadDriver(Engine(model, EngineConfig(n_slots=4))), text_ids()
    good = driver.submit(tuple(text[:30]), greedy(12))
    driver.step()
    driver.step()
    forward = model.forward

    def fail(batch: Batch, states: StateViews) -> torch.Tensor:
        forward(batch, states)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(model, "forward", fail)
    bad = driver.submit(tuple(text[:50]), greedy(12))
    for _ in range(4):
        driver.step()
    monkeypatch.undo()
    driver.finish()
    assert driver.outcomes[bad].status is Status.FINISHED_ERROR
    assert driver.outcomes[good].ids == alone.run(tuple(text[:30]), greedy(12)).ids


def test_log_probabilities_are_those_of_the_cpu(model: Model) -> None:
    params = replace(greedy(6), logprobs=3, prompt_logprobs=3)
    prompt = tuple(text_ids()[:70])
    config = EngineConfig(n_slots=2, max_num_batched_tokens=64)
    on_gpu = AheadDriver(Engine(model, config)).run(prompt, params)
    cpu = load_model(BUNDLED, device="cpu", dtype="float32")
    on_cpu = AheadDriver(Engine(cpu, config)).run(prompt, params)
    assert on_gpu.ids == on_cpu.ids
    pairs = [
        *zip(on_gpu.prompt_logprobs, on_cpu.prompt_logprobs, strict=True),
        *zip(on_gpu.logprobs, on_cpu.logprobs, strict=True),
    ]
    assert len(pairs) == 75
    for ours, theirs in pairs:
        assert ours is not None
        assert theirs is not None
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)


def test_under_a_grammar_ids_are_those_of_the_cpu(model: Model) -> None:
    size = model.info.vocab_size
    token_bytes = [b"", *(bytes([1 + i % 255]) for i in range(size - 1))]
    told = list[list[Outcome]]()
    for one in (model, load_model(BUNDLED, device="cpu", dtype="float32")):
        compiler = GrammarCompiler(token_bytes, vocab_size=size)
        config = EngineConfig(n_slots=8)
        driver = AheadDriver(Engine(one, config, grammars=compiler))
        spec = RequestSpec(
            prompt=text_ids()[:20], params=greedy(40), grammar=Grammar("regex", "[a-z]{30}")
        )
        request_ids = driver.engine.submit(spec, driver.now)
        driver.outcomes.update((request_id, Outcome()) for request_id in request_ids)
        driver.submit(tuple(text_ids()[50:60]), greedy(10))
        driver.finish()
        told.append([driver.outcomes[request_id] for request_id in request_ids])
    (on_gpu,), (on_cpu,) = told
    assert on_gpu.status is Status.STOPPED
    assert on_gpu.ids == on_cpu.ids
    assert all(97 <= 1 + (token_id - 1) % 255 <= 122 for token_id in on_gpu.ids)
