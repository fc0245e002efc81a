"""A stream that moves between two servers again and again while its client reads it."""

import asyncio
import statistics
import time
from itertools import pairwise
from pathlib import Path

from wkvm_client import aio

from wkvm_bench.harness import Bar, BenchError, Finding
from wkvm_bench.servers import serving

PROMPT = tuple(range(100, 108))
IDS_BETWEEN = 8
"""So many ids come from one server before the stream moves on."""


def name_of(at: int) -> str:
    """Of the stream's state after so many moves: a name is not taken twice."""
    return f"moving-{at}"


async def more_ids(ids: list[int], n: int, reading: "asyncio.Task[None]") -> None:
    """Return when so many more have come.

    Raises:
        BenchError: the stream ended.
    """
    wanted = len(ids) + n
    while len(ids) < wanted:
        if reading.done():
            await reading
            raise BenchError("the stream ended while it was to move")
        await asyncio.sleep(0.0005)


async def moved(model: Path, folder: Path, *, n: int) -> list[Finding]:
    """Move a live stream ``n`` times, and count what its client lost, had twice, and waited."""
    flags = ["--device", "cpu", "--threads", "1", "--slots", "4"]
    paths = [folder / f"{name}.sock" for name in ("one", "two")]
    addresses = [f"unix://{path}" for path in paths]
    stores = [["--state-dir", str(folder / name)] for name in ("one", "two")]
    async with (
        serving(model, paths[0], flags + stores[0]),
        serving(model, paths[1], flags + stores[1]),
        aio.connect(addresses[0]) as first,
        aio.connect(addresses[1]) as second,
    ):
        clients = [first, second]
        stream = await first.generate(
            PROMPT, max_tokens=10_000_000, temperature=0.0, ignore_eos=True, save_as=name_of(0)
        )
        times, ids = list[float](), list[int]()

        async def read() -> None:
            while some := await stream.read():
                times.append(time.perf_counter())
                ids.extend(some)

        reading = asyncio.create_task(read())
        moves = list[tuple[float, float]]()
        for at in range(n):
            await more_ids(ids, IDS_BETWEEN, reading)
            source, target = clients[at % 2], clients[(at + 1) % 2]
            began = time.perf_counter()
            there = addresses[(at + 1) % 2]
            await aio.migrate(
                source.states, name_of(at), target.states, there, name=name_of(at + 1)
            )
            moves.append((began, time.perf_counter()))
        await more_ids(ids, IDS_BETWEEN, reading)
        stream.cancel()
        await reading
        alone = await first.generate(
            PROMPT, max_tokens=len(ids), temperature=0.0, ignore_eos=True, credit=None
        )
        expected = list((await alone.completion()).ids)
    n_wrong = sum(a != b for a, b in zip(ids, expected, strict=True))
    gaps = list(pairwise(times))
    pauses = [
        max((b - a for a, b in gaps if b > begin and a < end), default=0.0) for begin, end in moves
    ]
    step_s = statistics.median(b - a for a, b in gaps)
    p50, p99 = statistics.median(pauses), sorted(pauses)[int(0.99 * (len(pauses) - 1))]
    besides = {"ids": float(len(ids)), "step, ms": step_s * 1e3, "moves": float(n)}
    return [
        Finding(
            "a live stream moves: its client waits, p50",
            p50 * 1e3,
            "ms",
            None,
            besides,
        ),
        Finding(
            "a live stream moves: its client waits, p99",
            p99 * 1e3,
            "ms",
            None,
        ),
        Finding(
            "a live stream moves: ids lost, repeated or others",
            float(n_wrong),
            "ids",
            Bar(0.0, at_least=False),
        ),
    ]
