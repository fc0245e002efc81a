"""Over the hash model: no order of arrivals, cuts, ends and slots loses or doubles a token."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.driver import Driver, greedy
from tests.hash_model import VOCAB_SIZE, HashLog, HashModel, expected_words
from wkvm.core.config import EngineConfig
from wkvm.core.request import Status
from wkvm.models.base import Batch
from wkvm.state.arena import Arena


def batch(rows: dict[int, list[int]]) -> Batch:
    """One step with a row for each slot, and logits after each row."""
    ids = [token_id for row in rows.values() for token_id in row]
    lengths = [len(row) for row in rows.values()]
    ends = torch.tensor(lengths).cumsum(0) - 1
    return Batch(
        token_ids=torch.tensor(ids),
        slots=torch.tensor(list(rows), dtype=torch.int32),
        lengths=tuple(lengths),
        slot_list=tuple(rows),
        logit_rows=ends,
    )


@given(
    ids=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 39)),
)
def test_its_record_is_a_function_of_the_tokens_and_not_of_how_they_were_cut(
    ids: list[int], cuts: set[int]
) -> None:
    model = HashModel()
    arena = Arena(model.layout, 2, "cpu")
    places = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    for start, end in itertools.pairwise(places):
        logits = model.forward(batch({1: ids[start:end]}), arena.views)
    assert arena.views["hash.words"][1].tolist() == expected_words(ids)
    assert logits[0].tolist() == HashLog(ids).logits()
    assert not arena.records[0].any()


@pytest.mark.parametrize("byte", [0, 7, 1568, 1571])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_wrong_bit_anywhere_in_its_pages_changes_what_follows(byte: int, bit: int) -> None:
    model = HashModel(has_guest=True)
    arena = Arena(model.layout, 2, "cpu", n_pages=2)
    pool = arena.pool
    assert pool is not None
    pool.grant(0, [1])
    pool.grant(1, [0])
    model.forward(batch({0: [3, 1, 4, 1, 5], 1: [3, 1, 4, 1, 5]}), arena.views)
    pool.page_bytes[0, byte] ^= 1 << bit
    logits = model.forward(batch({0: [5], 1: [5]}), arena.views)
    assert logits[0].tolist() == HashLog([3, 1, 4, 1, 5, 5]).logits()
    assert not torch.equal(logits[0], logits[1])


@given(word=st.integers(0, 63), bit=st.integers(0, 63), data=st.data())
def test_one_wrong_bit_anywhere_in_its_record_changes_what_follows(
    word: int, bit: int, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=5))
    model = HashModel()
    arena = Arena(model.layout, 2, "cpu")
    if ids:
        model.forward(batch({0: ids, 1: ids}), arena.views)
    arena.records[1, 8 * word + bit // 8] ^= 1 << bit % 8
    logits = model.forward(batch({0: [5], 1: [5]}), arena.views)
    assert not torch.equal(logits[0], logits[1])
    assert not torch.equal(arena.records[0], arena.records[1])


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_arrivals_budgets_slots_and_cancellations_changes_an_id(seed: int) -> None:
    rng = random.Random(seed)
    config = EngineConfig(
        n_slots=rng.choice([1, 2, 3, 5, 8, 17, 32]),
        max_num_batched_tokens=rng.choice([1, 16, 64, 65, 100, 128, 256, 10**9]),
        decode_prompt_tokens=rng.choice([None, 1, 64, 200]),
        poison_freed_slots=True,
    )
    driver = Driver(HashModel(), config)
    lengths = [
        rng.choice([1, 2, 63, 64, 65, 127, 128, 129, rng.randint(1, 400)]) for _ in range(48)
    ]
    waiting = [tuple(rng.choices(range(VOCAB_SIZE), k=length)) for length in lengths]
    asked = dict[int, tuple[tuple[int, ...], int]]()
    while waiting or not driver.is_idle:
        for _ in range(min(rng.randrange(6), len(waiting))):
            prompt, n = waiting.pop(), rng.randint(1, 30)
            asked[driver.submit(prompt, greedy(n))] = prompt, n
        if asked and rng.random() < 0.1:
            driver.cancel(rng.choice(list(asked)))
        driver.step()
    for request_id, (prompt, n) in asked.items():
        outcome = driver.outcomes[request_id]
        assert outcome.ids == HashLog(prompt).generate(n)[: len(outcome.ids)]
        assert outcome.status is Status.CANCELLED or len(outcome.ids) == n
