"""The events of a background response while it is made: read by anybody, as often as they like."""

import asyncio


class Feed:
    """Events, framed, in the order of their numbers from 0. Belongs to one event loop.

    Attributes:
        is_over: whether no more come.
    """

    def __init__(self) -> None:
        self._events = list[bytes]()
        self.is_over = False
        self._changed = asyncio.Event()

    def add(self, event: bytes) -> None:
        """Add the next one."""
        self._events.append(event)
        self._tell()

    def end(self) -> None:
        """No more come."""
        self.is_over = True
        self._tell()

    def since(self, n_seen: int) -> list[bytes]:
        """The events from a number on."""
        return self._events[n_seen:]

    async def changed(self, n_seen: int) -> None:
        """Wait for more than ``n_seen`` events, or the end."""
        while len(self._events) <= n_seen and not self.is_over:
            await self._changed.wait()

    def whole(self) -> bytes:
        """All events so far."""
        return b"".join(self._events)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
