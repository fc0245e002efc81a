"""Tools that measure run once with tiny counts, so that none rots. No figure is judged here."""

import json
from itertools import islice
from pathlib import Path

import pytest

from tools import quantization_accuracy, serve_profile, store_speed


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
