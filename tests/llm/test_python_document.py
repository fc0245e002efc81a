"""The programs of docs/python.md print what the page says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")


def test_the_programs_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    pairs = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(pairs) == PAGE.count("```python") == 2
    for program, shown in pairs:
        exec(compile(program, "docs/python.md", "exec"), names)
        assert capsys.readouterr().out == shown
