"""The deadlines of one connection, and the one timer that watches them."""

import asyncio
import enum
import math
from collections.abc import Callable

from wkvm.core.config import ServerConfig


class Overdue(enum.Enum):
    """What a connection has waited for too long."""

    HELLO = enum.auto()
    FRAME = enum.auto()
    """The rest of a frame that has begun."""
    READER = enum.auto()
    """A peer that takes what waits to be sent."""
    CLOSE = enum.auto()
    """The peer's side of the end."""
    SOUND = enum.auto()
    """Anything at all from the peer."""
    PONG = enum.auto()
    PING = enum.auto()
    """A sound, so that it is time to ask for one."""


class Clocks:
    """When what is due. There is one timer, and it is only ever put forward.

    So a deadline that moves back or is met costs nothing until the timer goes off and finds nothing
    to do.

    Args:
        config: how long things may take.
        tick: called when something may be overdue.
    """

    def __init__(self, config: ServerConfig, tick: Callable[[], None]) -> None:
        self._config = config
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._hello_due = math.inf
        self._frame_due = math.inf
        self._reader_due = math.inf
        self._close_due = math.inf
        self._heard_at = 0.0
        self._pinged_at = 0.0
        self._n_missed_pings = 0

    @property
    def is_ending(self) -> bool:
        """Whether ``ends`` was called."""
        return self._close_due != math.inf

    # --- what happens ---------------------------------------------------------------------

    def starts(self) -> None:
        """The connection is there, and Hello is waited for."""
        self._heard_at = self._loop.time()
        self._hello_due = self._heard_at + self._config.auth_timeout_s
        self._arm(self._hello_due)

    def opens(self) -> None:
        """Hello was good. The silence of the peer counts from now on."""
        self._hello_due = math.inf
        self.arm_next(is_closing=False, counts_silence=True)

    def hears(self) -> None:
        """Bytes have come."""
        self._heard_at = self._loop.time()
        self._n_missed_pings = 0

    def begins_frame(self) -> None:
        """The last bytes that came have begun a frame, or go on with one."""
        if self._frame_due == math.inf:
            self._frame_due = self._heard_at + self._config.frame_timeout_s
            self._arm(self._frame_due)

    def ends_frame(self) -> None:
        """A frame was complete."""
        self._frame_due = math.inf

    def is_blocked(self) -> None:
        """The peer does not take what waits, and nothing is read from it."""
        self._reader_due = self._loop.time() + self._config.write_timeout_s
        self._frame_due = math.inf
        self._arm(self._reader_due)

    def is_free(self) -> None:
        """It has caught up."""
        self._reader_due = math.inf

    def may_speak(self) -> None:
        """It is read from again: what it could not say does not count as silence."""
        self._heard_at = self._loop.time()

    def pings(self) -> int:
        """A Ping is sent; its nonce."""
        self._n_missed_pings += 1
        self._pinged_at = self._loop.time()
        return self._n_missed_pings

    def ends(self, timeout_s: float) -> None:
        """The peer may take so long to close its side."""
        self._close_due = self._loop.time() + timeout_s
        self._arm(self._close_due)

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what is due ----------------------------------------------------------------------

    def overdue(self, *, is_closing: bool, counts_silence: bool) -> Overdue | None:
        """What has been waited for too long, if anything: the first of them."""
        now = self._loop.time()
        if is_closing:
            return Overdue.CLOSE if now >= self._close_due else None
        if now >= self._hello_due:
            return Overdue.HELLO
        if now >= self._reader_due:
            return Overdue.READER
        if now >= self._frame_due:
            return Overdue.FRAME
        return self._silence(now) if counts_silence else None

    def _silence(self, now: float) -> Overdue | None:
        if now >= self._heard_at + self._config.idle_timeout_s:
            return Overdue.SOUND
        if not self._config.ping_interval_s or now < self._ping_due():
            return None
        is_late = self._n_missed_pings >= self._config.max_missed_pings
        return Overdue.PONG if is_late else Overdue.PING

    def arm_next(self, *, is_closing: bool, counts_silence: bool) -> None:
        """See to it that the timer goes off when the next thing is due."""
        if is_closing:
            self._arm(self._close_due)
            return
        due = min(self._hello_due, self._frame_due, self._reader_due)
        if counts_silence:
            due = min(due, self._heard_at + self._config.idle_timeout_s)
            if self._config.ping_interval_s:
                due = min(due, self._ping_due())
        self._arm(due)

    def _ping_due(self) -> float:
        since = self._pinged_at if self._n_missed_pings else self._heard_at
        return since + self._config.ping_interval_s

    def _arm(self, due: float) -> None:
        if due < self._armed_for:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_for = due
            self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._armed_for = math.inf
        self._tick()
