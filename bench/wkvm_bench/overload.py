"""A server that is asked for half to four times of what it can do: how much of it is of use.

Requests come at random times, whatever becomes of those before them, from two tenants: one sends
four times what the other does, and some of its own ahead of others. Each has a time in which it is
to be over; what counts are the tokens of those that are whole by then. Loads alternate in one run,
and each round measures anew what the server can do, since machines are not always as fast.
"""

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from wkvm_client.errors import DeadlineError

from wkvm.assembly.models import BUNDLED
from wkvm_bench import load_binary, load_openai
from wkvm_bench.figures import Spread, Streamed
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding
from wkvm_bench.load import Plan, Source, random_prompts, run_rung
from wkvm_bench.servers import serving

LOADS = (0.5, 1.0, 2.0, 4.0)
N_SLOTS = 16
N_CTX = 16
PATIENCE = 4.0
"""In how many times what it takes at a busy server, without waiting, a request is to be over."""
GRACE_S = 10.0
"""How much later the client would give it up by itself."""
WATCH_S = 0.05

MANY, URGENT, FEW = "many", "urgent", "few"
KEYS = {MANY: "key-of-many", URGENT: "key-of-many", FEW: "key-of-few"}
SHARES = {MANY: 0.7, URGENT: 0.1, FEW: 0.2}
"""Of all requests. The fair half of the capacity is more than the few ask for at twice of it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a server can do.

    Attributes:
        per_s: requests a second, with all slots taken all the time.
        request_s: how long one takes then.
    """

    per_s: float
    request_s: float

    @property
    def timeout_s(self) -> float:
        """In which a request is to be over."""
        return PATIENCE * self.request_s


@dataclass(slots=True, kw_only=True)
class Phase:
    """What came of one load.

    Attributes:
        began_at, ended_at: between which ids count; requests came from before until then.
        timeout_s: in which a request was to be over.
        sent: the requests, by who sent them.
        most_queued: how many waited at most.
        n_computed: ids that the server made for all of them.
    """

    began_at: float
    ended_at: float
    timeout_s: float
    sent: dict[str, list[Streamed]] = field(default_factory=dict[str, list[Streamed]])
    most_queued: int = 0
    n_computed: int = 0

    @property
    def share_of_use(self) -> float:
        """Of the ids that were computed, those of requests that were whole in time.

        That depends less on how fast the machine just is than rates do.
        """
        return sum(one.n_ids for one in self.good()) / max(1, self.n_computed)

    def good(self, who: Sequence[str] = tuple(SHARES)) -> list[Streamed]:
        """Those that were whole in time."""
        return [one for name in who for one in self.sent[name] if self._is_good(one)]

    def goodput(self, who: Sequence[str] = tuple(SHARES)) -> float:
        """Ids a second of those that were whole in time."""
        n_ids = 0.0
        for one in self.good(who):
            n_in_time = sum(self.began_at < at <= self.ended_at for at in one.arrivals)
            n_ids += n_in_time * one.n_ids / max(1, len(one.arrivals))
        return n_ids / (self.ended_at - self.began_at)

    def share_served(self, who: str) -> float:
        """Of the requests of one, how many were whole in time."""
        return len(self.good([who])) / max(1, len(self.sent[who]))

    @property
    def refused(self) -> list[Streamed]:
        """Those that the server had no room for."""
        return [
            one
            for sent in self.sent.values()
            for one in sent
            if one.error is not None and one.error.startswith(("HTTP 429", "Overl", "QueueF"))
        ]

    @property
    def errors(self) -> dict[str, int]:
        """How many failed otherwise, by what went wrong."""
        refused = {id(one) for one in self.refused}
        counts = dict[str, int]()
        for sent in self.sent.values():
            for one in sent:
                if one.error is not None and id(one) not in refused:
                    counts[one.error] = counts.get(one.error, 0) + 1
        return counts

    def _is_good(self, one: Streamed) -> bool:
        return one.error is None and one.ended_at - one.due_at <= self.timeout_s


@dataclass(frozen=True, slots=True)
class Doors:
    """A server, and where it listens.

    Attributes:
        binary, http: paths of sockets.
        lanes: a connection, to see how it is.
    """

    binary: Path
    http: Path
    lanes: load_binary.BinarySource


