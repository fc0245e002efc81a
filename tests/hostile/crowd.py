"""A server in another process, and clients by the thousand."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from wkvm_client import aio
from wkvm_protocol.codec import Codec
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import Hello

from tests.fakes import fake_continuation

WAIT_S = 120.0
"""Nothing takes this long unless it is broken."""
PROMPT, N_IDS = [5, 6, 7], 9
HELLO = encode_frame(Codec(Hello).encode(Hello("wkvm", 1, 1)), 2**16)


@dataclass
class Served:
    """The server, and what was seen of it.

    Attributes:
        binary, http: its sockets.
        waits_s: how long a control client waited for each of its answers, which were right.
    """

    binary: str
    http: str
    process: psutil.Process
    is_endless: bool
    waits_s: list[float] = field(default_factory=list[float])

    @property
    def rss_bytes(self) -> int:
        """Its memory now."""
        return int(self.process.memory_info().rss)

    @property
    def n_files(self) -> int:
        """Its open files now."""
        return int(self.process.num_fds())

    @property
    def wait_p99_ms(self) -> float:
        """How long the control client waited at most, but for one time in a hundred."""
        return round(1000 * sorted(self.waits_s)[len(self.waits_s) * 99 // 100], 1)

    async def control(self, client: aio.Client) -> None:
        """Ask the same thing again and again."""
        wanted = [7] * N_IDS if self.is_endless else fake_continuation(PROMPT, N_IDS, 256)
        while True:
            began = time.perf_counter()
            stream = await client.generate(PROMPT, temperature=0, max_tokens=N_IDS)
            assert (await stream.completion()).ids == wanted
            self.waits_s.append(time.perf_counter() - began)
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def served(
    folder: Path,
    *,
    endless: bool = False,
    binary: dict[str, Any] | None = None,
    http: dict[str, Any] | None = None,
) -> AsyncIterator[Served]:
    """Serve for the length of the block, watched by a control client.

    Args:
        endless: whether the engine is a fountain.
        binary, http: settings of the doors.

    Raises:
        AssertionError: the control client got a wrong answer or none, or the server has written
            to its standard error or not ended in order.
    """
    settings = json.dumps({"endless": endless, "binary": binary or {}, "http": http or {}})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.hostile.served",
        str(folder),
        settings,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            path = (await process.stdout.readline()).decode().strip()
        found = Served(str(folder / "binary"), path, psutil.Process(process.pid), endless)
        async with aio.connect(f"unix://{found.binary}") as client:
            controlling = asyncio.create_task(found.control(client))
            yield found
            n_before = len(found.waits_s)
            async with asyncio.timeout(WAIT_S):
                while len(found.waits_s) == n_before and not controlling.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            if controlling.done():
                controlling.result()
            controlling.cancel()
            await asyncio.wait([controlling])
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(WAIT_S):
                _, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
    assert errors.decode() == ""
    assert process.returncode == 0


class One(asyncio.Protocol):
    """A connection that says one thing and keeps what it hears.

    Attributes:
        closed_after_s: how long after it had said that the server ended the connection.
    """

    def __init__(self) -> None:
        self.heard = bytearray()
        self.closed_after_s: float | None = None
        self.over = asyncio.get_running_loop().create_future()
        self.answered = asyncio.Event()
        self.transport: Any = None
        self._said_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport
        self._said_at = time.monotonic()

    def say(self, data: bytes) -> None:
        """Say something."""
        self.transport.write(data)
        self._said_at = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Hear something."""
        self.heard += data
        self.answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.closed_after_s = time.monotonic() - self._said_at
        self.answered.set()
        if not self.over.done():
            self.over.set_result(None)


async def connect(path: str) -> One:
    """Connect, also while many others do."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                _, one = await loop.create_unix_connection(One, path)
            except BlockingIOError:
                await asyncio.sleep(0.01)
            else:
                return one
