"""A whole server of several tenants in the test's own process, with every door for each of them."""

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from wkvm_client import aio

from tests.gateway.bridge import over_websocket
from tests.gateway.harness import Running, gateway_over
from tests.hash_model import HashModel
from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door
from tests.states.http_door import HttpDoor
from wkvm.assembly.states import OpenStates
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.engine.loop import EngineLoop
from wkvm.engine.states import StateService
from wkvm.gateway.config import GatewayConfig
from wkvm.models.base import Model
from wkvm.server.serve import Server

TIMEOUT_S = 60.0
N_BYTES = 256
"""Ids of the model of most worlds: each is a byte, so that there are texts and chats."""


class BytesModel(HashModel):
    """The hash model over bytes, with a matrix in its state that mutations can change."""

    def __init__(self, *, has_guest: bool = False) -> None:
        super().__init__(vocab_size=N_BYTES, has_guest=has_guest)
        matrix = TensorSpec("rwkv7.wkv", (2, 1, 2, 2), "float32")
        self._layout = StateLayout((*self._layout.tensors, matrix), self._layout.guest)


def key_of(tenant: str) -> str:
    """The key of a tenant of a world."""
    return f"key-of-{tenant}-" * 2


@dataclass
class World:
    """A server that runs.

    Attributes:
        folder: of its store; what is kept of responses is in ``responses`` beside it.
        clients: of the binary protocol, by tenant.
        sockets: the same over WebSockets.
    """

    folder: Path
    running: Running
    server: Server
    loop: EngineLoop
    states: StateService
    clients: dict[str, aio.Client] = field(default_factory=dict[str, aio.Client])
    sockets: dict[str, aio.Client] = field(default_factory=dict[str, aio.Client])

    @property
    def http(self) -> aiohttp.ClientSession:
        """Whose relative URLs go to the gateway, without a key."""
        return self.running.http

    @property
    def tenants(self) -> list[str]:
        """All of them."""
        return list(self.clients)

    def headers(self, tenant: str) -> dict[str, str]:
        """That let a tenant's requests in."""
        return {"Authorization": f"Bearer {key_of(tenant)}"}

    def door(self, tenant: str, kind: str) -> Door:
        """``binary``, ``http`` or ``websocket``."""
        match kind:
            case "http":
                return HttpDoor(self.http, key_of(tenant))
            case "websocket":
                return BinaryDoor(self.sockets[tenant])
            case _:
                return BinaryDoor(self.clients[tenant])

    async def post(
        self, tenant: str, path: str, body: Mapping[str, Any], **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        given = self.headers(tenant) | headers
        async with self.http.post(path, json=body, headers=given) as response:
            return response.status, await response.json()

    async def at_rest(self) -> None:
        """Wait until nothing runs any more."""
        async with asyncio.timeout(TIMEOUT_S):
            while self._is_at_work():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def _is_at_work(self) -> bool:
        stats = self.states.stats()
        busy = ("loading", "running", "committing")
        return (
            any(stats[f"n_states_{phase}"] for phase in busy)
            or stats["n_free_slots"] < stats["n_slots"]
            or bool(stats["n_queued"] or stats["n_running"])
        )


@functools.cache
def _grammars() -> GrammarCompiler:
    return GrammarCompiler([bytes([one]) for one in range(N_BYTES)], vocab_size=N_BYTES)


@asynccontextmanager
async def world_running(
    folder: Path,
    model: Model | None = None,
    *,
    tenants: Sequence[str] = ("anna", "bert"),
    states: Mapping[str, Any] | None = None,
    gateway: GatewayConfig | None = None,
    has_websockets: bool = True,
    **engine: Any,
) -> AsyncIterator[World]:
    """Serve, and have clients of all tenants.

    Args:
        folder: for the store and for responses.
        model: by default ``BytesModel``.
        states: settings of states other than the folder.
        gateway: settings of HTTP.
        has_websockets: whether tenants have those too.
        engine: settings of the engine. Slots that are freed are poisoned.
    """
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    model = BytesModel() if model is None else model
    engine = {"n_slots": 8, "n_threads": 1, "poison_freed_slots": True} | engine
    settings = EngineConfig(device="cpu", **engine)
    takes_text = isinstance(model, BytesModel)
    served = Engine(
        model, settings, served_name="tales", grammars=_grammars() if takes_text else None
    )
    loop = EngineLoop(served)
    config = StateConfig(folder=str(folder / "store"), **(states or {}))
    service = OpenStates(served, config).serve(loop)
    keys = tuple(ApiKey.of(key_of(tenant), tenant) for tenant in tenants)
    server = Server(service, ServerConfig(binary_port=None, api_keys=keys), service)
    stepping = asyncio.create_task(loop.run())
    try:
        async with AsyncExitStack() as stack:
            gateway = gateway or GatewayConfig(responses_dir=str(folder / "responses"))
            running = await stack.enter_async_context(gateway_over(server, loop, config=gateway))
            world = World(folder / "store", running, server, loop, service)
            for tenant in tenants:
                attach = partial(server.attach, is_trusted=False)
                client = aio.over(attach, api_key=key_of(tenant))
                world.clients[tenant] = await stack.enter_async_context(client)
                if has_websockets:
                    await _open_websocket(world, stack, tenant)
            yield world
    finally:
        loop.close()
        await asyncio.wait([stepping])
        await server.close()
        await service.close()


async def _open_websocket(world: World, stack: AsyncExitStack, tenant: str) -> None:
    http = await stack.enter_async_context(
        aiohttp.ClientSession(
            "http://gateway",
            connector=aiohttp.UnixConnector(str(world.running.path)),
            headers=world.headers(tenant),
        )
    )
    socket = await stack.enter_async_context(over_websocket(http))
    client = aio.from_socket(socket, api_key=key_of(tenant))
    world.sockets[tenant] = await stack.enter_async_context(client)
