"""A request's ids are those that it gets alone: whatever runs beside it, before it, in its slot."""

import json
import random
from dataclasses import replace

import pytest

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Driver, greedy
from tests.fakes import FakeModel, fake_continuation
from wkvm.core.config import EngineConfig
from wkvm.core.request import Status
from wkvm.models.base import Model

BUDGETS = [1, 16, 64, 100, 256, 10**9]


def crowd(
    model: Model, prompts: list[tuple[int, ...]], *, seed: int, config: EngineConfig
) -> dict[int, tuple[tuple[int, ...], int, list[int], Status | None]]:
    """Greedy requests that arrive at random; every fourth is cancelled at random.

    Returns:
        By request: prompt, ``max_tokens``, the ids that came and the last status.
    """
    rng = random.Random(seed)
    driver = Driver(model, config)
    asked = dict[int, tuple[tuple[int, ...], int]]()
    waiting = list(prompts)
    while waiting or not driver.is_idle:
        for _ in range(min(rng.randrange(4), len(waiting))):
            prompt, n = waiting.pop(), rng.randint(1, 20)
            asked[driver.submit(prompt, greedy(n))] = prompt, n
        if rng.random() < 0.1:
            driver.cancel(rng.choice([i for i in asked if i % 4 == 0] or [0]))
        driver.step()
    return {i: (*asked[i], o.ids, o.status) for i, o in driver.outcomes.items()}


def crowded(n_slots: int) -> EngineConfig:
    return EngineConfig(n_slots=n_slots, max_num_batched_tokens=96, poison_freed_slots=True)


def test_64_requests_that_come_and_go_get_the_ids_of_the_oracle() -> None:
    rng = random.Random(1)
    prompts = [tuple(rng.choices(range(64), k=rng.randint(1, 300))) for _ in range(64)]
    outcomes = crowd(FakeModel(), prompts, seed=2, config=crowded(7))
    for prompt, n, ids, status in outcomes.values():
        assert ids == fake_continuation(prompt, n)[: len(ids)]
        assert status is Status.CANCELLED or len(ids) == n
    assert sum(status is Status.CANCELLED for *_, status in outcomes.values()) >= 5


def text_ids() -> list[int]:
    golden = json.loads((BUNDLED / "golden.json").read_text())
    return [i for entry in golden for i in entry["prompt_ids"] + entry["continuation_ids"]]


def test_64_requests_that_come_and_go_get_the_ids_that_the_bundled_model_gives_alone(
    bundled: Model,
) -> None:
    rng, text = random.Random(3), text_ids()
    starts = [(rng.randrange(len(text) - 150), rng.randint(1, 100)) for _ in range(64)]
    prompts = [tuple(text[start : start + n]) for start, n in starts]
    outcomes = crowd(bundled, prompts, seed=4, config=crowded(16))
    alone = Driver(bundled, EngineConfig(n_slots=1))
    for prompt, n, ids, status in outcomes.values():
        assert ids == alone.run(prompt, greedy(n)).ids[: len(ids)]
        assert status is Status.CANCELLED or len(ids) == n


def test_64_identical_prompts_at_once_give_one_answer(bundled: Model) -> None:
    prompt = tuple(text_ids()[:35])
    driver = Driver(bundled, EngineConfig(n_slots=64))
    for _ in range(64):
        driver.submit(prompt, greedy(8))
    driver.finish()
    answers = {tuple(outcome.ids) for outcome in driver.outcomes.values()}
    alone = Driver(bundled, EngineConfig(n_slots=1)).run(prompt, greedy(8)).ids
    assert answers == {tuple(alone)}


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_budget_of_a_step_changes_no_id(bundled: Model, budget: int) -> None:
    prompts = tuple(text_ids()[:330]), tuple(text_ids()[330:350])
    config = EngineConfig(n_slots=2, max_num_batched_tokens=budget)
    driver = Driver(bundled, config)
    ids = [driver.submit(prompt, greedy(6)) for prompt in prompts]
    driver.finish()
    alone = Driver(bundled, EngineConfig(n_slots=1))
    assert [driver.outcomes[i].ids for i in ids] == [
        alone.run(prompt, greedy(6)).ids for prompt in prompts
    ]


@pytest.mark.parametrize("budget", BUDGETS)
def test_no_token_is_lost_or_doubled_under_any_budget(budget: int) -> None:
    config = EngineConfig(n_slots=2, max_num_batched_tokens=budget)
    driver = Driver(FakeModel(), config)
    prompts = [tuple(range(64)) * 5, (1, 2, 3), (7,) * 129]
    ids = [driver.submit(prompt, greedy(5)) for prompt in prompts]
    driver.finish()
    assert [driver.outcomes[i].ids for i in ids] == [fake_continuation(p, 5) for p in prompts]


def test_no_prompt_length_is_special() -> None:
    driver = Driver(FakeModel(), EngineConfig(n_slots=3, max_num_batched_tokens=64))
    prompts = [tuple(i % 61 for i in range(n)) for n in range(1, 131)]
    ids = [driver.submit(prompt, greedy(3)) for prompt in prompts]
    driver.finish()
    assert [driver.outcomes[i].ids for i in ids] == [fake_continuation(p, 3) for p in prompts]


def test_no_prompt_length_is_special_to_the_bundled_model(bundled: Model) -> None:
    text = tuple(text_ids()[:131])
    driver = Driver(bundled, EngineConfig(n_slots=64, max_num_batched_tokens=10**9))
    ids = [driver.submit(text[:n], greedy(1)) for n in range(1, 131)]
    driver.finish()
    # The likeliest id after each prefix, from one pass over all of them.
    whole = driver.run(text, replace(greedy(1), prompt_logprobs=1)).prompt_logprobs
    assert [driver.outcomes[i].ids for i in ids] == [[at.top[0].token_id] for at in whole]
