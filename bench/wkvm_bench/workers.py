"""Tokens a second of 256 streams over HTTP, by how many processes serve it, on a null engine.

The engine gives every stream one id a step, and makes a step as often as it can, or every 2 ms as a
device would: then each id is an event of its own, as long as the gateway keeps up.

Each server is a process with the null engine, and beside it as many gateway processes as its case
says, or none, where the engine's process serves HTTP itself. The load is this process; it reads as
little as will do, and checks every text when the clock has stopped. Who was busy is told beside the
rates: on a machine with fewer cores than processes, more processes cannot deliver more.
"""

import asyncio
import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import wkvm_client.aio

from wkvm.assembly.http import HttpDoor, beside
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.reach import beside_server
from wkvm.assembly.texts import load_texts
from wkvm.assembly.workers import Workers
from wkvm.core.config import ServerConfig
from wkvm.core.plan import StepPlan, StepResult
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.text import load_tokenizer
from wkvm.server.serve import Server
from wkvm.server.serve import serve as serve_engine
from wkvm_bench.harness import BenchError, Comparison, Summary, alternate
from wkvm_bench.http_load import StreamReader, at_once
from wkvm_bench.null_engine import NullEngine
from wkvm_bench.servers import running

N_STREAMS = 256
STEP_S = 0.002
PING_PAUSE_S = 0.002
READY_TIMEOUT_S = 120.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NAMES = ("none: the engine's", "1 process", "2 processes")