@asynccontextmanager
async def server(n_threads: int = 1, flags: Sequence[str] = ()) -> AsyncIterator[Doors]:
    """A server of the bundled model and its two doors, for two tenants."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        binary, http, keys = folder / "binary.sock", folder / "http.sock", folder / "keys"
        keys.write_text("".join(f"{t}:{KEYS[t]}\n" for t in (MANY, FEW)), encoding="utf-8")
        keys.chmod(0o600)
        given = ["--device", "cpu", "--threads", str(n_threads), "--slots", str(N_SLOTS)]
        given += ["--uds", str(http), "--api-keys-file", str(keys), *flags]
        async with (
            serving(BUNDLED, binary, given),
            load_binary.connected(f"unix://{binary}", api_key=KEYS[FEW]) as lanes,
        ):
            yield Doors(binary, http, lanes)


@asynccontextmanager
async def sources(doors: Doors, door: str, timeout_s: float) -> AsyncIterator[dict[str, Source]]:
    """Connections of everybody who sends, to one of the doors."""
    async with AsyncExitStack() as stack:
        found = dict[str, Source]()
        for who, key in KEYS.items():
            priority = -1 if who == URGENT else 0
            if door == "binary":
                found[who] = await stack.enter_async_context(
                    load_binary.connected(
                        f"unix://{doors.binary}",
                        n_connections=2,
                        api_key=key,
                        timeout_s=timeout_s,
                        priority=priority,
                    )
                )
            else:
                found[who] = await stack.enter_async_context(
                    load_openai.connected(
                        f"unix://{doors.http}",
                        model=None,
                        vocab_size=doors.lanes.server.vocab_size,
                        api_key=key,
                        temperature=0.8,
                        top_p=0.9,
                        timeout_s=timeout_s + GRACE_S,
                        more={"timeout_s": timeout_s, "priority": priority},
                    )
                )
        yield found


async def capacity(doors: Doors, door: str, n_out: int, n_rounds: int) -> Pace:
    """What a server does if there is always somebody for each slot, and nobody waits."""
    async with sources(doors, door, 600.0) as all_of_them:
        plan = Plan(n_streams=N_SLOTS, n_rounds=n_rounds, n_out=n_out, rate=None, seed=0)
        prompts = random_prompts(0, N_CTX, doors.lanes.server.vocab_size)
        rung = await run_rung(all_of_them[MANY], plan, prompts)
    if rung.errors or rung.e2e is None:
        raise BenchError(f"requests failed: {rung.errors}")
    per_s = (rung.steady_ids_per_s or rung.ids_per_s) / n_out
    return Pace(per_s, N_SLOTS / per_s)


async def run_phase(
    doors: Doors, door: str, load: float, pace: Pace, *, n_out: int, seconds: float, seed: int
) -> Phase:
    """Send requests at ``load`` times what the server can do, and wait for the end of all.

    Args:
        seconds: that count; before them, requests come for as long as one may take.
    """
    draw, timeout_s = random.Random(seed), pace.timeout_s
    prompts = random_prompts(seed, N_CTX, doors.lanes.server.vocab_size)
    async with sources(doors, door, timeout_s) as of:
        n_before = (await doors.lanes.stats())["output_tokens_total"]
        start = time.perf_counter()
        phase = Phase(
            began_at=start + timeout_s,
            ended_at=start + timeout_s + seconds,
            timeout_s=timeout_s,
            sent={name: [] for name in SHARES},
        )
        watch = asyncio.create_task(_watch(doors, phase))
        open_requests = set[asyncio.Task[None]]()

        async def send(who: str, due_at: float, prompt: Sequence[int]) -> None:
            streamed = await of[who].stream(prompt, n_out)
            streamed.due_at = due_at
            phase.sent[who].append(streamed)

        due_at = start
        while (due_at := due_at + draw.expovariate(load * pace.per_s)) < phase.ended_at:
            if (wait_s := due_at - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            (who,) = draw.choices(list(SHARES), list(SHARES.values()))
            task = asyncio.create_task(send(who, due_at, next(prompts)))
            open_requests.add(task)
            task.add_done_callback(open_requests.discard)
        while open_requests:
            await asyncio.gather(*open_requests)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        phase.n_computed = (await doors.lanes.stats())["output_tokens_total"] - n_before
    return phase


async def _watch(doors: Doors, phase: Phase) -> None:
    while True:
        # An answer that comes late, on a machine that is busy, is one sample fewer.
        with contextlib.suppress(DeadlineError):
            stats = await doors.lanes.stats()
            phase.most_queued = max(phase.most_queued, stats["n_queued"])
        await asyncio.sleep(WATCH_S)


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark. ``n_threads`` are torch's."""
    n_out, seconds, n_rounds, n_bare = (8, 0.2, 1, 1) if smoke else (32, 8.0, 3, 4)
    results = list[Comparison | Finding]()
    async with server(n_threads) as doors:
        for door in ("binary", "HTTP"):
            phases: dict[float, list[Phase]] = {load: [] for load in LOADS}
            paces = list[Pace]()
            for turn in range(n_rounds):
                pace = await capacity(doors, door, n_out, n_bare)
                paces.append(pace)
                for load in LOADS if turn % 2 == 0 else reversed(LOADS):
                    phase = await run_phase(
                        doors, door, load, pace, n_out=n_out, seconds=seconds, seed=turn
                    )
                    phases[load].append(phase)
            results += _results(door, phases, [pace.per_s * n_out for pace in paces])
    return results


