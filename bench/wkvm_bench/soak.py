"""A day's work by counts, on a real server over both doors: what is left of it, and what grows.

The server is ``wkvm serve`` on a tiny model, with two tenants, a store on the disk, and fewer slots
than there are clients. It is asked in rounds, at whose ends it comes to rest and a look is taken
into its process. What a fifth of the rounds has warmed up is the baseline: at the end tasks, files,
threads, slots and temporary files must be as many again, and no memory may have grown with the
number of requests.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wkvm_client import aio

from wkvm_bench.harness import Bar, Finding
from wkvm_bench.soak_crowds import Crowds
from wkvm_bench.soak_server import Ask, Inside, Soaked, soaked
from wkvm_bench.soak_work import KEYS, Work
from wkvm_bench.states import quantile

N_REQUESTS = 100_000
N_ROUNDS = 50
WARM_UP = 0.2
"""The share of the rounds before the baseline."""
SETTLE_S = 60.0
N_FIRST_BURSTS = 3
"""Before all else: they take the most memory that the server ever needs at once."""
FLAGS = (
    *("--threads", "1", "--slots", "8", "--max-queue", "128", "--model-aliases", "*"),
    *("--state-host-bytes", "512K", "--max-versions-per-state", "2", "--drop-old-versions"),
    *("--prefix-cache-bytes", str(2**20), "--max-submitted", "16", "--max-responses", "16"),
    *("--max-completed-requests", "64", "--log-level", "warning"),
)
"""What may grow up to a limit does so within the warm-up."""
NOTHING = Bar(0.0, at_least=False)
FLAT = Bar(16.0, at_least=False)
GAUGES = ("n_running", "n_queued", "n_paused", "n_lanes", "n_hibernated", "n_states_running")
MIB = 2**20
UNITS = {
    "blocks": ("blocks", None),
    "given out by malloc": ("MiB", None),
    "traced memory": ("MiB", FLAT),
    "RSS": ("MiB", FLAT),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is asked for.

    Attributes:
        n_requests: in all; a tenth as many each of aborts, of forks and of hibernations, and a
            thousandth as many bad clients.
        n_rounds: at least five.
        n_bursts: of more requests than may wait.
        seed: of what is random.
        fills: whether all that a server remembers up to a limit is filled before all else.
        traced: whether the server's memory is traced, at half the speed; then its resident memory
            says nothing.
    """

    n_requests: int = N_REQUESTS
    n_rounds: int = N_ROUNDS
    n_bursts: int = 2
    seed: int = 0
    fills: bool = True
    traced: bool = False

    @property
    def n_warm_up(self) -> int:
        """Rounds before the baseline."""
        return max(int(self.n_rounds * WARM_UP), 1)


