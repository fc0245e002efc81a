"""A server of states in the test's own process, and clients that speak of them by hand."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from wkvm_protocol.address import UnixAddress, parse_address
from wkvm_protocol.messages import (
    Failed,
    GenerateOn,
    Sampling,
    ServerMessage,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateExportBegin,
    Tokens,
    pack_ids,
    unpack_ids,
)

from tests.server.harness import TIMEOUT_S, RawClient, local_config, until
from tests.server.scripted_states import ScriptedStates
from wkvm.core.config import ServerConfig
from wkvm.server.serve import Server

FEATURES = ("states", "grammar", "watch")


@dataclass
class StateRig:
    """A server, and what carries its operations out."""

    server: Server
    states: Any
    clients: list[RawClient] = field(default_factory=list[RawClient])

    async def client(self, api_key: str = "") -> RawClient:
        """An open connection that has agreed on states."""
        address = parse_address(self.server.addresses[0])
        if isinstance(address, UnixAddress):
            streams = await asyncio.open_unix_connection(address.path)
        else:
            streams = await asyncio.open_connection(address.host, address.port)
        client = RawClient(*streams)
        self.clients.append(client)
        hello = await client.hello(api_key, FEATURES)
        assert "states" in hello.features
        return client

    async def assert_idle(self) -> None:
        """Soon no operation is under way, and no request."""
        await until(lambda: self.server.n_operations == 0 and self.server.n_requests == 0)
        assert self.server._dispatcher._operations is not None
        assert self.server._dispatcher._operations.n_transfers == 0


@asynccontextmanager
async def serving_states(
    states: Any = None, config: ServerConfig | None = None, **settings: Any
) -> AsyncIterator[StateRig]:
    """A server on a unix socket, unless told otherwise, of scripted states, likewise."""
    before = asyncio.all_tasks()
    with tempfile.TemporaryDirectory(prefix="wkvm") as folder:
        stepping: asyncio.Task[None] | None = None
        if states is None:
            states = ScriptedStates()
        if isinstance(states, ScriptedStates):
            stepping = asyncio.create_task(states.loop.run())
        server = Server(states, config or local_config(folder, **settings), states)
        rig = StateRig(server, states)
        try:
            await server.start()
            yield rig
        finally:
            for client in rig.clients:
                client.abort()
            await server.close()
            if stepping is not None:
                stepping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stepping
    async with asyncio.timeout(TIMEOUT_S):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110  (of the transports of clients)
            await asyncio.sleep(0.002)


async def ask(client: RawClient, message: Any) -> Any:
    """Send what opens a lane, under a number of its own; what comes for it next."""
    lane = client.wire.new_request_id()
    client.send(numbered(message, lane))
    return await reply(client, lane)


async def reply(client: RawClient, lane: int) -> Any:
    """The next message for a lane; others are dropped."""
    while (message := await client.next()) is not None:
        if getattr(message, "request_id", None) == lane:
            return message
    raise AssertionError("the connection ended")


async def refusal(client: RawClient, message: Any) -> Failed:
    answer = await ask(client, message)
    assert isinstance(answer, Failed), answer
    return answer


def numbered(message: Any, lane: int) -> Any:
    """The same message for another lane."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**{**fields, "request_id": lane})


def generate_on(prompt: tuple[int, ...] = (1, 2, 3), **keywords: Any) -> GenerateOn:
    """A request that is greedy, of four ids."""
    sampling = Sampling(temperature=0.0, max_tokens=keywords.pop("max_tokens", 4))
    return GenerateOn(0, pack_ids(prompt), sampling, **keywords)


@dataclass
class Turn:
    """All that came for a lane of one choice."""

    ids: list[int] = field(default_factory=list[int])
    begun: StateExportBegin | None = None
    data: bytearray = field(default_factory=bytearray)
    bytes_end: StateBytesEnd | None = None
    end: Any = None


async def turn(client: RawClient, message: Any) -> Turn:
    """Send a request and take all that comes for it."""
    lane = client.wire.new_request_id()
    client.send(numbered(message, lane))
    return await rest_of(client, lane)


async def rest_of(client: RawClient, lane: int) -> Turn:
    """All that comes for a lane until it is closed."""
    got = Turn()
    while lane in client.wire.lanes or client._received:
        message: ServerMessage | None = await client.next()
        assert message is not None, "the connection ended"
        match message:
            case Tokens():
                pairs = zip(unpack_ids(message.lanes), unpack_ids(message.ids), strict=True)
                got.ids += [token_id for one, token_id in pairs if one == lane]
            case StateExportBegin(request_id=one) if one == lane:
                got.begun = message
            case StateChunk(request_id=one) if one == lane:
                got.data += message.data
            case StateBytesEnd(request_id=one) if one == lane:
                got.bytes_end = message
            case _ if getattr(message, "request_id", None) == lane:
                got.end = message
            case _:
                pass
    return got


async def upload(client: RawClient, lane: int, data: bytes, *, digest: str = "") -> None:
    """Send bytes on a lane, as they are granted, and say that these were all."""
    sent = 0
    while sent < len(data):
        while not client.wire.room(lane):
            message = await client.next()
            assert isinstance(message, StateCredit), message
        n_bytes = min(client.wire.room(lane), 2**18)
        client.send(StateChunk(lane, data[sent : sent + n_bytes]))
        sent += n_bytes
    client.send(StateBytesEnd(lane, digest))
