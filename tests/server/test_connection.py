"""Turns, pauses and ends of one connection, over a transport that only takes notes."""

import asyncio
from typing import Any

import pytest
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Credit, Error, Generate, Sampling, ServerMessage, pack_ids

from tests.server.fountain import Fountain
from tests.server.harness import frame, until
from wkvm.core.config import ServerConfig
from wkvm.engine.loop import EngineLoop
from wkvm.server import connection as connection_module
from wkvm.server.connection import MESSAGES_PER_TURN, Connection
from wkvm.server.serve import Server

BAD = Sampling(temperature=float("nan"))


class Notes(asyncio.Transport):
    """What a connection did to its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.high: int | None = None
        self.written = list[bytes]()
        self.reads = True
        self.has_eof = False
        self.end: str | None = None

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


class Bench:
    """A connection after its handshake, its transport, and the client's side of the protocol."""

    def __init__(self) -> None:
        self.fountain = Fountain()
        loop = EngineLoop(self.fountain)
        config = ServerConfig(binary_port=0, max_output_bytes=4096)
        self.server = Server(loop, config)
        self.transport = Notes()
        self.connection = Connection(self.server._shared)
        self.client = ClientConnection()
        self.connection.connection_made(self.transport)
        self.connection.data_received(self.client.send_hello())
        self.received()

    def received(self) -> list[ServerMessage]:
        """What was written since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return self.client.receive_data(data)

    def requests(self, n: int, sampling: Sampling = BAD) -> bytes:
        new_id = self.client.new_request_id
        return b"".join(
            self.client.send(Generate(new_id(), pack_ids([1]), sampling)) for _ in range(n)
        )


async def test_a_turn_carries_out_few_messages_and_writes_once() -> None:
    bench = Bench()
    n_left = 5 * MESSAGES_PER_TURN + 1
    bench.connection.data_received(bench.requests(n_left))
    while n_left > 0:
        assert len(bench.transport.written) == 1
        n_now = len(bench.received())
        assert n_now == min(n_left, MESSAGES_PER_TURN)
        n_left -= n_now
        assert bench.transport.reads == (n_left == 0)
        await asyncio.sleep(0)
    assert bench.transport.written == []


async def test_full_output_stops_requests_reading_and_messages_until_it_is_read() -> None:
    bench = Bench()
    assert bench.transport.high == 1024
    bench.connection.data_received(bench.requests(2, Sampling()))
    bench.connection.data_received(bench.requests(3 * MESSAGES_PER_TURN))
    assert len(bench.received()) == MESSAGES_PER_TURN
    bench.connection.pause_writing()
    assert bench.fountain.n_held == 2
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.transport.written == []
    assert not bench.transport.reads
    bench.connection.resume_writing()
    assert bench.fountain.n_held == 0
    await until(lambda: bench.transport.reads)
    assert len(bench.received()) == 2 * MESSAGES_PER_TURN


async def test_a_peer_at_fault_is_told_why_and_has_time_to_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    bench = Bench()
    bench.connection.data_received(bench.requests(1, Sampling()))
    bench.connection.data_received(frame(b"\xc1"))
    (error,) = bench.received()
    assert isinstance(error, Error)
    assert error.code == ErrorCode.PROTOCOL_VIOLATION
    # its requests are gone at once; the transport says so and is still read
    assert bench.server.n_requests == 0
    assert bench.fountain.stats()["n_running"] == 0
    assert (bench.transport.has_eof, bench.transport.reads) == (True, True)
    bench.connection.data_received(frame(b"\xc1") * 10)
    assert bench.transport.written == []
    assert bench.transport.end is None
    await until(lambda: bench.transport.end == "aborted")


async def test_a_bug_in_carrying_out_ends_the_connection_and_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.connection.data_received(bench.requests(1, Sampling()))

    def fail(request_id: int, n_tokens: int, now: float) -> None:
        raise RuntimeError(f"secret {request_id} {n_tokens} {now}")

    monkeypatch.setattr(bench.fountain, "grant", fail)
    bench.connection.data_received(bench.client.send(Credit(1, 1)))
    (error,) = bench.received()
    assert isinstance(error, Error)
    assert error.code == ErrorCode.INTERNAL
    assert "secret" not in error.message
    assert "internal error on a connection" in caplog.text
    assert bench.server.n_requests == 0
    bench.connection.connection_lost(None)