def _failed(phases: Sequence[Phase]) -> Counter[str]:
    """How many requests failed in all rounds, by what went wrong."""
    counts = Counter[str]()
    for one in phases:
        counts.update(one.errors)
    return counts


def _results(
    door: str, phases: dict[float, list[Phase]], bare: Sequence[float]
) -> list[Comparison | Finding]:
    goodput = {load: [one.goodput() for one in phases[load]] for load in LOADS}
    peak = [max(at) for at in zip(*goodput.values(), strict=True)]
    results = list[Comparison | Finding]()
    for load in (2.0, 4.0):
        besides = {
            f"goodput at {other:g} times, ids/s": statistics.median(goodput[other])
            for other in LOADS
        }
        besides |= {
            "with all slots taken and nobody waiting, ids/s": statistics.median(bare),
            "requests": sum(len(sent) for one in phases[load] for sent in one.sent.values()),
            "refused": sum(len(one.refused) for one in phases[load]),
            "most that waited": max(one.most_queued for one in phases[load]),
            **{f"failed, {why}": n for why, n in _failed(phases[load]).items()},
        }
        results.append(
            Comparison(
                f"{door}, at {load:g} times the capacity",
                "goodput",
                "its peak",
                "ids/s",
                tuple(goodput[load]),
                tuple(peak),
                Bar(0.9),
                besides,
            )
        )
    of_use = {
        load: 100 * statistics.median(one.share_of_use for one in phases[load]) for load in LOADS
    }
    results.append(
        Finding(
            f"{door}, at twice the capacity: ids computed that are of use",
            of_use[2.0],
            "%",
            Bar(90),
            {f"at {load:g} times, %": of_use[load] for load in LOADS},
        )
    )
    refused = [one for load in (2.0, 4.0) for phase in phases[load] for one in phase.refused]
    times = Spread.of([one.ended_at - one.due_at for one in refused])
    after = [one.retry_after_s for one in refused if one.retry_after_s is not None]
    results.append(
        Finding(
            f"{door}, at two and four times: a refusal comes, p50",
            0.0 if times is None else times.p50,
            "ms",
            None,
            {
                "p99, ms": 0.0 if times is None else times.p99,
                "refused": len(refused),
                "without a time to try again": len(refused) - len(after),
                "that time, median, s": statistics.median(after) if after else 0.0,
            },
        )
    )
    for who, what, least in (
        (FEW, "of a tenant that asks for less than its share", 0.9),
        (URGENT, "of a higher priority", 0.9),
        (MANY, "of all others", None),
    ):
        served = statistics.median(one.share_served(who) for one in phases[2.0])
        results.append(
            Finding(
                f"{door}, at twice the capacity: requests {what} that are whole in time",
                100 * served,
                "%",
                None if least is None else Bar(100 * least),
                {
                    f"at {load:g} times, %": 100
                    * statistics.median(one.share_served(who) for one in phases[load])
                    for load in LOADS
                },
            )
        )
    return results
