"""Turns, pauses and ends of one connection, over a transport that only takes notes."""

import asyncio

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Credit, Error, Sampling

from tests.server.harness import frame, until
from tests.server.notes import Bench
from wkvm.server.connection import LINGER_S, MESSAGES_PER_TURN

BAD = Sampling(temperature=float("nan"))


async def test_a_turn_carries_out_few_messages_and_writes_once() -> None:
    bench = Bench()
    n_left = 5 * MESSAGES_PER_TURN + 1
    bench.connection.data_received(bench.requests(n_left, BAD))
    while n_left > 0:
        assert len(bench.transport.written) == 1
        n_now = len(bench.received())
        assert n_now == min(n_left, MESSAGES_PER_TURN)
        n_left -= n_now
        assert bench.transport.reads == (n_left == 0)
        await asyncio.sleep(0)
    assert bench.transport.written == []


async def test_requests_of_many_choices_use_up_a_turn_sooner() -> None:
    bench = Bench()
    many = Sampling(n=MESSAGES_PER_TURN, max_tokens=10**9)
    bench.connection.data_received(bench.requests(3, many))
    counts = [bench.server.n_requests]
    while not bench.transport.reads:
        await asyncio.sleep(0)
        counts.append(bench.server.n_requests)
    assert counts == [MESSAGES_PER_TURN, 2 * MESSAGES_PER_TURN, 3 * MESSAGES_PER_TURN]


async def test_late_cancels_use_up_a_turn_too() -> None:
    bench = Bench()
    late = frame(bytes.fromhex("92 11 09"))  # of lane 9, which is not open
    bench.connection.data_received(late * (MESSAGES_PER_TURN + 1))
    assert not bench.transport.reads
    await asyncio.sleep(0)
    assert bench.transport.reads


async def test_full_output_stops_requests_reading_and_messages_until_it_is_read() -> None:
    bench = Bench()
    assert bench.transport.high == 0  # it says when anything is left
    bench.connection.data_received(bench.requests(2, Sampling()))
    bench.connection.data_received(bench.requests(3 * MESSAGES_PER_TURN, BAD))
    assert len(bench.received()) == MESSAGES_PER_TURN
    bench.stops_reading()
    assert bench.fountain.n_held == 2
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.transport.written == []
    assert not bench.transport.reads
    bench.reads_on()
    assert bench.fountain.n_held == 0
    await until(lambda: bench.transport.reads)
    assert len(bench.received()) == 2 * MESSAGES_PER_TURN


async def test_a_peer_at_fault_is_told_why_and_has_time_to_read_it() -> None:
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
    bench.clock.turn(LINGER_S / 2)
    assert bench.transport.end is None
    bench.clock.turn(LINGER_S / 2)
    assert bench.transport.end == "aborted"


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
