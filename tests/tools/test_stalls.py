"""A test of a short deadline is judged by runs in which nothing held its process up."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.test_watchdog import Watched
from tests.stalls import without_lateness

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, subprocess
import pytest

n_runs = {"held up": 0, "wrong": 0}

@pytest.fixture
def fresh():
    return []

@pytest.mark.timed(0.1)
def test_held_up(fresh):
    assert fresh == []
    fresh.append(1)
    n_runs["held up"] += 1
    if n_runs["held up"] == 1:
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        raise AssertionError("too late")

@pytest.mark.timed(1e6)
def test_wrong():
    n_runs["wrong"] += 1
    raise AssertionError("wrong")

def test_runs():
    assert n_runs["held up"] >= 2
    assert n_runs["wrong"] == 1
"""


def test_what_was_held_up_is_run_again_and_what_is_wrong_fails(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timed(seconds)\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.stalls", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "test_it.py::test_wrong" in done.stdout


async def test_that_a_loop_was_late_is_no_error_of_a_server_and_all_else_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    watched.watchdog.look()
    with caplog.at_level(logging.WARNING, "wkvm.watchdog"):
        watched.clock.now += 2.0
        watched.watchdog.look()
        await asyncio.sleep(0)
    late, again = caplog.messages
    logged = f"2026-01-01 00:00:00,000 WARNING wkvm.watchdog[0]: {late}\n{again}\n"
    assert without_lateness(logged) == ""
    other = "the engine is broken and stops\n"
    assert without_lateness(f"{late}\n{other}{again}\n") == other
    assert without_lateness(other + "no newline") == other + "no newline"
