import json
from pathlib import Path

from wkvm_bench.harness import Bar, Comparison
from wkvm_bench.results import append, environment, to_line, to_text

COMPARISON = Comparison("batch 1", "wkvm", "peer", "ids/s", (30.0, 1 / 3), (10.0, 1.0), Bar(2.0))


def test_a_line_has_all_that_is_needed_to_judge_it(tmp_path: Path) -> None:
    line = to_line(
        "decode",
        COMPARISON,
        command=["python", "-m", "wkvm_bench", "decode"],
        settings={"threads": 1},
        environment=environment(),
    )
    folder = tmp_path / "new"
    path = append(folder, "decode", [line])
    assert append(folder, "decode", [line]) == path
    first, second = path.read_text().splitlines()
    assert first == second
    record = json.loads(first)
    assert record["a"] == {"name": "wkvm", "median": 15.1667, "p10": 3.3, "p90": 27.0333, "n": 2}
    assert (record["ratio"]["n"], record["met"], record["bar"]) == (2, False, "at least 2")
    assert record["command"] == "python -m wkvm_bench decode"
    assert record.keys() >= {"commit", "device", "n_cores", "load", "versions", "settings", "at"}
    assert record["versions"].keys() >= {"python", "wkvm", "msgspec", "uvloop"}


def test_the_text_says_whether_the_bar_is_met() -> None:
    assert "ratio 1.67" in to_text("decode", COMPARISON)
    assert to_text("decode", COMPARISON).endswith("the bar is at least 2: MISSED")
