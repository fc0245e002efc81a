"""What becomes of a state whose move fails in the middle: it is where it was, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import wkvm_client
from wkvm_client import aio
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    ConnectionLostError,
    StaleVersionError,
    StateMismatchError,
)
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    Cancel,
    MigrateBegin,
    MigrateEnd,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateDelete,
    StateExport,
    StateExportBegin,
    StateImport,
    StateVersions,
)

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.client.fake_server import FakeServer, Peer, told
from tests.client.scripts import connected


class Move:
    """A migration that is under way, and both servers."""

    def __init__(self, source: Peer, target: Peer, moving: "asyncio.Task[Any]") -> None:
        self.source = source
        self.target = target
        self.moving = moving

    async def exported(self) -> None:
        begin = await self.source.next(MigrateBegin)
        assert (begin.state, begin.timeout_ms) == ("s", 30_000)
        self.source.send(StateVersions(begin.request_id, (told("s", 4),)))
        export = await self.source.next(StateExport)
        assert export.state == "s@4"
        self.source.send(StateExportBegin(export.request_id, 3, told("s", 4)))
        self.asked = await self.target.next(StateImport)
        assert (self.asked.name, self.asked.n_bytes, self.asked.expected_version) == ("s", 3, 0)
        assert self.asked.tags == {"kind": "test"}
        self.target.send(StateCredit(self.asked.request_id, 3))
        self.source.send(
            StateChunk(export.request_id, b"abc"), StateBytesEnd(export.request_id, "d1")
        )
        assert (await self.target.next(StateChunk)).data == b"abc"
        assert (await self.target.next(StateBytesEnd)).digest == "d1"

    async def imported(self, n_computed: int = 5) -> None:
        await self.exported()
        self.target.send(StateVersions(self.asked.request_id, (told("s", 1, n_computed),)))

    async def stays(self) -> None:
        end = await self.source.next(MigrateEnd)
        assert (end.state, end.committed) == ("s", False)
        self.source.send(StateVersions(end.request_id, (told("s", 4),)))

    async def deleted(self) -> None:
        delete = await self.target.next(StateDelete)
        assert delete.state == "s@1"
        self.target.send(StateVersions(delete.request_id, ()))


@pytest.fixture(params=["aio", "blocking"])
async def move(
    request: pytest.FixtureRequest, server: FakeServer, tmp_path: Path
) -> AsyncIterator[Move]:
    other = FakeServer(f"unix://{tmp_path}/other.sock")
    await other.start()
    if request.param == "aio":
        one, two = AioDriver(), AioDriver()
        source = await connected(one, server, features=["states"], reconnect=False)
        target = await connected(two, other, features=["states"], reconnect=False)
        moving = asyncio.create_task(
            aio.migrate(one.client.states, "s", two.client.states, "tcp://there:1")
        )
        drivers: list[Driver] = [one, two]
    else:
        here, there = BlockingDriver(), BlockingDriver()
        source = await connected(here, server, features=["states"], reconnect=False)
        target = await connected(there, other, features=["states"], reconnect=False)

        def migrate() -> Any:
            states = there.client.states
            return wkvm_client.migrate(here.client.states, "s", states, "tcp://there:1")

        moving = asyncio.create_task(here.call(migrate))
        drivers = [here, there]
    yield Move(source, target, moving)
    await other.close()
    await server.close()
    for driver in drivers:
        await driver.close()


async def test_the_source_is_told_once_the_target_has_committed(move: Move) -> None:
    await move.imported()
    end = await move.source.next(MigrateEnd)
    assert end == MigrateEnd(end.request_id, "s", True, "tcp://there:1", "s", 1)
    move.source.send(StateVersions(end.request_id, ()))
    moved = await move.moving
    assert (moved.source, moved.target, moved.state.ref) == ("s@4", "tcp://there:1", "s@1")
    assert moved.n_bytes == 3


async def test_a_target_that_refuses_leaves_it_at_the_source(move: Move) -> None:
    await move.exported()
    move.target.fail(move.asked.request_id, ErrorCode.STATE_MISMATCH)
    await move.stays()
    with pytest.raises(StateMismatchError):
        await move.moving
    await move.target.nothing()


async def test_a_target_that_is_lost_leaves_it_at_the_source(move: Move) -> None:
    await move.exported()
    await move.target.vanish()
    await move.stays()
    with pytest.raises(ConnectionLostError) as caught:
        await move.moving
    assert "may be at tcp://there:1" in caught.value.__notes__[0]


async def test_an_export_that_breaks_leaves_it_at_the_source(move: Move) -> None:
    begin = await move.source.next(MigrateBegin)
    move.source.send(StateVersions(begin.request_id, (told("s", 4),)))
    export = await move.source.next(StateExport)
    move.source.send(StateExportBegin(export.request_id, 3, told("s", 4)))
    asked = await move.target.next(StateImport)
    move.source.fail(export.request_id, ErrorCode.STATE_DAMAGED)
    await move.stays()
    assert await move.target.next(Cancel) == Cancel(asked.request_id)
    with pytest.raises(ClientError, match="as scripted"):
        await move.moving


async def test_a_target_that_has_something_else_keeps_nothing(move: Move) -> None:
    await move.imported(n_computed=4)
    await move.deleted()
    await move.stays()
    with pytest.raises(BadPeerError):
        await move.moving


async def test_a_source_that_moved_on_keeps_it_alone(move: Move) -> None:
    await move.imported()
    end = await move.source.next(MigrateEnd)
    move.source.fail(end.request_id, ErrorCode.STALE_VERSION)
    await move.deleted()
    await move.stays()
    with pytest.raises(StaleVersionError):
        await move.moving


async def test_a_source_that_is_lost_at_the_end_is_nobodys_guess(move: Move) -> None:
    await move.imported()
    await move.source.next(MigrateEnd)
    await move.source.vanish()
    with pytest.raises(ConnectionLostError) as caught:
        await move.moving
    assert "s@1 is committed at tcp://there:1" in caught.value.__notes__[0]
    await move.target.nothing()


@pytest.mark.parametrize("code", [ErrorCode.CANCELLED, ErrorCode.INTERNAL, ErrorCode.STORE_FAILED])
async def test_an_answer_that_leaves_open_who_has_it_deletes_nothing(
    move: Move, code: ErrorCode
) -> None:
    await move.imported()
    end = await move.source.next(MigrateEnd)
    move.source.fail(end.request_id, code)
    with pytest.raises(ClientError, match="as scripted") as caught:
        await move.moving
    assert "s@1 is committed at tcp://there:1" in caught.value.__notes__[0]
    await move.target.nothing()
