"""Streamed chat completions of the gateway, against a FastAPI server that streams as vLLM does.

Both servers have a process of their own with one thread, and a null engine that gives all open
streams one id a step; the load is this process. Every stream is checked, after the clock has
stopped: one event an id on both sides, with the same text and the same JSON fields.

vLLM lets a prompt wait up to 2 ms for others to be tokenized with, which is most of its time to a
first event; so that time is also compared with that of a peer that does not wait.
"""

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wkvm_bench.harness import Bar, BenchError, Comparison, alternate
from wkvm_bench.http_load import Streamed, StreamReader, at_once, chat_request
from wkvm_bench.null_texts import expected_text
from wkvm_bench.servers import running

RATE_BAR = Bar(3.0)
FIRST_BAR = Bar(1 / 3, at_least=False)
NAMES = ("wkvm gateway", "FastAPI like vLLM")
N_STREAMS = (1, 16, 64)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Run:
    """One sample of a side."""

    n_events: int
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    first_s: list[float]


@dataclass(slots=True)
class _Side:
    """A server that is measured."""

    path: Path
    pid: int
    readers: list[StreamReader] = field(default_factory=list[StreamReader])
    runs: list[_Run] = field(default_factory=list[_Run])
    shape: frozenset[str] = frozenset()

    async def connect(self, n: int) -> None:
        """Open ``n`` connections in place of those before."""
        for reader in self.readers:
            reader.close()
        self.readers = [await StreamReader.connect(self.path) for _ in range(n)]
        self.runs.clear()

    async def run(self, n_rounds: int, n_ids: int) -> float:
        """Streams on all connections at once, ``n_rounds`` times. Events a second."""
        prompts = [_prompt(index) for index in range(len(self.readers))]
        requests = [chat_request(prompt, n_events=n_ids) for prompt in prompts]
        rounds = list[list[Streamed]]()
        cpu, client_cpu = _cpu_s(self.pid), time.process_time()
        start = time.perf_counter()
        for _ in range(n_rounds):
            rounds.append(await at_once(self.readers, requests))
        wall = time.perf_counter() - start
        client_cpu, cpu = time.process_time() - client_cpu, _cpu_s(self.pid) - cpu
        for streams in rounds:
            for prompt, streamed in zip(prompts, streams, strict=True):
                self.shape = _check(streamed, expected_text(prompt, n_ids), n_ids)
        streams = [one for streams in rounds for one in streams]
        n_events = sum(one.n_events for one in streams)
        self.runs.append(_Run(n_events, wall, client_cpu, cpu, [one.first_s for one in streams]))
        return n_events / wall


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark. ``n_threads`` is not used: each process has one."""
    del n_threads
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise BenchError(f"{name} is not installed")
    n_ids, n = (4, 1) if smoke else (256, 15)
    n_requests = 1 if smoke else 300
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.sock" for name in ("gateway", "fastapi", "at-once")]
        async with running("gateway", paths[0]) as a_pid:
            a = _Side(paths[0], a_pid)
            async with running("fastapi-at-once", paths[2]) as c_pid:
                c = _Side(paths[2], c_pid)
                case, names = "first event, idle, no wait", (NAMES[0], f"{NAMES[1]}, but at once")
                comparisons = [await _first_event(a, c, n_requests, case, names)]
                await c.connect(0)
            async with running("fastapi", paths[1]) as b_pid:
                b = _Side(paths[1], b_pid)
                comparisons.append(await _first_event(a, b, n_requests, "first event, idle", NAMES))
                for n_streams in N_STREAMS:
                    n_rounds = 1 if smoke else max(1, 32 // n_streams)
                    comparisons += await _streams(
                        a, b, n_streams, n_rounds=n_rounds, n_ids=n_ids, n=n
                    )
                for side in (a, b):
                    await side.connect(0)
    return comparisons


async def _first_event(a: _Side, b: _Side, n: int, case: str, names: tuple[str, str]) -> Comparison:
    """One short request after the other on an idle server, each side by turns."""
    for side in (a, b):
        await side.connect(1)

    def of(side: _Side) -> Callable[[], Awaitable[float]]:
        async def first() -> float:
            await side.run(1, 2)
            return side.runs[-1].first_s[0] * 1e6

        return first

    samples = await alternate(of(a), of(b), n)
    _check_alike(a, b)
    return Comparison(case, *names, "us", *samples, FIRST_BAR)


async def _streams(
    a: _Side, b: _Side, n_streams: int, *, n_rounds: int, n_ids: int, n: int
) -> list[Comparison]:
    """Events a second of so many streams at once, and the time until each has its first."""
    for side in (a, b):
        await side.connect(n_streams)
    rates = await alternate(lambda: a.run(n_rounds, n_ids), lambda: b.run(n_rounds, n_ids), n)
    _check_alike(a, b)
    plural = "s" if n_streams > 1 else ""
    found = [
        Comparison(
            f"events, {n_streams} stream{plural}",
            *NAMES,
            "events/s",
            *rates,
            RATE_BAR,
            {**_costs("wkvm", a.runs), **_costs("peer", b.runs)},
        )
    ]
    if n_streams > 1:
        firsts = [
            tuple(statistics.median(run.first_s) * 1e6 for run in side.runs[1:]) for side in (a, b)
        ]
        case = f"first event, {n_streams} at once"
        found.append(Comparison(case, *NAMES, "us", firsts[0], firsts[1], FIRST_BAR))
    return found


def _costs(name: str, runs: list[_Run]) -> dict[str, float]:
    """Who was busy: how much of a core the load took, and what an event cost the server."""
    counted = runs[1:]
    n_events = sum(run.n_events for run in counted)
    wall_s = sum(run.wall_s for run in counted)
    return {
        f"{name}: server CPU, us an event": sum(r.server_cpu_s for r in counted) / n_events * 1e6,
        f"{name}: server CPU, cores": sum(run.server_cpu_s for run in counted) / wall_s,
        f"{name}: load CPU, cores": sum(run.client_cpu_s for run in counted) / wall_s,
    }


def _check(streamed: Streamed, text: str, n_ids: int) -> frozenset[str]:
    """Check a response, and return the fields of an event of an id.

    Raises:
        BenchError: it has other text, or not one event an id.
    """
    events = streamed.events()
    contents = [content for event in events if (content := _content(event))]
    if "".join(contents) != text:
        raise BenchError(f"the text is {''.join(contents)[:200]!r} and not {text[:200]!r}")
    if len(contents) != n_ids:
        raise BenchError(f"{len(contents)} events with text for {n_ids} ids")
    if streamed.n_events != len(events) + 1:
        raise BenchError(f"{streamed.n_events} events were counted, {len(events) + 1} are there")
    return frozenset(_paths(next(event for event in events if _content(event))))


def _check_alike(a: _Side, b: _Side) -> None:
    """Check that both sides sent as many events, with the same fields.

    Raises:
        BenchError: they did not.
    """
    if a.shape != b.shape:
        raise BenchError(f"fields of one side only: {sorted(a.shape ^ b.shape)}")
    counts = [[run.n_events for run in side.runs] for side in (a, b)]
    if counts[0] != counts[1]:
        raise BenchError(f"{counts[0][0]} events of one side, {counts[1][0]} of the other")


def _content(event: object) -> str:
    match event:
        case {"choices": [{"delta": {"content": str(content)}}]}:
            return content
        case _:
            return ""


def _paths(value: object, at: str = "") -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _paths(item, f"{at}.{key}")
        case list():
            for item in value:
                yield from _paths(item, f"{at}[]")
        case _:
            yield at


def _prompt(index: int) -> str:
    """A question of ordinary length; its last character makes the answer this stream's own."""
    return "What is a state, and why does it not grow? " * 4 + chr(0x1000 + 512 * index)


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far, in seconds, to a hundredth or so."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
