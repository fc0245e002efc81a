"""Whole servers that keep states, over a model whose next id is a function of all before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.hash_model import HashModel
from wkvm.assembly.http import beside
from wkvm.assembly.states import OpenStates
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.text.template import WORLD_STOPS, WORLD_TEMPLATE, ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts
from wkvm.server.serve import Server


@asynccontextmanager
async def running(
    folder: Path, digest: str = "4a54" * 16, *, over_websocket: bool = False
) -> AsyncIterator[str]:
    """A server with a store in a folder; where it is."""
    folder.mkdir()  # noqa: ASYNC240
    engine = Engine(
        HashModel(digest=digest), EngineConfig(device="cpu", n_slots=8), served_name="hash"
    )
    loop = EngineLoop(engine)
    states = OpenStates(engine, StateConfig(folder=str(folder / "store"))).serve(loop)
    config = ServerConfig(binary_port=None, binary_uds=str(folder / "sock"))
    server = Server(states, config, states)
    await server.start()
    stepping = asyncio.create_task(loop.run())
    texts = Texts(ByteTokenizer(), ChatTemplate(WORLD_TEMPLATE, stops=WORLD_STOPS))
    door = beside(server, GatewayConfig(port=0), texts)
    try:
        if not over_websocket:
            yield server.addresses[0]
        else:
            await door.start()
            yield door.addresses[0].replace("http", "ws", 1)
    finally:
        await door.close()
        await server.close()
        await states.close()
        loop.close()
        await asyncio.wait([stepping])
