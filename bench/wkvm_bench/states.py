"""Thousands of sessions on disk: what it takes to go on with one, and to move one elsewhere.

Everything is asked for by a client over a unix socket, so that a resumed session's next id and a
decode step come the same way. The sessions are made, the server is ended and started again, and
then they are resumed in random order, by turns with decode steps of a session that runs.
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TypeAlias

from wkvm_client import aio

from wkvm.assembly.models import BUNDLED
from wkvm.core.api_keys import LOCAL_TENANT
from wkvm.state.store import Store
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding, alternate
from wkvm_bench.moves import moved
from wkvm_bench.servers import serving

N_BY_TURNS = 50
N_AT_ONCE = 32
"""Sessions that are made side by side."""
PROMPT = tuple(range(100, 108))


Samples: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        model: path of the checkpoint.
        what: how the cases call it.
        flags: of the server.
        folder: for the store and the sockets.
        n_sessions: on disk.
        n_resumed: of them, at random.
        p50_bar_ms: for the median from disk to the next id; None for none.
        restarts: whether another server resumes them than the one that made them. They come from
            disk in any case: host memory holds none of them.
        p99_bar: for p99 against p50; None for none.
        limit_s: of making them, and of resuming them: then there are as many as there are.
        n_decoded: ids of a sample of decode steps, of which the first one is not counted.
    """

    model: Path
    what: str
    flags: tuple[str, ...]
    folder: Path
    n_sessions: int
    n_resumed: int
    p50_bar_ms: float | None = None
    p99_bar: float | None = None
    restarts: bool = True
    limit_s: float = inf
    n_decoded: int = 9


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark on the bundled model. ``n_threads`` are torch's."""
    with tempfile.TemporaryDirectory() as name:
        setup = Setup(
            model=BUNDLED,
            what="bundled on cpu",
            flags=("--device", "cpu", "--threads", str(n_threads), "--slots", "64"),
            folder=Path(name),
            n_sessions=20 if smoke else 10_000,
            n_resumed=1 if smoke else 1000,
        )
        results = await sessions(setup)
        results += await moved(setup.model, setup.folder, n=2 if smoke else 1000)
    return results


async def sessions(setup: Setup) -> list[Comparison | Finding]:
    """Make sessions, end the server, and resume them from another one."""
    store = setup.folder / "store"
    uds = setup.folder / "wkvm.sock"
    flags = [*setup.flags, "--state-dir", str(store), "--state-host-bytes", "1"]
    resumed: Samples = ()
    steps: Samples = ()
    async with serving(setup.model, uds, flags) as started, aio.connect(f"unix://{uds}") as client:
        began = time.perf_counter()
        n_made = await make(client, setup)
        made_s = time.perf_counter() - began
        if not setup.restarts:
            resumed, steps = await by_turns(client, setup, n_made)
    if setup.restarts:
        async with (
            serving(setup.model, uds, flags) as started,
            aio.connect(f"unix://{uds}") as client,
        ):
            resumed, steps = await by_turns(client, setup, n_made)
    case = f"{setup.what}, {n_made:,} sessions"
    step_s = statistics.median(steps)
    p50, p99 = statistics.median(resumed), quantile(resumed, 0.99)
    besides = {
        "a session made, ms": made_s / n_made * 1e3,
        "the server's start, s": started.seconds,
        "decode step, ms": step_s * 1e3,
        "resumed p50, ms": p50 * 1e3,
        "resumed p99, ms": p99 * 1e3,
        "resumed p50, decode steps": p50 / step_s,
        "resumed p99, decode steps": p99 / step_s,
    }
    absolute = list[Finding]()
    if setup.p50_bar_ms is not None:
        bar = Bar(setup.p50_bar_ms, at_least=False)
        absolute.append(Finding(f"{case}: p50 from disk to the next id", p50 * 1e3, "ms", bar))
    return [
        Comparison(
            f"{case}: from disk to the next id",
            "resumed",
            "decode step",
            "ms",
            tuple(one * 1e3 for one in resumed),
            tuple(one * 1e3 for one in steps),
            None,
            besides,
        ),
        Finding(
            f"{case}: p99 from disk to the next id, against p50",
            p99 / p50,
            "times as long",
            None if setup.p99_bar is None else Bar(setup.p99_bar, at_least=False),
        ),
        *absolute,
        *opened(store, case, setup.n_resumed, n_made, step_s),
    ]


