"""What happens to new requests when the connection is gone or going."""

import asyncio

import pytest
from wkvm_client.errors import (
    ConnectFailedError,
    ConnectionLostError,
    GoingAwayError,
    RequestTimeoutError,
    UnauthenticatedError,
)
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Cancel, GoAway, Hello, Ping, Pong

from tests.client.drivers import Driver
from tests.client.fake_server import PATIENCE_S, FakeServer, answer
from tests.client.scripts import connected, opened, settled


async def lose(driver: Driver, server: FakeServer) -> None:
    """Let a client see its connection end."""
    stream = await driver.generate([1])
    await server.peers[-1].vanish()
    with pytest.raises(ConnectionLostError):
        await driver.completion(stream)


async def test_the_next_request_connects_again(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server, api_key="secret")
    await lose(driver, server)
    assert not driver.client.is_connected
    asking = asyncio.create_task(driver.generate([1]))
    peer = await server.peer()
    assert (await peer.hello()).api_key == "secret"
    stream = await asking
    await answer(peer, [5])
    assert (await driver.completion(stream)).ids == [5]
    assert driver.client.is_connected


async def test_without_reconnect_the_loss_stays(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server, reconnect=False)
    await lose(driver, server)
    for call in (driver.generate([1]), driver.ping(), driver.stats()):
        with pytest.raises(ConnectionLostError):
            await call
    assert len(server.peers) == 1


async def test_trying_ends_when_its_time_is_up(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server, reconnect_timeout_s=0.2)
    await server.stop_listening()
    await lose(driver, server)
    with pytest.raises(ConnectFailedError):
        async with asyncio.timeout(PATIENCE_S):
            await driver.generate([1])


@pytest.mark.parametrize("listens", [True, False])
async def test_a_request_s_own_time_counts_while_connecting_again(
    driver: Driver, server: FakeServer, listens: bool
) -> None:
    await connected(driver, server)
    if not listens:
        await server.stop_listening()
    await lose(driver, server)
    # long before the patience for a connection and for its handshake, which nobody answers
    with pytest.raises(RequestTimeoutError) as raised:
        async with asyncio.timeout(PATIENCE_S):
            await driver.generate([1], timeout_s=0.05)
    assert raised.value.timeout_s == 0.05


async def test_trying_goes_on_while_the_server_is_full(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server)
    await lose(driver, server)
    asking = asyncio.create_task(driver.ping())
    for _ in range(2):
        peer = await server.peer()
        await peer.next(Hello)
        peer.raw(peer.wire.send_error(ErrorCode.TOO_MANY_CONNECTIONS, "full"))
        await peer.vanish()
    peer = await server.peer()
    await peer.hello()
    peer.send(Pong((await peer.next(Ping)).nonce))
    await asking


async def test_a_refusal_for_good_ends_trying(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server)
    await lose(driver, server)
    asking = asyncio.create_task(driver.ping())
    peer = await server.peer()
    await peer.next(Hello)
    peer.raw(peer.wire.send_error(ErrorCode.UNAUTHENTICATED, "revoked"))
    await peer.vanish()
    with pytest.raises(UnauthenticatedError):
        await asking


async def test_after_goaway_lanes_go_on_and_new_ones_go_elsewhere(
    driver: Driver, server: FakeServer
) -> None:
    old = await connected(driver, server)
    first, request = await opened(driver, old)
    old.send(GoAway("upgrade"))
    old.tokens([request.request_id], [5])
    assert await driver.read(first) == [5]
    asking = asyncio.create_task(driver.generate([2]))
    new = await server.peer()
    await new.hello()
    second = await asking
    await answer(new, [6])
    assert (await driver.completion(second)).ids == [6]
    old.tokens([request.request_id], [7])
    old.end(request.request_id)
    assert (await driver.completion(first)).ids == [5, 7]
    await old.eof()


async def test_after_goaway_a_lane_can_still_be_cancelled(
    driver: Driver, server: FakeServer
) -> None:
    old = await connected(driver, server)
    stream, request = await opened(driver, old)
    old.send(GoAway())
    old.tokens([request.request_id], [5])
    assert await driver.read(stream) == [5]
    await driver.cancel(stream)
    assert (await old.next(Cancel)).request_id == request.request_id


async def test_goaway_without_lanes_closes(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, reconnect=False)
    peer.send(GoAway("upgrade", retry_after_ms=250))
    await settled()
    with pytest.raises(GoingAwayError, match="upgrade") as raised:
        await driver.generate([1])
    assert raised.value.retryable
    assert raised.value.retry_after_ms == 250
    await peer.eof()


async def test_a_server_is_not_bothered_before_it_asked_to(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server)
    loop = asyncio.get_running_loop()
    peer.send(GoAway("upgrade", retry_after_ms=150))
    start = loop.time()
    await settled()
    asking = asyncio.create_task(driver.generate([1]))
    await (await server.peer()).hello()
    assert loop.time() - start >= 0.14
    await asking


async def test_a_wait_longer_than_the_patience_is_refused_at_once(
    driver: Driver, server: FakeServer
) -> None:
    peer = await connected(driver, server, reconnect_timeout_s=1)
    peer.send(GoAway("upgrade", retry_after_ms=60_000))
    await settled()
    with pytest.raises(GoingAwayError) as raised:
        await driver.generate([1])
    assert raised.value.retry_after_ms == 60_000
