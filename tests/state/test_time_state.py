"""Initial states of the community: orientation, and files that are none.

The recurrences here are written from BlinkDL's and flash-linear-attention's formulas, in numpy and
float64; wkvm's own is that of its reference kernel.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from tests.state.random_images import HEAD, N_HEADS, N_LAYERS, image, layout
from wkvm.core.errors import BadStateFileError, InvalidParameterError, StateNotFiniteError
from wkvm.core.layout import StateLayout
from wkvm.core.registry import Identity
from wkvm.kernels import reference
from wkvm.kernels.rows import Rows
from wkvm.state.image import StateImage
from wkvm.state.time_state import (
    Orientation,
    TimeStateReceiver,
    export_time_state,
    import_time_state,
    max_file_bytes,
)

Array = np.ndarray[Any, np.dtype[np.float64]]
N_TOKENS = 5
LAYOUT = layout()
BLINKDL, FLA = Orientation.BLINKDL, Orientation.FLA


def name(layer: int) -> str:
    return f"blocks.{layer}.att.time_state"


def matrices(seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name(i): torch.randn(N_HEADS, HEAD, HEAD, generator=draw) for i in range(N_LAYERS)}


def pth(tensors: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def imported(
    file: bytes, orientation: Orientation = BLINKDL, of: StateLayout = LAYOUT
) -> StateImage:
    identity = Identity(model_digest="aa", fingerprint=of.fingerprint)
    return import_time_state(file, identity, of, orientation)


def inputs() -> dict[str, Array]:
    """Of one layer: ``[T, H, N]`` each, as the recurrence takes them."""
    random = np.random.default_rng(1)
    r, k, v, kap = random.normal(size=(4, N_TOKENS, N_HEADS, HEAD))
    kap /= np.linalg.norm(kap, axis=-1, keepdims=True)
    w, a = random.uniform(0.6, 1, size=(2, N_TOKENS, N_HEADS, HEAD))
    return {"r": r, "w": w, "k": k, "v": v, "kap": kap, "a": a}


def blinkdl(S: Array) -> Array:
    """Outputs from the initial state ``S``: state @ ... , a row a value."""
    outputs = []
    x = inputs()
    for t in range(N_TOKENS):
        r, w, k, v, kap, a = (x[key][t] for key in ["r", "w", "k", "v", "kap", "a"])
        S = (
            S * w[:, None, :]
            + (S @ -kap[:, :, None]) @ (kap * a)[:, None, :]
            + v[:, :, None] @ k[:, None, :]
        )
        outputs.append((S @ r[:, :, None])[:, :, 0])
    return np.stack(outputs)


def fla(h: Array) -> Array:
    """Outputs from the initial state ``h``: sums over its first axis, a row a key."""
    outputs = []
    x = inputs()
    for t in range(N_TOKENS):
        r, w, k, v, kap, a = (x[key][t] for key in ["r", "w", "k", "v", "kap", "a"])
        removed = (-kap[:, :, None] * h).sum(1)
        h = w[:, :, None] * h + (kap * a)[:, :, None] * removed[:, None, :]
        h = h + k[:, :, None] * v[:, None, :]
        outputs.append((h * r[:, :, None]).sum(1))
    return np.stack(outputs)


def wkvm(of: StateImage, layer: int) -> Array:
    """Outputs from the imported state, by wkvm's reference kernel."""
    x = {key: torch.from_numpy(value) for key, value in inputs().items()}
    state = of.view("rwkv7.wkv")[layer].double()[None].clone()
    rows = Rows(torch.tensor([0], dtype=torch.int32), (0,), (N_TOKENS,))
    result = reference.wkv7(x["r"], x["w"], x["k"], x["v"], x["kap"], x["a"], state, rows)
    return result.numpy()


