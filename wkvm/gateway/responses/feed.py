"""The events of a background response while it is made: read by anybody, as often as they like."""

import asyncio

from wkvm.gateway.failures import HttpError

MAX_BYTES = 4 * 1024 * 1024
"""Of the events of one response. Of more, the first are forgotten."""


class Feed:
    """Events, framed, in the order of their numbers from 0. Belongs to one event loop.

    Attributes:
        is_over: whether no more come.
    """

    def __init__(self) -> None:
        self._events = list[bytes]()
        self._n_dropped = 0
        self._n_bytes = 0
        self.is_over = False
        self._changed = asyncio.Event()

    @property
    def n_events(self) -> int:
        """How many there have been."""
        return self._n_dropped + len(self._events)

    def add(self, event: bytes) -> None:
        """Add the next one."""
        self._events.append(event)
        self._n_bytes += len(event)
        n_dropped = 0
        while self._n_bytes > MAX_BYTES and n_dropped < len(self._events) - 1:
            self._n_bytes -= len(self._events[n_dropped])
            n_dropped += 1
        if n_dropped:
            del self._events[:n_dropped]
            self._n_dropped += n_dropped
        self._tell()

    def end(self) -> None:
        """No more come."""
        self.is_over = True
        self._tell()

    def since(self, n_seen: int) -> list[bytes]:
        """The events from a number on.

        Raises:
            HttpError: 410; some of them are forgotten.
        """
        if n_seen < self._n_dropped:
            raise gone()
        return self._events[n_seen - self._n_dropped :]

    async def changed(self, n_seen: int) -> None:
        """Wait for more than ``n_seen`` events, or the end."""
        while self.n_events <= n_seen and not self.is_over:
            await self._changed.wait()

    def whole(self) -> bytes | None:
        """All events so far; None if some are forgotten."""
        return None if self._n_dropped else b"".join(self._events)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def gone() -> HttpError:
    """410: events are kept no more."""
    why = "these events of the response are not kept: ask for it as it is"
    return HttpError(410, why, code="events_gone")
