"""Facts about ``wkvm store``."""

import json
from pathlib import Path

import pytest

from tests.state.stores import files, opened, put
from wkvm.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with opened(path) as store:
        put(store, "a", 1)
        put(store, "b", 2, expires_at=2000.0)
    return path


def test_a_whole_store_has_no_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["n_handles"], report["n_payloads"], report["findings"]) == (2, 2, [])


def test_damage_is_named_and_the_status_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files(folder):
        (folder / "payloads" / name).write_bytes(b"rot")
    assert main(["store", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "t/a@1" in out
    assert "t/b@1" in out


def test_what_has_expired_is_collected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "gc", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_expired"] == 1
    assert len(files(folder)) == 1


def test_what_is_there_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stat", str(folder)]) == 0
    assert "2 payloads" in capsys.readouterr().out


def test_an_open_store_and_a_folder_that_is_none_are_refused_and_not_made(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(folder):
        assert main(["store", "stat", str(folder)]) == 1
    assert "another process" in capsys.readouterr().err
    assert main(["store", "stat", str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none").exists()
