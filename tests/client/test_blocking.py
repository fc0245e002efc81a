"""What only the blocking client has: a socket that nobody watches between calls."""

import asyncio

from wkvm_protocol.messages import Generate, Ping, Pong

from tests.client.drivers import BlockingDriver
from tests.client.fake_server import FakeServer, answer
from tests.client.scripts import connected, opened


async def test_whoever_reads_receives_for_all(server: FakeServer) -> None:
    driver = BlockingDriver()
    peer = await connected(driver, server)
    first, one = await opened(driver, peer)
    second, two = await opened(driver, peer)
    peer.tokens([two.request_id], [6])
    peer.tokens([one.request_id], [5])
    peer.end(two.request_id)
    assert await driver.read(first) == [5]
    assert (await driver.completion(second)).ids == [6]
    await driver.close()


async def test_a_server_that_left_while_nobody_read_is_connected_to_again(
    server: FakeServer,
) -> None:
    driver = BlockingDriver()
    peer = await connected(driver, server)
    await peer.vanish()
    asking = asyncio.create_task(driver.generate([1]))
    successor = await server.peer()
    await successor.hello()
    stream = await asking
    await answer(successor, [5])
    assert (await driver.completion(stream)).ids == [5]
    await driver.close()


async def test_pings_that_came_while_nobody_read_are_answered_first(server: FakeServer) -> None:
    driver = BlockingDriver()
    peer = await connected(driver, server)
    peer.send(Ping(1), Ping(2))
    await peer.writer.drain()
    await driver.generate([1])
    assert (await peer.next(Pong)).nonce == 1
    assert (await peer.next(Pong)).nonce == 2
    await peer.next(Generate)
    await driver.close()


async def test_a_request_larger_than_the_sockets_buffers_goes_through(server: FakeServer) -> None:
    driver = BlockingDriver()
    peer = await connected(driver, server)
    first, one = await opened(driver, peer)
    sending = asyncio.create_task(driver.generate([7] * 250_000))
    await asyncio.sleep(0.02)
    # the answer to another lane, and a question, arrive while a frame is half sent
    peer.tokens([one.request_id], [5])
    peer.send(Ping(9))
    await asyncio.sleep(0.02)
    assert len((await peer.next(Generate)).prompt) == 1_000_000
    assert (await peer.next(Pong)).nonce == 9
    await sending
    assert await driver.read(first) == [5]
    await driver.close()
