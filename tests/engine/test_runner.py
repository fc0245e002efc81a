"""Steps from plan to result, on hand-made plans."""

import pytest
import torch

from tests.fakes import FakeModel, fake_continuation, fake_logits, state_of
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.sampling import SamplingParams
from wkvm.engine.runner import Runner
from wkvm.models.base import Batch, StateViews
from wkvm.state.arena import Arena

GREEDY = SamplingParams(temperature=0)


def prompt_row(slot: int, ids: tuple[int, ...], params: SamplingParams = GREEDY) -> RowPlan:
    return RowPlan(slot + 1, slot, ids, 0, len(ids), True, True, 0, params, 0, 0)


class Bench:
    """A runner over the fake model, with its arena in reach."""

    def __init__(self, model: FakeModel | None = None, *, poison_freed: bool = False) -> None:
        self.model = model or FakeModel()
        self.arena = Arena(self.model.layout, 4, "cpu")
        self.runner = Runner(self.model, self.arena, poison_freed=poison_freed)

    def run(self, *rows: RowPlan, freed: tuple[int, ...] = ()) -> StepResult:
        return self.runner.run(StepPlan(rows, freed))

    def state(self, slot: int) -> int:
        return int(self.arena.views["fake.hash"][slot, 0]) & (2**64 - 1)


def test_rows_of_different_lengths_are_absorbed_and_sampled() -> None:
    bench = Bench()
    prompts = [(1, 2, 3), (4,), (5, 6)]
    result = bench.run(*[prompt_row(2 - i, prompt) for i, prompt in enumerate(prompts)])
    assert list(result.token_ids) == [fake_continuation(p, 1)[0] for p in prompts]
    assert [bench.state(2 - i) for i in range(3)] == [state_of(p) for p in prompts]
    assert bench.state(3) == 0


def test_a_row_that_does_not_sample_has_no_id() -> None:
    bench = Bench()
    part = prompt_row(0, (1, 2))._replace(n_prompt=4, samples=False)
    result = bench.run(part, prompt_row(1, (3,)))
    assert result.token_ids == (None, fake_continuation((3,), 1)[0])
    assert bench.run(prompt_row(2, (1,))._replace(samples=False)).token_ids == (None,)
    rest = part._replace(ids=(3, 4), position=2, fresh=False, samples=True)
    assert list(bench.run(rest).token_ids) == fake_continuation((1, 2, 3, 4), 1)


def test_a_fresh_row_finds_zeros_whatever_was_there() -> None:
    bench = Bench()
    bench.arena.poison([0, 1])
    result = bench.run(prompt_row(0, (1, 2)))
    assert list(result.token_ids) == fake_continuation((1, 2), 1)


def test_freed_slots_are_poisoned_only_if_asked_for() -> None:
    for poison_freed in (False, True):
        bench = Bench(poison_freed=poison_freed)
        bench.run(prompt_row(0, (1,)), prompt_row(1, (2,)))
        bench.run(prompt_row(2, (3,)), freed=(0,))
        assert bool(bench.arena.views["fake.zero"][0].isnan().all()) is poison_freed
        assert bench.state(1) == state_of((2,))


def test_what_was_remembered_of_a_freed_slot_is_dropped() -> None:
    bench = Bench()
    bench.run(prompt_row(0, (1, 2), SamplingParams(presence_penalty=1)))
    assert bench.runner.sampler.n_remembered == 1
    bench.run(prompt_row(1, (3,)), freed=(0,))
    assert bench.runner.sampler.n_remembered == 0


def test_a_slot_that_was_freed_and_given_again_starts_from_zero() -> None:
    bench = Bench(poison_freed=True)
    bench.run(prompt_row(0, (1, 2)))
    result = bench.run(prompt_row(0, (3,)), freed=(0,))
    assert list(result.token_ids) == fake_continuation((3,), 1)


def test_a_stale_slot_would_show() -> None:
    # What the tests above rely on: without a fresh start the ids differ, or are not finite.
    bench = Bench()
    bench.run(prompt_row(0, (1, 2)))
    stale = bench.run(prompt_row(0, (3,))._replace(fresh=False))
    assert list(stale.token_ids) != fake_continuation((3,), 1)
    bench.arena.poison([0])
    assert bench.run(prompt_row(0, (3,))._replace(fresh=False)).not_finite == {0}


