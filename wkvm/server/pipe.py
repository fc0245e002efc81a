"""A connection within one event loop: what one protocol writes, the other is handed, in memory.

Between a gateway and the engine of its own process a pair of sockets would cost two system calls
and a turn through the kernel for each step, and for each request twice.
"""

import asyncio


def join(first: asyncio.BaseProtocol, second: asyncio.BaseProtocol) -> None:
    """Connect two protocols of the running loop to each other.

    Bytes arrive in a later turn of the loop, in order, all at once that were written before it.
    Each end has the flow control of a socket's transport, and its close: what was written before
    ``close`` still arrives. There is no half-open use.
    """
    loop = asyncio.get_running_loop()
    one, other = PipeEnd(loop, first), PipeEnd(loop, second)
    one.peer, other.peer = other, one
    first.connection_made(one)
    second.connection_made(other)


class PipeEnd(asyncio.Transport):
    """The transport of one of the two. ``peer`` is the other's."""

    peer: "PipeEnd"

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._inbox = list[bytes]()
        self._n_unread = 0
        self._delivery_is_due = False
        self._reads = True
        self._is_closing = False
        self._is_closed = False
        self._protocol_waits = False
        self.set_write_buffer_limits()

    # --- writing --------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes. Nothing happens once this end closes."""
        if self._is_closing or not data:
            return
        peer = self.peer
        peer._inbox.append(bytes(data))
        peer._n_unread += len(data)
        peer._deliver_soon()
        if peer._n_unread > self._high and not self._protocol_waits:
            self._protocol_waits = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above ``high`` bytes that were not taken the protocol is paused, until at ``low``."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the other protocol has not taken."""
        return self.peer._n_unread

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """``low`` and ``high``."""
        return self._low, self._high

    def can_write_eof(self) -> bool:
        """No: an end that is half open is closed."""
        return False

    # --- reading --------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Hand nothing over until ``resume_reading``."""
        self._reads = False

    def resume_reading(self) -> None:
        """Hand over what has come, and what comes."""
        self._reads = True
        if self._inbox:
            self._deliver_soon()

    def is_reading(self) -> bool:
        """Whether what comes is handed over."""
        return self._reads and not self._is_closing

    def _deliver_soon(self) -> None:
        if self._reads and not self._delivery_is_due:
            self._delivery_is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_is_due = False
        if not self._reads or self._is_closing or not self._inbox:
            return
        data = self._inbox[0] if len(self._inbox) == 1 else b"".join(self._inbox)
        self._drop_inbox()
        try:
            self._hand_over(data)
        except BaseException:
            # As with a socket: a protocol that fails at its input is not given more of it.
            self.abort()
            raise
        self.peer._was_read()

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol), "a protocol that takes no bytes"
            protocol.data_received(data)
            return
        rest = memoryview(data)
        while rest and not self._is_closing:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            n_bytes = min(len(buffer), len(rest))
            buffer[:n_bytes] = rest[:n_bytes]
            protocol.buffer_updated(n_bytes)
            rest = rest[n_bytes:]

    def _drop_inbox(self) -> None:
        self._inbox = []
        self._n_unread = 0

    def _was_read(self) -> None:
        """The other protocol has taken all that was written here."""
        if self._is_closing:
            self._finish_soon()
        elif self._protocol_waits:
            self._protocol_waits = False
            self._protocol.resume_writing()

    # --- ends -----------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether ``close`` or ``abort`` was called, or the other end is gone."""
        return self._is_closing

    def close(self) -> None:
        """Close, once the other protocol has taken what was written. Hand over nothing more."""
        if self._is_closing:
            return
        self._is_closing = True
        self._drop_inbox()
        if not self.peer._n_unread:
            self._finish_soon()

    def abort(self) -> None:
        """Close now. What was not taken is lost."""
        self._is_closing = True
        self._drop_inbox()
        self.peer._drop_inbox()
        self._finish_soon()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol of this end."""
        return self._protocol

    def _finish_soon(self) -> None:
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_closing = True
        self._drop_inbox()
        self._protocol.connection_lost(None)
        # There is nobody left to take what the other end has written, or to write to it.
        self.peer._is_closing = True
        self.peer._finish_soon()
