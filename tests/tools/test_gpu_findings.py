"""What the GPU tools write."""

import io
import json

import pytest
import torch

from tools.gpu_findings import Findings


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
