"""A server that does what a test says, and nothing by itself."""

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import TypeVar

from wkvm_protocol.address import TcpAddress, UnixAddress, parse_address
from wkvm_protocol.connection import Ignored, Refused, ServerConnection, failure, packed_tokens
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    End,
    EndOn,
    EndReason,
    Generate,
    Hello,
    Message,
    ServerMessage,
    StateInfo,
    pack_ids,
)

M = TypeVar("M", bound=Message)
PATIENCE_S = 60.0
"""Longer than anything here takes; a test that waits this long has failed."""


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = ServerConnection()
        self.gone = False
        self.unread: list[Message] = []

    async def hello(
        self, *, ping_interval_ms: int = 0, max_lanes: int = 1024, features: Sequence[str] = ()
    ) -> Hello:
        self.wire = ServerConnection(max_lanes=max_lanes, features=features)
        hello = await self.next(Hello)
        self.raw(
            self.wire.send_hello_ok(
                ping_interval_ms=ping_interval_ms,
                server="fake",
                model="fake-model",
                model_digest="",
                layout_fingerprint="",
                tokenizer_digest="",
                vocab_size=65536,
                eos_ids=[0, 1],
                n_slots=4,
                max_model_len=0,
            )
        )
        return hello

    async def next(self, kind: type[M]) -> M:
        """The next message; it has to be of a certain type."""
        while not self.unread:
            async with asyncio.timeout(PATIENCE_S):
                data = await self.reader.read(1 << 16)
            assert data, f"the client has gone; {kind.__name__} was awaited"
            self._take(data)
        message = self.unread.pop(0)
        assert isinstance(message, kind), f"{message}; {kind.__name__} was awaited"
        return message

    async def nothing(self) -> None:
        """Assert that nothing more has come, once the client answered a last question."""
        assert self.unread == []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                data = await self.reader.read(1 << 16)
                self._take(data)
        assert self.unread == []

    async def eof(self) -> None:
        """Wait until the client has closed."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                while data := await self.reader.read(1 << 16):
                    self._take(data)

    def send(self, *messages: ServerMessage) -> None:
        for message in messages:
            self.raw(self.wire.send(message))

    def tokens(
        self,
        lanes: Sequence[int],
        ids: Sequence[int],
        choices: Sequence[int] = (),
        counts: Sequence[int] = (),
    ) -> None:
        self.send(packed_tokens(lanes, ids, choices, counts))

    def end(
        self,
        request_id: int,
        *,
        choice: int = 0,
        reason: EndReason = EndReason.LENGTH,
        stop_id: int | None = None,
        n_output: int = 0,
    ) -> None:
        self.send(
            End(
                request_id=request_id,
                choice=choice,
                reason=reason,
                stop_id=stop_id,
                n_prompt=3,
                n_output=n_output,
                queue_us=1_000,
                first_token_us=2_000,
                total_us=15_329,
            )
        )

    def end_on(
        self,
        request_id: int,
        *,
        reason: EndReason = EndReason.LENGTH,
        n_output: int = 0,
        name: str = "s",
        version: int = 1,
        cached_tokens: int = 0,
        target: str = "",
        prompt_left: int = 0,
    ) -> None:
        self.send(
            EndOn(
                request_id=request_id,
                choice=0,
                reason=reason,
                stop_id=None,
                n_prompt=3,
                n_output=n_output,
                queue_us=1_000,
                first_token_us=2_000,
                total_us=10_000,
                cached_tokens=cached_tokens,
                n_computed=cached_tokens + 3,
                pending=pack_ids([9]),
                prompt_left=prompt_left,
                name=name,
                version=version,
                ack="durable" if name else "",
                target=target,
            )
        )

    def fail(self, request_id: int, code: ErrorCode, field: str = "", retry_ms: int = 0) -> None:
        self.send(failure(request_id, code, "as scripted", field=field, retry_after_ms=retry_ms))

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def vanish(self) -> None:
        """Close the socket, with all that was written still arriving."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def _take(self, data: bytes) -> None:
        for message in self.wire.receive_data(data):
            assert not isinstance(message, Refused), message
            if not isinstance(message, Ignored):
                self.unread.append(message)


class FakeServer:
    """Hands each connection to the test, which plays the server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.peers: list[Peer] = []
        self._waiting: asyncio.Queue[Peer] = asyncio.Queue()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        match parse_address(self.address):
            case UnixAddress(path):
                self._server = await asyncio.start_unix_server(self._connected, path)
            case TcpAddress(host, port):
                self._server = await asyncio.start_server(self._connected, host, port)
                port = self._server.sockets[0].getsockname()[1]
                self.address = str(TcpAddress(host, port))

    async def peer(self) -> Peer:
        """The next connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._waiting.get()

    async def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        await self.stop_listening()
        for peer in self.peers:
            await peer.vanish()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self._waiting.put_nowait(peer)


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


async def answer(peer: Peer, ids: Sequence[int]) -> Generate:
    """Play a whole request."""
    request = await peer.next(Generate)
    for token_id in ids:
        peer.tokens([request.request_id], [token_id])
    peer.end(request.request_id, n_output=len(ids))
    return request


def told(name: str, version: int = 1, n_computed: int = 5) -> StateInfo:
    """What a server tells of a state."""
    return StateInfo(
        name=name,
        version=version,
        head=version,
        n_versions=version,
        ack="durable",
        tier="host",
        content_id="ab" * 32,
        n_bytes=1234,
        n_computed=n_computed,
        n_pending=1,
        tail=pack_ids([1, 2, 3, 4, 5, 6]),
        operation="create",
        parents=("p@3",),
        tags={"kind": "test"},
        created_ms=1_500,
        updated_ms=2_500,
        expires_ms=None,
        model_digest="aa",
        layout_fingerprint="bb",
        tokenizer_digest="cc",
    )
