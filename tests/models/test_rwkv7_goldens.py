"""The logits of RWKV-7 against recorded ones: the bundled model's own, and rwkv.cpp's."""

import json
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.float64_rwkv7 import Float64Rwkv7
from tests.models.rwkvcpp_file import read_rwkvcpp
from tests.models.tiny_rwkv7 import Tiny, batch_of, random_weights, run_alone, write_pth
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

BUNDLED = Path(__file__).parents[2] / "wkvm/bundled/rwkv7-tinystories"
PROMPT = (34, 105, 110)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BUNDLED_TOLERANCE = 5e-5
"""On logits up to 20 in size: a few units in the last place of float32, over six layers."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("device", DEVICES)
def test_the_bundled_model_gives_its_golden_logits_and_ids(device: str) -> None:
    model = load_model(BUNDLED, device=device, dtype="float32")
    golden = np.load(BUNDLED / "golden.npz")
    prompts = [entry["prompt_ids"] for entry in json.loads((BUNDLED / "golden.json").read_text())]
    arena = Arena(model.layout, len(prompts), device)
    logits = model.forward(batch_of(list(enumerate(prompts)), device), arena.views)
    assert np.abs(logits.cpu().numpy() - golden["logits"]).max() < BUNDLED_TOLERANCE
    steps = [logits.argmax(1).tolist()]
    for _ in range(63):
        rows = [(slot, [token_id]) for slot, token_id in enumerate(steps[-1])]
        steps.append(model.forward(batch_of(rows, device), arena.views).argmax(1).tolist())
    assert np.array_equal(np.array(steps).T, golden["continuations"])


def reference_dir() -> Path:
    if "WKVM_REFERENCE_DIR" not in os.environ:
        pytest.skip("WKVM_REFERENCE_DIR is not set")
    return Path(os.environ["WKVM_REFERENCE_DIR"]) / "rwkv7-tiny"


def reference_model(tmp_path: Path, kind: str, device: str) -> Model:
    weights = read_rwkvcpp(reference_dir() / f"tiny-rwkv-7v0-834K-{kind}.bin")
    path = write_pth(tmp_path / "model.pth", weights)
    return load_model(path, device=device, dtype="float32")


ALL_CUTS = [cuts for n in range(3) for cuts in combinations((1, 2), n)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cuts", ALL_CUTS)
@pytest.mark.parametrize("kind", ["FP32", "FP16"])
def test_rwkvcpp_logits_are_met_however_the_prompt_is_cut(
    tmp_path: Path, kind: str, cuts: tuple[int, ...], device: str
) -> None:
    model = reference_model(tmp_path, kind, device)
    expected = np.fromfile(reference_dir() / "expected-logits-7v0-834K.bin", "<f4")
    logits, _ = run_alone(model, PROMPT, cuts)
    assert np.abs(logits[-1].cpu().numpy() - expected).max() < 3e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 17, 65])
def test_a_float64_recurrence_gives_the_same_logits(
    tmp_path: Path, length: int, device: str
) -> None:
    tiny = Tiny()
    weights = random_weights(tiny)
    ids = [(7 * i + 3) % tiny.vocab_size for i in range(length)]
    expected = Float64Rwkv7(weights).feed(ids)
    model = load_model(write_pth(tmp_path / "model.pth", weights), device=device, dtype="float32")
    logits, _ = run_alone(model, ids)
    error = logits[-1].cpu().double().numpy() - expected
    assert np.linalg.norm(error) < 1e-5 * np.linalg.norm(expected)
