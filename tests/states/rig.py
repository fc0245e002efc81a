"""A whole server in the test's own process, over the hash model, with a door for each tenant.

Connections are pipes in memory, the store is on a real disk, and what the store asks of the file
system can be made to fail.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec
import pytest
from wkvm_client import aio
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import MAX_FRAME_BYTES, GenerateOn, Sampling, pack_ids

from tests.gateway.harness import gateway_over
from tests.hash_model import HashModel
from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door
from tests.states.faulty import FaultyIO
from tests.states.http_door import HttpDoor, body_of
from tests.states.tokens import grammars_of
from wkvm.assembly.states import OpenStates
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.engine.states import StateService
from wkvm.server.serve import Server

TIMEOUT_S = 60.0
TENANTS = ("anna", "bert")


def key_of(tenant: str) -> str:
    return f"{tenant}-" * 4


@dataclass
class Rig:
    """A server that runs."""

    kind: str
    store: Path
    model: HashModel
    server: Server
    loop: EngineLoop
    states: StateService
    io: FaultyIO
    http: aiohttp.ClientSession
    http_path: Path
    clients: dict[str, aio.Client] = field(default_factory=dict[str, aio.Client])
    n_tasks: int | None = None
    """Of this process, when ``everything`` was asked for; as ``n_files``, which are open."""
    n_files: int | None = None

    def door(self, tenant: str) -> Door:
        """The door of this kind for a tenant."""
        if self.kind == "http":
            return HttpDoor(self.http, key_of(tenant))
        return BinaryDoor(self.clients[tenant])

    async def cut_after(self, n_seen: int, prompt: list[int], n: int, **how: Any) -> None:
        """Ask for a turn, and lose the connection once so many ids have come."""
        if self.kind == "http":
            await HttpDoor(self.http, key_of("anna")).cut_after(n_seen, prompt, n, **how)
        else:
            attach = partial(self.server.attach, is_trusted=False)
            async with aio.over(attach, api_key=key_of("anna")) as client:
                stream = await client.generate(prompt, max_tokens=n, temperature=0.0, **how)
                seen = 0
                while seen < n_seen:
                    seen += len(await stream.read())
                if not n_seen:
                    await client.ping()
        await self.at_rest(but_busy=True)

    def first_bytes(self, prompt: list[int], n: int, *, state: str, save_as: str) -> bytes:
        """All that a client sends for a turn, from the beginning of its connection on."""
        if self.kind == "http":
            body = json.dumps(body_of(prompt, n, state, save_as, None, None, {})).encode()
            head = (
                f"POST /v1/generate HTTP/1.1\r\nHost: gateway\r\n"
                f"Authorization: Bearer {key_of('anna')}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            return head.encode() + body
        wire = ClientConnection()
        hello = wire.send_hello(api_key=key_of("anna"), features=("states",))
        message = GenerateOn(
            0,
            pack_ids(prompt),
            Sampling(temperature=0.0, max_tokens=n),
            state=state,
            save_as=save_as,
        )
        return hello + encode_frame(msgspec.msgpack.encode(message), limit=MAX_FRAME_BYTES)

    async def send_and_leave(self, data: bytes, *, when: Awaitable[None] | None = None) -> None:
        """Connect, send, and close the connection without reading, at once or after ``when``."""
        if self.kind == "http":
            _, writer = await asyncio.open_unix_connection(self.http_path)
        else:
            sock = await self.server.connect_local(is_trusted=False)
            _, writer = await asyncio.open_unix_connection(sock=sock)
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()
        if when is not None:
            await when
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def at_rest(self, *, but_busy: bool = False) -> None:
        """Wait until no state is at work, and but for ``but_busy`` nothing at all.

        Then there are no more tasks and open files than when ``everything`` was asked for.
        """
        async with asyncio.timeout(TIMEOUT_S):
            while self._is_at_work(but_busy):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def _is_at_work(self, but_busy: bool) -> bool:
        stats = self.states.stats()
        if any(stats[f"n_states_{phase}"] for phase in ("loading", "running", "committing")):
            return True
        if but_busy:
            return False
        if stats["n_free_slots"] < stats["n_slots"] or stats["n_queued"] or stats["n_running"]:
            return True
        has_tasks = self.n_tasks is not None and len(asyncio.all_tasks()) > self.n_tasks
        return has_tasks or (self.n_files is not None and n_open_files() > self.n_files)

    def everything(self) -> dict[str, Any]:
        """All that a refused operation must not change: the catalogue's rows and the files."""
        database = sqlite3.connect(f"file:{self.store / 'catalogue.db'}?mode=ro", uri=True)
        try:
            tables = [
                name
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table'"
                )
            ]
            rows = {
                name: sorted(map(repr, database.execute(f"SELECT * FROM {name}")))
                for name in tables
            }
        finally:
            database.close()
        files = {
            one.name: one.stat().st_size
            for folder in ("payloads", "quarantine")
            for one in (self.store / folder).iterdir()
        }
        self.n_tasks, self.n_files = len(asyncio.all_tasks()), n_open_files()
        return {"rows": rows, "files": files}

    def fail(self, nth: int, *, for_ever: bool) -> None:
        self.io.faults.fail(nth, for_ever=for_ever)

    def fail_no_more(self) -> int:
        """How many operations failed."""
        self.io.faults.fail_no_more()
        return self.io.faults.n_failed

    def newest_file(self) -> Path:
        """The payload that was written last."""
        return max((self.store / "payloads").iterdir(), key=lambda one: one.stat().st_mtime_ns)

    def damage_newest_file(self, where: float) -> None:
        """Turn one bit of it over."""
        path = self.newest_file()
        at = min(int(where * path.stat().st_size), path.stat().st_size - 1)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))