class OneBadRow(FakeModel):
    """Its logits hold one NaN in every row whose slot is 2."""

    def forward(self, batch: Batch, states: StateViews) -> torch.Tensor:
        logits = super().forward(batch, states)
        owners = [
            slot for slot, n in zip(batch.slot_list, batch.lengths, strict=True) for _ in range(n)
        ]
        for at, token in enumerate(batch.logit_rows.tolist()):
            if owners[token] == 2:
                logits[at, 7] = float("nan")
        return logits


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, top_p=0.9, logprobs=2)])
def test_a_row_that_is_not_finite_is_named_and_the_others_are_unchanged(
    params: SamplingParams,
) -> None:
    rows = [prompt_row(slot, (slot, 1), params) for slot in range(4)]
    good, bad = Bench().run(*rows), Bench(OneBadRow()).run(*rows)
    assert bad.not_finite == {2}
    assert bad.token_ids == (*good.token_ids[:2], None, good.token_ids[3])
    assert set(bad.logprobs) == set(good.logprobs) - {2}


def test_a_row_whose_prompt_scores_are_not_finite_is_named_too() -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    part = prompt_row(2, (1, 2, 3), params)._replace(n_prompt=9, samples=False, next_id=4)
    result = Bench(OneBadRow()).run(part)
    assert result.not_finite == {0}
    assert result.prompt_logprobs == {}


def log_softmax(logits: list[float]) -> list[float]:
    return torch.log_softmax(torch.tensor(logits), -1).tolist()


def test_prompt_logprobs_score_each_id_by_what_came_before_it() -> None:
    prompt = (5, 6, 7, 8, 9)
    params = SamplingParams(temperature=0, prompt_logprobs=3, logprobs=1)
    bench = Bench()
    first = prompt_row(0, prompt[:2], params)._replace(n_prompt=5, samples=False, next_id=7)
    second = prompt_row(0, prompt[2:], params)._replace(n_prompt=5, position=2, fresh=False)
    results = [bench.run(prompt_row(1, (1,)), first), bench.run(second, prompt_row(1, (1,)))]
    scored = [*results[0].prompt_logprobs[1], *results[1].prompt_logprobs[0]]
    assert [len(results[0].prompt_logprobs), len(results[1].prompt_logprobs)] == [1, 1]
    assert [one.token_id for one in scored] == [6, 7, 8, 9]
    for at, one in enumerate(scored):
        expected = log_softmax(fake_logits(prompt[: at + 1]))
        order = sorted(range(64), key=lambda i: (-expected[i], i))
        assert one.logprob == expected[one.token_id]
        assert one.rank == order.index(one.token_id) + 1
        assert [(top.token_id, top.logprob) for top in one.top] == [
            (i, expected[i]) for i in order[:3]
        ]
    # The last of the prompt's logits belong to the sampled id.
    sampled = results[1].logprobs[0]
    assert sampled.token_id == results[1].token_ids[0]
    assert (sampled.rank, len(sampled.top)) == (1, 1)


def test_ids_after_the_prompt_are_not_scored() -> None:
    row = prompt_row(0, (1, 2, 3, 4), SamplingParams(prompt_logprobs=0))._replace(n_prompt=2)
    scored = Bench().run(row).prompt_logprobs[0]
    assert [one.token_id for one in scored] == [2]


def test_each_row_gets_as_many_likeliest_ids_as_it_asked_for() -> None:
    asked = [0, 5, None, 20]
    rows = [
        prompt_row(slot, (slot,), SamplingParams(temperature=0, logprobs=n))
        for slot, n in enumerate(asked)
    ]
    result = Bench().run(*rows)
    assert {at: len(one.top) for at, one in result.logprobs.items()} == {0: 0, 1: 5, 3: 20}


def test_more_likeliest_ids_than_there_are_is_all_of_them() -> None:
    row = prompt_row(0, (1,), SamplingParams(logprobs=20, prompt_logprobs=20))
    result = Bench(FakeModel(vocab_size=8)).run(row)
    assert len(result.logprobs[0].top) == 8


def test_what_the_model_raises_comes_through() -> None:
    def fail(batch: Batch) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Bench(FakeModel(before_forward=fail)).run(prompt_row(0, (1,)))
