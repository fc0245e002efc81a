import json
from pathlib import Path

import pytest
from wkvm_bench import serve
from wkvm_bench.command import main
from wkvm_bench.harness import Bar, Comparison, Finding
from wkvm_bench.results import _gpu_name, append, environment, to_line, to_text

COMPARISON = Comparison("batch 1", "wkvm", "peer", "ids/s", (30.0, 1 / 3), (10.0, 1.0), Bar(2.0))


def test_a_line_has_all_that_is_needed_to_judge_it(tmp_path: Path) -> None:
    line = to_line(
        "decode",
        COMPARISON,
        command=["python", "-m", "wkvm_bench", "decode", "--a=b c"],
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
    assert record["command"] == "python -m wkvm_bench decode '--a=b c'"
    assert record.keys() >= {"commit", "device", "n_cores", "load", "versions", "settings", "at"}
    assert record["versions"].keys() >= {"python", "wkvm", "msgspec", "uvloop"}


def test_a_run_that_others_give_way_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nice" not in environment()
    monkeypatch.setattr("os.getpriority", lambda which, who: -5)
    assert environment()["nice"] == -5


def test_the_name_of_a_gpu_is_what_its_driver_says(tmp_path: Path) -> None:
    assert _gpu_name(tmp_path) is None
    folder = tmp_path / "0000:00:1f.0"
    folder.mkdir()
    (folder / "information").write_text("IRQ:   \t 7\nModel: \t\t NVIDIA H200\n")
    assert _gpu_name(tmp_path) == "NVIDIA H200"


def test_the_text_says_whether_the_bar_is_met() -> None:
    assert "ratio 1.67" in to_text("decode", COMPARISON)
    assert to_text("decode", COMPARISON).endswith("the bar is at least 2: MISSED")


def test_a_figure_of_its_own_is_judged_by_its_value() -> None:
    finding = Finding("tasks", 1, "left over", Bar(0.0, at_least=False), {"before": 2, "after": 3})
    record = json.loads(to_line("aborts", finding, command=[], settings={}, environment={}))
    assert (record["value"], record["met"], record["besides"]["after"]) == (1, False, 3)
    text = to_text("aborts", finding).splitlines()
    assert text[0] == "aborts, tasks: 1 left over; the bar is at most 0: MISSED"
    assert text[1:] == ["    before: 2", "    after: 3"]


def test_results_that_cannot_be_written_are_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(given: object, keep: serve.Keep) -> None:
        del given
        keep([serve.Case(name="x", record={})])

    monkeypatch.setattr(serve, "run", run)
    (tmp_path / "file").touch()
    assert main(["serve", "--smoke", "--results", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error == f"serve: results: {tmp_path}/file: File exists\n"
