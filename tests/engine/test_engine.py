"""An engine over the fake model: what requests ask for is what they get."""

import logging
from dataclasses import replace

import pytest
import torch

from tests.engine.driver import Driver, Outcome, greedy
from tests.fakes import FakeModel, fake_continuation, fake_logits
from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError, NonFiniteError, StepFailedError
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine import engine as engine_module
from wkvm.engine.engine import Engine
from wkvm.models.base import Batch, Model, StateViews

PROMPT = (3, 1, 4, 1, 5)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=12, seed=41)


def ids_of(
    params: SamplingParams, choice: int = 0, config: EngineConfig | None = None
) -> list[int]:
    return Driver(FakeModel(), config).run(PROMPT, params, choice).ids


# --- random numbers -----------------------------------------------------------------------


def test_a_seed_reproduces_the_ids_whatever_runs_beside_it() -> None:
    alone = ids_of(SAMPLED)
    crowded = Driver(FakeModel(), EngineConfig(n_slots=8, seed=5))
    requests = [crowded.submit(PROMPT, replace(SAMPLED, seed=None)) for _ in range(6)]
    requests.append(crowded.submit(PROMPT, SAMPLED))
    crowded.finish()
    assert crowded.outcomes[requests[-1]].ids == alone


def test_without_a_seed_every_request_is_fresh() -> None:
    fresh = replace(SAMPLED, seed=None)
    driver = Driver(FakeModel())
    answers = [tuple(driver.run(PROMPT, fresh).ids) for _ in range(8)]
    answers += [tuple(ids_of(fresh)) for _ in range(8)]
    assert len(set(answers)) == 16


def test_the_seed_of_the_configuration_reproduces_requests_in_their_order() -> None:
    fresh = replace(SAMPLED, seed=None)
    drivers = [Driver(FakeModel(), EngineConfig(seed=seed)) for seed in (9, 9, 10)]
    first, second, other = ([d.run(PROMPT, fresh).ids for _ in range(3)] for d in drivers)
    assert first == second
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_fresh_numbers_are_not_those_of_a_request_that_names_the_same_seed() -> None:
    config = EngineConfig(seed=41)
    fresh = ids_of(replace(SAMPLED, seed=None), config=config)
    named = [ids_of(replace(SAMPLED, n=8), branch) for branch in range(8)]
    assert fresh not in named


def test_branches_of_a_seed_differ_and_are_not_those_of_the_next_seed() -> None:
    wide = replace(SAMPLED, n=8)
    answers = [
        tuple(ids_of(replace(wide, seed=seed), branch))
        for seed in (40, 41, 42)
        for branch in range(8)
    ]
    assert len(set(answers)) == len(answers)
    assert ids_of(wide, 1) != ids_of(replace(wide, seed=42), 0)
    assert ids_of(wide, 3) == list(answers[8 + 3])


def test_choices_without_a_seed_draw_numbers_of_their_own() -> None:
    driver = Driver(FakeModel(), EngineConfig(seed=9))
    spec = RequestSpec(prompt=PROMPT, params=replace(SAMPLED, seed=None, n=3))
    request_ids = [*driver.engine.submit(spec, 0.0), *driver.engine.submit(spec, 0.0)]
    assert len(set(request_ids)) == 6
    plan = driver.engine.plan(0.0)
    assert plan is not None
    assert [row.request_id for row in plan.rows] == request_ids
    assert len({(row.seed, row.branch) for row in plan.rows}) == 6


def test_the_choice_is_the_branch_of_a_seed() -> None:
    engine = Driver(FakeModel()).engine
    request_ids = engine.submit(RequestSpec(prompt=PROMPT, params=replace(SAMPLED, n=5)), 0.0)
    plan = engine.plan(0.0)
    assert plan is not None
    keys = [(row.request_id, row.seed, row.branch) for row in plan.rows]
    assert keys == [(i, SAMPLED.seed, branch) for branch, i in enumerate(request_ids)]


