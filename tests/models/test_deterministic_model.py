"""A deterministic model on a GPU: prompts and decoding have bits that no batch or cut changes."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, batch_of, random_weights, write_pth
from wkvm.core.config import CUT_MULTIPLE
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

pytestmark = pytest.mark.gpu

N_DECODED = 3
BUCKETS = (1, 2, 5, 16, 30, 64, 100, 128, 200, 300)


def absorb(model: Model, prompt: list[int], ids: list[int], seed: int) -> dict[str, Tensor]:
    """A prompt cut at random, then ids one by one, with strangers in every step.

    Returns:
        Logits after the prompt and after each id, and the state in the end.
    """
    chance = random.Random(seed)
    n_rows = BUCKETS[seed % len(BUCKETS)]
    vocab_size = model.info.vocab_size
    arena = Arena(model.layout, n_rows + 1, "cuda")
    arena.zero(range(n_rows + 1))
    slots = chance.sample(range(n_rows + 1), n_rows)
    mine, strangers = slots[0], slots[1:]

    def text(n: int) -> list[int]:
        return chance.choices(range(vocab_size), k=n)

    results = list[Tensor]()
    logits, rows, at = torch.empty(0), list[tuple[int, list[int]]](), 0
    while at < len(prompt):
        left = len(prompt) - at
        n = chance.choice([left, *range(CUT_MULTIPLE, left, CUT_MULTIPLE)])
        beside = chance.sample(strangers, chance.randint(0, min(9, len(strangers))))
        rows = [(slot, text(chance.choice((1, 5, 64, 65, 150)))) for slot in beside]
        rows.insert(chance.randint(0, len(rows)), (mine, prompt[at : at + n]))
        logits = model.forward(batch_of(rows, "cuda"), arena.views)
        at += n
    results.append(logits[[slot for slot, _ in rows].index(mine)].clone())
    step = model.decode_step(n_rows)
    assert step is not None
    for token_id in ids:
        chance.shuffle(slots)
        token_ids = text(n_rows)
        row = slots.index(mine)
        token_ids[row] = token_id
        step.token_ids.copy_(torch.tensor(token_ids))
        is_pad = [slot != mine and chance.random() < 0.2 for slot in slots]
        padded = [-1 if pad else slot for pad, slot in zip(is_pad, slots, strict=True)]
        step.slots.copy_(torch.tensor(padded, dtype=torch.int32))
        step.launch(arena.views)
        results.append(step.logits[row].clone())
    state = {name: view[mine].clone() for name, view in arena.views.items()}
    return {"logits": torch.stack(results), **state}


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("bfloat16", "none"), ("float16", "none"), ("float32", "none"), ("bfloat16", "int8")],
)
def test_no_bit_of_a_sequence_depends_on_cuts_or_strangers(
    tmp_path: Path, dtype: str, quantization: str
) -> None:
    tiny = Tiny(width=320, ffn_width=1120, vocab_size=1000, ranks=(32, 40, 16, 64))
    path = write_pth(tmp_path / "model.pth", random_weights(tiny))
    model = load_model(
        path, device="cuda", dtype=dtype, quantization=quantization, deterministic=True
    )
    chance = random.Random(7)
    for length in (1, 63, 64, 200, 700):
        prompt = chance.choices(range(1000), k=length)
        ids = chance.choices(range(1000), k=N_DECODED)
        expected = absorb(model, prompt, ids, 0)
        for seed in range(1, len(BUCKETS)):
            for name, value in absorb(model, prompt, ids, seed).items():
                assert value.isfinite().all(), (name, length, seed)
                assert torch.equal(value, expected[name]), (name, length, seed)
