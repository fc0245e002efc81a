"""Logits and states of random models against two independent implementations of RWKV-7."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, random_weights, run_alone, write_folder, write_pth
from wkvm.models.registry import load_model

SHAPES = {
    "one head": Tiny(n_layers=2, width=64),
    "wide": Tiny(n_layers=2, width=192, ffn_width=320, vocab_size=300, ranks=(32, 24, 8, 40)),
    "deep": Tiny(n_layers=5, width=128, ffn_width=448, vocab_size=64, ranks=(8, 16, 24, 8)),
}
BLINK_SHAPES = SHAPES.copy()
SHAPES["heads of 16"] = Tiny(n_layers=3, width=64, head_size=16, ranks=(16, 16, 8, 16))
"""The package ``rwkv`` knows heads of 64 alone."""

IDS = [5, 0, 63, 17, 17, 42, 8, 1, 30, 2, 61, 9]
ORACLES = {"rwkv": "oracle_rwkv.py", "rwkv7_hf": "oracle_rwkv7_hf.py"}
TOLERANCE = 1e-4

Results = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Each shape's weights under both namings: a ``.pth`` file and a folder."""
    base = tmp_path_factory.mktemp("oracles")
    written = {}
    for number, (name, tiny) in enumerate(SHAPES.items()):
        weights = random_weights(tiny, seed=number)
        pth = write_pth(base / f"{number}.pth", weights)
        written[name] = (pth, write_folder(base / str(number), tiny, weights))
    return written


@pytest.fixture(scope="module", params=ORACLES)
def oracle(
    request: pytest.FixtureRequest,
    checkpoints: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    """What the oracle says of each shape. It is run once for all of them: importing it is slow."""
    package: str = request.param
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    out = tmp_path_factory.mktemp(package) / "results.pt"
    shapes = BLINK_SHAPES if package == "rwkv" else SHAPES
    paths = [str(checkpoints[shape][0 if package == "rwkv" else 1]) for shape in shapes]
    script = str(Path(__file__).with_name(ORACLES[package]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, script, json.dumps(IDS), str(out), *paths],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(shapes, torch.load(out, weights_only=True), strict=True))


@pytest.mark.parametrize(
    ("shape", "naming"),
    [(shape, naming) for shape in BLINK_SHAPES for naming in ("pth", "folder")],
)
def test_logits_and_states_agree_with_the_oracle(
    shape: str, naming: str, oracle: Results, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    assert_agreement(checkpoints[shape][0 if naming == "pth" else 1], oracle[shape])


@pytest.mark.parametrize("oracle", ["rwkv7_hf"], indirect=True)
def test_heads_that_are_not_of_64_agree_too(
    oracle: Results, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    assert_agreement(checkpoints["heads of 16"][1], oracle["heads of 16"])


def assert_agreement(path: Path, expected: dict[str, Tensor]) -> None:
    model = load_model(path, device="cpu", dtype="float32")
    logits, arena = run_alone(model, IDS)
    assert (logits - expected["logits"]).abs().max() < TOLERANCE
    for name in ("wkv", "att_shift", "ffn_shift"):
        state = arena.views[f"rwkv7.{name}"][0]
        assert state.shape == expected[name].shape
        assert (state - expected[name]).abs().max() < TOLERANCE
    # The comparison would mean little if the state were its own transpose.
    assert (expected["wkv"] - expected["wkv"].mT).abs().max() > 100 * TOLERANCE
