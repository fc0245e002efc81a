"""One connection without a socket: a transport that takes notes, and a clock turned by hand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.messages import Generate, Sampling, ServerMessage, pack_ids

from tests.server.fountain import Fountain
from wkvm.core.config import ServerConfig
from wkvm.engine.loop import EngineLoop
from wkvm.server.connection import Connection
from wkvm.server.serve import Server

MAX_CALLBACKS = 100
"""In one turn of a clock. More are a connection that wakes up and finds nothing to do."""


class Notes(asyncio.Transport):
    """What a connection did to its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.high: int | None = None
        self.written = list[bytes]()
        self.reads = True
        self.has_eof = False
        self.end: str | None = None
        self.n_unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.n_unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: Any) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.end is not None

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"


@dataclass(eq=False)
class _Timer:
    due: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The part of an event loop that a connection uses, with a time that the test turns.

    Times are exact as long as they are multiples of a half.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers = list[_Timer]()

    def time(self) -> float:
        return self._now

    def call_at(self, due: float, callback: Callable[[], None]) -> _Timer:
        self._timers.append(_Timer(due, callback))
        return self._timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def turn(self, seconds: float) -> None:
        """Let time pass, and call what becomes due, in order."""
        end = self._now + seconds
        for _ in range(MAX_CALLBACKS):
            self._timers = [timer for timer in self._timers if not timer.cancelled]
            timer = min(self._timers, key=lambda timer: timer.due, default=None)
            if timer is None or timer.due > end:
                self._now = end
                return
            timer.cancel()
            self._now = max(self._now, timer.due)
            timer.callback()
        raise AssertionError("timers go off without end")


class Bench:
    """A connection, its transport and its clock, and the client's side of the protocol.

    Args:
        greets: whether the handshake is done.
    """

    def __init__(self, *, greets: bool = True, **settings: Any) -> None:
        self.fountain = Fountain()
        loop = EngineLoop(self.fountain)
        config = ServerConfig(binary_port=0, max_output_bytes=4096, **settings)
        self.server = Server(loop, config)
        self.transport = Notes()
        self.clock = Clock()
        self.connection = Connection(self.server._shared)
        self.connection._loop = cast("asyncio.AbstractEventLoop", self.clock)
        self.connection._clocks._loop = self.connection._loop
        self.client = ClientConnection()
        self.connection.connection_made(self.transport)
        if greets:
            self.connection.data_received(self.client.send_hello())
            self.received()

    def stops_reading(self) -> None:
        """The peer does not take what is sent, and too much of it waits."""
        self.transport.n_unsent = 4096
        self.connection.pause_writing()

    def reads_on(self) -> None:
        """It has taken everything."""
        self.transport.n_unsent = 0
        self.connection.resume_writing()

    def received(self) -> list[ServerMessage]:
        """What was written since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return self.client.receive_data(data)

    def requests(self, n: int, sampling: Sampling) -> bytes:
        new_id = self.client.new_request_id
        return b"".join(
            self.client.send(Generate(new_id(), pack_ids([1]), sampling)) for _ in range(n)
        )
