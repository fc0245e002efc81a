"""A ping over a unix socket, against a bare uvloop echo of the same bytes.

One client for both: it writes a frame, and waits until as many bytes have come back. What
differs is the server alone.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Self, cast

from wkvm_protocol.client import ClientConnection
from wkvm_protocol.messages import Ping

from wkvm_bench.harness import Bar, BenchError, Comparison, alternate
from wkvm_bench.servers import running

BAR = Bar(2.0, at_least=False)


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark. ``n_threads`` is not used: each server has one."""
    del n_threads
    n_pings, n = (10, 1) if smoke else (4000, 21)
    with tempfile.TemporaryDirectory() as folder:
        wkvm_path, echo_path = Path(folder) / "wkvm.sock", Path(folder) / "echo.sock"
        async with running("null", wkvm_path), running("echo", echo_path):
            wkvm, echo = await _Pinger.connect(wkvm_path), await _Pinger.connect(echo_path)
            protocol = ClientConnection()
            wkvm.write(protocol.send_hello())
            while protocol.hello_ok is None:
                protocol.receive_data(await wkvm.received())
            frame = protocol.send(Ping(nonce=7))

            async def of_wkvm() -> float:
                return await wkvm.time(frame, n_pings)

            async def of_echo() -> float:
                return await echo.time(frame, n_pings)

            a, b = await alternate(of_wkvm, of_echo, n)
            wkvm.close()
            echo.close()
    return [Comparison("unix socket", "wkvm Ping", "bare uvloop echo", "us", a, b, BAR)]


class _Pinger(asyncio.Protocol):
    """A client that writes and counts what comes back."""

    def __init__(self) -> None:
        self._missing = 0
        self._data = b""
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """A client of the server at ``path``."""
        _, protocol = await asyncio.get_running_loop().create_unix_connection(cls, str(path))
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance: uvloop's unix transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data = data
        self._missing -= len(data)
        if self._missing <= 0 and self._done is not None:
            self._done.set_result(None)
            self._done = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None:
            self._done.set_exception(exc or BenchError("the server closed the connection"))

    def write(self, data: bytes) -> None:
        """Send something."""
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def received(self) -> bytes:
        """The bytes that come next."""
        self._missing = 1
        self._done = asyncio.get_running_loop().create_future()
        await self._done
        return self._data

    async def time(self, frame: bytes, n_pings: int) -> float:
        """Microseconds per round trip, over ``n_pings`` one after the other."""
        loop = asyncio.get_running_loop()
        start = time.perf_counter()
        for _ in range(n_pings):
            self._missing = len(frame)
            self._done = done = loop.create_future()
            self._transport.write(frame)
            await done
        return (time.perf_counter() - start) / n_pings * 1e6
