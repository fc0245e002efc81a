"""A thread sees how late the event loop is, and what stands still."""

import asyncio
import logging
import threading
import time

import pytest

from wkvm.server.notify import Notifier
from wkvm.server.watchdog import PERIOD_S, WINDOW_S, Watchdog, What


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watchdog that looks when it is told to."""

    def __init__(self, *, timeout_s: float = 0.0, watchdog_s: float | None = None) -> None:
        self.clock = Clock()
        self.since: float | None = None
        self.told = list[What]()
        self.alive = 0
        notifier = Notifier(None, watchdog_s)
        notifier.alive = self._alive  # type: ignore[method-assign]
        self.watchdog = Watchdog(
            max_lag_s=1.0,
            step_timeout_s=timeout_s,
            stalled=self.told.append,
            busy_since=lambda: self.since,
            notifier=notifier,
            clock=self.clock,
        )

    def _alive(self) -> None:
        self.alive += 1

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and the watchdog look as often as it does, and the loop not turn."""
        for _ in range(round(seconds / PERIOD_S)):
            self.clock.now += PERIOD_S
            self.watchdog.look()


async def test_a_loop_that_turns_has_no_lag() -> None:
    watched = Watched()
    watched.watchdog.look()
    await asyncio.sleep(0)
    assert watched.watchdog.lag_s == 0


async def test_the_lag_is_that_of_a_loop_that_does_not_turn_yet_and_of_the_last_ten_seconds() -> (
    None
):
    watched = Watched()
    watched.watchdog.look()
    watched.clock.now += 3.0
    assert watched.watchdog.lag_s == 3
    await asyncio.sleep(0)
    assert watched.watchdog.lag_s == 3
    watched.clock.now += WINDOW_S
    assert watched.watchdog.lag_s == 0


async def test_a_late_loop_is_logged_once_with_the_stack_of_its_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    watched.watchdog.look()
    with caplog.at_level(logging.WARNING, "wkvm.watchdog"):
        watched.clock.now += 1.0
        watched.watchdog.look()
        assert caplog.messages == []
        watched.clock.now += 0.01
        looking = threading.Thread(target=watched.watchdog.look)
        looking.start()
        looking.join()
        watched.watchdog.look()
        (message,) = caplog.messages
        assert "has not turned for 1.0 s" in message
        assert "test_watchdog.py" in message
        assert "test_a_late_loop_is_logged" in message
        assert watched.watchdog.n_stalls == 1
        await asyncio.sleep(0)
        assert "turns again" in caplog.messages[1]


async def test_the_thread_sees_a_loop_that_is_blocked() -> None:
    watchdog = Watchdog(max_lag_s=0.01)
    watchdog.start()
    try:
        stood = time.monotonic() + 60.0
        while not watchdog.n_stalls and time.monotonic() < stood:
            time.sleep(0.01)  # noqa: ASYNC251  (the loop does not turn)
        assert watchdog.n_stalls == 1
        assert watchdog.lag_s > 0.01
    finally:
        watchdog.stop()


@pytest.mark.parametrize(("seconds", "expected"), [(10.0, []), (10.0 + PERIOD_S, ["loop"])])
async def test_a_loop_that_stands_still_is_told_after_its_limit(
    seconds: float, expected: list[str]
) -> None:
    watched = Watched(timeout_s=10.0)
    watched.watchdog.look()
    watched.pass_time(seconds)
    assert watched.told == expected
    watched.pass_time(100.0)
    assert watched.told == ["loop"]


async def test_a_limit_of_0_is_none() -> None:
    watched = Watched(timeout_s=0.0)
    watched.since = 1.0
    watched.watchdog.look()
    watched.pass_time(10_000.0)
    assert watched.told == []


async def test_a_step_that_does_not_end_is_told_and_one_that_does_is_not() -> None:
    watched = Watched(timeout_s=10.0)
    for step in range(5):
        watched.since = float(step)
        for _ in range(round(9.0 / PERIOD_S)):
            watched.pass_time(PERIOD_S)
            await asyncio.sleep(0)  # the loop turns
    assert watched.told == []
    for _ in range(round(10.0 / PERIOD_S)):
        watched.pass_time(PERIOD_S)
        await asyncio.sleep(0)
    assert watched.told == ["step"]


async def test_time_in_which_the_whole_process_stood_still_does_not_end_it() -> None:
    watched = Watched(timeout_s=10.0)
    watched.since = 1.0
    watched.watchdog.look()
    watched.clock.now += 3600.0  # SIGSTOP, and SIGCONT
    watched.watchdog.look()
    assert watched.told == []


async def test_a_supervisor_hears_of_a_loop_that_turns_and_of_no_other() -> None:
    watched = Watched(watchdog_s=PERIOD_S)
    watched.watchdog.look()
    assert watched.alive == 1
    watched.pass_time(5.0)
    assert watched.alive == 1
    await asyncio.sleep(0)
    watched.pass_time(PERIOD_S)
    assert watched.alive == 2
