"""What is sent again since its answer was lost is done once: every operation, over both doors.

Between client and server is a relay that takes what is sent on, waits for the answer, and drops it
with the connection.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest
from wkvm_client import aio
from wkvm_protocol.codec import Codec
from wkvm_protocol.messages import GenerateOn, StateCredit, StateOperation

from tests.isolation.world import TIMEOUT_S, World, key_of, world_running
from tests.states.binary_door import BinaryDoor, typed
from tests.states.doors import Door, Gone, Refused
from tests.states.http_door import HttpDoor
from wkvm.gateway.routes import ROUTES

Doing = Callable[[Door, dict[str, Any]], Coroutine[Any, Any, Any]]
"""An operation on the state ``mine``, at version 2; the options say how it is made safe."""

FILE = [b""]
"""Of the state ``mine``, once there is one."""
WITH_A_KEY: dict[str, Doing] = {
    "generate": lambda door, how: door.generate([1], 2, state="mine", save_as="mine", **how),
    "generate anew": lambda door, how: door.generate([1], 2, save_as="new", **how),
    "create": lambda door, how: door.create("new", [1, 2], **how),
    "append": lambda door, how: door.create("mine", [1, 2], expected_version=2, **how),
    "fork": lambda door, how: door.fork("mine", ["one", "two"], **how),
}
WITH_A_VERSION: dict[str, Doing] = {
    "generate": lambda door, how: door.generate([1], 2, state="mine", save_as="mine", **how),
    "append": lambda door, how: door.create("mine", [1, 2], **how),
    "rollback": lambda door, how: door.rollback("mine", version=1, **how),
    "import": lambda door, how: door.importing("mine", FILE[0], **how),
}
AGAIN: dict[str, Doing] = {
    "delete": lambda door, how: door.delete("mine"),
    "rename": lambda door, how: door.edit("mine", rename="other"),
    "tag": lambda door, how: door.edit("mine", tags={"a": "b"}),
    "hibernate": lambda door, how: door.hibernate("mine"),
    "resume": lambda door, how: door.resume("mine"),
}
"""What is the same however often it is done: the second answer may be that it is done."""


class Relay:
    """What is between a client and a server, on a unix socket.

    Attributes:
        drops: whether what the server says is lost from now on.
        has_dropped: set once that has happened.
    """

    def __init__(self, target: Callable[[], Awaitable[tuple[Any, Any]]]) -> None:
        self._target = target
        self._ends = asyncio.Event()
        self.drops = False
        self.has_dropped = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        up_reader, up_writer = await self._target()
        ends = self._ends
        ways = {
            asyncio.create_task(self._up(reader, up_writer)),
            asyncio.create_task(self._down(up_reader, writer, ends)),
            asyncio.create_task(ends.wait()),
        }
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for one in (writer, up_writer):
            one.transport.abort()

    def cut(self) -> None:
        """End the connection, and take others as they come."""
        self.drops = False
        self._ends.set()
        self._ends = asyncio.Event()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                if not (self.drops or ends.is_set()) or is_asking(data):
                    writer.write(data)
                    await writer.drain()
                else:
                    self.has_dropped.set()


def is_asking(data: bytes) -> bool:
    """Whether the server asks for more: bytes of a file that it has room for."""
    return Codec(StateCredit).recognizes(data[4:]) or data.startswith(b"HTTP/1.1 100")


@asynccontextmanager
async def relayed(world: World, kind: str, folder: Path) -> AsyncIterator[tuple[Relay, Any]]:
    """A relay to a door of a world, and what makes doors through it."""

    async def target() -> tuple[Any, Any]:
        if kind == "http":
            return await asyncio.open_unix_connection(world.running.path)
        sock = await world.server.connect_local(is_trusted=False)
        return await asyncio.open_unix_connection(sock=sock)

    relay, path = Relay(target), folder / "relay"
    server = await asyncio.start_unix_server(relay.take, path)

    @asynccontextmanager
    async def door() -> AsyncIterator[Door]:
        if kind == "http":
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession("http://gateway", connector=connector) as http:
                http._retry_connection = False  # it would send PUT and DELETE again by itself
                yield HttpDoor(http, key_of("anna"))
        else:
            client = aio.connect(f"unix://{path}", api_key=key_of("anna"), reconnect=False)
            async with client as connected:
                yield BinaryDoor(connected)

    async with server:
        yield relay, door


async def versions(world: World) -> dict[str, int]:
    """The head of each handle; all that there is must be below it."""
    return {one.name: one.version for one in await world.door("anna", "binary").handles()}


@asynccontextmanager
async def prepared(folder: Path, kind: str) -> AsyncIterator[tuple[World, Relay, Any]]:
    async with (
        world_running(folder / "world", has_websockets=False) as world,
        relayed(world, kind, folder) as (relay, door),
    ):
        direct = world.door("anna", "binary")
        await direct.create("mine", [5, 6, 7])
        await direct.generate([1], 2, state="mine", save_as="mine")
        FILE[0] = await direct.export("mine")
        yield world, relay, door


async def lost(world: World, relay: Relay, door: Any, do: Doing, how: dict[str, Any]) -> None:
    """Ask, let it be done, and never hear the answer."""
    async with door() as through:
        await through.handles()  # the handshake is over
        relay.drops = True
        asking = asyncio.create_task(do(through, how))
        async with asyncio.timeout(TIMEOUT_S):
            await relay.has_dropped.wait()
        await world.at_rest()
        relay.cut()
        with pytest.raises(Gone):
            await asking


KINDS = pytest.mark.parametrize("kind", ["binary", "http"])


@KINDS
@pytest.mark.parametrize("what", list(WITH_A_KEY))
async def test_with_a_key_what_is_sent_again_is_done_once_and_answered_as_the_first_time(
    tmp_path: Path, kind: str, what: str
) -> None:
    do, how = WITH_A_KEY[what], {"idempotency_key": "once"}
    async with prepared(tmp_path, kind) as (world, relay, door):
        before = await versions(world)
        await lost(world, relay, door, do, how)
        await world.at_rest()
        once = await versions(world)
        async with door() as through:
            first = await do(through, how)
            assert await do(through, how) == first
        await world.at_rest()
        assert await versions(world) == once
        assert once != before
        assert sum(once.values()) - sum(before.values()) == (2 if what == "fork" else 1)


@KINDS
@pytest.mark.parametrize("what", list(WITH_A_VERSION))
async def test_with_a_version_what_is_sent_again_is_done_once_and_told_so(
    tmp_path: Path, kind: str, what: str
) -> None:
    do, how = WITH_A_VERSION[what], {"expected_version": 2}
    async with prepared(tmp_path, kind) as (world, relay, door):
        await lost(world, relay, door, do, how)
        await world.at_rest()
        assert await versions(world) == {"mine": 3}
        async with door() as through:
            with pytest.raises(Refused, match="STALE_VERSION"):
                await do(through, how)
        await world.at_rest()
        assert await versions(world) == {"mine": 3}


@KINDS
@pytest.mark.parametrize("what", list(AGAIN))
async def test_what_can_be_done_twice_is_the_same_after_a_lost_answer(
    tmp_path: Path, kind: str, what: str
) -> None:
    do = AGAIN[what]
    async with prepared(tmp_path, kind) as (world, relay, door):
        await lost(world, relay, door, do, {})
        await world.at_rest()
        once = await versions(world)
        async with door() as through:
            with contextlib.suppress(Refused):
                await do(through, {})
        assert await versions(world) == once
        assert once == {"delete": {}, "rename": {"other": 2}}.get(what, {"mine": 2})


@KINDS
@pytest.mark.parametrize("what", ["snapshot", "mutate", "import"])
async def test_the_rest_has_keys_too(tmp_path: Path, kind: str, what: str) -> None:
    """By the names of either door's own, where ``Door`` does not take a key."""
    async with prepared(tmp_path, kind) as (world, relay, door):
        how = {"idempotency_key": "once"}
        await lost(world, relay, door, OWN[what, kind], how)
        await world.at_rest()
        once = await versions(world)
        assert once == {"mine": 2, "new": 1}
        async with door() as through:
            await OWN[what, kind](through, how)
        assert await versions(world) == once
        async with door() as through:
            with pytest.raises(Refused, match=r"KEY_REUSED|IDEMPOTENCY"):
                await through.fork("mine", ["third"], idempotency_key="once")


