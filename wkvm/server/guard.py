"""What ends a process whose engine cannot go on, and what is told and written then.

An engine that fails, or a step that does not end, is the loop's to tell its clients; an event loop
that does not turn can tell nobody, and the process ends without it.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wkvm.core.config import ServerConfig
from wkvm.server.crashes import CrashReports, report_of
from wkvm.server.notify import Notifier
from wkvm.server.watchdog import Watchdog, What

EXIT_ENGINE_FAILED = 70
"""The engine failed: a bug, or a device that is lost. Everybody was told."""
EXIT_STALLED = 71
"""A step, or the event loop, stood still for longer than ``step_timeout_s``."""
END_TIMEOUT_S = 60.0
"""How long the end of a process may take whose engine failed; then it ends at once."""

logger = logging.getLogger("wkvm.server")


class Watched(Protocol):
    """The engine's loop, as far as it is watched. All of it but ``give_up`` is for any thread."""

    @property
    def busy_since(self) -> float | None:
        """When it turned last, if it has something to do."""
        ...

    def steps_told(self) -> dict[str, object]:
        """What the last steps were made of."""
        ...

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...

    def give_up(self) -> None:
        """End though a step does not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Who is told of the process, and what.

    Attributes:
        notifier: the supervisor.
        crashes: where reports go; None writes none.
        settings: for reports, as ``told_settings`` gives them.
        memory: bytes by name, of the device; must not wait for it.
    """

    notifier: Notifier = field(default_factory=Notifier)
    crashes: CrashReports | None = None
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    memory: Callable[[], Mapping[str, int]] = dict[str, int]


class Guard:
    """Watches one engine and its event loop. Made on the loop's thread.

    Args:
        leave: ends the process with a status, at once.
    """

    def __init__(
        self,
        engine: Watched,
        config: ServerConfig,
        supervision: Supervision,
        *,
        leave: Callable[[int], None] | None = None,
    ) -> None:
        self._engine = engine
        self._supervision = supervision
        self._leave = leave_now if leave is None else leave
        self._loop = asyncio.get_running_loop()
        self._began_at = time.monotonic()
        self._has_reported = False
        self._timers = list[threading.Timer]()
        self._has_ended = False
        self.watchdog = Watchdog(
            max_lag_s=config.max_loop_lag_s,
            step_timeout_s=config.step_timeout_s,
            stalled=self._stalled,
            busy_since=lambda: engine.busy_since,
            notifier=supervision.notifier,
        )

    def lag(self) -> tuple[float, int]:
        """How late the loop was lately, and how often it was very late."""
        return self.watchdog.lag_s, self.watchdog.n_stalls

    def failed(self, error: BaseException) -> None:
        """The engine failed: write a report, and see to it that the process ends in bounded time.

        From any thread. Waits for the disk of the reports.
        """
        self._supervision.notifier.failing()
        # Before the report: its disk may be what does not answer.
        self.end_within(END_TIMEOUT_S, EXIT_ENGINE_FAILED)
        self._report("engine_failed", EXIT_ENGINE_FAILED, error)

    def end_within(self, timeout_s: float, status: int) -> None:
        """End the process after a time, unless ``ended`` is called by then. In any thread."""
        timer = threading.Timer(timeout_s, self._leave, [status])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
        if self._has_ended:
            timer.cancel()

    def ended(self) -> None:
        """All that was to end has: what the process does from now on is whoever's who made it."""
        self._has_ended = True
        for timer in self._timers:
            timer.cancel()

    def _stalled(self, what: What) -> None:
        """Nothing goes on. In the watchdog's thread."""
        self.end_within(END_TIMEOUT_S, EXIT_STALLED)
        if what == "step":
            logger.error("a step does not end: the engine is given up")
            self._supervision.notifier.failing()
            self._report("step_stalled", EXIT_STALLED)
            self._loop.call_soon_threadsafe(self._engine.give_up)
        else:
            logger.error("the event loop does not turn: the process ends")
            self._report("loop_stalled", EXIT_STALLED)
            self._leave(EXIT_STALLED)

    def _report(self, reason: str, status: int, error: BaseException | None = None) -> None:
        """Write a report, the first time."""
        supervision = self._supervision
        if supervision.crashes is None or self._has_reported:
            return
        self._has_reported = True
        try:
            report = report_of(
                reason,
                status,
                error=error,
                settings=supervision.settings,
                steps=self._engine.steps_told(),
                counters=self._engine.stats(),
                memory=supervision.memory(),
                uptime_s=time.monotonic() - self._began_at,
            )
            name = supervision.crashes.write(report)
        except Exception:
            # Whatever is broken, the process ends as it would have.
            logger.exception("no crash report could be made")
            return
        if name is not None:
            logger.error("a crash report was written: %s", name)


def watch_loop(*, max_lag_s: float, step_timeout_s: float, notifier: Notifier) -> Watchdog:
    """A watchdog of a process without an engine, which ends with ``EXIT_STALLED`` if its loop does.

    On the loop's thread; it is still to be started.
    """

    def stalled(what: What) -> None:
        del what
        logger.error("the event loop does not turn: the process ends")
        leave_now(EXIT_STALLED)

    return Watchdog(
        max_lag_s=max_lag_s, step_timeout_s=step_timeout_s, stalled=stalled, notifier=notifier
    )


def leave_now(status: int) -> None:
    """End this process without waiting for any thread, device or disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)
