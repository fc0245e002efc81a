"""The runner of a GPU over a fake device: packing, order, masks, failures, steps run ahead."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from tests.engine.driver import greedy
from tests.engine.fake_gpu import AheadDriver, GreedySlots, SteppingModel, fake_gpu_runner
from tests.fakes import fake_continuation, fake_logits, state_of
from wkvm.core.config import EngineConfig
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.engine.graphs import DecodeGraphs
from wkvm.models.base import Batch, Model
from wkvm.state.arena import Arena

GREEDY = SamplingParams(temperature=0, max_tokens=100)


def prompt_row(slot: int, ids: tuple[int, ...], params: SamplingParams = GREEDY) -> RowPlan:
    return RowPlan(slot + 1, slot, ids, 0, len(ids), True, True, 0, params, 0, 0)


def after(row: RowPlan, n: int = 1) -> RowPlan:
    """The row that absorbs the n-th id of the output, which the host has not seen."""
    return row._replace(ids=(), position=row.n_prompt + n - 1, fresh=False, n_output=n)


class Bench:
    """A runner over the fake model, with its arena in reach."""

    def __init__(self, model: SteppingModel | None = None, n_slots: int = 4) -> None:
        self.model = model or SteppingModel()
        self.arena = Arena(self.model.layout, n_slots, "cpu")
        self.sampler = GreedySlots(n_slots)
        self.graphs = DecodeGraphs(self.model, self.arena.views, self.sampler, n_slots=n_slots)
        self.graphs.capture()
        self.runner = GpuRunner(
            self.model, self.arena, self.sampler, self.graphs, poison_freed=False
        )

    def run(self, *rows: RowPlan, freed: tuple[int, ...] = ()) -> StepResult:
        plan = StepPlan(rows, freed)
        self.runner.launch(plan)
        return self.runner.collect(plan)

    def state(self, slot: int) -> int:
        return int(self.arena.views["fake.hash"][slot, 0]) & (2**64 - 1)


def test_two_steps_in_flight_give_the_ids_of_one_after_the_other() -> None:
    bench = Bench()
    first, second = prompt_row(2, (1, 2, 3)), prompt_row(0, (9,))
    plans = [StepPlan((first, second)), StepPlan((after(first), after(second)))]
    for plan in plans:
        bench.runner.launch(plan)
    results = [bench.runner.collect(plan).token_ids for plan in plans]
    answers = fake_continuation((1, 2, 3), 2), fake_continuation((9,), 2)
    assert results == list(zip(*answers, strict=True))


def test_steps_are_collected_in_their_order() -> None:
    bench = Bench()
    plans = [StepPlan((prompt_row(0, (1,)),)), StepPlan((prompt_row(1, (2,)),))]
    for plan in plans:
        bench.runner.launch(plan)
    with pytest.raises(ValueError, match="first in flight"):
        bench.runner.collect(plans[1])


def test_decode_rows_and_prompts_share_a_step_in_any_order() -> None:
    bench = Bench()
    a, b = prompt_row(3, (1, 2)), prompt_row(1, (7,))
    bench.run(a, b)
    result = bench.run(after(b), prompt_row(0, (5, 6)), after(a))
    assert result.token_ids == (
        fake_continuation((7,), 2)[1],
        fake_continuation((5, 6), 1)[0],
        fake_continuation((1, 2), 2)[1],
    )


def test_more_rows_than_the_largest_bucket_are_several_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wkvm.engine.graphs.BUCKETS", (1, 2, 4))
    bench = Bench(n_slots=11)
    rows = [prompt_row(slot, (slot, 1)) for slot in range(11)]
    assert bench.run(*rows).token_ids == tuple(
        fake_continuation((slot, 1), 1)[0] for slot in range(11)
    )
    result = bench.run(*(after(row) for row in rows))
    assert result.token_ids == tuple(fake_continuation((slot, 1), 2)[1] for slot in range(11))


def test_the_slots_are_sent_only_if_they_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    row, other = prompt_row(2, (1,)), prompt_row(1, (2,))
    bench.run(row, other)
    sent = list[Sequence[int]]()
    up = bench.runner._transfers.up

    def noted(numbers: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        sent.append(numbers)
        return up(numbers, dtype)

    monkeypatch.setattr(bench.runner._transfers, "up", noted)
    counts = list[int]()
    for rows in ([after(row)], [after(row, 2)], [after(row, 3), after(other)]):
        sent.clear()
        bench.run(*rows)
        counts.append(len(sent))
    assert counts == [1, 0, 1]


def test_a_row_that_stopped_is_absorbed_no_further() -> None:
    bench = Bench()
    (stop,) = fake_continuation((1, 2), 1)
    row = prompt_row(0, (1, 2))._replace(stops=(stop,))
    plans = [StepPlan((row,)), StepPlan((after(row),))]
    for plan in plans:
        bench.runner.launch(plan)
    assert bench.runner.collect(plans[0]).token_ids == (stop,)
    bench.runner.collect(plans[1])
    assert bench.state(0) == state_of((1, 2))


def test_freed_slots_are_given_up_before_their_next_tenants_start() -> None:
    bench = Bench()
    bench.run(prompt_row(0, (1, 2)))
    result = bench.run(prompt_row(0, (3,)), freed=(0,))
    assert bench.sampler.forgotten == [0]
    assert list(result.token_ids) == fake_continuation((3,), 1)


def test_the_sampler_sees_all_of_a_prompt() -> None:
    bench = Bench()
    row = prompt_row(0, (1, 2))._replace(n_prompt=3, samples=False)
    bench.run(row)
    bench.run(row._replace(ids=(3,), position=2, fresh=False, samples=True))
    bench.run(after(row._replace(samples=True)))
    assert bench.sampler.fed == {0: [1, 2, 3]}


class OneBadRow(SteppingModel):
    """Its logits hold one NaN in every row whose slot is 2."""

    def forward(self, batch: Batch, states: object) -> torch.Tensor:
        logits = super().forward(batch, states)  # type: ignore[arg-type]
        owners = [
            slot for slot, n in zip(batch.slot_list, batch.lengths, strict=True) for _ in range(n)
        ]
        for at, token in enumerate(batch.logit_rows.tolist()):
            if owners[token] == 2:
                logits[at, 7] = float("nan")
        return logits


@pytest.mark.parametrize("n_top", [None, 2])
def test_a_row_that_is_not_finite_is_named_and_the_others_are_unchanged(n_top: int | None) -> None:
    rows = [prompt_row(slot, (slot, 1), replace(GREEDY, logprobs=n_top)) for slot in range(4)]
    good, bad = Bench(), Bench(OneBadRow())
    for step in (rows, [after(row) for row in rows]):
        expected, result = good.run(*step), bad.run(*step)
        assert result.not_finite == {2}
        assert result.token_ids == (*expected.token_ids[:2], None, expected.token_ids[3])
        assert set(result.logprobs) == set(expected.logprobs) - {2}


def test_a_prompt_whose_scores_are_not_finite_is_named_too() -> None:
    params = replace(GREEDY, prompt_logprobs=0)
    part = prompt_row(2, (1, 2, 3), params)._replace(n_prompt=9, samples=False, next_id=4)
    result = Bench(OneBadRow()).run(part)
    assert result.not_finite == {0}
    assert result.prompt_logprobs == {}


def test_a_forward_pass_that_raises_ends_the_prompts_alone() -> None:
    fails = False

    def fail(batch: Batch) -> None:
        if fails and max(batch.lengths) > 1:
            raise ZeroDivisionError

    bench = Bench(SteppingModel(before_forward=fail))
    row = prompt_row(0, (1, 2))
    bench.run(row)
    fails = True
    result = bench.run(after(row), prompt_row(1, (3, 4)))
    assert result.token_ids == (fake_continuation((1, 2), 2)[1], None)
    assert set(result.failed) == {1}


def test_a_decode_step_that_raises_comes_through_and_leaves_the_runner_usable() -> None:
    fails = False

    def fail(batch: Batch) -> None:
        if fails:
            raise ZeroDivisionError

    bench = Bench(SteppingModel(before_forward=fail))
    row, other = prompt_row(0, (1, 2)), prompt_row(1, (3,))
    bench.run(row, other)
    fails = True
    with pytest.raises(ZeroDivisionError):
        bench.runner.launch(StepPlan((after(row),)))
    fails = False
    assert bench.run(after(other)).token_ids == (fake_continuation((3,), 2)[1],)


def test_a_request_for_whose_rules_there_is_no_memory_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    start = bench.sampler.start

    def fail(rows: Sequence[RowPlan]) -> None:
        if any(row.slot == 1 for row in rows):
            raise torch.OutOfMemoryError
        start(rows)

    monkeypatch.setattr(bench.sampler, "start", fail)
    result = bench.run(*(prompt_row(slot, (slot, 1)) for slot in range(3)))
    assert set(result.failed) == {1}
    assert result.token_ids == (
        fake_continuation((0, 1), 1)[0],
        None,
        fake_continuation((2, 1), 1)[0],
    )


def test_a_row_planned_before_its_request_failed_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = False

    def fail(batch: Batch) -> None:
        if fails and max(batch.lengths) > 1:
            raise ZeroDivisionError

    bench = Bench(SteppingModel(before_forward=fail))
    other, start = prompt_row(0, (1, 2)), bench.sampler.start
    bench.run(other, prompt_row(1, (5,)), prompt_row(2, (6,)))

    def start_all_but_1(rows: Sequence[RowPlan]) -> None:
        if any(row.slot == 1 for row in rows):
            raise torch.OutOfMemoryError
        start(rows)

    monkeypatch.setattr(bench.sampler, "start", start_all_but_1)
    fails = True
    no_memory, no_prompt = prompt_row(1, (7,)), prompt_row(2, (8, 9))
    plans = [
        StepPlan((after(other), no_memory, no_prompt), freed=(1, 2)),
        StepPlan((after(other, 2), after(no_memory), after(no_prompt))),
    ]
    for plan in plans:
        bench.runner.launch(plan)
    for n, plan in enumerate(plans, start=2):
        result = bench.runner.collect(plan)
        assert result.token_ids == (fake_continuation((1, 2), n)[-1], None, None)
        assert set(result.failed) == {1, 2}
    assert bench.state(1) == 0
    monkeypatch.undo()
    fails = False
    again = bench.run(prompt_row(1, (7, 3)), prompt_row(2, (4, 4)), freed=(1, 2))
    assert again.token_ids == (fake_continuation((7, 3), 1)[0], fake_continuation((4, 4), 1)[0])


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    params = replace(GREEDY, prompt_logprobs=3, logprobs=2)
    bench = Bench()
    row, prompt = prompt_row(1, (5, 6, 7), params), (5, 6, 7)
    results = [bench.run(prompt_row(0, (1,)), row), bench.run(after(row))]
    scored = [*results[0].prompt_logprobs[1], results[0].logprobs[1], results[1].logprobs[0]]
    ids = (*prompt, *fake_continuation(prompt, 2))
    assert [one.token_id for one in scored] == list(ids[1:])
    for at, one in enumerate(scored, start=1):
        expected = torch.log_softmax(torch.tensor(fake_logits(ids[:at])), -1).tolist()
        order = sorted(range(64), key=lambda i: (-expected[i], i))
        assert one.logprob == pytest.approx(expected[one.token_id])
        assert one.rank == order.index(one.token_id) + 1
        assert [top.token_id for top in one.top] == order[: len(one.top)]


class Only:
    """A constraint that allows one id after the other."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)
        self.may_end = False

    def next_ids(self, *, may_stop: bool) -> bytes:
        bits = 1 << self.ids[0] if self.ids else 0
        return bits.to_bytes(8, "little")

    def advance(self, token_id: int) -> bool:
        assert token_id == self.ids.pop(0)
        return not self.ids


