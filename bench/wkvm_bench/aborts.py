"""Streams that clients give up, in every state that a stream can be in: what is left of them.

The gateway runs on a real engine without a model, in a process of its own, with fewer slots than
there are clients, so that most requests wait. What the process held before is compared with what it
holds after; its memory must not have grown with the number of streams.
"""

import asyncio
import random
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import cast

import msgspec

from wkvm_bench.harness import Bar, BenchError, Finding
from wkvm_bench.held import Held
from wkvm_bench.http_load import END, EVENT
from wkvm_bench.http_once import http_request
from wkvm_bench.servers import running

N_STREAMS = 100_000
N_AT_ONCE = 64
NOTHING = Bar(0.0, at_least=False)
FLAT = Bar(128.0, at_least=False)
"""KiB in 10,000 streams: what an allocator's rounding does to a fit over half of the run."""
SETTLE_S = 60.0
WAIT_S = 60.0
_HARD_CLOSE = struct.pack("ii", 1, 0)
_PROMPT = "x" * 200 + "A"
_STOP = " 72"
"""The text of an id that comes soon after that of the prompt's last character."""


class State(Enum):
    """Where a stream is when its client leaves."""

    IN_HEADERS = auto()
    IN_BODY = auto()
    JUST_SENT = auto()
    QUEUED = auto()
    FIRST_BYTE = auto()
    MID_STREAM = auto()
    AFTER_STOP = auto()
    HALF_CLOSED = auto()
    RESET_JUST_SENT = auto()
    RESET_MID_STREAM = auto()


