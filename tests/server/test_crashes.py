"""Reports of crashes: few, small, for their user alone, and without what clients sent."""

import dataclasses
import errno
import json
import os
import stat
import time
from pathlib import Path

import pytest

from wkvm.core.api_keys import ApiKey
from wkvm.core.config import ServerConfig
from wkvm.core.errors import ConfigError
from wkvm.server.crashes import MAX_BYTES, MAX_REPORTS, CrashReports, report_of, told_settings

SECRET = "a secret text"


def failed() -> BaseException:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise RuntimeError("CUDA error: an illegal memory access") from error
    except RuntimeError as error:
        return error


def test_a_report_is_for_its_user_alone_and_its_folder_is_made(tmp_path: Path) -> None:
    name = CrashReports(tmp_path / "a" / "b").write({"format": 1})
    assert name is not None
    path = tmp_path / "a" / "b" / name
    assert json.loads(path.read_text("utf-8")) == {"format": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("n", [MAX_REPORTS - 1, MAX_REPORTS, MAX_REPORTS + 1])
def test_the_newest_reports_are_kept_and_nothing_else_is_touched(tmp_path: Path, n: int) -> None:
    (tmp_path / "crash-notes.txt").write_text("mine")
    for at in range(n):
        (tmp_path / f"crash-20200101T0000{at:02d}Z-1.json").write_text("{}")
    name = CrashReports(tmp_path).write({})
    found = sorted(os.listdir(tmp_path))
    assert {name, "crash-notes.txt"} <= set(found)
    assert len(found) - 1 == min(n + 1, MAX_REPORTS)
    assert "crash-20200101T000000Z-1.json" in found or n + 1 > MAX_REPORTS


def test_a_report_is_kept_though_the_clock_went_back(tmp_path: Path) -> None:
    for at in range(MAX_REPORTS):
        (tmp_path / f"crash-29990101T0000{at:02d}Z-1.json").write_text("{}")
    name = CrashReports(tmp_path).write({})
    found = os.listdir(tmp_path)
    assert name in found
    assert len(found) == MAX_REPORTS


def test_a_report_for_which_the_disk_has_no_room_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", sync)
    assert CrashReports(tmp_path).write({"format": 1}) is None
    assert os.listdir(tmp_path) == []


def test_reports_of_the_same_second_are_apart(tmp_path: Path) -> None:
    reports = CrashReports(tmp_path)
    assert len({reports.write({"n": n}) for n in range(3)}) == 3


@pytest.mark.parametrize("n", [10, MAX_BYTES])
def test_a_report_that_is_too_long_leaves_out_its_steps(tmp_path: Path, n: int) -> None:
    name = CrashReports(tmp_path).write({"reason": "engine_failed", "steps": "x" * n})
    assert name is not None
    data = (tmp_path / name).read_bytes()
    assert len(data) <= MAX_BYTES
    assert json.loads(data)["reason"] == "engine_failed"
    assert (b"xxxxxxxxxx" in data) == (n == 10)


def test_a_folder_that_cannot_be_written_to_is_a_line_at_the_start_and_none_at_the_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    reports = CrashReports(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match="crash-dir"):
        reports.check()
    assert reports.write({}) is None


def test_a_link_in_the_place_of_a_report_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "crash-20200101T000000Z")
    other = tmp_path / "other"
    (tmp_path / f"crash-20200101T000000Z-{os.getpid()}.json").symlink_to(other)
    assert CrashReports(tmp_path).write({}) is not None
    assert not other.exists()


def test_a_report_names_types_and_places_and_says_what_a_device_said_and_nothing_else() -> None:
    report = report_of("engine_failed", 70, error=failed())
    first, second = report["errors"]
    assert first["type"] == "builtins.RuntimeError"
    assert first["message"] == "CUDA error: an illegal memory access"
    assert "test_crashes.py" in first["stack"][-1]
    assert (second["type"], "message" in second) == ("builtins.KeyError", False)
    text = json.dumps(report)
    assert SECRET not in text
    assert str(Path(__file__).parent) not in text


def test_settings_are_numbers_and_switches() -> None:
    keys = (ApiKey.of("k" * 20, "anna"),)
    config = ServerConfig(host="::1", binary_uds="/secret/path", api_keys=keys)
    told = told_settings(config, None)
    assert told["drain_timeout_s"] == config.drain_timeout_s
    assert told["binary_port"] == 8001
    assert not {"host", "binary_uds", "api_keys"} & told.keys()
    assert all(isinstance(value, int | float | None) for value in told.values())
    assert len(told) < len(dataclasses.fields(config))
