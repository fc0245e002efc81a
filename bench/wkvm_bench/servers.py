"""The servers that clients are measured against, each in a process of its own.

``python -m wkvm_bench.servers KIND PATH`` serves on a unix socket at PATH until it is killed.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import uvloop

from wkvm_bench.harness import BenchError

START_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 300.0
SSE_EVENTS_HEADER = "Wkvm-Bench-Events"
"""Of a request to the server of events: how many to send."""


@contextlib.asynccontextmanager
async def running(kind: str, path: Path) -> AsyncIterator[int]:
    """Run a server of a kind for the length of a block, which gets its process id.

    Raises:
        BenchError: it ended, or did not listen in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wkvm_bench.servers", kind, str(path)
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not _listens(path):
                if process.returncode is not None:
                    raise BenchError(f"the server {kind} ended with {process.returncode}")
                await asyncio.sleep(0.02)
        yield process.pid
    except TimeoutError:
        raise BenchError(f"the server {kind} does not listen") from None
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(5.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready.

    Attributes:
        pid: of its process.
        seconds: from the command to its being ready.
    """

    pid: int
    seconds: float

    @property
    def cpu_s(self) -> float:
        """CPU time of the process so far, of all its threads. Linux alone says it."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def serving(
    model: Path,
    uds: Path,
    flags: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Started]:
    """Run ``wkvm serve`` on a unix socket for the length of a block. Its log goes to this one's.

    Args:
        model: to be served.
        uds: the path of the socket.
        flags: more of them.
        variables: of its environment.

    Raises:
        BenchError: it ended before it was ready, or is not ready in time.
    """
    command = ["-m", "wkvm", "serve", str(model), "--port", "none", *flags]
    command += ["--binary-port", "none", "--binary-uds", str(uds), "--log-level", "warning"]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    try:
        await _ready(process)
        yield Started(process.pid, time.perf_counter() - began)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await process.stdout.readline() if process.stdout is not None else b""
    except TimeoutError:
        raise BenchError(f"the server is not ready after {READY_TIMEOUT_S:g} s") from None
    if not line.startswith(b"ready"):
        raise BenchError("the server ended before it was ready")


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class _Echo(asyncio.Protocol):
    """Sends back what comes: the least that a server in Python can do."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance: uvloop's unix transports are no asyncio.Transport.
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def _serve_echo(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Echo, path)
    await server.serve_forever()


async def _serve_null(path: str) -> None:
    from wkvm.core.config import ServerConfig
    from wkvm.server.serve import serve
    from wkvm_bench.null_engine import NullEngine

    config = ServerConfig(binary_port=None, binary_uds=path)
    await serve(NullEngine(), config, ready=lambda _: None)


async def _serve_timed(path: str) -> None:
    from wkvm.core.config import EngineConfig, ServerConfig
    from wkvm.server.serve import serve
    from wkvm_bench.host import N_STREAMS, STEP_S
    from wkvm_bench.timed_engine import TimedEngine

    config = ServerConfig(binary_port=None, binary_uds=path)
    engine = TimedEngine(EngineConfig(n_slots=N_STREAMS), step_s=STEP_S)
    await serve(engine, config, ready=lambda _: None)


async def _serve_events(path: str) -> None:
    from aiohttp import web

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index in range(int(request.headers[SSE_EVENTS_HEADER])):
            await response.write(b"data: %d\n\n" % index)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/", events)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await asyncio.Event().wait()


async def _serve_fastapi(path: str) -> None:
    from wkvm_bench import fastapi_peer

    await fastapi_peer.serve(path, batch_wait_s=fastapi_peer.BATCH_WAIT_S)


async def _serve_fastapi_at_once(path: str) -> None:
    from wkvm_bench import fastapi_peer

    await fastapi_peer.serve(path, batch_wait_s=0.0)


async def _serve_gateway(path: str) -> None:
    from wkvm_bench import null_gateway

    await null_gateway.serve(path)


async def _serve_watched(path: str) -> None:
    from wkvm_bench import watched_gateway

    await watched_gateway.serve(path)


async def _serve_workers(path: str, n: int, *, is_paced: bool = False) -> None:
    from wkvm_bench import workers

    await workers.serve(path, n, is_paced=is_paced)


SERVERS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    "echo": _serve_echo,
    "null": _serve_null,
    "timed": _serve_timed,
    "events": _serve_events,
    "fastapi": _serve_fastapi,
    "fastapi-at-once": _serve_fastapi_at_once,
    "gateway": _serve_gateway,
    "watched": _serve_watched,
    "paced-0": partial(_serve_workers, n=0, is_paced=True),
    "paced-1": partial(_serve_workers, n=1, is_paced=True),
    "paced-2": partial(_serve_workers, n=2, is_paced=True),
    "workers-0": partial(_serve_workers, n=0),
    "workers-1": partial(_serve_workers, n=1),
    "workers-2": partial(_serve_workers, n=2),
}


def _main(kind: str, path: str) -> None:
    with (
        contextlib.suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(SERVERS[kind](path))


if __name__ == "__main__":
    _main(*sys.argv[1:])