def test_many_rows_draw_as_one_does_with_keys_of_all_64_bits() -> None:
    seeds = [2**64 - 1 - i for i in range(15)] + [2**63 + i for i in range(15)]
    driver = Driver(FakeModel())
    requests = [driver.submit(PROMPT, replace(SAMPLED, seed=seed)) for seed in seeds]
    driver.finish()
    for request_id, seed in zip(requests, seeds, strict=True):
        assert driver.outcomes[request_id].ids == ids_of(replace(SAMPLED, seed=seed))


def test_the_random_numbers_do_not_depend_on_how_the_prompt_was_cut() -> None:
    prompt = tuple(range(60)) * 4
    answers = {
        tuple(Driver(FakeModel(), EngineConfig(max_num_batched_tokens=n)).run(prompt, SAMPLED).ids)
        for n in (64, 1000)
    }
    assert len(answers) == 1


# --- when a request ends --------------------------------------------------------------------


def test_a_stop_id_ends_the_request_and_is_not_output() -> None:
    expected = fake_continuation(PROMPT, 30)
    stop = expected[4]
    outcome = Driver(FakeModel()).run(PROMPT, replace(greedy(30), stop_ids=(stop,)))
    assert outcome.end is not None
    assert (outcome.status, outcome.end.stop_id) == (Status.STOPPED, stop)
    assert outcome.ids == expected[: expected.index(stop)]
    assert outcome.end.n_output == len(outcome.ids)


def test_the_models_end_id_stops_unless_ignored() -> None:
    expected = fake_continuation(PROMPT, 10)
    model = FakeModel(eos_ids=(expected[3],))
    until = expected.index(expected[3])
    stopped = Driver(model).run(PROMPT, replace(greedy(10), ignore_eos=False))
    assert (stopped.status, stopped.ids) == (Status.STOPPED, expected[:until])
    ignoring = Driver(model).run(PROMPT, greedy(10))
    assert (ignoring.status, ignoring.ids) == (Status.LENGTH, expected)


def test_no_stop_id_is_sampled_before_min_tokens() -> None:
    first = fake_continuation(PROMPT, 1)[0]
    params = replace(greedy(20), stop_ids=(first,), min_tokens=6)
    outcome = Driver(FakeModel()).run(PROMPT, params)
    ids = list(PROMPT)
    for _ in range(6):
        logits = fake_logits(ids)
        logits[first] = -1
        ids.append(logits.index(max(logits)))
    assert outcome.ids[:6] == ids[len(PROMPT) :]
    assert first not in outcome.ids


def test_after_min_tokens_stop_ids_stop_again() -> None:
    params = replace(greedy(500), stop_ids=tuple(range(32)), min_tokens=4)
    outcome = Driver(FakeModel()).run(PROMPT, params)
    assert outcome.status is Status.STOPPED
    assert len(outcome.ids) >= 4
    assert all(token_id >= 32 for token_id in outcome.ids)


def test_max_tokens_0_absorbs_the_prompt_and_scores_it() -> None:
    params = replace(greedy(0), prompt_logprobs=0)
    outcome = Driver(FakeModel()).run(PROMPT, params)
    assert (outcome.status, outcome.ids) == (Status.LENGTH, [])
    assert [one.token_id for one in outcome.prompt_logprobs] == list(PROMPT[1:])


def test_a_request_that_stops_at_its_first_token_leaves_the_next_one_whole() -> None:
    driver = Driver(FakeModel(), EngineConfig(n_slots=1, poison_freed_slots=True))
    first = fake_continuation(PROMPT, 1)[0]
    stopping = replace(greedy(5), stop_ids=(first,))
    expected = fake_continuation(PROMPT[1:], 2)
    for _ in range(1000):
        stopped = driver.submit(PROMPT, stopping)
        following = driver.submit(PROMPT[1:], greedy(2))
        driver.finish()
        assert driver.outcomes.pop(stopped).ids == []
        assert driver.outcomes.pop(following).ids == expected


