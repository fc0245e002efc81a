"""HTTP byte by byte, over a gateway's unix socket, and routes for tests of the door."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tests.gateway.harness import TIMEOUT_S
from wkvm.gateway.calls import Call, Route

GET = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNK = bytes(16 * 1024)


@dataclass
class Raw:
    """A connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Read one answer with a Content-Length: status and body."""
        async with asyncio.timeout(TIMEOUT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            sizes = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
            return int(head.split()[1]), await self.reader.readexactly(int(sizes[0]))

    async def rest(self) -> bytes:
        """Everything until the gateway closes."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def raw(path: Path, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    """Connect."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_unix_connection(str(path), ssl=tls, server_hostname=name)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110  (nothing announces it)
            await asyncio.sleep(0.005)


async def ok(call: Call) -> web.StreamResponse:
    """Answer without reading the body."""
    return web.Response(text="ok")


async def size(call: Call) -> web.StreamResponse:
    """Read the body, and say how long the JSON text in it is."""
    return web.Response(text=str(len(await call.body(str))))


async def big(call: Call) -> web.StreamResponse:
    """Send as many bytes as are asked for."""
    return web.Response(body=bytes(int(call.request.query["n"])))


class Spout:
    """A route that writes for ever, and what became of it."""

    def __init__(self) -> None:
        self.n_written = 0
        self.ended = asyncio.Event()
        self.route = Route("GET", "/spout", self._serve, is_open=True)

    async def _serve(self, call: Call) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(call.request)
        try:
            while True:
                await response.write(CHUNK)
                self.n_written += len(CHUNK)
        finally:
            self.ended.set()


ROUTES = (
    Route("GET", "/ok", ok, is_open=True),
    Route("POST", "/ok", ok, is_open=True),
    Route("POST", "/size", size, is_open=True),
    Route("GET", "/big", big, is_open=True),
)


async def upgraded(
    path: Path, target: str, *, protocol: str | None = None, limit: int = 2**16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket as bytes, after the answer to its upgrade."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=limit)
    wanted = "" if protocol is None else f"Sec-WebSocket-Protocol: {protocol}\r\n"
    writer.write(
        f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"{wanted}\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await reader.readexactly(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    return reader, writer
