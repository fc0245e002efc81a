"""What only the asyncio client has: tasks, their cancellation, concurrency."""

import asyncio
import gc
import socket
from typing import Any

import pytest
from wkvm_client import EndReason, aio
from wkvm_client.aio_link import Link
from wkvm_client.errors import BadPeerError, ClientClosedError, ConnectionLostError
from wkvm_protocol.connection import packed_tokens
from wkvm_protocol.messages import Cancel, End, Generate, GoAway, Ping, Pong, Stats, StatsReply

from tests.client.drivers import AioDriver
from tests.client.fake_server import FakeServer, Peer, answer
from tests.client.scripts import connected, settled


async def dial(server: FakeServer, **options: object) -> tuple[aio.Client, Peer]:
    driver = AioDriver()
    peer = await connected(driver, server, **options)  # type: ignore[arg-type]
    return driver.client, peer


async def test_cancelling_the_task_in_a_loop_cancels_the_lane(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)

    async def consume() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(consume())
    peer.tokens([request.request_id], [5])
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await peer.next(Cancel)).request_id == request.request_id
    await client.aclose()


@pytest.mark.parametrize("n", [1, 2])
async def test_cancelling_the_wait_for_the_end_cancels_the_lane(server: FakeServer, n: int) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1], n=n, max_tokens=8)
    request = await peer.next(Generate)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.completion() if n == 1 else stream.completions(), 0.01)
    assert (await peer.next(Cancel)).request_id == request.request_id
    await client.aclose()


async def test_giving_up_a_read_loses_and_cancels_nothing(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.01)
    peer.tokens([request.request_id], [5])
    assert await stream.read() == [5]
    await peer.nothing()
    await client.aclose()


async def test_who_is_called_back_finds_all_that_came_at_once(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)
    (choice,) = stream.choices
    found = asyncio.get_running_loop().create_future()
    choice.call_when_ready(lambda: found.set_result((choice.take(), choice.is_over)))
    tokens = peer.wire.send(packed_tokens([request.request_id], [5]))
    end = peer.wire.send(End(request.request_id, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0))
    peer.raw(tokens + end)
    assert await found == ([5], True)
    await client.aclose()


async def test_a_break_of_the_protocol_is_told_to_who_waits_to_be_called_back(
    server: FakeServer,
) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    await peer.next(Generate)
    called = asyncio.Event()
    stream.choices[0].call_when_ready(called.set)
    peer.raw(b"\xff" * 64)
    await called.wait()
    with pytest.raises(BadPeerError):
        stream.choices[0].take()
    await client.aclose()


async def test_closing_an_iteration_cancels_the_lane(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)
    peer.tokens([request.request_id], [5])
    iteration = stream.choices[0].__aiter__()
    assert await anext(iteration) == 5
    await iteration.aclose()
    assert (await peer.next(Cancel)).request_id == request.request_id
    await client.aclose()


async def test_one_reader_at_a_time(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)
    first = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await stream.read()
    peer.tokens([request.request_id], [5])
    assert await first == [5]
    await client.aclose()


