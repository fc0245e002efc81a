"""The gateway on a null engine, in one process and on one loop, as ``wkvm serve`` runs it."""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from wkvm.assembly.http import engines_of
from wkvm.core.config import ServerConfig
from wkvm.engine.loop import EngineLoop
from wkvm.gateway.app import build_app
from wkvm.gateway.calls import Gateway
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.listening import Door
from wkvm.gateway.routes import ROUTES
from wkvm.server.listen import UnixSocket
from wkvm.server.serve import Server
from wkvm_bench.null_engine import NullEngine
from wkvm_bench.null_texts import null_texts


@dataclass(frozen=True, slots=True)
class Running:
    """What runs."""

    engine_loop: EngineLoop
    server: Server
    gateway: Gateway
    door: Door
    port: int


@asynccontextmanager
async def running(
    engine_loop: EngineLoop, path: str, *, port: int | None = None
) -> AsyncIterator[Running]:
    """Serve an engine over HTTP for the length of a block, on a unix socket and perhaps a port."""
    server = Server(engine_loop, ServerConfig(binary_port=None))
    stepping = asyncio.create_task(engine_loop.run())
    engines = engines_of(server)
    config = GatewayConfig(port=port, uds=path)
    gateway = Gateway(config, engines, null_texts(), started_at=int(time.time()))
    listener = UnixSocket(path, setting="uds")
    sockets = [listener.socket]
    if port is not None:
        sockets.append(socket.create_server(("127.0.0.1", port)))
        port = sockets[-1].getsockname()[1]
    door = Door(gateway, build_app(gateway, ROUTES), sockets)
    try:
        await engines.open()
        await door.start()
        yield Running(engine_loop, server, gateway, door, port or 0)
    finally:
        await door.close()
        engine_loop.close()
        await asyncio.wait([stepping])
        await server.close()


async def serve(path: str) -> None:
    """Serve the null engine until cancelled."""
    async with running(EngineLoop(NullEngine()), path):
        # As ``wkvm serve`` does once it is set up.
        gc.collect()
        gc.freeze()
        await asyncio.Event().wait()