@pytest.mark.parametrize(
    ("orientation", "recurrence"), [(BLINKDL, blinkdl), (FLA, fla)], ids=["blinkdl", "fla"]
)
@pytest.mark.parametrize("write", [pth, save], ids=["pth", "safetensors"])
def test_a_model_goes_on_from_the_file_as_its_trainers_does(
    write: Callable[[dict[str, Tensor]], bytes],
    orientation: Orientation,
    recurrence: Callable[[Array], Array],
) -> None:
    found = imported(write(matrices()), orientation)
    for layer in range(N_LAYERS):
        expected = recurrence(matrices()[name(layer)].double().numpy())
        assert np.allclose(wkvm(found, layer), expected, atol=1e-9)


def test_the_orientations_differ() -> None:
    # Or the tests above would show nothing.
    S = matrices()[name(0)].double().numpy()
    assert not np.allclose(blinkdl(S), fla(S), atol=0.1)


def test_a_file_in_one_orientation_is_the_transpose_of_one_in_the_other() -> None:
    turned = {key: tensor.transpose(1, 2) for key, tensor in matrices().items()}
    assert torch.equal(imported(pth(matrices())).record, imported(pth(turned), FLA).record)


def test_what_is_not_said_is_blinkdls() -> None:
    identity = Identity(model_digest="aa", fingerprint=LAYOUT.fingerprint)
    found = import_time_state(pth(matrices()), identity, LAYOUT)
    assert torch.equal(found.view("rwkv7.wkv")[1], matrices()[name(1)].transpose(1, 2))


def test_a_state_from_a_file_has_absorbed_nothing() -> None:
    found = imported(pth(matrices()))
    assert (found.carried.n_computed, found.carried.pending, found.token_ids) == (0, (), b"")
    assert found.carried.sampler is None
    assert not found.view("rwkv7.att_shift").any()
    assert not found.view("rwkv7.ffn_shift").any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("write", [pth, save], ids=["pth", "safetensors"])
def test_numbers_are_converted_to_the_dtype_of_states(
    write: Callable[[dict[str, Tensor]], bytes], dtype: torch.dtype
) -> None:
    given = {key: tensor.to(dtype) for key, tensor in matrices().items()}
    found = imported(write(given), FLA, layout("bfloat16", ring=True))
    assert torch.equal(found.view("rwkv7.wkv")[2], given[name(2)].bfloat16())


def test_trained_parameters_are_tensors() -> None:
    given = {key: torch.nn.Parameter(tensor) for key, tensor in matrices().items()}
    assert torch.equal(imported(pth(given)).record, imported(pth(matrices())).record)


def file_of(of: StateImage, orientation: Orientation) -> bytes:
    export = export_time_state(of, orientation)
    file = b"".join(export.chunks(1000))
    assert export.n_bytes == len(file)
    return file


@pytest.mark.parametrize("orientation", Orientation)
def test_an_export_is_imported_with_the_same_matrices_and_nothing_else(
    orientation: Orientation,
) -> None:
    given = image(3, "bfloat16")
    found = imported(file_of(given, orientation), orientation, given.layout)
    assert torch.equal(found.view("rwkv7.wkv"), given.view("rwkv7.wkv"))
    assert not found.view("rwkv7.att_shift").any()
    assert found.carried.n_computed == 0


def test_an_export_for_blinkdls_runners_has_a_row_for_each_value() -> None:
    tensors = load(file_of(image(3), BLINKDL))
    assert torch.equal(tensors[name(2)], image(3).view("rwkv7.wkv")[2].transpose(1, 2))


def test_an_export_takes_the_ring_into_the_matrices() -> None:
    waiting, folded = image(0, ring=True, waiting=2), image(9, ring=True)
    file = b"".join(export_time_state(waiting, FLA, fold=lambda one: folded).chunks())
    assert torch.equal(load(file)[name(0)], folded.view("rwkv7.wkv")[0])
    with pytest.raises(InvalidParameterError, match="2 tokens wait"):
        export_time_state(waiting)


def test_a_state_that_is_not_finite_is_not_exported() -> None:
    bad = image(0)
    bad.view("rwkv7.wkv")[0, 0, 0, 0] = torch.inf
    with pytest.raises(StateNotFiniteError):
        export_time_state(bad)


