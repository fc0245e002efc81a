"""Tools that measure run once with tiny counts, so that none rots. No figure is judged here."""

import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
import torch
from wkvm_bench.command import BENCHES
from wkvm_bench.random_model import SIZES, write_random
from wkvm_bench.random_weights import blueprint

from tools import (
    measure,
    peer_capacity,
    peer_fla,
    peer_vllm,
    quantization_accuracy,
    serve_profile,
    store_speed,
)
from wkvm.gateway.text import load_tokenizer
from wkvm.models.registry import load_model


def test_the_store_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_speed.main(["--smoke", "--folder", str(tmp_path)])
    told = [json.loads(line)["what"] for line in capsys.readouterr().out.splitlines()]
    assert told[:4] == [
        "commit 4 kB to disk",
        "commit 4 kB to memory",
        "write and fsync 4 kB alone",
        "load 4 kB from the page cache",
    ]
    assert told[4:] == [
        "128 forks",
        "look up one",
        "one fork",
        "64 forks",
        "a page of 100 handles",
        "open with all handles",
    ]
    assert list(tmp_path.iterdir()) == []


def test_quantised_weights_are_held_against_those_that_are_not(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time.<|endoftext|>There was a fox.")
    exact, quantised = islice(quantization_accuracy.findings(text, 2), 2)
    assert exact["quantization"] == "none"
    assert (quantised["quantization"], quantised["of"]) == ("fp8", ["large matrices"])
    assert quantised["kl_mean"] > 0


def test_the_parts_of_a_step_that_are_timed_exist() -> None:
    missing = [(o.__name__, m) for o, m in serve_profile.PARTS if not callable(getattr(o, m, None))]
    assert missing == []


def test_what_is_measured_anew_are_benchmarks_that_exist() -> None:
    assert set(measure.BENCHES) <= set(BENCHES)
    with pytest.raises(SystemExit):
        measure.main(["speed"])


@pytest.mark.parametrize("shape", list(peer_vllm.CASES))
def test_a_shape_that_vllm_is_compared_at_is_one_that_wkvm_has(shape: str) -> None:
    case = peer_vllm.CASES[shape]
    if isinstance(case.ours, str):
        assert case.ours in SIZES
        assert not case.is_same
    else:
        assert blueprint(case.ours).weights
        theirs = case.theirs.get("text_config", case.theirs)
        assert case.ours.items() <= theirs.items()


def test_each_id_of_the_made_tokenizer_is_a_word_of_its_own(tmp_path: Path) -> None:
    peer_vllm.write_texts(tmp_path, 300)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(range(300)).split() == [f"w{at}" for at in range(300)]


def test_what_is_counted_of_a_session_is_what_a_state_takes(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    write_random(path, SIZES["tiny"], dtype=torch.float32, device="cpu")
    model = load_model(path, device="cpu", dtype="float32")
    assert peer_capacity.session_bytes("tiny", "cpu") == model.layout.payload_bytes
    assert peer_capacity.sessions(10 * 2048 * 28_672, 2048 - 16 - 32, 32) == 10
    assert peer_capacity.sessions(10 * 2048 * 28_672, 2048 - 16 - 31, 32) == 9


def test_a_model_of_flas_is_asked_for_in_the_shape_of_wkvms() -> None:
    config = peer_fla.config_of(SIZES["1.5B"])
    assert (config["hidden_size"], config["num_hidden_layers"]) == (2048, 24)
    ranks = [config[f"{name}_low_rank_dim"] for name in ("decay", "a", "v", "gate")]
    assert ranks == [96, 96, 64, 256]


@pytest.mark.skipif(find_spec("rwkv7_hf") is None, reason="rwkv7-hf, the peer, is not installed")
def test_transformers_serves_what_the_checkpoint_names() -> None:
    # In a process of its own: transformers' tables are everybody's.
    code = "from tools.serve_transformers import BUNDLED, register\n"
    code += "import json, transformers\n"
    code += "name = register()\n"
    code += "config = json.loads((BUNDLED / 'config.json').read_text())\n"
    code += "assert config['architectures'] == [name]\n"
    code += "assert getattr(transformers, name).config_class.model_type == config['model_type']\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
