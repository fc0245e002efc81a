"""The sampler's memory: penalties follow the token log, and nothing else."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.driver import Driver
from tests.fakes import FakeModel, fake_logits
from wkvm.core.config import EngineConfig
from wkvm.core.plan import RowPlan
from wkvm.core.sampling import SamplingParams
from wkvm.engine.sampler import Sampler

VOCAB = 64


def naive_continuation(
    prompt: Sequence[int], params: SamplingParams, vocab_size: int = VOCAB
) -> list[int]:
    """Greedy decoding of the fake model with penalties, by the book, in float32."""
    ids = list(prompt)
    counts = [np.float32(0)] * vocab_size
    output = list[int]()
    repetition = np.float32(params.repetition_penalty)
    presence = np.float32(params.presence_penalty)
    frequency = np.float32(params.frequency_penalty)
    for _ in range(params.max_tokens):
        logits = [np.float32(x) for x in fake_logits(ids, vocab_size)]
        for i in range(vocab_size):
            if i in ids:
                logits[i] = logits[i] / repetition if logits[i] > 0 else logits[i] * repetition
            if i in output:
                logits[i] = logits[i] - presence
            logits[i] = logits[i] - counts[i] * frequency
        token_id = max(range(vocab_size), key=lambda i: (logits[i], -i))
        counts = [count * np.float32(params.penalty_decay) for count in counts]
        counts[token_id] += np.float32(1)
        output.append(token_id)
        ids.append(token_id)
    return output


BASE = SamplingParams(temperature=0, max_tokens=60)
PENALTIES = [
    replace(BASE, repetition_penalty=1.3),
    replace(BASE, repetition_penalty=0.9),
    replace(BASE, presence_penalty=1.5),
    replace(BASE, presence_penalty=-2.0),
    replace(BASE, frequency_penalty=0.7),
    replace(BASE, frequency_penalty=-0.3, presence_penalty=0.2),
    replace(BASE, frequency_penalty=2.0, penalty_decay=0.7),
    replace(
        BASE,
        repetition_penalty=1.1,
        presence_penalty=0.4,
        frequency_penalty=0.4,
        penalty_decay=0.996,
    ),
]


@pytest.mark.parametrize("params", PENALTIES)
def test_penalties_equal_a_naive_reference(params: SamplingParams) -> None:
    prompt = (5, 9, 9, 3)
    model = FakeModel()
    plain = Driver(model).run(prompt, BASE).ids
    ids = Driver(model).run(prompt, params).ids
    assert ids == naive_continuation(prompt, params)
    assert ids != plain


def test_requests_with_and_without_penalties_share_slots_over_time() -> None:
    rng = random.Random(1)
    driver = Driver(FakeModel(), EngineConfig(n_slots=4, max_num_batched_tokens=64))
    asked = dict[int, tuple[tuple[int, ...], SamplingParams]]()
    for _ in range(80):
        prompt = tuple(rng.choices(range(VOCAB), k=rng.choice([1, 3, 150])))
        params = replace(rng.choice([BASE, *PENALTIES]), max_tokens=rng.randint(1, 12))
        asked[driver.submit(prompt, params)] = prompt, params
        for _ in range(rng.randrange(6)):
            driver.step()
    driver.finish()
    for request_id, (prompt, params) in asked.items():
        assert driver.outcomes[request_id].ids == naive_continuation(prompt, params)


def test_where_a_prompt_is_cut_does_not_matter() -> None:
    prompt = tuple(i * 7 % 50 for i in range(200))
    params = replace(PENALTIES[-1], max_tokens=10)
    answers = {
        tuple(
            Driver(FakeModel(), EngineConfig(max_num_batched_tokens=budget)).run(prompt, params).ids
        )
        for budget in (64, 128, 1000)
    }
    assert len(answers) == 1


def test_any_number_of_distinct_ids_is_remembered() -> None:
    prompt = tuple(range(0, 200, 3))
    params = replace(PENALTIES[-1], frequency_penalty=4.0, max_tokens=150)
    ids = Driver(FakeModel(vocab_size=400)).run(prompt, params).ids
    assert len(set(ids)) > 100
    assert ids == naive_continuation(prompt, params, vocab_size=400)


def test_a_fresh_row_starts_from_no_counts_whatever_the_slot_held() -> None:
    row = RowPlan(1, 0, (1, 2), 0, 2, True, True, 0, PENALTIES[0], 0, 0)
    logits = torch.ones(1, VOCAB)
    logits[0, 3] = 1.01
    used = Sampler(VOCAB, "cpu")
    used.feed([row._replace(ids=(3, 3))])
    assert used.choose([row], logits).tolist() == [0]
    used.feed([row])
    assert used.choose([row], logits).tolist() == [3]


def test_slots_hold_no_counts_once_they_are_freed() -> None:
    sampler = Sampler(VOCAB, "cpu")
    row = RowPlan(1, 0, (1, 2), 0, 2, True, True, 0, PENALTIES[0], 0, 0)
    sampler.feed([row, row._replace(slot=1), row._replace(slot=2, params=BASE)])
    assert sampler.n_remembered == 2
    sampler.forget([0, 2])
    assert sampler.n_remembered == 1
    sampler.feed([row._replace(slot=1, params=BASE)])
    assert sampler.n_remembered == 0