async def compare(*, smoke: bool, n_threads: int) -> list[Finding]:
    """Run the benchmark. ``n_threads`` is not used: there is one."""
    del n_threads
    n_streams, n_samples = (200, 4) if smoke else (N_STREAMS, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.sock"
        async with running("watched", path):
            window = await _Window.open(path)
            first = await window.look()
            crowd = Crowd(path, first.port)
            # What is made once, and never again, is made before the first look that counts.
            await crowd.give_up(n_streams // 20 + len(State) * 4)
            before = await window.settled(first)
            samples = list[tuple[int, int]]()
            start, n_done = time.perf_counter(), 0
            for share in range(1, n_samples + 1):
                n_more = n_streams * share // n_samples - n_done
                await crowd.give_up(n_more)
                n_done += n_more
                samples.append((n_done, (await window.look()).rss_bytes))
            seconds = time.perf_counter() - start
            after = await window.settled(before)
            window.close()
    return _findings(before, after, samples, n_done / seconds)


def _findings(
    before: Held, after: Held, samples: Sequence[tuple[int, int]], rate: float
) -> list[Finding]:
    def left(case: str, was: int, now: int) -> Finding:
        return Finding(case, now - was, "left over", NOTHING, {"before": was, "after": now})

    gauges = ("n_running", "n_queued", "n_paused", "n_lanes", "n_connections")
    findings = [
        left("tasks", before.n_tasks, after.n_tasks),
        left("file descriptors", before.n_files, after.n_files),
        left("HTTP connections", before.n_connections, after.n_connections),
        left("HTTP requests", before.n_requests, after.n_requests),
        *(left(name, before.stats[name], after.stats[name]) for name in gauges),
        left("slots", _taken(before), _taken(after)),
        left("requests without an end", _endless(before), _endless(after)),
    ]
    half = samples[len(samples) // 2 :]
    fit = statistics.linear_regression([n for n, _ in half], [rss for _, rss in half])
    n_ended = {
        f"{name}_total": after.stats[f"{name}_total"] - before.stats[f"{name}_total"]
        for name in ("requests", "cancelled", "stopped", "length")
    }
    besides = {
        "streams": samples[-1][0],
        "streams a second": rate,
        "RSS before, MiB": before.rss_bytes / 2**20,
        "RSS halfway, MiB": half[0][1] / 2**20,
        "RSS after, MiB": after.rss_bytes / 2**20,
        "objects before": before.n_objects,
        "objects after": after.n_objects,
        **n_ended,
    }
    growth = Finding(
        "RSS, second half", fit.slope * 10_000 / 1024, "KiB in 10,000 streams", FLAT, besides
    )
    return [*findings, growth]


def _taken(held: Held) -> int:
    return held.stats["n_slots"] - held.stats["n_free_slots"]


def _endless(held: Held) -> int:
    ends = ("stopped", "length", "cancelled", "timed_out", "finished_error")
    return held.stats["requests_total"] - sum(held.stats[f"{end}_total"] for end in ends)


class _Window:
    """Looks into the server's process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: Path) -> "_Window":
        """Connect, once there is something to connect to."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    streams = await asyncio.open_unix_connection(f"{path}.watch", limit=2**20)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    return cls(*streams)

    async def look(self, *, collect: bool = False) -> Held:
        """What the process holds now, or after its garbage was collected."""
        self._writer.write(b"collect\n" if collect else b"\n")
        async with asyncio.timeout(WAIT_S):
            line = await self._reader.readline()
        if not line:
            raise BenchError("the server ended")
        return msgspec.json.decode(line, type=Held)

    async def settled(self, like: Held) -> Held:
        """What it holds when it has come to rest, or after ``SETTLE_S``, whichever is first."""
        until = time.monotonic() + SETTLE_S
        while True:
            held = await self.look()
            at_rest = (held.n_tasks, held.n_files, held.n_connections, _endless(held)) == (
                like.n_tasks,
                like.n_files,
                like.n_connections,
                _endless(like),
            )
            if at_rest or time.monotonic() > until:
                return await self.look(collect=True)
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


class Crowd:
    """Clients that give up.

    Args:
        path: a unix socket of the gateway.
        port: of the same over TCP, for those who reset their connection.
        seed: of what is random.
        headers: of each request, such as a key.
    """

    def __init__(
        self, path: Path, port: int, *, seed: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        self._path = path
        self._port = port
        self._draw = random.Random(seed)
        self._headers = headers or {}
        self._states = list(State)
        self._n_begun = 0

    async def give_up(self, n: int) -> None:
        """Begin ``n`` streams, ``N_AT_ONCE`` at a time, and leave each in the next state."""
        left = iter(range(n))

        async def client() -> None:
            for _ in left:
                state = self._states[self._n_begun % len(self._states)]
                self._n_begun += 1
                await self._give_up_one(state)

        async with asyncio.TaskGroup() as clients:
            for _ in range(N_AT_ONCE):
                clients.create_task(client())

    async def _give_up_one(self, state: State) -> None:
        loop, draw = asyncio.get_running_loop(), self._draw
        is_reset = state in (State.RESET_JUST_SENT, State.RESET_MID_STREAM)
        connection: _Connection
        if is_reset:
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
        else:
            _, connection = await loop.create_unix_connection(_Connection, str(self._path))
        route = draw.choice(("chat/completions", "completions"))
        request = _request(route, state, self._headers)
        head = request.index(b"\r\n\r\n") + 4
        match state:
            case State.IN_HEADERS:
                connection.write(request[: draw.randrange(1, head)])
            case State.IN_BODY:
                connection.write(request[: draw.randrange(head, len(request))])
            case State.JUST_SENT | State.RESET_JUST_SENT:
                connection.write(request)
            case State.QUEUED:
                connection.write(request)
                await asyncio.sleep(draw.random() * 0.02)
            case State.FIRST_BYTE:
                connection.write(request)
                await connection.wait(0)
            case State.MID_STREAM | State.RESET_MID_STREAM:
                connection.write(request)
                await connection.wait(draw.randrange(1, 16))
            case State.AFTER_STOP:
                connection.write(request)
                await connection.wait(draw.randrange(5, 9))
            case State.HALF_CLOSED:
                connection.write(request)
                await connection.wait(draw.randrange(0, 4))
                connection.write_eof()
                await connection.wait_closed(0.05)
        connection.leave(hard=is_reset)


class _Connection(asyncio.Protocol):
    """A client that counts events until it leaves."""

    def __init__(self) -> None:
        self._n_events = -1
        self._wanted = 0
        self._changed = asyncio.Event()
        self._is_over = self._is_closed = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Count events; one that is cut by the end of a read does not count."""
        self._n_events = max(self._n_events, 0) + data.count(EVENT)
        self._tail = (self._tail + data)[-len(END) :]
        self._is_over = self._tail == END
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let nobody wait any longer."""
        self._is_closed = True
        self._changed.set()

    def write(self, data: bytes) -> None:
        """Send."""
        self._transport.write(data)

    def write_eof(self) -> None:
        """Send no more."""
        if not self._is_closed:
            self._transport.write_eof()

    async def wait(self, n_events: int) -> None:
        """Wait for so many events, for any byte if 0, or for the end of stream or connection.

        A server that is behind writes several ids as one event, so there may be fewer.

        Raises:
            BenchError: they do not come.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                while self._n_events < n_events and not self._is_over and not self._is_closed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise BenchError(f"{self._n_events} events of {n_events}, and no more") from None

    async def wait_closed(self, seconds: float) -> None:
        """Wait for the server to close, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                while not self._is_closed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def leave(self, *, hard: bool) -> None:
        """Close without a word; if ``hard``, with a reset."""
        if self._is_closed:
            return
        if hard:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HARD_CLOSE)
        self._transport.abort()


def _request(route: str, state: State, headers: Mapping[str, str]) -> bytes:
    is_chat = route.startswith("chat")
    asked = {"messages": [{"role": "user", "content": _PROMPT}]} if is_chat else {"prompt": _PROMPT}
    body = {
        "model": "null",
        **asked,
        "max_tokens": 40,
        "temperature": 0,
        "stream": True,
        **({"stop": [_STOP]} if state is State.AFTER_STOP else {}),
    }
    return http_request("POST", f"/v1/{route}", body, headers)