SMOKE = Plan(n_requests=300, n_rounds=5, n_bursts=1, fills=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at rest, after a round.

    Attributes:
        n_requests: so far.
        p99_s: of the round's requests.
    """

    n_requests: int
    inside: Inside
    gauges: Mapping[str, int]
    n_temporary: int
    n_payloads: int
    p99_s: float


@dataclass(slots=True)
class Soak:
    """What came of it.

    Attributes:
        counts: what was done, by name.
        baseline, samples: the look after the warm-up, and those after each round from there on.
        growth: types of which there are more objects, and where memory was traced lines of code.
        errors: lines of the server's log.
    """

    plan: Plan
    counts: Counter[str]
    baseline: Sample
    samples: list[Sample]
    seconds: float
    growth: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])

    def left_over(self) -> dict[str, tuple[int, int]]:
        """What should be as it was, by name: as it was, and as it is."""
        before, after = _rest(self.baseline), _rest(self.samples[-1])
        return {name: (before[name], after[name]) for name in before} | {
            "lines of the log": (0, len(self.errors))
        }

    def growths(self) -> dict[str, "Slope"]:
        """What may not grow with requests, by name, in MiB or blocks for a million of them."""
        n = [one.n_requests / 1e6 for one in self.samples]
        inside = [one.inside for one in self.samples]
        found = {
            "blocks": Slope.of(n, [one.n_blocks for one in inside]),
            "given out by malloc": Slope.of(n, [one.malloc_bytes / MIB for one in inside]),
        }
        if self.plan.traced:
            found["traced memory"] = Slope.of(n, [one.traced_bytes / MIB for one in inside])
        else:
            found["RSS"] = Slope.of(n, [one.rss_bytes / MIB for one in inside])
        return found

    @property
    def slower(self) -> float:
        """The p99 of requests in the last tenth of the rounds, against the first one's."""
        tenth = max(len(self.samples) // 10, 1)
        first, last = (
            statistics.median(one.p99_s for one in some)
            for some in (self.samples[:tenth], self.samples[-tenth:])
        )
        return last / first


@dataclass(frozen=True, slots=True)
class Slope:
    """How a quantity grows, and what it grows by at most: the upper end of 95% on one side."""

    value: float
    upper: float

    @classmethod
    def of(cls, x: Sequence[float], y: Sequence[float]) -> "Slope":
        """By least squares, for at least four points."""
        fit = statistics.linear_regression(x, y)
        n, mean = len(x), statistics.fmean(x)
        errors = ((b - fit.intercept - fit.slope * a) ** 2 for a, b in zip(x, y, strict=True))
        spread = sum((a - mean) ** 2 for a in x)
        deviation = (sum(errors) / (n - 2) / spread) ** 0.5
        # Student's t from the normal quantile: two terms are right to a percent from 5 on.
        z, df = statistics.NormalDist().inv_cdf(0.95), n - 2
        t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        return cls(fit.slope, fit.slope + t * deviation)


async def soak(plan: Plan, folder: Path) -> Soak:
    """Run all of it.

    Args:
        folder: empty, with a short path.

    Raises:
        BenchError: something is not answered as it should be, or the server ends.
    """
    keys = folder / "keys"
    await asyncio.to_thread(
        keys.write_text, "".join(f"{tenant}:{key}\n" for tenant, key in KEYS.items())
    )
    flags = [*FLAGS, "--api-keys-file", str(keys)]
    began = time.monotonic()
    async with soaked(folder, flags, traced=plan.traced) as server:
        work, crowds = Work(server, plan.seed), Crowds(server, plan.seed)
        await work.prepare(fills=plan.fills)
        for _ in range(N_FIRST_BURSTS if plan.fills else 1):
            await work.burst()
        samples = list[Sample]()
        baseline: Sample | None = None
        for at in range(plan.n_rounds):
            await _round(plan, at, work, crowds)
            sample = await _at_rest(server, work, baseline)
            if at + 1 == plan.n_warm_up:
                await server.window.ask(Ask.MARK)
                baseline = await _at_rest(server, work, None)
            elif baseline is not None:
                samples.append(sample)
        assert baseline is not None
        growth = (await server.window.ask(Ask.GROWTH)).growth
        log = server.log
    counts = work.counts + crowds.counts
    left = await asyncio.to_thread(os.listdir, server.temporary)
    errors = (await asyncio.to_thread(log.read_text, errors="replace")).splitlines()
    errors += [f"left after the end: {name}" for name in left]
    seconds = time.monotonic() - began
    return Soak(plan, counts, baseline, samples, seconds, growth, errors)


async def _round(plan: Plan, at: int, work: Work, crowds: Crowds) -> None:
    """One round's share of everything, side by side; then perhaps a burst."""

    def share(n: int) -> int:
        return n * (at + 1) // plan.n_rounds - n * at // plan.n_rounds

    n = plan.n_requests
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work.requests(share(n)))
            tasks.create_task(work.forks(share(n // 10)))
            tasks.create_task(work.hibernations(share(n // 10)))
            tasks.create_task(crowds.aborts(share(n // 10)))
            tasks.create_task(crowds.bad_clients(share(max(n // 1000, plan.n_rounds))))
    except BaseExceptionGroup as errors:
        raise _one_of(errors) from None
    for _ in range(share(plan.n_bursts)):
        await work.burst()


def _one_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the failures of tasks of tasks: the others were cut short by it."""
    first = errors.exceptions[0]
    return _one_of(first) if isinstance(first, BaseExceptionGroup) else first


async def _at_rest(server: Soaked, work: Work, like: Sample | None) -> Sample:
    """Look when all has come to rest: to what ``like`` was, or until nothing moves any more.

    Threads are not waited for: those of a pool stay.
    """
    until, before = time.monotonic() + SETTLE_S, None
    p99_s = quantile(work.latencies_s, 0.99) if work.latencies_s else 0.0
    del work.latencies_s[:]
    async with aio.connect(f"unix://{server.binary}", api_key=KEYS["anna"]) as client:
        while True:
            sample = await _look(server, client, work.counts["requests"], p99_s)
            rest = _rest(sample) | {"threads": 0}
            wanted = before if like is None else _rest(like) | {"threads": 0}
            if rest == wanted or time.monotonic() > until:
                return sample
            before = rest
            await asyncio.sleep(0.05 if like is not None else 0.5)


async def _look(server: Soaked, client: aio.Client, n: int, p99_s: float) -> Sample:
    stats = await client.stats()
    gauges = {name: stats[name] for name in GAUGES if name in stats}
    gauges["slots"] = stats["n_slots"] - stats["n_free_slots"]
    n_temporary = sum(len(files) for _, _, files in os.walk(server.temporary))
    n_payloads = len(os.listdir(server.store / "payloads"))
    return Sample(n, await server.window.ask(), gauges, n_temporary, n_payloads, p99_s)


def _rest(sample: Sample) -> dict[str, int]:
    """What is the same whenever the server is at rest."""
    inside = sample.inside
    return {
        "tasks": inside.n_tasks,
        "file descriptors": inside.n_files,
        "threads": inside.n_threads,
        "temporary files": sample.n_temporary,
        **sample.gauges,
    }


def findings(done: Soak) -> list[Finding]:
    """What is to be said of it."""
    found = [
        Finding(name, now - was, "left over", NOTHING, {"before": was, "after": now})
        for name, (was, now) in done.left_over().items()
    ]
    for name, slope in done.growths().items():
        unit, bar = UNITS[name]
        case = f"{name}: upper bound of the growth in a million requests"
        found.append(Finding(case, slope.upper, unit, bar, {"fitted": slope.value}))
    last = done.samples[-1].inside
    besides = {
        **done.counts,
        "seconds": done.seconds,
        "RSS, MiB": last.rss_bytes / MIB,
        "payloads": done.samples[-1].n_payloads,
    }
    case = "p99 of requests, last tenth against first"
    return [*found, Finding(case, done.slower, "times as long", Bar(1.2, at_least=False), besides)]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument(
        "--requests",
        type=int,
        default=N_REQUESTS,
        metavar="N",
        help="with a tenth as many each of aborts, forks and hibernations (default %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, default=N_ROUNDS, metavar="N", help="looks (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default %(default)s)")
    parser.add_argument(
        "--traced",
        action="store_true",
        help="trace what Python allocates, at half the speed, and say where it grew",
    )


async def run(arguments: argparse.Namespace) -> list[Finding]:
    """Run the benchmark as it is asked for.

    Raises:
        BenchError: see ``soak``.
    """
    plan = SMOKE
    if not arguments.smoke:
        plan = Plan(
            n_requests=arguments.requests,
            n_rounds=max(arguments.rounds, 5),
            seed=arguments.seed,
            traced=arguments.traced,
        )
    with tempfile.TemporaryDirectory(prefix="s") as name:
        done = await soak(plan, Path(name))
    for line in (*done.growth, *done.errors):
        print(line)
    return list(findings(done))