def receiver(n_bytes: int) -> TimeStateReceiver:
    identity = Identity(model_digest="aa", fingerprint=LAYOUT.fingerprint)
    return TimeStateReceiver(n_bytes, identity, LAYOUT, BLINKDL)


@pytest.mark.parametrize("n_chunk", [1, 100, 10**6])
def test_a_file_in_chunks_is_the_file(n_chunk: int) -> None:
    file = pth(matrices())
    one = receiver(len(file))
    for at in range(0, len(file), n_chunk):
        one.feed(file[at : at + n_chunk])
    found = one.finish()
    assert torch.equal(found.image.record, imported(file).record)
    assert found.history.records == ()


def test_a_file_in_chunks_has_the_length_that_was_announced() -> None:
    file = pth(matrices())
    short, long = receiver(len(file)), receiver(len(file) - 1)
    short.feed(file[:-1])
    with pytest.raises(BadStateFileError, match="1 bytes are missing"):
        short.finish()
    with pytest.raises(BadStateFileError, match="more bytes"):
        long.feed(file)
    for n_bytes in (0, -1, max_file_bytes(LAYOUT) + 1):
        with pytest.raises(BadStateFileError, match="announced"):
            receiver(n_bytes)


def without(layer: int) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in matrices().items() if key != name(layer)}


@pytest.mark.parametrize("write", [pth, save], ids=["pth", "safetensors"])
@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (without(1), "blocks.1.att.time_state is missing"),
        ({**matrices(), name(3): torch.zeros(2, 4, 4)}, "blocks.3.att.time_state is not one"),
        ({**matrices(), "emb.weight": torch.zeros(2, 4)}, "emb.weight is not one"),
        ({**matrices(), name(0): torch.zeros(2, 4, 5)}, r"\[2, 4, 5\]"),
        ({**matrices(), name(0): torch.zeros(4, 2, 4)}, r"\[4, 2, 4\]"),
        ({**matrices(), name(0): torch.zeros(32)}, r"\[32\]"),
        ({**matrices(), name(0): torch.zeros(2, 4, 4, dtype=torch.float64)}, "ouble|float64"),
        ({}, "missing|dictionary"),
    ],
)
def test_other_tensors_than_those_of_the_layout_are_refused(
    write: Callable[[dict[str, Tensor]], bytes], tensors: dict[str, Tensor], why: str
) -> None:
    with pytest.raises(BadStateFileError, match=why):
        imported(write(tensors))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_numbers_that_a_state_cannot_have_are_refused(bad: float) -> None:
    tensors = matrices()
    tensors[name(2)][0, 0, 0] = bad
    with pytest.raises(StateNotFiniteError):
        imported(pth(tensors), of=layout("float16"))


def test_a_file_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadStateFileError, match="more than"):
        imported(bytes(max_file_bytes(LAYOUT) + 1))


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda", "gdn+guest"])
def test_a_model_of_another_family_takes_none_and_gives_none(kind: str) -> None:
    with pytest.raises(BadStateFileError, match=f"RWKV-7.*{kind.partition('+')[0]}"):
        imported(pth(matrices()), of=layout(kind=kind))
    with pytest.raises(BadStateFileError, match="'state'"):
        export_time_state(image(kind=kind))


@pytest.mark.parametrize("write", [pth, save], ids=["pth", "safetensors"])
def test_damaged_files_are_refused_or_hold_the_same_numbers(
    write: Callable[[dict[str, Tensor]], bytes],
) -> None:
    file = write(matrices())
    random = np.random.default_rng(2)
    for at in random.integers(0, len(file), 300):
        damaged = bytearray(file)
        damaged[at] ^= 1 << int(random.integers(8))
        try:
            imported(bytes(damaged))
        except (BadStateFileError, StateNotFiniteError):
            continue
    for end in random.integers(0, len(file), 50):
        with pytest.raises(BadStateFileError):
            imported(file[:end])


def test_a_file_is_not_needed_on_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.pth"
    torch.save(matrices(), path)
    assert torch.equal(imported(path.read_bytes()).record, imported(pth(matrices())).record)