def test_a_row_with_a_grammar_chooses_what_it_allows_and_no_other_row_is_touched() -> None:
    bench = Bench()
    free = prompt_row(0, (1, 2))
    bound = prompt_row(3, (4,))._replace(constraint=Only(60, 33, 2))
    answers = fake_continuation((1, 2), 4)
    assert bench.run(free, bound).token_ids == (answers[0], 60)
    assert bench.run(after(bound), after(free)).token_ids == (33, answers[1])
    last = bench.run(after(free, 2), after(bound, 2))
    assert last.token_ids == (answers[2], 2)
    assert last.complete == {1}
    assert bench.run(after(free, 3)).token_ids == (answers[3],)


def test_a_row_whose_grammar_leaves_nothing_has_no_id() -> None:
    bench = Bench()
    result = bench.run(prompt_row(0, (4,))._replace(constraint=Only()), prompt_row(1, (1,)))
    assert result.token_ids == (None, fake_continuation((1,), 1)[0])
    assert set(result.unmet) == {0}


def ahead(model: SteppingModel, config: EngineConfig) -> AheadDriver:
    def make(given: Model, arena: Arena, config: EngineConfig) -> GpuRunner:
        assert given is model
        return fake_gpu_runner(model, arena, config)

    return AheadDriver(Engine(model, config, make_runner=make))