def n_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class MakeRig(Protocol):
    def __call__(
        self,
        *,
        folder: Path | None = None,
        n_words: int = 64,
        digest: str = ...,
        nan_id: int | None = None,
        has_guest: bool = False,
        kept: dict[str, Any] | None = None,
        **engine: Any,
    ) -> "AsyncRig": ...


class AsyncRig(Protocol):
    async def __aenter__(self) -> Rig: ...

    async def __aexit__(self, *exc: object) -> None: ...


@asynccontextmanager
async def rig_running(
    kind: str,
    folder: Path,
    *,
    n_words: int = 64,
    digest: str = "4a54" * 16,
    nan_id: int | None = None,
    has_guest: bool = False,
    kept: dict[str, Any] | None = None,
    **engine: Any,
) -> AsyncIterator[Rig]:
    """Serve, and have clients of all tenants. ``kept``: settings of states."""
    model = HashModel(n_words=n_words, digest=digest, nan_id=nan_id, has_guest=has_guest)
    engine.setdefault("n_slots", 8)
    io = FaultyIO()
    settings = EngineConfig(device="cpu", **engine)
    served = Engine(model, settings, served_name="hash", grammars=grammars_of(model))
    loop = EngineLoop(served)
    states = OpenStates(served, StateConfig(folder=str(folder), **(kept or {})), io).serve(loop)
    keys = tuple(ApiKey.of(key_of(tenant), tenant) for tenant in TENANTS)
    server = Server(states, ServerConfig(binary_port=None, api_keys=keys), states)
    stepping = asyncio.create_task(loop.run())
    try:
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(gateway_over(server, loop))
            rig = Rig(kind, folder, model, server, loop, states, io, running.http, running.path)
            for tenant in TENANTS:
                attach = partial(server.attach, is_trusted=False)
                client = aio.over(attach, api_key=key_of(tenant))
                rig.clients[tenant] = await stack.enter_async_context(client)
            yield rig
    finally:
        loop.close()
        await asyncio.wait([stepping])
        await server.close()
        await states.close()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A tmpfs of so many MiB. For root on Linux."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a tmpfs needs root on Linux")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
