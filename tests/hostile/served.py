"""A server with both doors in a process of its own: argv is a folder for its sockets and settings.

It ends with its standard input. Clients by the thousand are in another process, so that either has
files enough.
"""

import asyncio
import gc
import json
import sys
from pathlib import Path

import uvloop

from tests.fakes import FakeModel
from tests.gateway.harness import gateway_running
from tests.server.fountain import Fountain
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.config import GatewayConfig
from wkvm.server.process import raise_file_limit


async def main() -> None:
    """Serve, say where, and wait for the end."""
    path, settings = Path(sys.argv[1]) / "binary", json.loads(sys.argv[2])
    engine = (
        Fountain()
        if settings["endless"]
        else Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=128))
    )
    server = ServerConfig(binary_port=None, binary_uds=str(path), **settings["binary"])
    gateway = GatewayConfig(**settings["http"])
    async with gateway_running(engine, server_config=server, config=gateway) as running:
        await running.server.start()
        # As ``serve`` does: what was made up to here the collector need not look at again.
        gc.collect()
        gc.freeze()
        print(running.path, flush=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    raise_file_limit(15_000)
    uvloop.run(main())
