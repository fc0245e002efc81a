"""What holds of any state, for a small random model of every architecture."""

import random
from dataclasses import replace

import pytest
import torch

from tests.engine.driver import Driver, greedy
from tests.engine.families import CONFIGS, config_of, decoder_of, prompt_of
from tests.engine.test_exactness import crowd
from tests.engine.test_states import save, start_of
from wkvm.core.request import RequestSpec
from wkvm.models.decoder import Decoder


@pytest.fixture(params=list(CONFIGS))
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return decoder_of(request.param)


def test_a_request_gets_the_ids_that_it_gets_alone(decoder: Decoder) -> None:
    prompts = [prompt_of(random.Random(seed).randint(1, 150), seed) for seed in range(12)]
    config = config_of(decoder, n_slots=4, max_num_batched_tokens=96)
    outcomes = crowd(decoder, prompts, seed=1, config=config)
    alone = Driver(decoder, config_of(decoder, n_slots=1))
    for prompt, n, ids, _ in outcomes.values():
        assert ids == alone.run(prompt, greedy(n)).ids[: len(ids)]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("k", [1, 6])
def test_a_state_goes_on_with_the_bits_of_one_run(
    decoder: Decoder, deterministic: bool, k: int
) -> None:
    driver = Driver(decoder, config_of(decoder, n_slots=2, deterministic=deterministic))
    prompt = prompt_of(70)
    whole = save(driver, prompt, greedy(12))
    first = save(driver, prompt, greedy(k))
    second = driver.run_spec(
        RequestSpec(prompt=(), params=greedy(12 - k), start=start_of(first.last), save=True)
    )
    assert first.ids + second.ids == whole.ids
    assert torch.equal(second.last.record, whole.last.record)


def test_forks_go_their_own_ways(decoder: Decoder) -> None:
    driver = Driver(decoder, config_of(decoder, n_slots=4))
    stem = save(driver, prompt_of(130), greedy(3))
    start = start_of(stem.last)
    tails = [prompt_of(5, seed) for seed in range(1, 4)]
    before = stem.last.record.clone()
    specs = [RequestSpec(prompt=tail, params=greedy(8), start=start, save=True) for tail in tails]
    forks = [driver.begin(spec)[0] for spec in specs]
    driver.finish()
    alone = Driver(decoder, config_of(decoder, n_slots=1))
    for fork, spec in zip(forks, specs, strict=True):
        given = driver.outcomes[fork]
        expected = alone.run_spec(replace(spec, start=replace(start)))
        assert given.ids == expected.ids
        differences = given.last.record.view(torch.float32) - expected.last.record.view(
            torch.float32
        )
        assert differences.abs().max() < 1e-4
    assert torch.equal(stem.last.record, before)


def test_what_a_slot_held_before_changes_nothing(decoder: Decoder) -> None:
    driver = Driver(decoder, config_of(decoder, n_slots=1))
    fresh = driver.run(prompt_of(66, 5), greedy(6)).ids
    for seed in range(6, 9):
        driver.run(prompt_of(100, seed), greedy(4))
    assert driver.run(prompt_of(66, 5), greedy(6)).ids == fresh