async def by_turns(
    client: aio.Client, setup: Setup, n_made: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds from disk to the next id, and of a decode step, by turns."""
    rng = random.Random(1)

    async def resume() -> float:
        return await next_id(client, f"session-{rng.randrange(n_made)}")

    async def step() -> float:
        return await decode_step(client, setup.n_decoded)

    resumed: Samples = ()
    steps: Samples = ()
    began = time.perf_counter()
    while len(steps) < setup.n_resumed and time.perf_counter() - began < setup.limit_s:
        some = await alternate(resume, step, min(N_BY_TURNS, setup.n_resumed - len(steps)))
        resumed, steps = resumed + some[0], steps + some[1]
    return resumed, steps


async def make(client: aio.Client, setup: Setup) -> int:
    """Have sessions on disk, each with a state of its own; how many is returned."""
    left, made = iter(range(setup.n_sessions)), set[int]()
    began = time.perf_counter()

    async def some() -> None:
        for at in left:
            made.add(at)
            prompt = (*PROMPT, *(256 + at // 100**power % 100 for power in range(3)))
            info = await client.states.create(f"session-{at}", prompt)
            if info.ack != "durable":
                raise BenchError(f"{info.ref} is {info.ack}")
            if time.perf_counter() - began > setup.limit_s:
                return

    await asyncio.gather(*(some() for _ in range(N_AT_ONCE)))
    return len(made)


async def next_id(client: aio.Client, state: str) -> float:
    """Seconds from asking to the next id of a session."""
    began = time.perf_counter()
    stream = await client.generate((), state=state, max_tokens=1, temperature=0.0, ignore_eos=True)
    ids = await stream.read()
    took = time.perf_counter() - began
    done = await stream.completion()
    if len(ids) != 1 or done.state is None or done.state.cached_tokens != len(PROMPT) + 2:
        raise BenchError(f"{state} was not resumed: {done}")
    return took


async def decode_step(client: aio.Client, n_decoded: int) -> float:
    """Seconds between two ids of a stream that runs alone."""
    stream = await client.generate(
        PROMPT, max_tokens=n_decoded, temperature=0.0, ignore_eos=True, credit=None
    )
    first, n_ids = len(await stream.read()), 0
    began = ended = time.perf_counter()
    while ids := await stream.read():
        ended = time.perf_counter()
        n_ids += len(ids)
    if first + n_ids != n_decoded:
        raise BenchError(f"{first + n_ids} ids of {n_decoded}")
    # All of them at once: this process was too late to see them come.
    return (ended - began) / n_ids if n_ids else await decode_step(client, n_decoded)


def opened(
    store: Path, case: str, n: int, n_made: int, step_s: float
) -> list[Comparison | Finding]:
    """Open the store and look handles up, in this process."""
    began = time.perf_counter()
    opened_store = Store.open(str(store), clock=time.time)
    open_s = time.perf_counter() - began
    rng, looked_up = random.Random(2), list[float]()
    try:
        for _ in range(max(n, 2)):
            name = f"session-{rng.randrange(n_made)}"
            began = time.perf_counter()
            opened_store.get(LOCAL_TENANT, name)
            looked_up.append(time.perf_counter() - began)
    finally:
        opened_store.close()
    bytes_on_disk = sum(one.stat().st_size for one in os.scandir(store / "payloads"))
    return [
        Finding(
            f"{case}: the store opens",
            open_s,
            "s",
            Bar(1.0, at_least=False),
            {"on disk, MiB": bytes_on_disk / 2**20},
        ),
        Finding(
            f"{case}: a look-up in the catalogue",
            statistics.median(looked_up) / step_s * 100,
            "% of a decode step",
            Bar(5.0, at_least=False),
            {"us": statistics.median(looked_up) * 1e6},
        ),
    ]


def quantile(samples: Sequence[float], at: float) -> float:
    """The sample below which a share of them is."""
    return sorted(samples)[min(int(at * len(samples)), len(samples) - 1)]
