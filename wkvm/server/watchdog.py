"""A thread that watches the event loop, and the engine's step: how late they are, and where.

It asks the loop for a sign of life several times a second. What it sees is told as a number, in
the log with the stack of the loop's thread, and, where nothing goes on for very long, to whoever
ends the process. Time in which the whole process stood still, such as in SIGSTOP, does not count
for that end.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from wkvm.server.notify import Notifier
from wkvm.server.stacks import stack_of_thread

PERIOD_S = 0.25
"""How often it looks."""
WINDOW_S = 10.0
"""For how long a lag is remembered."""

What: TypeAlias = Literal["loop", "step"]

logger = logging.getLogger("wkvm.watchdog")


class Watchdog:
    """Of one event loop. Made and started on the loop's thread.

    Args:
        max_lag_s: a loop that does not turn for longer is written to the log.
        step_timeout_s: a loop, or a step, that stands still for longer is told to ``stalled``; 0
            for never.
        stalled: called once for each, in the watchdog's thread.
        busy_since: when the engine began what it does now, by ``clock``; None if it does nothing.
        notifier: who is told that the loop turns.
        clock: seconds, monotonic.

    Attributes:
        n_stalls: how often the loop was later than ``max_lag_s``.
    """

    def __init__(
        self,
        *,
        max_lag_s: float,
        step_timeout_s: float = 0.0,
        stalled: Callable[[What], None] = lambda _: None,
        busy_since: Callable[[], float | None] = lambda: None,
        notifier: Notifier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_lag_s = max_lag_s
        self._step_timeout_s = step_timeout_s
        self._stalled = stalled
        self._busy = busy_since
        self._notifier = Notifier() if notifier is None else notifier
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wkvm-watchdog", daemon=True)
        self._lags = deque[tuple[float, float]]()
        self._sent_at: float | None = None
        self._looked_at = clock()
        self._told_at = 0.0
        self._is_late = False
        self._loop_stood_s = 0.0
        self._step_stood_s = 0.0
        self._since: float | None = None
        self._told = set[What]()
        self.n_stalls = 0

    @property
    def lag_s(self) -> float:
        """The longest that the loop did not turn, of the last ``WINDOW_S``."""
        now, sent_at = self._clock(), self._sent_at
        lags = [lag for at, lag in list(self._lags) if at > now - WINDOW_S]
        return max(lags, default=0.0) if sent_at is None else max(*lags, now - sent_at, 0.0)

    def start(self) -> None:
        """Begin to look."""
        self._looked_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Does not wait for what is being told."""
        self._over.set()

    def look(self) -> None:
        """Look once; what the thread does."""
        now = self._clock()
        # Of a time in which nobody looked, nothing is known.
        seen = min(now - self._looked_at, 2 * PERIOD_S)
        self._looked_at = now
        self._look_at_loop(now, seen)
        self._look_at_step(seen)

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            self.look()

    def _look_at_loop(self, now: float, seen: float) -> None:
        sent_at = self._sent_at
        if sent_at is None:
            if self._notifier.watchdog_s and now - self._told_at > self._notifier.watchdog_s / 4:
                self._told_at = now
                self._notifier.alive()
            self._loop_stood_s = 0.0
            self._sent_at = now
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._beat)
            return
        self._loop_stood_s += seen
        if now - sent_at > self._max_lag_s and not self._is_late:
            self._is_late = True
            self.n_stalls += 1
            logger.warning(
                "the event loop has not turned for %.1f s; it is at: %s",
                now - sent_at,
                " <- ".join(reversed(stack_of_thread(self._ident)[-12:])),
            )
        self._tell("loop", self._loop_stood_s)

    def _look_at_step(self, seen: float) -> None:
        since = self._busy()
        if since is None or since != self._since:
            self._since, self._step_stood_s = since, 0.0
            return
        self._step_stood_s += seen
        self._tell("step", self._step_stood_s)

    def _tell(self, what: What, stood_s: float) -> None:
        if 0 < self._step_timeout_s < stood_s and what not in self._told:
            self._told.add(what)
            self._stalled(what)

    def _beat(self) -> None:
        """The loop turns. On its thread."""
        sent_at, self._sent_at = self._sent_at, None
        if sent_at is None:
            return
        now = self._clock()
        self._lags.append((now, now - sent_at))
        while self._lags[0][0] < now - WINDOW_S:
            self._lags.popleft()
        if self._is_late:
            self._is_late = False
            logger.warning("the event loop turns again, after %.1f s", now - sent_at)
