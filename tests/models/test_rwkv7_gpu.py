"""The GPU's model against float64 and against itself, however prompts are packed and cut.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.interpreter import (
    DEVICES,
    INTERPRETED,
    needs_triton,
    run_in_the_interpreter,
    starts_the_interpreter,
)
from tests.models.float64_step import Float64Step, relative
from tests.models.tiny_rwkv7 import Row, Tiny, batch_of, random_weights, write_pth
from wkvm.models.base import ModelInfo
from wkvm.models.rwkv7_params import Rwkv7Shape, load_parameters, read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

if TYPE_CHECKING:
    from wkvm.models.rwkv7_gpu import Rwkv7Gpu

TOLERANCE = 1e-5
"""Relative norm, float32; the bar of one layer."""

Loaded = tuple[Rwkv7Shape, dict[str, Tensor]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A random model whose sizes fill no block."""
    tiny = Tiny(width=64 if INTERPRETED else 192, head_size=64, ffn_width=160)
    path = write_pth(tmp_path_factory.mktemp("model") / "tiny.pth", random_weights(tiny))
    checkpoint = open_checkpoint(path)
    shape = read_shape(checkpoint)
    return shape, dict(load_parameters(checkpoint, shape))


def model_of(
    loaded: Loaded, device: str, chunk: int | None = None
) -> tuple["Rwkv7Gpu", dict[str, Tensor]]:
    from wkvm.models.rwkv7_gpu import Rwkv7Gpu
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    shape, on_cpu = loaded
    parameters = {name: tensor.to(device).contiguous() for name, tensor in on_cpu.items()}
    info = ModelInfo(
        name="rwkv7",
        vocab_size=shape.vocab_size,
        n_layers=shape.n_layers,
        width=shape.width,
        n_heads=shape.n_heads,
        head_size=shape.head_size,
        n_parameters=0,
        weight_bytes=0,
        dtype="float32",
        device=device,
        digest="0" * 64,
        eos_ids=(),
    )
    return Rwkv7Gpu(info, Rwkv7Decode(shape, parameters), chunk=chunk), parameters


def random_ids(n: int, vocab_size: int, seed: int = 0) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocab_size, (n,), generator=draw).tolist()
    return ids


def filled(model: "Rwkv7Gpu", n_slots: int, live: Sequence[int]) -> Arena:
    """Random states in the slots of ``live``, NaN in the others."""
    arena = Arena(model.layout, n_slots, model.info.device)
    arena.poison(range(n_slots))
    draw = torch.Generator().manual_seed(7)
    for view in arena.views.values():
        for slot in live:
            values = torch.randn(*view.shape[1:], generator=draw) * 0.3
            view[slot] = values.to(view.device).to(view.dtype)
    return arena