@pytest.mark.parametrize("n_steps", range(12))
def test_a_request_cancelled_after_any_step_ends_and_touches_no_other(n_steps: int) -> None:
    # One slot for two: the second waits at first. The prompt takes three steps.
    config = EngineConfig(n_slots=1, max_num_batched_tokens=64, poison_freed_slots=True)
    prompt = tuple(range(64)) * 3
    for victim in (0, 1):
        driver = Driver(FakeModel(), config)
        requests = [driver.submit(prompt, greedy(4)) for _ in range(2)]
        for _ in range(n_steps):
            driver.step()
        driver.cancel(requests[victim])
        driver.cancel(requests[victim])
        driver.finish()
        cancelled, other = (driver.outcomes[requests[i]] for i in (victim, 1 - victim))
        expected = fake_continuation(prompt, 4)
        assert cancelled.status in (Status.CANCELLED, Status.LENGTH)
        assert cancelled.ids == expected[: len(cancelled.ids)]
        assert other.ids == expected
        assert driver.engine.stats()["n_free_slots"] == 1


def test_cancelling_an_unknown_request_does_nothing() -> None:
    driver = Driver(FakeModel())
    driver.cancel(99)
    assert driver.run(PROMPT, greedy(2)).ids == fake_continuation(PROMPT, 2)


# --- what goes wrong --------------------------------------------------------------------------


class OneBadSlot(FakeModel):
    """From its third batch on, logits of slot 5 are NaN."""

    def forward(self, batch: Batch, states: StateViews) -> torch.Tensor:
        logits = super().forward(batch, states)
        if self.n_forwards >= 3:
            logits[batch.slot_list.index(5)] = float("nan")
        return logits


def test_a_row_that_is_not_finite_ends_only_its_own_request() -> None:
    model = OneBadSlot()
    driver = Driver(model, EngineConfig(n_slots=8))
    requests = [driver.submit((i, i), greedy(3 if i == 5 else 6)) for i in range(8)]
    for _ in range(3):
        driver.step()
    model.n_forwards = -100
    driver.finish()
    failed = driver.outcomes.pop(requests[5])
    assert failed.end is not None
    assert failed.status is Status.FINISHED_ERROR
    assert isinstance(failed.end.error, NonFiniteError)
    assert failed.end.error.position == 4
    assert failed.ids == fake_continuation((5, 5), 2)
    for i, outcome in zip([0, 1, 2, 3, 4, 6, 7], driver.outcomes.values(), strict=True):
        assert outcome.ids == fake_continuation((i, i), 6)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = FakeModel()
    driver = Driver(model, EngineConfig(n_slots=2, poison_freed_slots=True))
    requests = [driver.submit((i, i), greedy(4)) for i in range(3)]
    driver.step()

    def fail(batch: Batch) -> None:
        raise RuntimeError("out of luck")

    model.before_forward = fail
    with caplog.at_level(logging.ERROR):
        driver.step()
    model.before_forward = None
    assert "out of luck" in caplog.text
    driver.finish()
    for i in requests[:2]:
        end = driver.outcomes[i].end
        assert end is not None
        assert isinstance(end.error, StepFailedError)
        assert "luck" not in str(end.error)
    assert driver.outcomes[requests[2]].ids == fake_continuation((2, 2), 4)


# --- log probabilities ------------------------------------------------------------------------


def score(model: Model, prompt: tuple[int, ...], config: EngineConfig) -> Outcome:
    """Prompt log probabilities of ``prompt``, beside a request without."""
    driver = Driver(model, config)
    driver.submit((1,), greedy(20))
    return driver.run(prompt, replace(greedy(0), prompt_logprobs=2))


@pytest.mark.parametrize("budget", [64, 1000])
def test_the_ids_output_score_as_much_when_they_are_a_prompt(budget: int) -> None:
    prompt = tuple(range(64)) * 2
    config = EngineConfig(max_num_batched_tokens=budget)
    outcome = Driver(FakeModel(), config).run(
        prompt, replace(SAMPLED, logprobs=2, prompt_logprobs=2)
    )
    again = score(FakeModel(), (*prompt, *outcome.ids), config)
    assert again.prompt_logprobs == outcome.prompt_logprobs + outcome.logprobs


