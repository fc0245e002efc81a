"""When a connection is pinged, told off and closed: to the half second, on a clock of the test."""

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Error, Ping, Pong

from tests.server.harness import frame
from tests.server.notes import Bench


def code(bench: Bench) -> ErrorCode:
    """Why the connection has just ended."""
    (error,) = bench.received()
    assert isinstance(error, Error)
    assert bench.transport.has_eof
    return ErrorCode(error.code)


def nothing_happened(bench: Bench) -> bool:
    return bench.received() == [] and bench.transport.end is None and not bench.transport.has_eof


@pytest.mark.parametrize("sent", [b"", b"\x40", frame(b"\x97\x01\xa4wkvm", 60)])
async def test_a_client_has_so_long_to_say_hello_and_no_longer(sent: bytes) -> None:
    bench = Bench(greets=False, auth_timeout_s=5)
    bench.connection.data_received(sent)
    bench.clock.turn(4.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.AUTH_TIMEOUT


async def test_a_hello_in_time_ends_that_deadline() -> None:
    bench = Bench(auth_timeout_s=5, ping_interval_s=15)
    bench.clock.turn(14.5)
    assert nothing_happened(bench)


async def test_a_frame_that_drips_is_not_given_more_time() -> None:
    bench = Bench(frame_timeout_s=10)
    bench.connection.data_received(frame(b"", 1000))
    for _ in range(19):
        bench.clock.turn(0.5)
        assert nothing_happened(bench)
        bench.connection.data_received(b"\x90")
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.FRAME_TIMEOUT


async def test_a_frame_that_begins_when_nothing_else_is_due_has_a_deadline() -> None:
    bench = Bench(frame_timeout_s=10, ping_interval_s=0, idle_timeout_s=1000)
    bench.clock.turn(100)
    bench.connection.data_received(frame(b"", 1000))
    bench.clock.turn(9.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.FRAME_TIMEOUT


async def test_each_frame_has_a_deadline_of_its_own() -> None:
    """A peer whose reads always end in mid-frame is served for longer than one deadline."""
    bench = Bench(frame_timeout_s=10)
    ping = bench.client.send(Ping(1))
    bench.connection.data_received(ping[:2])
    for _ in range(8):
        bench.clock.turn(6)
        bench.connection.data_received(ping[2:] + ping[:2])
        assert bench.received() == [Pong(1)]
    bench.clock.turn(9.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.FRAME_TIMEOUT


async def test_a_silent_peer_is_pinged_and_given_up_after_so_many_misses() -> None:
    bench = Bench(ping_interval_s=15, max_missed_pings=2, idle_timeout_s=75)
    for nonce in (1, 2):
        bench.clock.turn(14.5)
        assert nothing_happened(bench)
        bench.clock.turn(0.5)
        assert bench.received() == [Ping(nonce)]
    bench.clock.turn(14.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.IDLE_TIMEOUT


async def test_a_peer_that_answers_pings_is_kept() -> None:
    bench = Bench(ping_interval_s=15, max_missed_pings=2, idle_timeout_s=75)
    for _ in range(20):
        bench.clock.turn(15)
        assert bench.received() == [Ping(1)]
        bench.connection.data_received(bench.client.send(Pong(1)))
    bench.clock.turn(14.5)
    assert nothing_happened(bench)


async def test_any_byte_puts_off_the_next_ping() -> None:
    bench = Bench(ping_interval_s=15, frame_timeout_s=1000)
    for byte in bench.client.send(Pong(1)):
        bench.clock.turn(14.5)
        assert nothing_happened(bench)
        bench.connection.data_received(bytes([byte]))


async def test_without_pings_silence_has_its_own_limit() -> None:
    bench = Bench(ping_interval_s=0, idle_timeout_s=75)
    bench.clock.turn(74.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert code(bench) == ErrorCode.IDLE_TIMEOUT


async def test_a_peer_that_does_not_read_is_cut_off_without_a_word() -> None:
    bench = Bench(write_timeout_s=10, ping_interval_s=3)
    bench.stops_reading()
    bench.clock.turn(9.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert bench.received() == []
    assert bench.transport.end == "aborted"


async def test_a_peer_that_stops_reading_when_nothing_else_is_due_is_cut_off() -> None:
    bench = Bench(write_timeout_s=10, ping_interval_s=0, idle_timeout_s=1000)
    bench.clock.turn(100)
    bench.stops_reading()
    bench.clock.turn(9.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert bench.transport.end == "aborted"


async def test_a_peer_that_reads_on_in_time_is_kept_and_counts_as_heard() -> None:
    bench = Bench(write_timeout_s=10, ping_interval_s=15)
    bench.clock.turn(8)
    bench.stops_reading()
    bench.clock.turn(9.5)
    bench.reads_on()
    bench.clock.turn(14.5)
    assert nothing_happened(bench)
    bench.clock.turn(0.5)
    assert bench.received() == [Ping(1)]


async def test_what_is_left_to_send_at_the_end_is_waited_for_so_long() -> None:
    bench = Bench(write_timeout_s=10)
    bench.connection.close()
    assert bench.transport.end == "closed"
    bench.clock.turn(9.5)
    assert bench.transport.end == "closed"
    bench.clock.turn(0.5)
    assert bench.transport.end == "aborted"


async def test_what_is_left_is_waited_for_no_longer_when_nothing_else_is_due() -> None:
    bench = Bench(write_timeout_s=10, ping_interval_s=0, idle_timeout_s=1000)
    bench.clock.turn(100)
    bench.connection.close()
    bench.clock.turn(9.5)
    assert bench.transport.end == "closed"
    bench.clock.turn(0.5)
    assert bench.transport.end == "aborted"
