"""The gateway on a real engine without a model, and a window into its process.

``python -m wkvm_bench.servers watched PATH`` serves HTTP at PATH and on a TCP port, and answers on
PATH.watch: each line brings a line of JSON that says what the process holds. An empty line does so
at once, any other after the garbage was collected.
"""

import asyncio
import gc
import os
from pathlib import Path

import msgspec

from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm_bench.held import Held
from wkvm_bench.null_gateway import Running, running
from wkvm_bench.null_model import CountingModel

N_SLOTS = 8
MAX_QUEUE = 4096


async def serve(path: str) -> None:
    """Serve until cancelled."""
    engine = Engine(CountingModel(), EngineConfig(n_slots=N_SLOTS, max_queue=MAX_QUEUE))
    async with running(EngineLoop(engine), path, port=0) as served:

        async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                held = await _held(served, collect=bool(line.strip()))
                writer.write(msgspec.json.encode(held) + b"\n")

        server = await asyncio.start_unix_server(watch, f"{path}.watch")
        async with server:
            await asyncio.Event().wait()


async def _held(served: Running, *, collect: bool) -> Held:
    client = await served.gateway.engines.own()
    stats = await client.stats()
    if collect:
        gc.collect()
    return Held(
        port=served.port,
        n_tasks=len(asyncio.all_tasks()) - 1,
        n_files=len(os.listdir("/proc/self/fd")),
        rss_bytes=_rss_bytes(),
        n_objects=len(gc.get_objects()) if collect else 0,
        n_connections=served.door.n_connections,
        n_requests=served.door.n_requests,
        stats=stats,
    )


def _rss_bytes() -> int:
    n_pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE")
