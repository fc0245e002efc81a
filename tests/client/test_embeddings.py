"""``embed`` on both clients: a vector, or why there is none."""

import asyncio

import pytest
from wkvm_client.errors import (
    BadPeerError,
    ConnectionLostError,
    InvalidParameterError,
    RequestTimeoutError,
    UnsupportedOperationError,
)
from wkvm_protocol.messages import (
    EMBED_FEATURE,
    Embed,
    Embedding,
    EndReason,
    pack_floats,
    unpack_ids,
)

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer
from tests.client.scripts import connected

VECTOR = [0.5, -1.0, 0.25]


async def test_the_vector_comes_as_numbers(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=[EMBED_FEATURE])
    asking = asyncio.create_task(driver.embed([5, 6, 7], pooling="mean", priority=3))
    request = await peer.next(Embed)
    assert (list(unpack_ids(request.prompt)), request.pooling) == ([5, 6, 7], "mean")
    assert (request.priority, request.timeout_ms) == (3, 0)
    peer.send(Embedding(request.request_id, pack_floats(VECTOR)))
    peer.end(request.request_id, reason=EndReason.LENGTH)
    assert await asking == VECTOR


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (EndReason.LENGTH, BadPeerError),
        (EndReason.STOP, BadPeerError),
        (EndReason.CANCELLED, ConnectionLostError),
        (EndReason.TIMED_OUT, RequestTimeoutError),
    ],
)
async def test_without_a_vector_an_end_is_an_error(
    driver: Driver, server: FakeServer, reason: EndReason, error: type[Exception]
) -> None:
    peer = await connected(driver, server, features=[EMBED_FEATURE])
    asking = asyncio.create_task(driver.embed([5]))
    request = await peer.next(Embed)
    peer.end(request.request_id, reason=reason)
    with pytest.raises(error):
        await asking


async def test_a_server_that_makes_none_is_not_asked(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server)
    with pytest.raises(UnsupportedOperationError, match="makes no embeddings"):
        await driver.embed([5])


async def test_what_cannot_be_packed_is_not_sent(driver: Driver, server: FakeServer) -> None:
    await connected(driver, server, features=[EMBED_FEATURE])
    with pytest.raises(InvalidParameterError):
        await driver.embed(["a"])
    with pytest.raises(InvalidParameterError):
        await driver.embed([5], timeout_s=-1)


async def test_a_server_that_vanishes_leaves_no_vector(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=[EMBED_FEATURE])
    asking = asyncio.create_task(driver.embed([5]))
    await peer.next(Embed)
    await peer.vanish()
    with pytest.raises(ConnectionLostError):
        await asking