LENGTHS = [(1,), (5, 1, 17)] if INTERPRETED else [(1,), (64,), (5, 1, 130, 64, 17), (1, 1, 1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [16, 64] if INTERPRETED else [16])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_packed_rows_meet_float64_and_touch_only_their_slots(
    loaded: Loaded, lengths: tuple[int, ...], chunk: int, device: str
) -> None:
    model, parameters = model_of(loaded, device, chunk)
    shape = loaded[0]
    slots = [3 + 2 * row for row in range(len(lengths))]
    rows: list[Row] = [
        (slot, random_ids(n, shape.vocab_size, slot))
        for slot, n in zip(slots, lengths, strict=True)
    ]
    arena = filled(model, 2 * len(rows) + 4, slots)
    before = arena.records.clone()
    table = model.embedding_table
    exact_logits, exact_states = [], []
    for slot, ids in rows:
        states = {name: view[slot : slot + 1] for name, view in arena.views.items()}
        exact = Float64Step(shape, parameters, table, states)
        exact_logits += [exact(torch.tensor([i], device=device))[1][0] for i in ids]
        exact_states.append(exact.states)
    pad: Row = (-1, random_ids(3, shape.vocab_size))
    logits = model.forward(batch_of([*rows, pad], device, all_logits=True), arena.views)
    assert logits.isfinite().all()
    assert relative(logits[: sum(lengths)], torch.stack(exact_logits)) < TOLERANCE
    for slot, states in zip(slots, exact_states, strict=True):
        for name, view in arena.views.items():
            assert relative(view[slot], states[name][0]) < TOLERANCE
    others = [slot for slot in range(arena.n_slots) if slot not in slots]
    assert torch.equal(arena.records[others], before[others])


@pytest.mark.parametrize("device", DEVICES)
def test_more_chunks_than_are_absorbed_at_a_time_give_the_same(loaded: Loaded, device: str) -> None:
    from wkvm.models.rwkv7_packed import Rwkv7Decode
    from wkvm.models.rwkv7_prefill import Prefill

    model, parameters = model_of(loaded, device, 16)
    weights = Rwkv7Decode(loaded[0], parameters)
    lengths = (5, 20) if INTERPRETED else (5, 100, 1, 33)
    rows: list[Row] = [(slot, random_ids(n, 50, slot)) for slot, n in enumerate(lengths)]
    whole, pieces = (filled(model, len(rows), range(len(rows))) for _ in range(2))
    batch = batch_of(rows, device, all_logits=True)
    expected = model.forward(batch, whole.views).double()
    logits = Prefill(weights, chunk=16, max_chunks=2)(batch, pieces.views)
    assert relative(logits, expected) < TOLERANCE
    for name, view in whole.views.items():
        assert relative(pieces.views[name], view.double()) < TOLERANCE


@needs_triton
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=8), max_chunks=st.integers(1, 9))
def test_pieces_are_all_tokens_in_order_and_cut_only_between_chunks(
    lengths: list[int], max_chunks: int
) -> None:
    from wkvm.models.rwkv7_prefill import pieces_of

    pieces = list(pieces_of(range(len(lengths)), lengths, 64, max_chunks))
    absorbed = dict.fromkeys(range(len(lengths)), 0)
    start = 0
    for piece in pieces:
        assert piece.start == start
        assert sum(-(-n // 64) for n in piece.lengths) <= max_chunks
        for slot, n in zip(piece.slots, piece.lengths, strict=True):
            assert absorbed[slot] % 64 == 0
            absorbed[slot] += n
        start += sum(piece.lengths)
    assert list(absorbed.values()) == lengths


@pytest.mark.gpu
def test_a_prompt_cut_at_multiples_of_64_gets_the_same_bits(loaded: Loaded) -> None:
    device, n = "cuda", 300
    model, _ = model_of(loaded, device)
    vocab_size = loaded[0].vocab_size
    ids = random_ids(n, vocab_size)
    strangers = random_ids(n + 3, vocab_size, 5)
    whole, cut = filled(model, 4, [1, 3]), filled(model, 4, [1, 3])
    # As many tokens in each launch: what the library's products sum in which order depends on it.
    model.forward(batch_of([(1, ids), (3, strangers[:3])], device), whole.views)
    for start, stop in ((0, 64), (64, n)):
        part, rest = ids[start:stop], strangers[: n + 3 - (stop - start)]
        model.forward(batch_of([(3, rest), (1, part)], device), cut.views)
    assert torch.equal(cut.records[1], whole.records[1])


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(1,), (64, 3), (200,), (1,) * 16, (100, 100, 1, 300)])
def test_a_captured_step_does_what_launches_one_by_one_do(
    loaded: Loaded, lengths: tuple[int, ...]
) -> None:
    model, _ = model_of(loaded, "cuda")
    slots = [2 * row + 1 for row in range(len(lengths))]
    rows: list[Row] = [
        (slot, random_ids(n, loaded[0].vocab_size, slot))
        for slot, n in zip(slots, lengths, strict=True)
    ]
    eager, captured = (filled(model, 2 * len(rows) + 2, slots) for _ in range(2))
    expected = model.forward(batch_of(rows, "cuda"), eager.views)
    before = captured.records.clone()
    model.capture_prompts(captured.views)
    assert torch.equal(captured.records, before)
    # The second time buffers hold what the first left.
    model.forward(batch_of([(-1, random_ids(400, 50))], "cuda"), captured.views)
    logits = model.forward(batch_of(rows, "cuda"), captured.views)
    assert relative(logits, expected.double()) < TOLERANCE
    for name, view in eager.views.items():
        assert relative(captured.views[name][slots], view[slots].double()) < TOLERANCE
    others = [slot for slot in range(captured.n_slots) if slot not in slots]
    assert torch.equal(captured.records[others], before[others])


@pytest.mark.gpu
@pytest.mark.parametrize("n_logit_rows", [0, 1, 700])
@pytest.mark.parametrize("lengths", [(1,), (700,), (65,) * 20, (9000, 3)])
def test_a_forward_takes_no_more_memory_than_it_says(
    loaded: Loaded, lengths: tuple[int, ...], n_logit_rows: int
) -> None:
    model, _ = model_of(loaded, "cuda")
    n_tokens = sum(lengths)
    n_logit_rows = min(n_logit_rows, n_tokens)
    rows: list[Row] = [(slot, random_ids(n, 50)) for slot, n in enumerate(lengths)]
    arena = filled(model, len(rows), range(len(rows)))
    batch = batch_of(rows, "cuda", all_logits=True)
    batch = dataclasses.replace(batch, logit_rows=batch.logit_rows[:n_logit_rows])
    model.forward(batch, arena.views)  # what libraries keep for good is not of a forward pass
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    logits = model.forward(batch, arena.views)
    assert logits.shape[0] == n_logit_rows
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= model.workspace_bytes(n_tokens, n_logit_rows)


@starts_the_interpreter
def test_the_model_passes_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