def test_the_bundled_models_output_scores_as_much_when_it_is_a_prompt(bundled: Model) -> None:
    prompt = tuple(range(500, 570))
    params = SamplingParams(max_tokens=30, seed=1, logprobs=1, prompt_logprobs=1, ignore_eos=True)
    config = EngineConfig(max_num_batched_tokens=64)
    outcome = Driver(bundled, config).run(prompt, params)
    again = score(bundled, (*prompt, *outcome.ids), config)
    streamed = [one.logprob for one in outcome.prompt_logprobs]
    streamed += [one.logprob for one in outcome.logprobs if one is not None]
    assert len(streamed) == 99
    assert [one.logprob for one in again.prompt_logprobs] == pytest.approx(streamed, abs=1e-4)


def test_logprobs_are_of_the_raw_logits_whatever_shapes_the_choice() -> None:
    params = replace(
        greedy(4),
        logprobs=1,
        logit_bias=((7, 100.0),),
        presence_penalty=0.0,
        frequency_penalty=0.1,
        temperature=0.5,
    )
    outcome = Driver(FakeModel()).run(PROMPT, params)
    assert outcome.ids == [7, 7, 7, 7]
    ids = list(PROMPT)
    for one in outcome.logprobs:
        assert one is not None
        assert one.logprob == torch.log_softmax(torch.tensor(fake_logits(ids)), -1)[7].item()
        ids.append(7)


# --- which ids may be chosen ------------------------------------------------------------------


def test_only_allowed_ids_are_chosen() -> None:
    allowed = (60, 2, 33)
    params = replace(SAMPLED, allowed_ids=allowed, max_tokens=60)
    assert set(ids_of(params)) == set(allowed)


def test_bias_adds_up_and_decides() -> None:
    params = replace(greedy(5), logit_bias=((9, 50.0), (9, 50.0), (8, 60.0)))
    assert ids_of(params) == [9] * 5


def test_greedy_and_sampling_rows_of_one_step_do_not_disturb_each_other() -> None:
    kinds = [
        greedy(12),
        SAMPLED,
        replace(SAMPLED, top_k=5),
        replace(SAMPLED, top_p=0.8),
        replace(SAMPLED, min_p=0.1, temperature=2.0),
        replace(greedy(12), logit_bias=((3, 4.0),)),
        replace(SAMPLED, allowed_ids=(1, 2, 3), frequency_penalty=0.5),
        replace(SAMPLED, stop_ids=(1, 2), min_tokens=12),
    ]
    model = FakeModel()
    driver = Driver(model, EngineConfig(n_slots=40))
    requests = [driver.submit(PROMPT, params) for params in kinds * 5]
    driver.finish()
    together = [driver.outcomes[i].ids for i in requests]
    assert together == [Driver(model).run(PROMPT, params).ids for params in kinds] * 5


# --- the whole --------------------------------------------------------------------------------


def test_info_is_that_of_the_model_and_the_configuration() -> None:
    model = FakeModel(eos_ids=(3, 4))
    config = EngineConfig(n_slots=5, max_model_len=77)
    info = Engine(model, config, served_name="small", tokenizer_digest="ab").info
    assert (info.model, info.tokenizer_digest) == ("small", "ab")
    assert (info.model_digest, info.layout_fingerprint) == ("0" * 64, model.layout.fingerprint)
    assert (info.vocab_size, info.eos_ids) == (64, (3, 4))
    assert (info.n_slots, info.max_model_len) == (5, 77)
    assert Engine(model, config).info.model == "fake"


def test_a_step_without_work_runs_no_forward() -> None:
    model = FakeModel()
    assert Engine(model, EngineConfig()).step(0.0) == []
    assert model.n_forwards == 0


def test_more_slots_than_memory_are_a_setting_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*arguments: object, **_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(engine_module, "Arena", no_memory)
    with pytest.raises(ConfigError, match=r"^slots: no memory for \d+ bytes"):
        Engine(FakeModel(), EngineConfig())
