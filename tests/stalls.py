"""Tests of short deadlines on machines that stop now and then.

A test that shows what happens at a deadline of a twentieth of a second takes for granted that
nothing holds this process up for as long: no busy machine, no slow disk, no pause of a virtual
machine. Such a test is marked ``timed(seconds)``. Where it fails, and a thread beside it saw that
the process was held up for a good part of that time, the failure says nothing, and the test is run
again from its fixtures on. A failure that nothing disturbed is one at once.
"""

import contextlib
import re
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from _pytest.runner import runtestprotocol

MAX_RUNS = 25
"""Of a test that was disturbed each time. The last one counts, whatever disturbed it."""
MAX_S = 300.0
"""And no run is begun later than that."""
TOLERATED = 0.2
"""The part of a test's time for which the process may be held up in a run that counts."""
PERIOD_S = 0.002
_LATE = re.compile(
    r"^.*the event loop (?:has not turned for|turns again, after) .*\n", re.MULTILINE
)


def without_lateness(log: str) -> str:
    """What servers have written, but for what they say of an event loop that is late.

    A machine that stands still makes any of them say so.
    """
    return _LATE.sub("", log)


def queued_s() -> float:
    """For how long this thread could have run and was not let run, since it began; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


class Watch:
    """Notes how long this process is held up, while in a ``with`` block.

    Attributes:
        held_up_s: the longest time for which it stood still, or the time for which this thread
            waited for a processor, if that is more.
    """

    def __init__(self) -> None:
        self.held_up_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        before = time.monotonic()
        while not self._over.wait(PERIOD_S):
            now = time.monotonic()
            self.held_up_s = max(self.held_up_s, now - before - PERIOD_S)
            before = now

    def __enter__(self) -> Self:
        self._queued_before_s = queued_s()
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self.held_up_s = max(self.held_up_s, queued_s() - self._queued_before_s)


def run_until_undisturbed(
    item: pytest.Item, nextitem: pytest.Item | None, seconds: float
) -> list[pytest.TestReport]:
    """Run a test until it passes, or fails although nothing held the process up."""
    until = time.monotonic() + MAX_S
    for _ in range(MAX_RUNS):
        with Watch() as watch:
            # Its fixtures are made anew each time.
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        counts = watch.held_up_s < TOLERATED * seconds or time.monotonic() > until
        if counts or not any(one.failed for one in reports):
            break
    return reports


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the tests that are marked ``timed``; leave the others to pytest."""
    marker = item.get_closest_marker("timed")
    if marker is None:
        return None
    (seconds,) = marker.args
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run_until_undisturbed(item, nextitem, seconds):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
