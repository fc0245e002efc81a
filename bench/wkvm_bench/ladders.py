"""Operations on states by the size of a state and by how many at once, beside what is bare of each.

A client over a unix socket forks, hibernates, resumes and migrates states; by turns with it this
process does to as many bytes, in files of the same folder, what the operation cannot do without:

| operation | bare |
|---|---|
| fork, durable | a record of 4 KiB written and synced, however many forks: they copy nothing |
| hibernate: from memory to disk | as many files written and synced |
| resume: from disk to memory | as many files read |
| migrate, to another server, durable there | as many files read, and written and synced elsewhere |

Files are read from the page cache on both sides. Durable is after a sync on both sides.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch
from wkvm_client import StateInfo, aio

from wkvm_bench.harness import BenchError, Comparison
from wkvm_bench.random_model import Size, write_random
from wkvm_bench.servers import serving

SIZES = {
    "0.5 MiB": Size(16, 128, 512, (32, 32, 32, 64)),
    "3 MiB": Size(48, 256, 512, (32, 32, 32, 64)),
    "12 MiB": Size(192, 256, 512, (32, 32, 32, 64)),
}
"""Models with states of that size: the first is as the bundled model's, the last as a 1.5B's."""
TINY = {"0.1 MiB": Size(3, 128, 512, (32, 32, 32, 64))}
COUNTS = (1, 8, 32)
"""A server takes at most 32 transfers of one tenant at a time, and migrations are transfers."""
MOST_BYTES = 1 << 27
"""Of the states of a turn: each is written several times."""
OPERATIONS = ("fork", "hibernate", "resume", "migrate")
Times: TypeAlias = Mapping[str, float]
"""Milliseconds of one turn, by operation."""
RECORD_BYTES = 4096
HOST_BYTES = 4 * 2**30
"""Of each server for states: all of a turn fit, so that none goes to disk by itself."""


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Climb all ladders. ``n_threads`` are torch's in both servers."""
    sizes, counts, n = (TINY, (2,), 1) if smoke else (SIZES, COUNTS, 7)
    comparisons = list[Comparison]()
    for name, size in sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            comparisons += await _ladders(name, size, counts, n, Path(folder), n_threads)
    return comparisons


async def _ladders(
    name: str, size: Size, counts: Sequence[int], n: int, folder: Path, n_threads: int
) -> list[Comparison]:
    """All operations on states of one size."""
    model = folder / "model.pth"
    write_random(model, size, dtype=torch.float32, device="cpu")
    flags = ["--device", "cpu", "--threads", str(n_threads), "--slots", "8"]
    flags += ["--state-host-bytes", str(HOST_BYTES)]
    sockets = [folder / f"{one}.sock" for one in ("source", "target")]
    stores = [["--state-dir", str(folder / one)] for one in ("source", "target")]
    comparisons = list[Comparison]()
    async with (
        serving(model, sockets[0], flags + stores[0]),
        serving(model, sockets[1], flags + stores[1]),
        aio.connect(f"unix://{sockets[0]}") as source,
        aio.connect(f"unix://{sockets[1]}") as target,
    ):
        turns = _Turns(source, target, f"unix://{sockets[1]}", folder)
        for count in counts:
            if count * turns.n_bytes <= MOST_BYTES:
                comparisons += await _rungs(turns, name, count, n)
    return comparisons


async def _rungs(turns: "_Turns", size: str, count: int, n: int) -> list[Comparison]:
    """Operations and what is bare of them by turns, after one turn of each that does not count."""
    ours, bare = list[Times](), list[Times]()
    for at in range(n + 1):
        if at % 2:
            bare.append(turns.bare(count))
            ours.append(await turns.operations(count))
        else:
            ours.append(await turns.operations(count))
            bare.append(turns.bare(count))
    plural = "" if count == 1 else "s"
    besides = {"bytes of a state": float(turns.n_bytes), "states": float(count)}
    return [
        Comparison(
            f"{operation}, {count} state{plural} of {size}",
            "wkvm",
            "bare",
            "ms",
            tuple(one[operation] for one in ours[1:]),
            tuple(one[operation] for one in bare[1:]),
            None,
            besides,
        )
        for operation in OPERATIONS
    ]


class _Turns:
    """One turn after the other, each with states of its own, which are gone afterwards."""

    def __init__(self, source: aio.Client, target: aio.Client, address: str, folder: Path) -> None:
        self._source, self._target = source, target
        self._address, self._folder = address, folder
        self._n_turns = 0
        self.n_bytes = 0

    async def operations(self, count: int) -> Times:
        """Make states, and do everything once."""
        self._n_turns += 1
        states, names = self._source.states, [f"{self._n_turns}-{at}" for at in range(count)]
        for at, name in enumerate(names):
            # Equal bytes would be kept once.
            prompt = (7, self._n_turns % 500, at, 11)
            info = await states.create(name, prompt, durability="memory")
            self.n_bytes = info.n_bytes
        root = f"root-{self._n_turns}"
        await states.create(root, (7, self._n_turns % 500, 499, 11))
        forks = [f"{root}-{at}" for at in range(count)]
        clock = _Clock()
        with clock.of("fork"):
            made = await states.fork(root, forks)
        with clock.of("hibernate"):
            down = await asyncio.gather(*(states.hibernate(name) for name in names))
        with clock.of("resume"):
            up = await asyncio.gather(*(states.resume(name) for name in names))
        _check(made, down, up)
        with clock.of("migrate"):
            await asyncio.gather(*(self._migrate(name) for name in names))
        for name in (root, *forks):
            await states.delete(name)
        for name in names:
            await self._target.states.delete(name)
        return clock.ms

    async def _migrate(self, name: str) -> None:
        await aio.migrate(self._source.states, name, self._target.states, self._address)

    def bare(self, count: int) -> Times:
        """What cannot be done without."""
        data = os.urandom(self.n_bytes)
        paths = [self._folder / f"bare-{at}" for at in range(count)]
        clock = _Clock()
        with clock.of("fork"):
            _write(self._folder / "record", data[:RECORD_BYTES])
        with clock.of("hibernate"):
            for path in paths:
                _write(path, data)
        with clock.of("resume"):
            for path in paths:
                path.read_bytes()
        with clock.of("migrate"):
            for path in paths:
                _write(path.with_suffix(".there"), path.read_bytes())
        for path in paths:
            path.unlink()
            path.with_suffix(".there").unlink()
        return clock.ms


def _check(made: Sequence[StateInfo], down: Sequence[StateInfo], up: Sequence[StateInfo]) -> None:
    """That states were where they were to be.

    Raises:
        BenchError: one was not durable, or in another tier.
    """
    tiers = {info.tier for info in down}, {info.tier for info in up}
    acks = {info.ack for info in (*made, *down, *up)}
    if tiers != ({"disk"}, {"host"}) or acks != {"durable"}:
        raise BenchError(f"states are {acks} in {tiers}")


class _Clock:
    """Measures blocks by name."""

    def __init__(self) -> None:
        self.ms = dict[str, float]()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measure this block."""
        began = time.perf_counter()
        yield
        self.ms[name] = (time.perf_counter() - began) * 1e3


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
