"""A stream on a state goes on where it was cut off: no id is lost, none comes twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_client import Completion, EndReason
from wkvm_client.errors import (
    BadPeerError,
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    RequestTimeoutError,
    StateMovedError,
)
from wkvm_client.states import StateEnd
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    Credit,
    GenerateOn,
    Interrupt,
    Sampling,
    StateMoved,
    pack_ids,
)

from tests.client.drivers import AioDriver, Driver
from tests.client.fake_server import FakeServer, Peer
from tests.client.scripts import connected

KEPT = {
    "state": "s",
    "save_as": "s",
    "on_disconnect": "finish",
    "idempotency_key": "k",
    "max_tokens": 10,
    "seed": 7,
}


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[FakeServer]:
    """A second server."""
    server = FakeServer(f"unix://{tmp_path}/other.sock")
    await server.start()
    yield server
    await server.close()


async def opened(
    driver: Driver, server: FakeServer, **options: Any
) -> tuple[Peer, Any, GenerateOn]:
    peer = await connected(driver, server, features=["states"])
    stream = await driver.generate([1, 2, 3], **(KEPT | options))
    return peer, stream, await peer.next(GenerateOn)


async def came_back(server: FakeServer) -> tuple[Peer, GenerateOn]:
    """The next connection, and what is asked on it."""
    peer = await server.peer()
    await peer.hello(features=["states"])
    return peer, await peer.next(GenerateOn)


def kept(completion: Completion) -> StateEnd:
    assert completion.state is not None
    return completion.state


async def read_all(driver: Driver, stream: Any) -> list[int]:
    ids: list[int] = []
    while some := await driver.read(stream):
        ids += some
    return ids


async def test_a_request_names_what_it_does_with_states(driver: Driver, server: FakeServer) -> None:
    _, _, sent = await opened(
        driver,
        server,
        expected_version=4,
        durability="memory",
        return_state=True,
        checkpoint_every=64,
        replay=True,
        received=0,
        tags={"a": "b"},
        expires_in_s=1.5,
    )
    assert sent == GenerateOn(
        request_id=1,
        prompt=pack_ids([1, 2, 3]),
        sampling=Sampling(max_tokens=10, seed=7),
        credit=1024,
        state="s",
        save_as="s",
        expected_version=4,
        on_disconnect="finish",
        durability="memory",
        want_inline=True,
        checkpoint_every=64,
        replay=True,
        idempotency_key="k",
        tags={"a": "b"},
        expires_in_ms=1500,
    )


async def test_the_end_names_the_version_and_what_was_not_computed_again(
    driver: Driver, server: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server)
    peer.tokens([1], [7])
    peer.end_on(1, n_output=1, version=5, cached_tokens=100)
    completion = await driver.completion(stream)
    assert completion.ids == [7]
    assert kept(completion).ref == "s@5"
    assert kept(completion).ack == "durable"
    assert kept(completion).pending == (9,)
    assert completion.cached_tokens == kept(completion).cached_tokens == 100


async def test_what_was_missed_while_the_connection_was_lost_comes_after(
    driver: Driver, server: FakeServer
) -> None:
    peer, stream, sent = await opened(driver, server)
    peer.tokens([1], [7])
    peer.tokens([1], [8])
    reading = asyncio.create_task(read_all(driver, stream))
    await peer.vanish()
    peer, again = await came_back(server)
    assert again == replaced(sent, again.request_id, received=2, credit=again.credit)
    peer.tokens([again.request_id] * 2, [9, 10])
    peer.end_on(again.request_id, n_output=4)
    assert await reading == [7, 8, 9, 10]
    completion = await driver.completion(stream)
    assert (completion.n_output, completion.ids) == (4, [7, 8, 9, 10])


async def test_a_connection_may_be_lost_again_and_again(driver: Driver, server: FakeServer) -> None:
    peer, stream, _ = await opened(driver, server)
    reading = asyncio.create_task(read_all(driver, stream))
    for n in range(4):
        peer.tokens([1], [n])
        await peer.vanish()
        peer, again = await came_back(server)
        assert again.received == n + 1
        assert again.request_id == 1
    peer.end_on(1, n_output=4)
    assert await reading == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"idempotency_key": ""},
        {"on_disconnect": "cancel"},
        {"save_as": ""},
        {"logprobs": 1},
        {"n": 2},
    ],
)
async def test_what_could_lose_or_repeat_ids_fails_with_its_connection(
    driver: Driver, server: FakeServer, options: dict[str, Any]
) -> None:
    peer, stream, _ = await opened(driver, server, **options)
    await peer.vanish()
    with pytest.raises(ConnectionLostError):
        await driver.completions(stream)


async def test_who_does_not_want_to_follow_is_told(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=["states"], follow=False)
    stream = await driver.generate([1], **KEPT)
    await peer.next(GenerateOn)
    peer.end_on(1, reason=EndReason.MOVED, target="tcp://there:1")
    completion = await driver.completion(stream)
    assert completion.reason is EndReason.MOVED
    assert kept(completion).target == "tcp://there:1"
    stream = await driver.generate([1], **KEPT)
    await peer.next(GenerateOn)
    await peer.vanish()
    with pytest.raises(ConnectionLostError):
        await driver.completion(stream)


async def test_a_server_that_forgot_the_request_has_lost_it(
    driver: Driver, server: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server)
    peer.tokens([1], [7])
    reading = asyncio.create_task(read_all(driver, stream))
    await peer.vanish()
    peer, again = await came_back(server)
    peer.fail(again.request_id, ErrorCode.STATE_NOT_FOUND)
    with pytest.raises(ConnectionLostError, match="does not know"):
        await reading


async def test_nobody_there_to_come_back_to_ends_it(driver: Driver, server: FakeServer) -> None:
    peer = await connected(driver, server, features=["states"], reconnect_timeout_s=0.05)
    stream = await driver.generate([1], **KEPT)
    await peer.next(GenerateOn)
    await server.stop_listening()
    await peer.vanish()
    with pytest.raises(ConnectFailedError):
        await driver.completion(stream)


async def test_a_stream_that_moved_goes_on_there(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, sent = await opened(driver, server, min_tokens=4, expected_version=4)
    peer.tokens([1], [7])
    peer.tokens([1], [8])
    reading = asyncio.create_task(read_all(driver, stream))
    peer.end_on(
        1,
        reason=EndReason.MOVED,
        n_output=2,
        name="t",
        version=5,
        cached_tokens=100,
        target=other.address,
    )
    peer, there = await came_back(other)
    assert there == replaced(
        sent,
        there.request_id,
        prompt=b"",
        sampling=Sampling(max_tokens=8, min_tokens=2),
        credit=there.credit,
        state="t@5",
        save_as="t",
        expected_version=5,
        replay=True,
        idempotency_key="k+1",
    )
    peer.tokens([there.request_id], [9])
    peer.end_on(there.request_id, n_output=1, name="t", version=6, cached_tokens=105)
    assert await reading == [7, 8, 9]
    completion = await driver.completion(stream)
    assert (completion.n_prompt, completion.n_output) == (3, 3)
    assert (kept(completion).ref, completion.cached_tokens) == ("t@6", 100)
    assert completion.timings.total_s == 0.02


async def test_a_stream_that_moved_can_lose_its_connection_there(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server)
    reading = asyncio.create_task(read_all(driver, stream))
    peer.tokens([1], [7])
    peer.end_on(1, reason=EndReason.MOVED, n_output=1, target=other.address)
    peer, there = await came_back(other)
    peer.tokens([there.request_id], [8])
    await peer.vanish()
    peer, again = await came_back(other)
    assert (again.received, again.idempotency_key) == (1, "k+1")
    peer.tokens([again.request_id], [9])
    peer.end_on(again.request_id, n_output=2)
    assert await reading == [7, 8, 9]


async def test_what_was_not_absorbed_of_a_prompt_is_sent_there(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server)
    reading = asyncio.create_task(read_all(driver, stream))
    peer.end_on(1, reason=EndReason.MOVED, target=other.address, prompt_left=2)
    peer, there = await came_back(other)
    assert there.prompt == pack_ids([2, 3])
    peer.end_on(there.request_id)
    assert await reading == []


async def test_ids_that_are_missing_when_a_stream_moves_are_the_servers_fault(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server)
    peer.tokens([1], [7])
    peer.end_on(1, reason=EndReason.MOVED, n_output=2, target=other.address)
    with pytest.raises(BadPeerError):
        await driver.completion(stream)


async def test_a_request_on_a_state_that_moved_is_sent_there(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, sent = await opened(driver, server)
    reading = asyncio.create_task(read_all(driver, stream))
    peer.send(StateMoved(1, "it has moved", other.address, "t@7"))
    peer, there = await came_back(other)
    assert there == replaced(sent, there.request_id, state="t", save_as="t")
    peer.end_on(there.request_id)
    assert await reading == []


async def test_a_version_that_was_named_is_not_exchanged_for_one_elsewhere(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server, state="s@3")
    peer.send(StateMoved(1, "it has moved", other.address, "t@7"))
    with pytest.raises(StateMovedError):
        await driver.completion(stream)


async def test_what_was_put_aside_goes_on(driver: Driver, server: FakeServer) -> None:
    peer, stream, _ = await opened(driver, server, on_disconnect="hibernate")
    peer.tokens([1], [7])
    reading = asyncio.create_task(read_all(driver, stream))
    await peer.vanish()
    peer, again = await came_back(server)
    peer.tokens([again.request_id], [8])
    peer.end_on(again.request_id, reason=EndReason.CANCELLED, n_output=2, version=5)
    on = await peer.next(GenerateOn)
    assert (on.state, on.prompt, on.sampling.max_tokens, on.received) == ("s@5", b"", 8, 0)
    peer.tokens([on.request_id], [9])
    peer.end_on(on.request_id, n_output=1)
    assert await reading == [7, 8, 9]


async def test_what_was_put_aside_and_is_cancelled_does_not_go_on(
    driver: Driver, server: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server, on_disconnect="hibernate")
    peer.tokens([1], [7])
    completing = asyncio.create_task(driver.completion(stream))
    await peer.vanish()
    peer, again = await came_back(server)
    stream.choices[0]._track.lane.home.cancel(stream.choices[0]._track.lane)
    peer.end_on(again.request_id, reason=EndReason.CANCELLED, n_output=1, version=5)
    completion = await completing
    assert (completion.reason, kept(completion).ref) == (EndReason.CANCELLED, "s@5")


async def test_a_window_that_was_used_up_is_not_without_limit_after(server: FakeServer) -> None:
    driver = AioDriver()
    peer, stream, _ = await opened(driver, server, credit=2)
    peer.tokens([1] * 2, [7, 8])
    await peer.vanish()
    peer, again = await came_back(server)
    assert (again.received, again.credit) == (2, 1)
    peer.tokens([again.request_id], [9])
    peer.end_on(again.request_id, n_output=3)
    assert await read_all(driver, stream) == [7, 8, 9]
    await driver.close()


@pytest.mark.timed(0.05)
async def test_a_deadline_on_the_way_leaves_nothing_behind(
    server: FakeServer, other: FakeServer
) -> None:
    driver = AioDriver()
    peer = await connected(driver, server, features=["states"], grace_s=0.01)
    stream = await driver.generate([1], timeout_s=0.05, **KEPT)
    await peer.next(GenerateOn)
    peer.end_on(1, reason=EndReason.MOVED, target=other.address)
    with pytest.raises(RequestTimeoutError):
        await stream.completion()
    assert driver.client.connections.link is not None
    assert len(driver.client.connections.link.core._lanes) == 0
    await driver.close()


async def test_ids_that_another_process_had_count_as_received(
    driver: Driver, server: FakeServer
) -> None:
    peer, stream, _ = await opened(driver, server, received=3)
    peer.tokens([1], [7])
    reading = asyncio.create_task(read_all(driver, stream))
    await peer.vanish()
    peer, again = await came_back(server)
    assert again.received == 4
    peer.end_on(again.request_id, reason=EndReason.CANCELLED, n_output=4, version=5)
    on = await peer.next(GenerateOn)
    assert on.sampling.max_tokens == 6
    peer.tokens([on.request_id], [8])
    peer.end_on(on.request_id, n_output=1)
    assert await reading == [7, 8]
    assert (await driver.completion(stream)).n_output == 5


async def test_credit_counts_across_connections(driver: Driver, server: FakeServer) -> None:
    peer, stream, _ = await opened(driver, server, credit=4)
    peer.tokens([1] * 3, [1, 2, 3])
    reading = asyncio.create_task(driver.read(stream))
    assert await reading in ([1], [1, 2], [1, 2, 3])
    rest = asyncio.create_task(read_all(driver, stream))
    await peer.vanish()
    peer, again = await came_back(server)
    assert 1 <= again.credit <= 8
    peer.tokens([again.request_id] * again.credit, range(again.credit))
    more = await peer.next(Credit)
    assert more.n_tokens <= 4
    peer.end_on(again.request_id, n_output=3 + again.credit)
    await rest


async def test_a_stream_that_is_cancelled_while_it_is_cut_off_is_cancelled_there(
    server: FakeServer, other: FakeServer
) -> None:
    driver = AioDriver()
    peer, stream, _ = await opened(driver, server)
    peer.end_on(1, reason=EndReason.MOVED, target=other.address)
    completing = asyncio.create_task(stream.completion())
    peer = await other.peer()
    stream.cancel()
    await peer.hello(features=["states"])
    there = await peer.next(GenerateOn)
    assert await peer.next(Cancel) == Cancel(there.request_id)
    peer.end_on(there.request_id, reason=EndReason.CANCELLED)
    assert (await completing).reason is EndReason.CANCELLED
    await driver.close()


async def test_a_client_that_is_closed_ends_what_is_cut_off(
    server: FakeServer, other: FakeServer
) -> None:
    driver = AioDriver()
    peer, stream, _ = await opened(driver, server)
    peer.end_on(1, reason=EndReason.MOVED, target=other.address)
    completing = asyncio.create_task(stream.completion())
    await other.peer()
    await driver.close()
    with pytest.raises(ClientClosedError):
        await completing


async def test_who_watches_a_stream_is_told_of_ids_from_elsewhere(
    server: FakeServer, other: FakeServer
) -> None:
    driver = AioDriver()
    peer, stream, _ = await opened(driver, server)
    told = asyncio.Event()
    stream.choices[0].watch(told.set)
    peer.end_on(1, reason=EndReason.MOVED, target=other.address)
    peer, there = await came_back(other)
    told.clear()
    peer.tokens([there.request_id], [7])
    async with asyncio.timeout(60):
        await told.wait()
    assert stream.choices[0].take() == [7]
    await driver.close()


async def test_a_stream_can_be_told_to_stop_and_save(driver: Driver, server: FakeServer) -> None:
    peer, stream, _ = await opened(driver, server)
    peer.tokens([1] * 3, [7, 8, 9])
    await driver.interrupt(stream, 2)
    assert await peer.next(Interrupt) == Interrupt(1, 2)
    peer.end_on(1, reason=EndReason.CANCELLED, n_output=3, version=5)
    completion = await driver.completion(stream)
    assert (completion.reason, kept(completion).ref) == (EndReason.CANCELLED, "s@5")


@pytest.mark.timed(0.1)
async def test_the_deadline_of_a_stream_counts_where_it_moved_to(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer = await connected(driver, server, features=["states"], grace_s=0.05)
    stream = await driver.generate([1], timeout_s=0.1, **KEPT)
    await peer.next(GenerateOn)
    peer.end_on(1, reason=EndReason.MOVED, target=other.address)
    completing = asyncio.create_task(driver.completion(stream))
    peer, there = await came_back(other)
    with pytest.raises(RequestTimeoutError):
        await completing
    assert await peer.next(Cancel) == Cancel(there.request_id)


def replaced(sent: GenerateOn, request_id: int, **fields: Any) -> GenerateOn:
    return msgspec.structs.replace(sent, request_id=request_id, **fields)
