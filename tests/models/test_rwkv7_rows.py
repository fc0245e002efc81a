"""What a row of a step depends on: its own ids and its own slot, and nothing else."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import (
    Row,
    Tiny,
    batch_of,
    random_weights,
    run_alone,
    write_folder,
    write_pth,
)
from wkvm.core.errors import ConfigError
from wkvm.core.layout import StateOptions
from wkvm.models.base import Model
from wkvm.models.registry import describe, load_model
from wkvm.models.rwkv7 import layout_of
from wkvm.models.rwkv7_params import read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

ROUNDING = 8e-6
"""Float32, on logits up to about 3: a few units in the last place, from sums in another order."""

RELATIVE = 1e-5
"""By norm. A GPU's chunks of 64 tokens add up what single steps apply one after the other."""

N_SLOTS = 7


def is_close(one: Tensor, other: Tensor) -> bool:
    difference = (one - other).double()
    if one.is_cuda:
        return bool(difference.norm() <= RELATIVE * other.double().norm())
    return bool(difference.abs().max() < ROUNDING)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


MODELS = ["float32 matrices", "float16 matrices", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of which matrices fit float16, one of which they do not, and one on a GPU."""
    tiny = Tiny(width=128, head_size=32, ffn_width=512, vocab_size=600)
    weights = random_weights(tiny)
    if request.param == "float16 matrices":
        weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
    path = write_folder(tmp_path_factory.mktemp("model"), tiny, weights)
    device = "cuda" if request.param == "gpu" else "cpu"
    return load_model(path, device=device, dtype="float32")


def step(model: Model, rows: Sequence[Row], arena: Arena) -> Tensor:
    return model.forward(batch_of(rows, model.info.device), arena.views)


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
    arena = Arena(model.layout, N_SLOTS, model.info.device)
    for slot in range(N_SLOTS):
        step(model, [(slot, prompt(3 + slot, 50 + slot))], arena)
    return arena


@pytest.mark.parametrize("mix", MIXES)
def test_a_row_among_others_gives_what_it_gives_alone(model: Model, mix: str) -> None:
    together, alone = arena_with_history(model), arena_with_history(model)
    logits = step(model, MIXES[mix], together)
    for index, (slot, ids) in enumerate(MIXES[mix]):
        if slot < 0:
            continue
        expected = step(model, [(slot, ids)], alone)[0]
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
    expected = step(model, MIXES[mix], clean)[live]
    logits = step(model, MIXES[mix], poisoned)[live]
    assert torch.equal(logits, expected)
    assert torch.equal(poisoned.records[named], clean.records[named])
    assert torch.equal(poisoned.records[others], before[others])


def test_poison_in_a_rows_own_slot_shows_and_stays_there(model: Model) -> None:
    arena = arena_with_history(model)
    healthy = arena_with_history(model)
    arena.poison([3])
    rows: list[Row] = [(0, prompt(1)), (3, prompt(1, 1)), (5, prompt(1, 2))]
    logits = step(model, rows, arena)
    expected = step(model, rows, healthy)
    assert logits[1].isnan().all()
    assert torch.equal(logits[[0, 2]], expected[[0, 2]])


def test_a_step_of_pad_rows_alone_changes_no_state(model: Model) -> None:
    arena = arena_with_history(model)
    before = arena.records.clone()
    step(model, [(-1, [0]), (-1, [0, 0])], arena)
    step(model, [(-1, [0])], arena)
    assert torch.equal(arena.records, before)


LENGTHS = [1, 2, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129]


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_no_prompt_length_and_no_cut_is_special(model: Model, n_tokens: int) -> None:
    ids = prompt(n_tokens)
    one_by_one, singles = run_alone(model, ids, range(1, n_tokens))
    for cuts in ([], [1], [n_tokens - 1], range(16, n_tokens, 16), [64]):
        inside = sorted({cut for cut in cuts if 0 < cut < n_tokens})
        logits, arena = run_alone(model, ids, inside)
        assert is_close(logits, one_by_one)
        for name, tensor in arena.views.items():
            assert is_close(tensor, singles.views[name])


def test_only_the_rows_asked_for_get_logits(model: Model) -> None:
    ids = prompt(6)
    arena = Arena(model.layout, 1, model.info.device)
    all_logits = model.forward(
        batch_of([(0, ids)], model.info.device, all_logits=True), arena.views
    )
    assert all_logits.shape == (6, 600)
    assert all_logits.dtype == torch.float32
    arena.zero([0])
    last = step(model, [(0, ids)], arena)
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


STATE_BARS = {"float16": 1e-2, "bfloat16": 1e-1}
"""On logits up to about 3, by the dtype of the states."""


@pytest.mark.parametrize("dtype", STATE_BARS)
def test_states_are_stored_as_asked_and_computed_in_float32(tmp_path: Path, dtype: str) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(Tiny()))
    exact = load_model(path, device="cpu")
    model = load_model(path, device="cpu", state=StateOptions(dtype))
    assert {spec.name: spec.dtype for spec in model.layout.tensors} == {
        "rwkv7.wkv": dtype,
        "rwkv7.att_shift": "float32",
        "rwkv7.ffn_shift": "float32",
    }
    assert model.layout.fingerprint != exact.layout.fingerprint
    arena, exact_arena = Arena(model.layout, 3, "cpu"), Arena(exact.layout, 3, "cpu")
    arena.poison([0])
    worst = 0.0
    for ids in ([5, 7, 11], *([token_id % 97] for token_id in prompt(50))):
        rows: list[Row] = [(1, ids), (2, [*ids, 3])]
        logits, expected = step(model, rows, arena), step(exact, rows, exact_arena)
        worst = max(worst, float((logits - expected).abs().max()))
    assert 0 < worst < STATE_BARS[dtype]
    assert arena.views["rwkv7.wkv"][0].isnan().all()


def test_a_cpu_defers_no_writes(tmp_path: Path) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(Tiny()))
    for call in (load_model, describe):
        with pytest.raises(ConfigError) as caught:
            call(path, device="cpu", state=StateOptions(deferred=True))
        assert caught.value.setting == "deferred-writes"


def test_deferred_writes_keep_a_ring_and_its_fill_in_the_record(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_pth(tmp_path / "model.pth", random_weights(Tiny())))
    shape = read_shape(checkpoint)
    plain = layout_of(shape, "bfloat16")
    deferred = layout_of(shape, "bfloat16", StateOptions(deferred=True))
    added = {spec.name: (spec.shape[-3:], spec.dtype) for spec in deferred.tensors[3:]}
    size = shape.head_size
    assert deferred.tensors[:3] == plain.tensors
    assert added == {
        "rwkv7.ring": ((7, 4, size), "bfloat16"),
        "rwkv7.ring_fill": ((1,), "int32"),
    }
    assert deferred.fingerprint != plain.fingerprint
