"""A gateway with its engine in the test's own process, and HTTP against it."""

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import aiohttp
from wkvm_client.errors import ConnectFailedError

from tests.fakes import FakeModel
from wkvm.assembly.http import engines_of
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.engine.interface import EngineLike
from wkvm.engine.loop import EngineLoop
from wkvm.gateway.app import build_app
from wkvm.gateway.calls import Gateway, Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.listening import Door
from wkvm.gateway.routes import ROUTES
from wkvm.gateway.text.template import WORLD_STOPS, WORLD_TEMPLATE, ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts
from wkvm.server.listen import UnixSocket
from wkvm.server.serve import Server

TIMEOUT_S = 60.0
"""Nothing that a test waits for takes this long unless it is broken."""
KEYS = (ApiKey.of("a" * 20, "anna"), ApiKey.of("b" * 20, "bert"))
ANNA = {"Authorization": "Bearer " + "a" * 20}
BERT = {"Authorization": "Bearer " + "b" * 20}


@dataclasses.dataclass
class Running:
    """A gateway that runs.

    Attributes:
        http: a session whose relative URLs go to the gateway; sends no key.
        path: of the gateway's unix socket.
    """

    http: aiohttp.ClientSession
    path: Path
    gateway: Gateway
    door: Door
    server: Server
    engine_loop: EngineLoop


def byte_texts() -> Texts:
    """Ids are bytes; chats are written as the World models read them."""
    template = ChatTemplate(WORLD_TEMPLATE, stops=WORLD_STOPS)
    return Texts(ByteTokenizer(), template)


@asynccontextmanager
async def gateway_running(
    engine: EngineLike | None = None,
    *,
    keys: Sequence[ApiKey] = (),
    texts: Texts | None = None,
    config: GatewayConfig | None = None,
    server_config: ServerConfig | None = None,
    routes: Sequence[Route] = ROUTES,
) -> AsyncIterator[Running]:
    """Serve an engine, by default a fake one whose ids are bytes, over HTTP on a unix socket."""
    engine = engine or Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=8))
    engine_loop = EngineLoop(engine)
    server_config = server_config or ServerConfig(binary_port=None)
    server_config = dataclasses.replace(server_config, api_keys=tuple(keys))
    server = Server(engine_loop, server_config)
    stepping = asyncio.create_task(engine_loop.run())
    try:
        async with gateway_over(server, engine_loop, texts, config, routes) as running:
            yield running
    finally:
        engine_loop.close()
        await asyncio.wait([stepping])
        await server.close()


@asynccontextmanager
async def gateway_over(
    server: Server,
    engine_loop: EngineLoop,
    texts: Texts | None = None,
    config: GatewayConfig | None = None,
    routes: Sequence[Route] = ROUTES,
) -> AsyncIterator[Running]:
    """As ``gateway_running``, for an engine that is served already."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "http.sock"
        config = dataclasses.replace(config or GatewayConfig(), port=None, uds=str(path))
        engines = engines_of(server)
        gateway = Gateway(config, engines, texts or byte_texts(), started_at=int(time.time()))
        listener = UnixSocket(str(path), setting="uds")
        door = Door(gateway, build_app(gateway, routes), [listener.socket])
        try:
            await engines.open()
            await door.start()
            connector = aiohttp.UnixConnector(str(path))
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with aiohttp.ClientSession(
                "http://gateway", connector=connector, timeout=timeout
            ) as http:
                yield Running(http, path, gateway, door, server, engine_loop)
        finally:
            await door.close()


async def lose_engine(running: Running) -> None:
    """End the gateway's connections to the engine, and let no new ones be made."""

    async def refuse(key: str | None) -> NoReturn:
        raise ConnectFailedError("nobody is there")

    running.gateway.engines._connect = refuse
    await running.server.close()


async def until_stats(running: Running, **wanted: int) -> None:
    """Wait until the engine's counters have these values."""
    client = await running.gateway.engines.own()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            stats = await client.stats()
            if all(stats[name] == value for name, value in wanted.items()):
                return
