"""Slow servers, silent servers: every wait of a client ends."""

import asyncio
import socket

import pytest
from wkvm_client import EndReason
from wkvm_client.errors import (
    ConnectionLostError,
    ConnectTimeoutError,
    ReplyTimeoutError,
    RequestTimeoutError,
)
from wkvm_protocol.messages import Cancel, Hello, Ping, Pong

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer
from tests.client.scripts import connected, opened

pytestmark = pytest.mark.timed(0.02)


async def test_a_server_that_does_not_answer_hello(driver: Driver, server: FakeServer) -> None:
    connecting = asyncio.create_task(driver.connect(server.address, connect_timeout_s=0.05))
    peer = await server.peer()
    await peer.next(Hello)
    with pytest.raises(ConnectTimeoutError) as raised:
        await connecting
    assert raised.value.retryable
    await peer.eof()


async def test_a_request_that_the_server_lets_time_out_is_a_completion(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, timeout_s=0.02)
    assert request.timeout_ms == 20
    await asyncio.sleep(0.03)
    peer.tokens([request.request_id], [5])
    peer.end(request.request_id, reason=EndReason.TIMED_OUT)
    completion = await driver.completion(stream)
    assert completion.reason is EndReason.TIMED_OUT
    assert completion.ids == [5]


@pytest.mark.parametrize("verb", ["read", "take", "completion"])
async def test_a_request_of_which_nothing_is_heard_is_given_up(
    driver: Driver, server: FakeServer, verb: str
) -> None:
    peer = await connected(driver, server, grace_s=0.02)
    stream, request = await opened(driver, peer, timeout_s=0.03)
    with pytest.raises(RequestTimeoutError) as raised:
        await getattr(driver, verb)(stream)
    assert raised.value.retryable
    assert (await peer.next(Cancel)).request_id == request.request_id


async def test_a_late_end_of_a_request_that_was_given_up_harms_nobody(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, grace_s=0.02)
    stream, request = await opened(driver, peer, timeout_s=0.03)
    other, other_request = await opened(driver, peer)
    with pytest.raises(RequestTimeoutError):
        await driver.completion(stream)
    peer.tokens([request.request_id, other_request.request_id], [5, 6])
    peer.end(request.request_id, reason=EndReason.CANCELLED)
    peer.end(other_request.request_id)
    assert (await driver.completion(other)).ids == [6]
    with pytest.raises(RequestTimeoutError):
        await driver.read(stream)


async def test_a_ping_that_is_not_answered(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server)
    with pytest.raises(ReplyTimeoutError):
        await driver.ping(timeout_s=0.03)
    peer.send(Pong((await peer.next(Ping)).nonce))
    again = asyncio.create_task(driver.ping())
    peer.send(Pong((await peer.next(Ping)).nonce))
    await again


async def test_stats_that_do_not_come(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server)
    with pytest.raises(ReplyTimeoutError):
        await driver.stats(timeout_s=0.03)


async def test_silence_is_asked_into_and_two_misses_are_a_loss(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, ping_interval_ms=30)
    stream, _ = await opened(driver, peer)
    waiting = asyncio.create_task(driver.completion(stream))
    await peer.next(Ping)
    await peer.next(Ping)
    with pytest.raises(ConnectionLostError, match="2 pings"):
        await waiting
    await peer.eof()
    assert peer.unread == [], "a third ping"


async def test_a_pong_is_word_enough(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, ping_interval_ms=20)
    stream, request = await opened(driver, peer)
    waiting = asyncio.create_task(driver.completion(stream))
    for _ in range(5):
        peer.send(Pong((await peer.next(Ping)).nonce))
    peer.end(request.request_id)
    assert (await waiting).reason is EndReason.LENGTH


async def test_nagle_is_off(driver: Driver) -> None:
    server = FakeServer("tcp://127.0.0.1:0")
    await server.start()
    await connected(driver, server)
    link = driver.client.connections.link
    sock = link._transport.get_extra_info("socket") if hasattr(link, "_transport") else link._socket
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await driver.close_client()
    await server.close()
