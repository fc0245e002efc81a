"""What the GPU tools write."""

import io
import json
from pathlib import Path

import pytest
import torch

from tools.gpu_findings import Findings, parser_of, recorded


def test_every_line_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    output = io.StringIO()
    findings = Findings(output, commit="abc", command="python x.py")
    findings.add({"check": "one", "ok": True})
    findings.write({"check": "two", "ok": False})
    findings.write({"us": 3})
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [line.get("check") for line in lines] == ["one", "two", None]
    for line in lines:
        assert {**line, "commit": "abc", "device": "a GPU", "command": "python x.py"} == line
        assert {"date", "torch", "triton", "python"} <= line.keys()
    assert findings.n_failed == 1
    assert capsys.readouterr().out == '{"check": "one", "ok": true}\n'


def test_lines_are_appended_under_the_command_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    output = tmp_path / "found.jsonl"
    output.write_text("{}\n")
    arguments = ["--commit", "abc", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["tools/x.py", *arguments])
    with recorded(parser_of("x").parse_args(arguments)) as findings:
        findings.add({"us": 3})
    _, line = output.read_text().splitlines()
    assert json.loads(line)["command"] == "python tools/x.py --commit abc --output FILE"
    assert json.loads(line)["commit"] == "abc"
