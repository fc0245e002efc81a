"""Sessions, on both clients."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import EndReason
from wkvm_client.errors import StaleVersionError, StateNotFoundError
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    GenerateOn,
    Interrupt,
    StateCreate,
    StateFork,
    StateGet,
    StateHibernate,
    StateLog,
    StateMoved,
    StateRollback,
    StateSnapshot,
    StateText,
    StateVersions,
    pack_ids,
)

from tests.client.drivers import Driver
from tests.client.fake_server import FakeServer, Peer, told
from tests.client.scripts import connected


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[FakeServer]:
    """A second server."""
    server = FakeServer(f"unix://{tmp_path}/other.sock")
    await server.start()
    yield server
    await server.close()


async def begun(driver: Driver, server: FakeServer, **options: Any) -> tuple[Peer, Any]:
    peer = await connected(driver, server, features=["states"])
    return peer, driver.client.session("s", **options)


async def answered(peer: Peer, version: int) -> None:
    """Answer whether there is the state: at a version, or not for 0."""
    request = await peer.next(StateGet)
    assert request.state == "s"
    if version:
        peer.send(StateVersions(request.request_id, (told("s", version),)))
    else:
        peer.fail(request.request_id, ErrorCode.STATE_NOT_FOUND)


async def turn(
    driver: Driver, peer: Peer, session: Any, ids: list[int], version: int
) -> GenerateOn:
    """Play a whole turn of a session that knows where it is."""
    stream = await driver.do(session, "generate", ids)
    request = await peer.next(GenerateOn)
    peer.tokens([request.request_id], [9])
    peer.end_on(request.request_id, n_output=1, version=version)
    assert (await driver.completion(stream)).ids == [9]
    return request


async def first_turn(driver: Driver, peer: Peer, session: Any, at: int) -> GenerateOn:
    generating = asyncio.create_task(driver.do(session, "generate", [1], max_tokens=4))
    await answered(peer, at)
    stream = await generating
    request = await peer.next(GenerateOn)
    peer.end_on(request.request_id, version=at + 1)
    await driver.completion(stream)
    return request


async def test_the_first_turn_of_a_new_name_makes_the_state(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server, durability="memory", checkpoint_every=64)
    request = await first_turn(driver, peer, session, 0)
    assert (request.state, request.save_as, request.expected_version) == ("", "s", 0)
    assert (request.on_disconnect, request.durability) == ("finish", "memory")
    assert (request.checkpoint_every, request.sampling.max_tokens) == (64, 4)
    assert request.idempotency_key


async def test_each_turn_goes_on_from_the_one_before_with_what_is_new(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    request = await first_turn(driver, peer, session, 4)
    assert (request.state, request.expected_version) == ("s@4", 4)
    keys = {request.idempotency_key}
    request = await turn(driver, peer, session, [2, 3], 6)
    assert (request.state, request.expected_version) == ("s@5", 5)
    assert request.prompt == pack_ids([2, 3])
    keys.add(request.idempotency_key)
    request = await turn(driver, peer, session, [], 7)
    assert (request.state, request.prompt) == ("s@6", b"")
    assert len(keys | {request.idempotency_key}) == 3


async def test_what_is_appended_is_absorbed_and_nothing_else(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    appending = asyncio.create_task(driver.do(session, "append", [1, 2]))
    await answered(peer, 4)
    request = await peer.next(StateCreate)
    assert (request.name, request.state, request.expected_version) == ("s", "s@4", 4)
    assert request.prompt == pack_ids([1, 2])
    peer.send(StateVersions(request.request_id, (told("s", 5),)))
    assert (await appending).version == 5
    assert (await turn(driver, peer, session, [3], 6)).state == "s@5"


async def test_what_is_appended_is_sent_again_with_its_key_where_the_connection_is_lost(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    appending = asyncio.create_task(driver.do(session, "append", [1, 2]))
    request = await peer.next(StateCreate)
    await peer.vanish()
    peer = await server.peer()
    await peer.hello(features=["states"])
    again = await peer.next(StateCreate)
    assert again.idempotency_key == request.idempotency_key
    assert (again.state, again.prompt) == (request.state, request.prompt)
    peer.send(StateVersions(again.request_id, (told("s", 2),)))
    assert (await appending).version == 2


async def test_a_branch_begins_where_the_session_is_and_leaves_it_there(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    forking = asyncio.create_task(driver.do(session, "fork", "b"))
    request = await peer.next(StateFork)
    assert (request.state, request.names) == ("s@1", ("b",))
    peer.send(StateVersions(request.request_id, (told("b", 1),)))
    branch = await forking
    assert (await turn(driver, peer, branch, [3], 2)).state == "b@1"
    assert (await turn(driver, peer, session, [3], 2)).state == "s@1"


async def rolled_back(driver: Driver, peer: Peer, rolling: Any, to: int, version: int) -> None:
    request = await peer.next(StateRollback)
    assert request.version == to
    peer.send(StateVersions(request.request_id, (told("s", version),)))


async def test_turns_are_taken_back_one_by_one(driver: Driver, server: FakeServer) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 4)
    await turn(driver, peer, session, [2], 6)
    rolling = asyncio.create_task(driver.do(session, "roll_back", 2))
    await rolled_back(driver, peer, rolling, 5, 7)
    await rolled_back(driver, peer, rolling, 4, 8)
    assert (await rolling).version == 8
    assert (await turn(driver, peer, session, [3], 9)).state == "s@8"
    rolling = asyncio.create_task(driver.do(session, "roll_back"))
    await rolled_back(driver, peer, rolling, 8, 10)
    await rolling


def entry(version: int, operation: str, parent: str) -> str:
    provenance = (
        f'{{"operation":"{operation}","parameters":{{}},"parents":[["{parent}","ab"]],'
        '"n_before":3,"n_after":3,"seed":null,"engine":"1","cuts":[]}'
    )
    return (
        f'[{{"name":"s","version":{version},"content_id":"cd","ack":"durable","created_ms":1,'
        f'"n_computed":3,"n_pending":1,"provenance":{provenance}}}]'
    )


async def test_turns_that_others_took_are_found_in_the_log(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    rolling = asyncio.create_task(driver.do(session, "roll_back"))
    await answered(peer, 7)
    for version, operation, parent in (
        (7, "rollback", "s@5"),
        (5, "snapshot", "s@4"),
        (4, "generate", "s@2"),
    ):
        request = await peer.next(StateLog)
        assert (request.state, request.before, request.limit) == ("s", version + 1, 1)
        peer.send(StateText(request.request_id, entry(version, operation, parent), 0))
    await rolled_back(driver, peer, rolling, 2, 8)
    assert (await rolling).version == 8


async def test_before_the_first_turn_there_is_none_to_take_back(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    rolling = asyncio.create_task(driver.do(session, "roll_back"))
    await answered(peer, 1)
    request = await peer.next(StateLog)
    peer.send(StateText(request.request_id, entry(1, "fork", "p@3"), 0))
    with pytest.raises(StateNotFoundError):
        await rolling


async def test_a_turn_that_was_cancelled_has_not_been(driver: Driver, server: FakeServer) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    stream = await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    await driver.cancel(stream)
    peer.end_on(request.request_id, reason=EndReason.CANCELLED, name="", version=0)
    assert (await turn(driver, peer, session, [2], 2)).state == "s@1"


async def test_a_turn_waits_for_the_end_of_the_one_before(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    saving = asyncio.create_task(driver.do(session, "save"))
    peer.tokens([request.request_id], [9])
    peer.end_on(request.request_id, n_output=1, version=2)
    snapshot = await peer.next(StateSnapshot)
    assert (snapshot.state, snapshot.expected_version, snapshot.durability) == ("s", 2, "disk")
    peer.send(StateVersions(snapshot.request_id, (told("s", 3),)))
    assert (await saving).version == 3


async def test_a_session_that_is_closed_keeps_what_there_is_of_its_turn(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    closing = asyncio.create_task(driver.do(session, "close"))
    assert await peer.next(Interrupt) == Interrupt(request.request_id)
    peer.end_on(request.request_id, reason=EndReason.CANCELLED, version=2)
    await closing
    assert session.version == 2


async def test_after_a_failure_a_session_asks_where_it_is(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    stream = await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    peer.fail(request.request_id, ErrorCode.STALE_VERSION)
    with pytest.raises(StaleVersionError):
        await driver.completion(stream)
    generating = asyncio.create_task(driver.do(session, "generate", [2]))
    await answered(peer, 5)
    await generating
    assert (await peer.next(GenerateOn)).state == "s@5"


async def test_a_turn_that_another_process_began_is_asked_for_as_it_was(
    driver: Driver, server: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    stream = await driver.do(
        session, "generate", [2], began_at=4, idempotency_key="turn-4", received=3
    )
    request = await peer.next(GenerateOn)
    assert (request.state, request.expected_version) == ("s@4", 4)
    assert (request.idempotency_key, request.received) == ("turn-4", 3)
    peer.tokens([request.request_id], [9])
    peer.end_on(request.request_id, n_output=4, version=5)
    assert (await driver.completion(stream)).ids == [9]


async def test_a_session_goes_where_its_stream_went(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    stream = await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    completing = asyncio.create_task(driver.completion(stream))
    peer.end_on(
        request.request_id, reason=EndReason.MOVED, name="t", version=1, target=other.address
    )
    peer = await other.peer()
    await peer.hello(features=["states"])
    request = await peer.next(GenerateOn)
    peer.end_on(request.request_id, name="t", version=2)
    await completing
    await driver.do(session, "generate", [2])
    assert (await peer.next(GenerateOn)).state == "t@2"


async def looked_up(other: FakeServer, n_computed: int) -> Peer:
    """Answer, at the server that a state has moved to, what it is there."""
    peer = await other.peer()
    await peer.hello(features=["states"])
    request = await peer.next(StateGet)
    assert request.state == "t"
    peer.send(StateVersions(request.request_id, (told("t", 3, n_computed),)))
    return peer


async def test_a_session_goes_where_its_state_went(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    hibernating = asyncio.create_task(driver.do(session, "hibernate"))
    request = await peer.next(StateHibernate)
    peer.send(StateMoved(request.request_id, "it has moved", other.address, "t@3"))
    peer = await looked_up(other, 3)
    request = await peer.next(StateHibernate)
    assert request.state == "t"
    peer.send(StateVersions(request.request_id, (told("t", 3, 3),)))
    await hibernating
    await driver.do(session, "generate", [2])
    assert (await peer.next(GenerateOn)).state == "t@3"


async def test_a_turn_goes_where_its_state_went(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    stream = await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    completing = asyncio.create_task(driver.completion(stream))
    peer.send(StateMoved(request.request_id, "it has moved", other.address, "t@1"))
    peer = await looked_up(other, 3)
    there = await peer.next(GenerateOn)
    assert (there.state, there.save_as, there.expected_version) == ("t@3", "t", 3)
    assert there.prompt == request.prompt
    peer.end_on(there.request_id, name="t", version=4)
    await completing
    await driver.do(session, "generate", [2])
    assert (await peer.next(GenerateOn)).state == "t@4"


async def test_a_state_that_somebody_moved_on_elsewhere_is_stale(
    driver: Driver, server: FakeServer, other: FakeServer
) -> None:
    peer, session = await begun(driver, server)
    await first_turn(driver, peer, session, 0)
    stream = await driver.do(session, "generate", [2])
    request = await peer.next(GenerateOn)
    completing = asyncio.create_task(driver.completion(stream))
    peer.send(StateMoved(request.request_id, "it has moved", other.address, "t@1"))
    there = await looked_up(other, 4)
    with pytest.raises(StaleVersionError):
        await completing
    refreshing = asyncio.create_task(driver.do(session, "refresh"))
    get = await peer.next(StateGet)
    peer.send(StateMoved(get.request_id, "it has moved", other.address, "t@1"))
    for _ in range(2):
        get = await there.next(StateGet)
        there.send(StateVersions(get.request_id, (told("t", 3, 4),)))
    assert (await refreshing).ref == "t@3"
    await driver.do(session, "generate", [2])
    assert (await there.next(GenerateOn)).state == "t@3"
