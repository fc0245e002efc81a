"""Pieces of scripts that many tests share."""

import asyncio
from collections.abc import Sequence
from typing import Any

from wkvm_protocol.messages import Generate

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer, Peer


async def connected(
    driver: Driver,
    server: FakeServer,
    *,
    ping_interval_ms: int = 0,
    max_lanes: int = 1024,
    features: Sequence[str] = (),
    **options: Any,
) -> Peer:
    """Connect a client; returns the server's end."""
    connecting = asyncio.create_task(driver.connect(server.address, **options))
    peer = await server.peer()
    await peer.hello(ping_interval_ms=ping_interval_ms, max_lanes=max_lanes, features=features)
    await connecting
    return peer


async def settled() -> None:
    """Let a client of this loop take in what its server has sent, or that it has gone."""
    for _ in range(10):  # in each turn the loop looks at its sockets
        await asyncio.sleep(0)


async def opened(driver: Driver, peer: Peer, **options: Any) -> tuple[Any, Generate]:
    """Open a lane; returns the stream and what the server was asked."""
    stream = await driver.generate([1, 2, 3], **options)
    return stream, await peer.next(Generate)
