"""What a connection has to send, and how much of it waits.

A transport keeps each write by itself until it is sent, and around a token of twenty bytes that is
a kilobyte of books. So as soon as a peer has not taken everything, what comes after is kept here,
in one piece, and handed to the transport when that has nothing left.
"""

import asyncio
from collections.abc import Callable

from wkvm.server.pipe import PipeEnd

SMALLEST_PIECE = 4096


class Output:
    """The sending side of one transport.

    Args:
        transport: whose protocol tells ``stops`` and ``goes_on`` what it is told.
        high: how many bytes may wait before it is full; it is so until a quarter of them is left.
        on_full, on_free: called when that changes.

    Attributes:
        is_full: whether too much waits.
    """

    __slots__ = (
        "_corked",
        "_high",
        "_is_stuck",
        "_low",
        "_on_free",
        "_on_full",
        "_transport",
        "_waiting",
        "is_full",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        high: int,
        on_full: Callable[[], None],
        on_free: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._high, self._low = high, high // 4
        self._on_full, self._on_free = on_full, on_free
        self._waiting = bytearray()
        self._corked: list[bytes] | None = None
        self._is_stuck = False
        self.is_full = False
        # What is written in memory is taken in the next turn of the loop: that is no delay.
        is_in_memory = isinstance(transport, PipeEnd)
        transport.set_write_buffer_limits(high=high if is_in_memory else 0)

    @property
    def n_unsent(self) -> int:
        """How many bytes wait to be sent."""
        return len(self._waiting) + self._transport.get_write_buffer_size()

    @property
    def n_before_full(self) -> int | None:
        """Likewise; None where nothing more is to be added to them."""
        return None if self.is_full else self.n_unsent

    def cork(self) -> None:
        """Collect what is written until ``uncork``."""
        self._corked = []

    def uncork(self) -> None:
        """Send what was collected, with one write."""
        corked, self._corked = self._corked, None
        if corked:
            self._put(corked[0] if len(corked) == 1 else b"".join(corked))

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._put(data)

    def stops(self) -> None:
        """The transport has something left to send."""
        self._is_stuck = True
        self._look()

    def goes_on(self) -> None:
        """The transport has sent it."""
        self._is_stuck = False
        size = max(self._low, SMALLEST_PIECE)
        while self._waiting and not self._is_stuck:
            piece = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._transport.write(piece)
        if self.is_full and self.n_unsent <= self._low:
            self.is_full = False
            self._on_free()

    def flush(self) -> None:
        """Hand everything to the transport, whatever waits there: nothing will follow."""
        self.uncork()
        if self._waiting:
            rest = bytes(self._waiting)
            self._waiting.clear()
            self._transport.write(rest)

    def _put(self, data: bytes) -> None:
        if self._is_stuck:
            self._waiting += data
            self._look()
        else:
            self._transport.write(data)

    def _look(self) -> None:
        if not self.is_full and self.n_unsent > self._high:
            self.is_full = True
            self._on_full()