def crowd(
    seed: int, params_of: Callable[[random.Random], SamplingParams]
) -> tuple[AheadDriver, dict[int, tuple[tuple[int, ...], SamplingParams]]]:
    """64 requests that arrive at random; every fourth is cancelled at random."""
    rng = random.Random(seed)
    config = EngineConfig(n_slots=7, max_num_batched_tokens=96, poison_freed_slots=True)
    driver = ahead(SteppingModel(), config)
    asked = dict[int, tuple[tuple[int, ...], SamplingParams]]()
    while len(asked) < 64 or not driver.is_idle:
        for _ in range(min(rng.randrange(4), 64 - len(asked))):
            prompt = tuple(rng.choices(range(64), k=rng.randint(1, 300)))
            params = params_of(rng)
            asked[driver.submit(prompt, params)] = prompt, params
        if rng.random() < 0.2:
            driver.cancel(rng.choice([i for i in asked if i % 4 == 0] or [0]))
        driver.step()
    return driver, asked


@pytest.mark.parametrize("seed", range(3))
def test_64_requests_that_come_and_go_get_the_ids_of_the_oracle(seed: int) -> None:
    driver, asked = crowd(seed, lambda rng: greedy(rng.randint(1, 20)))
    for request_id, (prompt, params) in asked.items():
        outcome = driver.outcomes[request_id]
        assert outcome.ids == fake_continuation(prompt, params.max_tokens)[: len(outcome.ids)]
        assert outcome.status is Status.CANCELLED or len(outcome.ids) == params.max_tokens
    statuses = [outcome.status for outcome in driver.outcomes.values()]
    assert statuses.count(Status.CANCELLED) >= 5
    assert driver.engine.stats()["n_free_slots"] == 7


