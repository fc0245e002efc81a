"""The faults that are planted have their places in the code, and tests that look for them."""

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools import mutants
from tools.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.what)
def test_a_planted_fault_has_one_place_in_the_code(fault: Fault) -> None:
    code = (ROOT / fault.file).read_text(encoding="utf-8")
    assert code.count(fault.old) == 1
    assert fault.new != fault.old
    ast.parse(code.replace(fault.old, fault.new))


def test_a_word_that_names_no_fault_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "--only", "zebra"])
    with pytest.raises(SystemExit) as ended:
        mutants.main()
    assert ended.value.code == 2
    assert "zebra" in capsys.readouterr().err


def test_no_fault_is_planted_twice() -> None:
    assert [what for what, n in Counter(one.what for one in FAULTS).items() if n > 1] == []


def test_the_tests_that_look_for_faults_exist() -> None:
    named = {test for fault in FAULTS for test in fault.tests}
    assert sorted(test for test in named if not _exists(test)) == []


def test_a_fault_is_planted_and_taken_out_again(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n", encoding="utf-8")
    copies = mutants.Copies.__new__(mutants.Copies)
    copies.fill([tmp_path])
    for _ in range(2):
        with copies.with_fault(Fault("", "a.py", "x = 1", "x = 2", ())):
            assert path.read_text(encoding="utf-8") == "x = 2\n"
        assert path.read_text(encoding="utf-8") == "x = 1\n"


def test_a_fault_without_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="2 places"):
        mutants.planted(Fault("", "a.py", "x = 1", "x = 2", ()), tmp_path)


def test_the_newest_line_says_what_finds_a_fault() -> None:
    lines: list[dict[str, Any]] = [
        {"fault": "a", "found_by": "x"},
        {"fault": "a", "found_by": "y"},
        {"fault": "b", "found_by": None},
        {"fault": "c", "found_by": mutants.NOT_RUN},
        {"fault": None, "found_by": None},
    ]
    assert mutants.kills(lines) == {"a": "y"}


def test_text_makes_no_run_necessary_and_code_does(tmp_path: Path) -> None:
    (tmp_path / "wkvm").mkdir()
    (tmp_path / "wkvm/a.py").write_text("x = 1")
    before = mutants.code_of(tmp_path)
    (tmp_path / "wkvm/a.md").write_text("text")
    assert mutants.code_of(tmp_path) == before
    (tmp_path / "wkvm/a.py").write_text("x = 2")
    assert mutants.code_of(tmp_path) != before


def test_every_line_of_results_is_json_of_a_fault() -> None:
    text = mutants.RESULTS.read_text(encoding="utf-8")
    assert all(json.loads(line)["benchmark"] == "mutants" for line in text.splitlines())


def _exists(test: str) -> bool:
    name, _, function = test.partition("::")
    path = ROOT / name
    if not path.exists() or not function:
        return path.exists()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = (one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return function in {one.name for one in defined}