@dataclass(slots=True)
class _Side:
    """A server that is measured.

    Attributes:
        engine_s, worker_s, load_s: CPU time of the engine's process, of all workers, of the load.
    """

    port: int
    pid: int
    expected: list[str]
    n_ids: int
    engine: wkvm_client.aio.Client
    readers: list[StreamReader] = field(default_factory=list[StreamReader])
    n_tokens: int = 0
    n_events: int = 0
    wall_s: float = 0.0
    engine_s: float = 0.0
    worker_s: float = 0.0
    load_s: float = 0.0
    pings: list[float] = field(default_factory=list[float])

    async def run(self) -> float:
        """All streams at once, and pings of the engine's process beside them. Tokens a second."""
        if not self.readers:
            self.readers = [await StreamReader.connect(self.port) for _ in self.expected]
        requests = [_request(index, self.n_ids) for index in range(len(self.expected))]
        workers = _children(self.pid)
        before = _cpu_s(self.pid), sum(map(_cpu_s, workers)), time.process_time()
        start = time.perf_counter()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            pinging = tasks.create_task(self._ping(over))
            streams = await at_once(self.readers, requests)
            wall_s = time.perf_counter() - start
            after = _cpu_s(self.pid), sum(map(_cpu_s, workers)), time.process_time()
            over.set()
        self.pings.append(Summary.of(pinging.result()).p90 * 1e6)
        for streamed, text in zip(streams, self.expected, strict=True):
            found = "".join(_text(event) for event in streamed.events())
            if found != text:
                raise BenchError(f"the text is {found[:200]!r} and not {text[:200]!r}")
        n_tokens = self.n_ids * len(streams)
        self.n_tokens += n_tokens
        self.n_events += sum(one.n_events for one in streams)
        self.wall_s += wall_s
        self.engine_s += after[0] - before[0]
        self.worker_s += after[1] - before[1]
        self.load_s += after[2] - before[2]
        return n_tokens / wall_s

    async def _ping(self, over: asyncio.Event) -> list[float]:
        """Round trips to the engine's process until the streams are over, in seconds.

        One that is under way then counts: a few short streams may be over before the first.
        """
        found = list[float]()
        while True:
            start = time.perf_counter()
            await self.engine.ping()
            found.append(time.perf_counter() - start)
            if over.is_set():
                return found
            await asyncio.sleep(PING_PAUSE_S)

    def clear(self) -> None:
        """Forget what was measured."""
        self.pings.clear()
        self.n_tokens = self.n_events = 0
        self.wall_s = self.engine_s = self.worker_s = self.load_s = 0.0

    def close(self) -> None:
        """Close the connections."""
        for reader in self.readers:
            reader.close()

    def costs(self, name: str) -> dict[str, float]:
        """Who was busy, and what a token cost whom."""
        return {
            f"{name}: engine's process, us a token": self.engine_s / self.n_tokens * 1e6,
            f"{name}: workers, us a token": self.worker_s / self.n_tokens * 1e6,
            f"{name}: engine's process, cores": self.engine_s / self.wall_s,
            f"{name}: workers, cores": self.worker_s / self.wall_s,
            f"{name}: load, cores": self.load_s / self.wall_s,
            f"{name}: tokens an event": self.n_tokens / self.n_events,
        }


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark. ``n_threads`` is not used: each process has one."""
    del n_threads
    n_streams, n_ids, n = (8, 4, 1) if smoke else (N_STREAMS, 256, 11)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = list[Comparison]()
        for kind, how in (("paced", f"a step every {STEP_S * 1e3:g} ms"), ("workers", "any step")):
            sides = list[_Side]()
            for count in range(3):
                side = _side(folder, f"{kind}-{count}", n_streams, n_ids)
                sides.append(await stack.enter_async_context(side))
            for a, b in ((2, 1), (1, 0)):
                for one in sides:
                    one.clear()
                samples = await alternate(sides[a].run, sides[b].run, n)
                besides = {**sides[a].costs(NAMES[a]), **sides[b].costs(NAMES[b])}
                case = f"{n_streams} streams, {how}, {a} against {b}"
                found.append(
                    Comparison(case, NAMES[a], NAMES[b], "tokens/s", *samples, None, besides)
                )
                if b:
                    continue  # neither has HTTP in the engine's process
                of_a, of_b = (tuple(sides[side].pings[1:]) for side in (a, b))
                case = f"{case}: ping of the engine's process, p90"
                found.append(Comparison(case, NAMES[a], NAMES[b], "us", of_a, of_b, None))
            for one in sides:
                one.close()
    return found


class _PacedEngine(NullEngine):
    """A null engine that makes no more than a step every so often."""

    def __init__(self, n_slots: int, vocab_size: int, tokenizer_digest: str) -> None:
        super().__init__(n_slots, vocab_size, tokenizer_digest)
        self._next_at = 0.0

    @property
    def blocks(self) -> bool:
        """A step takes its time."""
        return True

    def collect(self, plan: StepPlan) -> StepResult:
        """Wait for the time of the step."""
        now = time.monotonic()
        self._next_at = max(self._next_at + STEP_S, now)
        time.sleep(self._next_at - now)
        return super().collect(plan)


@asynccontextmanager
async def _side(folder: Path, kind: str, n_streams: int, n_ids: int) -> AsyncIterator[_Side]:
    path = folder / kind
    tokenizer = load_tokenizer(BUNDLED)
    expected = [
        tokenizer.decode(
            [(index + 1 + at) % tokenizer.vocab_size for at in range(n_ids)], skip_special=True
        )
        for index in range(n_streams)
    ]
    async with running(kind, path) as pid:
        said = _said(path)
        until = time.monotonic() + READY_TIMEOUT_S
        while not said.exists():
            if time.monotonic() > until:
                raise BenchError("the server is not ready in time")
            await asyncio.sleep(0.02)
        port = int(said.read_text(encoding="utf-8"))
        async with wkvm_client.aio.connect(f"unix://{path}") as engine:
            yield _Side(port, pid, expected, n_ids, engine)


async def serve(path: str, n: int, *, is_paced: bool) -> None:
    """Serve the null engine and HTTP, by ``n`` processes beside this one, until SIGTERM."""
    tokenizer = load_tokenizer(BUNDLED)
    texts = load_texts(BUNDLED, tokenizer, default_max_tokens=16)
    # What the model's maker suggests has no meaning for an engine that does not sample.
    texts = dataclasses.replace(texts, suggested={})
    config = GatewayConfig(port=0)
    engine = (_PacedEngine if is_paced else NullEngine)(
        1024, tokenizer.vocab_size, tokenizer.digest
    )
    opened = list[HttpDoor | Workers]()

    def doors(server: Server) -> list[HttpDoor | Workers]:
        if n:
            workers = Workers(
                beside_server(server, has_keys=False),
                config,
                n,
                model=BUNDLED,
                texts=texts,
                process=ServerConfig(drain_timeout_s=1.0),
                log_level="warning",
            )
            opened.append(workers)
        else:
            opened.append(beside(server, config, texts))
        return opened

    def ready(_: Server) -> None:
        port = opened[0].addresses[0].rpartition(":")[2]
        part = Path(f"{path}.part")
        part.write_text(port, encoding="utf-8")
        part.rename(_said(Path(path)))

    await serve_engine(
        engine, ServerConfig(binary_port=None, binary_uds=path), ready=ready, doors=doors
    )


def _said(path: Path) -> Path:
    """Where a server says its port."""
    return path.with_suffix(".http")


def _request(index: int, n_ids: int) -> bytes:
    body = msgspec.json.encode(
        {
            "model": "null",
            "prompt": [index],
            "max_tokens": n_ids,
            "stream": True,
            "ignore_eos": True,
        }
    )
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _text(event: object) -> str:
    match event:
        case {"choices": [{"text": str(text)}]}:
            return text
        case _:
            return ""


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far. Linux alone says it."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [
        int(child)
        for task in tasks
        for child in (task / "children").read_text(encoding="utf-8").split()
    ]