@pytest.mark.parametrize("seed", range(3))
def test_stops_that_the_device_finds_end_requests_where_the_oracle_has_them(seed: int) -> None:
    stops = tuple(range(0, 64, 5))

    def params_of(rng: random.Random) -> SamplingParams:
        return replace(greedy(40), stop_ids=stops)

    driver, asked = crowd(seed, params_of)
    stopped = 0
    for request_id, (prompt, _) in asked.items():
        outcome = driver.outcomes[request_id]
        expected = fake_continuation(prompt, 41)
        n = next((at for at, one in enumerate(expected) if one in stops), 40)
        assert outcome.ids == expected[: min(n, 40, len(outcome.ids))]
        if outcome.status is Status.STOPPED:
            stopped += 1
            assert outcome.end is not None
            assert (len(outcome.ids), outcome.end.stop_id) == (n, expected[n])
    assert stopped > 20


def test_no_stop_comes_before_min_tokens() -> None:
    stops = tuple(range(0, 64, 2))
    driver = ahead(SteppingModel(), EngineConfig(n_slots=4))
    params = replace(greedy(30), stop_ids=stops, min_tokens=5)
    for slot in range(4):
        driver.submit((slot, 3), params)
    driver.finish()
    for outcome in driver.outcomes.values():
        assert len(outcome.ids) >= 5
        assert not set(outcome.ids[:5]) & set(stops)