async def _snapshot(door: Any, how: dict[str, Any]) -> None:
    if isinstance(door, HttpDoor):
        await door._post("mine", "snapshot", save_as="new", **how)
    else:
        with_errors = door.client.states.snapshot("mine", save_as="new", **how)
        await _typed(with_errors)


async def _mutate(door: Any, how: dict[str, Any]) -> None:
    if isinstance(door, HttpDoor):
        body = {"operation": "decay", "parameters": {"factor": 0.5}, "save_as": "new", **how}
        await door._post("mine", "mutate", **body)
    else:
        states = door.client.states
        await _typed(states.mutate("decay", ["mine"], "new", {"factor": 0.5}, **how))


async def _import(door: Any, how: dict[str, Any]) -> None:
    await door.importing("new", FILE[0], **how)


async def _typed(asking: Awaitable[Any]) -> None:
    with typed():
        await asking


OWN: dict[tuple[str, str], Any] = {
    (what, kind): do
    for what, do in (("snapshot", _snapshot), ("mutate", _mutate), ("import", _import))
    for kind in ("binary", "http")
}


SAME_AGAIN = {
    "StateGet",
    "StateList",
    "StateDiff",
    "StateLog",
    "StateReplay",
    "StateExport",
    "StateHibernate",
    "StateLineage",
    "StateResume",
    "MigrateBegin",
    "MigrateEnd",
    "DELETE /v1/sessions/{id}",
    "POST /v1/sessions/{id}/interrupt",
    "POST /v1/states/{ref}/diff",
    "POST /v1/states/{ref}/hibernate",
    "POST /v1/states/{ref}/replay",
    "POST /v1/states/{ref}/resume",
}
"""What changes no version, or may be done again: the state is then what it was after the first."""


def fields_of_all() -> Iterator[tuple[str, set[str]]]:
    """Each operation on states, of either door, and the names of what it takes."""
    for message in (*get_args(StateOperation), GenerateOn):
        yield message.__name__, set(message.__struct_fields__)
    for route in ROUTES:
        if route.method != "GET" and re.match("/v1/(states|sessions)", route.path):
            assert route.doc is not None
            bodies = [one for one in route.doc.bodies if hasattr(one, "__struct_fields__")]
            names = {name for one in bodies for name in one.__struct_fields__}
            names |= {one.name for one in route.doc.query}
            yield f"{route.method} {route.path}", names


def test_whatever_changes_a_version_takes_a_key_or_the_version_that_it_expects() -> None:
    safe = {"idempotency_key", "expected_version"}
    lacking = {what for what, names in fields_of_all() if not names & safe}
    assert lacking == SAME_AGAIN
