"""What a row of a step depends on: its own ids and its own slot, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models.tiny_rwkv7 import (
    Row,
    Tiny,
    batch_of,
    random_weights,
    run_alone,
    write_folder,
    write_pth,
)
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

ROUNDING = 6e-6
"""Float32, on logits up to about 3: a few units in the last place, from sums in another order."""

N_SLOTS = 7


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module", params=["float32 matrices", "float16 matrices"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of which large matrices fit float16, and one of which they do not."""
    tiny = Tiny(width=128, head_size=32, ffn_width=512, vocab_size=600)
    weights = random_weights(tiny)
    if request.param == "float16 matrices":
        weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
    path = write_folder(tmp_path_factory.mktemp("model"), tiny, weights)
    return load_model(path, device="cpu", dtype="float32")


def prompt(n_tokens: int, seed: int = 0) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 600, (n_tokens,), generator=draw).tolist()


MIXES: dict[str, list[Row]] = {
    "one decode": [(3, prompt(1))],
    "decode": [(3, prompt(1)), (0, prompt(1, 1)), (5, prompt(1, 2))],
    "decode in order of slots": [(0, prompt(1)), (1, prompt(1, 1)), (2, prompt(1, 2))],
    "one prefill": [(2, prompt(9))],
    "prefill and decode": [(6, prompt(5)), (1, prompt(1, 1)), (4, prompt(3, 2)), (0, prompt(1))],
    "pad row in decode": [(3, prompt(1)), (-1, [0]), (5, prompt(1, 2))],
    "pad rows in prefill": [(-1, [0]), (6, prompt(5)), (-1, [0, 0]), (4, prompt(3, 2))],
}


def arena_with_history(model: Model) -> Arena:
    """Slots 0..N-1 after a few tokens each."""
    arena = Arena(model.layout, N_SLOTS, "cpu")
    for slot in range(N_SLOTS):
        model.forward(batch_of([(slot, prompt(3 + slot, 50 + slot))]), arena.views)
    return arena


@pytest.mark.parametrize("mix", MIXES)
def test_a_row_among_others_gives_what_it_gives_alone(model: Model, mix: str) -> None:
    together, alone = arena_with_history(model), arena_with_history(model)
    logits = model.forward(batch_of(MIXES[mix]), together.views)
    for index, (slot, ids) in enumerate(MIXES[mix]):
        if slot < 0:
            continue
        expected = model.forward(batch_of([(slot, ids)]), alone.views)[0]
        assert (logits[index] - expected).abs().max() < ROUNDING
        for name, tensor in together.read(slot).items():
            assert (tensor - alone.views[name][slot]).abs().max() < ROUNDING


@pytest.mark.parametrize("mix", MIXES)
def test_poison_in_all_other_slots_changes_no_bit(model: Model, mix: str) -> None:
    clean, poisoned = arena_with_history(model), arena_with_history(model)
    named = [slot for slot, _ in MIXES[mix] if slot >= 0]
    others = [slot for slot in range(N_SLOTS) if slot not in named]
    poisoned.poison(others)
    before = poisoned.records.clone()
    live = [index for index, (slot, _) in enumerate(MIXES[mix]) if slot >= 0]
    expected = model.forward(batch_of(MIXES[mix]), clean.views)[live]
    logits = model.forward(batch_of(MIXES[mix]), poisoned.views)[live]
    assert torch.equal(logits, expected)
    assert torch.equal(poisoned.records[named], clean.records[named])
    assert torch.equal(poisoned.records[others], before[others])


def test_poison_in_a_rows_own_slot_shows_and_stays_there(model: Model) -> None:
    arena = arena_with_history(model)
    healthy = arena_with_history(model)
    arena.poison([3])
    rows: list[Row] = [(0, prompt(1)), (3, prompt(1, 1)), (5, prompt(1, 2))]
    logits = model.forward(batch_of(rows), arena.views)
    expected = model.forward(batch_of(rows), healthy.views)
    assert logits[1].isnan().all()
    assert torch.equal(logits[[0, 2]], expected[[0, 2]])


def test_a_step_of_pad_rows_alone_changes_no_state(model: Model) -> None:
    arena = arena_with_history(model)
    before = arena.records.clone()
    model.forward(batch_of([(-1, [0]), (-1, [0, 0])]), arena.views)
    model.forward(batch_of([(-1, [0])]), arena.views)
    assert torch.equal(arena.records, before)


LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130]


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_no_prompt_length_and_no_cut_is_special(model: Model, n_tokens: int) -> None:
    ids = prompt(n_tokens)
    one_by_one, singles = run_alone(model, ids, range(1, n_tokens))
    for cuts in ([], [n_tokens // 2], [1], [n_tokens - 1], range(16, n_tokens, 16), [64]):
        inside = sorted({cut for cut in cuts if 0 < cut < n_tokens})
        logits, arena = run_alone(model, ids, inside)
        assert (logits - one_by_one).abs().max() < ROUNDING
        for name, tensor in arena.views.items():
            assert (tensor - singles.views[name]).abs().max() < ROUNDING


def test_only_the_rows_asked_for_get_logits(model: Model) -> None:
    ids = prompt(6)
    arena = Arena(model.layout, 1, "cpu")
    all_logits = model.forward(batch_of([(0, ids)], all_logits=True), arena.views)
    assert all_logits.shape == (6, 600)
    assert all_logits.dtype == torch.float32
    arena.zero([0])
    last = model.forward(batch_of([(0, ids)]), arena.views)
    assert last.shape == (1, 600)
    assert (last[0] - all_logits[5]).abs().max() < ROUNDING


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_keeps_the_recurrence_in_float32(tmp_path: Path, dtype: str) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(Tiny()))
    model = load_model(path, device="cpu", dtype=dtype)
    specs = {spec.name: spec.dtype for spec in model.layout.tensors}
    assert specs == {
        "rwkv7.wkv": "float32",
        "rwkv7.att_shift": dtype,
        "rwkv7.ffn_shift": dtype,
    }
    ids = [token_id % 97 for token_id in prompt(20)[:3]]
    exact, _ = run_alone(load_model(path, device="cpu", dtype="float32"), ids)
    logits, _ = run_alone(model, ids)
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.1
