"""Peers that vanish, babble or refuse: at each point of each call a typed error, never a hang."""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    ConnectFailedError,
    ConnectionLostError,
    InternalError,
    LinkError,
    SlowConsumerError,
    TooManyConnectionsError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    Generate,
    Hello,
    Ping,
    Stats,
    Tokens,
    pack_ids,
)

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer, Peer, frame
from tests.client.scripts import connected, opened, settled


async def test_nobody_at_the_address(driver: Driver, server: FakeServer) -> None:
    for address in ("unix:///nonexistent/wkvm.sock", "tcp://127.0.0.1:1"):
        with pytest.raises(ConnectFailedError, match=r"nonexistent|127") as raised:
            await driver.connect(address)
        assert raised.value.retryable


async def test_a_peer_that_vanishes_before_hello(driver: Driver, server: FakeServer) -> None:
    connecting = asyncio.create_task(driver.connect(server.address))
    await (await server.peer()).vanish()
    with pytest.raises(ConnectFailedError):
        await connecting


async def test_a_peer_that_vanishes_instead_of_answering_hello(
    driver: Driver, server: FakeServer
) -> None:
    connecting = asyncio.create_task(driver.connect(server.address))
    peer = await server.peer()
    await peer.next(Hello)
    await peer.vanish()
    with pytest.raises(ConnectFailedError) as raised:
        await connecting
    assert raised.value.retryable


CALLS = ["read", "take", "completion", "completions", "ping", "stats"]
EVERY_WAITING_CALL = pytest.mark.parametrize("call", CALLS)


async def waiting(call: str, driver: Driver, peer: Peer) -> "asyncio.Task[Any]":
    """Start a call, and return when the server has its request."""
    method: Callable[..., Coroutine[Any, Any, Any]] = getattr(driver, call)
    if call in ("ping", "stats"):
        task = asyncio.create_task(method())
        await peer.next(Ping if call == "ping" else Stats)
    else:
        stream, _ = await opened(driver, peer, n=2 if call == "completions" else 1)
        task = asyncio.create_task(method(stream))
        await settled()
    return task


@EVERY_WAITING_CALL
async def test_a_peer_that_vanishes_while_a_call_waits(
    driver: Driver, server: FakeServer, call: str
) -> None:
    peer = await connected(driver, server)
    task = await waiting(call, driver, peer)
    await peer.vanish()
    with pytest.raises(ConnectionLostError) as raised:
        await task
    assert raised.value.retryable


@EVERY_WAITING_CALL
async def test_half_a_frame_and_the_end(driver: Driver, server: FakeServer, call: str) -> None:
    peer = await connected(driver, server)
    task = await waiting(call, driver, peer)
    peer.raw(struct.pack("<I", 100) + b"\x95\x18")
    await peer.vanish()
    with pytest.raises(ConnectionLostError):
        await task


GARBAGE = {
    "not msgpack": frame(b"\xc1\xc1\xc1"),
    "an empty frame": struct.pack("<I", 0),
    "a frame too large": struct.pack("<I", MAX_FRAME_BYTES + 1),
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an unknown tag": frame(b"\x92\x7f\x00"),
    "a client's message": frame(b"\x92\x11\x01"),
    "a lane that is not open": frame(b"\x93\x18\xc4\x04\x63\x00\x00\x00\xc4\x04\x01\x00\x00\x00"),
}


@pytest.mark.parametrize("call", ["take", "ping"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_ends_the_connection(
    driver: Driver, server: FakeServer, call: str, garbage: bytes
) -> None:
    peer = await connected(driver, server)
    task = await waiting(call, driver, peer)
    peer.raw(garbage)
    with pytest.raises(BadPeerError) as raised:
        await task
    assert not raised.value.retryable
    await peer.eof()


@pytest.mark.parametrize(
    "garbage",
    [*GARBAGE.values(), struct.pack("<I", MAX_HELLO_FRAME_BYTES + 1)],
    ids=[*GARBAGE, "a frame too large for a handshake"],
)
async def test_garbage_instead_of_hello_ok(
    driver: Driver, server: FakeServer, garbage: bytes
) -> None:
    connecting = asyncio.create_task(driver.connect(server.address))
    peer = await server.peer()
    peer.raw(garbage)
    with pytest.raises(BadPeerError):
        await connecting
    await peer.eof()


@EVERY_WAITING_CALL
async def test_the_servers_reason_reaches_every_call(
    driver: Driver, server: FakeServer, call: str
) -> None:
    peer = await connected(driver, server)
    task = await waiting(call, driver, peer)
    peer.raw(peer.wire.send_error(ErrorCode.SLOW_CONSUMER, "too slow"))
    await peer.vanish()
    with pytest.raises(SlowConsumerError, match="too slow"):
        await task


@pytest.mark.parametrize(
    ("code", "leaf"),
    [
        (ErrorCode.UNAUTHENTICATED, UnauthenticatedError),
        (ErrorCode.UNSUPPORTED_VERSION, UnsupportedVersionError),
        (ErrorCode.TOO_MANY_CONNECTIONS, TooManyConnectionsError),
        (ErrorCode.INTERNAL, InternalError),
    ],
)
async def test_a_refused_handshake_says_why(
    driver: Driver, server: FakeServer, code: ErrorCode, leaf: type[ClientError]
) -> None:
    connecting = asyncio.create_task(driver.connect(server.address))
    peer = await server.peer()
    await peer.next(Hello)
    peer.raw(peer.wire.send_error(code, "no"))
    await peer.vanish()
    with pytest.raises(leaf, match="no") as raised:
        await connecting
    assert raised.value.retryable == code.retryable


async def test_a_peer_that_vanishes_mid_stream_leaves_the_ids_that_came(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    peer.tokens([request.request_id], [5])
    await peer.vanish()
    steps = await driver.iterate(stream)
    assert await steps.next() == 5
    with pytest.raises(ConnectionLostError):
        await steps.next()
    assert stream.ids == [5]


async def test_ids_before_garbage_count(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    good = peer.wire.send(Tokens(pack_ids([request.request_id]), pack_ids([5])))
    peer.raw(good + frame(b"\xc1"))
    assert await driver.read(stream) == [5]
    with pytest.raises(BadPeerError):
        await driver.read(stream)


async def test_each_consumer_gets_an_error_of_its_own(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    first, _ = await opened(driver, peer)
    second, _ = await opened(driver, peer)
    await peer.vanish()
    errors = []
    for stream in (first, second):
        with pytest.raises(ConnectionLostError) as raised:
            await driver.completion(stream)
        errors.append(raised.value)
    assert errors[0] is not errors[1]


async def test_a_closed_client_says_so(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, _ = await opened(driver, peer)
    await driver.close_client()
    for call in (driver.completion(stream), driver.generate([1]), driver.ping(), driver.stats()):
        with pytest.raises(LinkError, match="the client was closed"):
            await call
    await driver.close_client()
    await peer.eof()


async def test_a_frame_in_pieces_is_one_frame(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    reading = asyncio.create_task(driver.read(stream))
    for byte in peer.wire.send(Tokens(pack_ids([request.request_id]), pack_ids([5]))):
        peer.raw(bytes([byte]))
        await peer.writer.drain()
        await asyncio.sleep(0)
    assert await reading == [5]


async def test_nothing_is_sent_twice(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer)
    await peer.vanish()
    with pytest.raises(ConnectionLostError):
        await driver.completion(stream)
    asking = asyncio.create_task(driver.generate([9]))
    successor = await server.peer()
    await successor.hello()
    await asking
    again = await successor.next(Generate)
    assert again.prompt != request.prompt
    await successor.nothing()