async def test_many_may_wait_for_the_end(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    waits = [asyncio.create_task(stream.completion()) for _ in range(3)]
    await asyncio.sleep(0)
    await answer(peer, [5])
    assert [completion.ids for completion in await asyncio.gather(*waits)] == [[5]] * 3
    await client.aclose()


async def test_a_thousand_requests_at_once(server: FakeServer) -> None:
    client, peer = await dial(server)

    async def ask(token_id: int) -> list[int]:
        stream = await client.generate([token_id])
        return [answered async for answered in stream]

    tasks = [asyncio.create_task(ask(token_id)) for token_id in range(1000)]
    requests = [await peer.next(Generate) for _ in range(1000)]
    for _ in range(3):
        peer.tokens(
            [request.request_id for request in requests],
            [int.from_bytes(request.prompt, "little") for request in requests],
        )
    for request in reversed(requests):
        peer.end(request.request_id)
    assert await asyncio.gather(*tasks) == [[token_id] * 3 for token_id in range(1000)]
    await client.aclose()


async def test_stats_and_requests_share_the_connection(server: FakeServer) -> None:
    client, peer = await dial(server)
    asking = asyncio.create_task(client.stats())
    query = await peer.next(Stats)
    stream = await client.generate([1])
    request = await answer(peer, [5])
    assert request.request_id != query.request_id
    assert (await stream.completion()).ids == [5]
    peer.send(StatsReply(query.request_id, {"steps": 1}))
    assert await asking == {"steps": 1}
    await client.aclose()


async def test_requests_that_find_no_connection_share_the_next(server: FakeServer) -> None:
    client, peer = await dial(server)
    await peer.vanish()
    await settled()
    asking = [asyncio.create_task(client.generate([1])) for _ in range(5)]
    successor = await server.peer()
    await successor.hello()
    streams = await asyncio.gather(*asking)
    for _ in streams:
        await answer(successor, [5])
    for stream in streams:
        assert (await stream.completion()).ids == [5]
    assert len(server.peers) == 2
    await client.aclose()


async def test_a_request_waits_while_the_server_does_not_read(server: FakeServer) -> None:
    client, peer = await dial(server)
    prompt = [7] * 200_000
    sent = [0]

    async def send_all() -> None:
        for _ in range(40):
            await client.generate(prompt, max_tokens=1)
            sent[0] += 1

    sending = asyncio.create_task(send_all())
    # the reader's own buffer stops it at 128 KiB: nobody calls read
    n_before = -1
    while n_before < sent[0] or not sent[0]:
        n_before = sent[0]
        await settled()
    assert sent[0] < 40
    for _ in range(40):
        await answer(peer, [5])
    await sending
    await client.aclose()


async def test_close_ends_what_waits(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    waits = [
        asyncio.create_task(stream.completion()),
        asyncio.create_task(client.ping()),
        asyncio.create_task(client.stats()),
    ]
    await asyncio.sleep(0)
    await client.aclose()
    for outcome in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(outcome, ClientClosedError)
    await peer.eof()


async def test_close_ends_the_connection_that_was_going_away_too(server: FakeServer) -> None:
    client, old = await dial(server)
    stream = await client.generate([1])
    await old.next(Generate)
    old.send(GoAway())
    await settled()
    asking = asyncio.create_task(client.ping())
    new = await server.peer()
    await new.hello()
    new.send(Pong((await new.next(Ping)).nonce))
    await asking
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await stream.completion()
    await old.eof()
    await new.eof()


async def test_close_while_connecting_again(server: FakeServer) -> None:
    client, peer = await dial(server)
    await peer.vanish()
    await settled()
    asking = asyncio.create_task(client.generate([1]))
    successor = await server.peer()
    await client.aclose()
    await successor.hello()
    with pytest.raises(ClientClosedError):
        await asking
    await successor.eof()


async def test_nothing_is_left_running(server: FakeServer) -> None:
    before = asyncio.all_tasks()
    client, peer = await dial(server, ping_interval_ms=10_000)
    stream = await client.generate([1], timeout_s=60)
    cancel: Any = stream._lane.on_over
    timer = cancel.__self__
    assert not timer.cancelled()
    request = await peer.next(Generate)
    peer.tokens([request.request_id], [5])
    async for _ in stream:
        break
    await peer.next(Cancel)
    peer.end(request.request_id, reason=EndReason.CANCELLED)
    await stream.completion()
    assert timer.cancelled()
    link = client.connections.link
    assert link is not None
    tick_timer = link._tick_timer
    assert tick_timer is not None
    await client.aclose()
    assert tick_timer.cancelled()
    await peer.vanish()
    await settled()
    gc.collect()
    assert asyncio.all_tasks() <= before


async def test_a_loss_in_the_middle_of_a_loop_is_raised_there(server: FakeServer) -> None:
    client, peer = await dial(server)
    stream = await client.generate([1])
    request = await peer.next(Generate)
    peer.tokens([request.request_id], [5])
    seen = []

    async def consume() -> None:
        async for token_id in stream:
            seen.append(token_id)
            await peer.vanish()

    with pytest.raises(ConnectionLostError):
        await consume()
    assert seen == [5]
    await client.aclose()


async def test_a_client_can_be_awaited_or_entered(server: FakeServer) -> None:
    async def serve() -> None:
        await (await server.peer()).hello()

    serving = asyncio.create_task(serve())
    client = await aio.connect(server.address)
    await serving
    async with client as entered:
        assert entered is client
        assert client.is_connected
    assert not client.is_connected


async def test_closing_behind_what_was_still_to_be_written_raises_nothing() -> None:
    one, other = socket.socketpair()
    with other:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(
            lambda: Link(on_going_away=lambda _: None, grace_s=1.0), sock=one
        )
        link._write(bytes(4 * 2**20))
        closing = asyncio.create_task(link.aclose())
        other.setblocking(False)
        while await loop.sock_recv(other, 2**20):
            pass
        await closing
