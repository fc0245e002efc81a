"""A process whose engine cannot go on leaves one report, and ends in bounded time."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from tests.server.harness import timers, until
from wkvm.core.config import ServerConfig
from wkvm.server import guard
from wkvm.server.crashes import CrashReports
from wkvm.server.guard import EXIT_ENGINE_FAILED, EXIT_STALLED, Guard, Supervision


class Watched:
    """An engine's loop that stands still."""

    busy_since = 1.0

    def __init__(self) -> None:
        self.n_given_up = 0

    def steps_told(self) -> dict[str, object]:
        return {"in_flight": []}

    def stats(self) -> Mapping[str, int]:
        return {"n_running": 3, "step_us_le_100": 4}

    def give_up(self) -> None:
        self.n_given_up += 1


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Watched()
        self.left = list[int]()
        self.has_left = threading.Event()
        supervision = Supervision(crashes=CrashReports(folder), memory=lambda: {"device_bytes": 7})
        self.guard = Guard(self.engine, ServerConfig(), supervision, leave=self._leave)

    def _leave(self, status: int) -> None:
        self.left.append(status)
        self.has_left.set()

    def reports(self) -> list[dict[str, object]]:
        return [json.loads(one.read_text("utf-8")) for one in sorted(self.folder.iterdir())]


async def test_an_engine_that_failed_leaves_one_report(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.guard.failed(ZeroDivisionError())
    rig.guard.failed(ZeroDivisionError())
    (report,) = rig.reports()
    assert (report["reason"], report["exit_status"]) == ("engine_failed", EXIT_ENGINE_FAILED)
    assert report["counters"] == {"n_running": 3}
    assert isinstance(report["memory"], dict)
    assert report["memory"]["device_bytes"] == 7
    assert rig.left == []


async def test_a_step_that_stands_still_is_given_up_on_the_loops_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    looking = threading.Thread(target=rig.guard._stalled, args=["step"])
    looking.start()
    looking.join()
    assert rig.engine.n_given_up == 0
    await until(lambda: rig.engine.n_given_up == 1)
    assert [one["reason"] for one in rig.reports()] == ["step_stalled"]
    assert rig.left == []


async def test_a_loop_that_stands_still_ends_the_process_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.guard._stalled("loop")
    assert rig.left == [EXIT_STALLED]
    assert [one["reason"] for one in rig.reports()] == ["loop_stalled"]


async def test_an_end_that_takes_too_long_is_made_short(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.guard.end_within(0.01, EXIT_ENGINE_FAILED)
    assert rig.has_left.wait(60)
    assert rig.left == [EXIT_ENGINE_FAILED]


@pytest.mark.parametrize("what", ["failed", "step", "loop"])
async def test_a_disk_for_reports_that_does_not_answer_holds_no_end_up(
    what: Literal["failed", "step", "loop"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(guard, "END_TIMEOUT_S", 0.01)
    monkeypatch.setattr(CrashReports, "write", lambda *_: answers.wait(60) and None)
    rig = Rig(tmp_path)

    def end() -> None:
        if what == "failed":
            rig.guard.failed(ZeroDivisionError())
        else:
            rig.guard._stalled(what)

    ending = threading.Thread(target=end)
    ending.start()
    try:
        assert rig.has_left.wait(30)
        assert ending.is_alive()
    finally:
        answers.set()
        ending.join()
    assert rig.left[0] == (EXIT_ENGINE_FAILED if what == "failed" else EXIT_STALLED)


@pytest.mark.parametrize("comes_first", [False, True])
async def test_what_has_ended_in_time_ends_no_process(tmp_path: Path, comes_first: bool) -> None:
    rig, others = Rig(tmp_path), timers()
    if comes_first:
        rig.guard.ended()
    rig.guard.end_within(3600, EXIT_ENGINE_FAILED)
    if not comes_first:
        rig.guard.ended()
    for one in timers() - others:
        one.join(60)
    assert timers() <= others
    assert rig.left == []


async def test_a_report_that_cannot_be_made_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise LookupError

    rig = Rig(tmp_path)
    monkeypatch.setattr(rig.engine, "steps_told", fail)
    with caplog.at_level(logging.ERROR):
        rig.guard._stalled("loop")
    assert rig.left == [EXIT_STALLED]
    assert rig.reports() == []
