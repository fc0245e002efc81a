"""What it costs to move states between slots and host memory, on a GPU.

    python tools/gpu_states.py --output bench/results/FILE.jsonl

An engine over random weights of the 1.5B shape, and beside it an arena of the same states. Forks
of one record into 64 slots, hibernation and resumption against bare copies of the same bytes, both
to the next token, and decoding while states come and go. One JSON line per finding, and a table in
the end. Exit status 1 if a bar was missed.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

from wkvm_bench.random_model import SIZES, write_random  # noqa: E402

from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from wkvm.assembly.engine import build_engine  # noqa: E402
from wkvm.core.config import EngineConfig  # noqa: E402
from wkvm.core.plan import StepPlan  # noqa: E402
from wkvm.core.request import EndEvent, Event, RequestSpec, TokensEvent  # noqa: E402
from wkvm.core.sampling import SamplingParams  # noqa: E402
from wkvm.core.start import Saved, Start  # noqa: E402
from wkvm.engine.engine import Engine  # noqa: E402
from wkvm.engine.state_mover import N_BUFFERS, StateMover  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

N_FORKS = 64
N_ROWS = 120
"""Rows that decode, in a bucket of 128: those that come and go fit in it beside them."""

FORK_MS, TOKEN_MS, TIMES_BARE, SLOWED = 1.0, 2.0, 1.5, 1.03
"""The bars."""

PROMPT = tuple(range(100, 200))


class Driver:
    """An engine whose steps are run one ahead."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ends = dict[int, EndEvent]()
        self.ids = dict[int, list[int]]()
        self.n_steps = 0
        self._flights = deque[StepPlan]()

    def submit(self, spec: RequestSpec) -> int:
        """The id of a request of one choice."""
        (request_id,) = self.engine.submit(spec, time.monotonic())
        return request_id

    def step(self) -> list[Event]:
        """Launch what may be in flight, and take the oldest."""
        engine, flights = self.engine, self._flights
        while len(flights) < engine.depth and (plan := engine.plan(time.monotonic())) is not None:
            engine.launch(plan)
            flights.append(plan)
        if flights:
            plan = flights.popleft()
            engine.commit(plan, engine.collect(plan), time.monotonic())
            self.n_steps += 1
        events = engine.take_events()
        for event in events:
            if isinstance(event, EndEvent):
                if event.error is not None:
                    raise event.error
                self.ends[event.request_id] = event
            elif isinstance(event, TokensEvent):
                for request_id, token_id in zip(event.request_ids, event.token_ids, strict=True):
                    self.ids.setdefault(request_id, []).append(token_id)
        return events

    def until(self, is_done: Callable[[], bool]) -> None:
        """Step until something is so."""
        while not is_done():
            self.step()

    def run(self, spec: RequestSpec) -> tuple[list[int], EndEvent]:
        """One request from its beginning to its end."""
        request_id = self.submit(spec)
        self.until(lambda: request_id in self.ends)
        return self.ids.get(request_id, []), self.ends.pop(request_id)

    def save(self, n: int) -> Saved:
        """A state after the prompt and ``n`` ids."""
        _, end = self.run(RequestSpec(prompt=PROMPT, params=length(n), save=True))
        return saved_of(end)


def saved_of(end: EndEvent) -> Saved:
    """What a request was saved as."""
    if end.saved is None:
        raise RuntimeError(f"no state of {end}")
    return end.saved


def length(n: int, seed: int | None = None) -> SamplingParams:
    """So many ids."""
    return SamplingParams(max_tokens=n, top_p=0.9, ignore_eos=True, seed=seed)


def start_of(saved: Saved) -> Start:
    """A request that goes on."""
    return Start(
        record=saved.record, n_computed=saved.n_computed, pending=saved.pending, memory=saved.memory
    )


def wall_ms(call: Callable[[], object], n: int = 40) -> float:
    """Median time of a call, the device idle before."""
    times = list[float]()
    for at in range(n + 5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if at >= 5:
            times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def wall_ms_in_turns(calls: Sequence[Callable[[], object]], n: int = 40) -> list[float]:
    """The same of several calls that take turns: what changes meanwhile changes for all of them."""
    times = [list[float]() for _ in calls]
    for at in range(n + 5):
        for call, own in zip(calls, times, strict=True):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            if at >= 5:
                own.append((time.perf_counter() - began) * 1e3)
    return [median(own) for own in times]


def device_ms(launch: Callable[[], object], n: int = 20) -> float:
    """Median time on the device, from when it is idle."""
    times = list[float]()
    for at in range(n + 3):
        torch.cuda.synchronize()
        began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        began.record()
        launch()
        ended.record()
        torch.cuda.synchronize()
        if at >= 3:
            times.append(began.elapsed_time(ended))
    return median(times)


def moves(arena: Arena, mover: StateMover) -> Iterator[Finding]:
    """Copies by themselves: forks, and both ways against bare copies."""
    n_bytes = arena.layout.record_bytes
    # More records than there are buffers: each goes over the bus again.
    records = [
        torch.randint(0, 127, (n_bytes,), dtype=torch.uint8).pin_memory()
        for _ in range(2 * N_BUFFERS)
    ]
    following = cycle(records)
    slots = list(range(1, N_FORKS + 1))

    def fork(record: Tensor) -> None:
        with mover.up(record) as there:
            arena.fill(there, slots)

    with_upload = device_ms(lambda: fork(next(following)))
    yield {
        "timing": f"one record on the host into {N_FORKS} slots, on the device",
        "ms": round(with_upload, 4),
        "bar_ms": FORK_MS,
        "ok": with_upload < FORK_MS,
    }
    fork(records[0])
    torch.cuda.synchronize()
    host = arena.records[[1, N_FORKS // 2, N_FORKS]].cpu()
    untouched = not bool(arena.records[N_FORKS + 1].any())
    yield {
        "check": "forks hold the record, and the slot beside them does not",
        "ok": all(torch.equal(one, records[0]) for one in host) and untouched,
    }
    there = records[0].cuda()
    yield from fills(arena, there, slots)

    pinned = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

    def bare_down() -> None:
        pinned.copy_(arena.records[3], non_blocking=True)
        torch.cuda.synchronize()

    def bare_up() -> None:
        arena.records[3].copy_(next(following), non_blocking=True)
        torch.cuda.synchronize()

    def up() -> None:
        with mover.up(next(following)) as there:
            arena.fill(there, [3])
        torch.cuda.synchronize()

    bare_ms, ours_ms = wall_ms_in_turns([bare_down, lambda: mover.down(arena.records[3]).wait()])
    yield against_bare("hibernate, slot and pinned memory", ours_ms, bare_ms)
    bare_ms, ours_ms = wall_ms_in_turns([bare_up, up])
    yield against_bare("resume, slot and pinned memory", ours_ms, bare_ms)
    yield {
        "timing": "copy a state to another slot, within the device",
        "ms": round(device_ms(lambda: arena.copy(1, (2,))), 4),
    }
    yield {
        "timing": "look for what is not finite in a state",
        "ms": round(device_ms(lambda: arena.is_finite(1)), 4),
    }


def against_bare(name: str, ours_ms: float, bare_ms: float) -> Finding:
    """A copy of ours against a bare one."""
    return {
        "timing": name,
        "ms": round(ours_ms, 4),
        "bare_copy_ms": round(bare_ms, 4),
        "times_bare": round(ours_ms / bare_ms, 3),
        "bar_ms": round(TIMES_BARE * bare_ms, 4),
        "ok": ours_ms < TIMES_BARE * bare_ms,
    }


def fills(arena: Arena, there: Tensor, slots: Sequence[int]) -> Iterator[Finding]:
    """Ways to make slots copies of one record on the device, in turns."""
    words, source = arena.records.view(torch.int64), there.view(torch.int64)

    def copies() -> None:
        for slot in slots:
            words[slot].copy_(source)

    first, n = slots[0], len(slots)
    ways: dict[str, Callable[[], object]] = {
        "index_copy_, as it is": lambda: arena.fill(there, slots),
        f"{n} copies": copies,
        "one broadcast copy, of slots that follow each other": lambda: words[
            first : first + n
        ].copy_(source.expand(n, -1)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(4):
        for name, launch in ways.items():
            times[name].append(device_ms(launch, 10))
    for name in ways:
        yield {"timing": f"fill {n} slots: {name}", "ms": round(median(times[name]), 4)}


def to_the_token(driver: Driver) -> Iterator[Finding]:
    """From a request to its next token, and from the last token to the state on the host."""
    whole, _ = driver.run(RequestSpec(prompt=PROMPT, params=length(40, seed=7)))
    ids, end = driver.run(RequestSpec(prompt=PROMPT, params=length(13, seed=7), save=True))
    saved = saved_of(end)
    rest, _ = driver.run(RequestSpec(prompt=(), params=length(27), start=start_of(saved)))
    yield {
        "check": "ids of a state that went on are those of one run",
        "ok": ids + rest == whole and bool(saved.record.is_pinned()),
    }
    starts = [start_of(driver.save(at % 5 + 2)) for at in range(2 * N_BUFFERS)]
    resumed, hibernated = list[float](), list[float]()
    for start in (starts * 6)[: 5 + 40]:
        spec = RequestSpec(prompt=(), params=length(1), start=start, save=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        request_id = driver.submit(spec)
        driver.until(lambda request_id=request_id: request_id in driver.ids)  # type: ignore[misc]
        produced = time.perf_counter()
        driver.until(lambda request_id=request_id: request_id in driver.ends)  # type: ignore[misc]
        ended = time.perf_counter()
        # Not kept: it would take its pinned memory with it.
        saved_of(driver.ends.pop(request_id))
        resumed.append((produced - began) * 1e3)
        hibernated.append((ended - produced) * 1e3)
    resume_ms = median(resumed[5:])
    yield {
        "timing": "resume from pinned memory to the next token, through the engine",
        "ms": round(resume_ms, 3),
        "bar_ms": TOKEN_MS,
        "ok": resume_ms < TOKEN_MS,
    }
    yield {
        "timing": "hibernate, from the last token to the state on the host, through the engine",
        "ms": round(median(hibernated[5:]), 3),
    }
    forks = list[float]()
    for start in starts:
        spec = RequestSpec(prompt=(), params=length(1), start=start, fresh_key=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        request_ids = [driver.submit(spec) for _ in range(N_FORKS)]
        driver.until(lambda ids=request_ids: all(one in driver.ids for one in ids))  # type: ignore[misc]
        forks.append((time.perf_counter() - began) * 1e3)
        driver.until(lambda ids=request_ids: all(one in driver.ends for one in ids))  # type: ignore[misc]
    yield {
        "timing": f"fork into {N_FORKS} and the next token of each, through the engine",
        "ms": round(median(forks), 3),
    }


def beside(driver: Driver) -> Iterator[Finding]:
    """Decoding while states come and go, in turns with decoding undisturbed."""
    starts = [start_of(driver.save(at % 5 + 2)) for at in range(2 * N_BUFFERS)]
    decoding = [
        driver.submit(RequestSpec(prompt=PROMPT[: 20 + at % 9], params=length(10**6, seed=at)))
        for at in range(N_ROWS)
    ]
    driver.until(lambda: all(one in driver.ids for one in decoding))
    following = cycle(starts)
    # One request brings a state in and leaves one: two of them move.
    kinds = {"none": 0.0, "100 a second": 50.0, "200 a second": 100.0}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    n_moved = dict.fromkeys(kinds, 0)
    for _ in range(4):
        for name, rate in kinds.items():
            for _ in range(10):
                driver.step()
            n_steps = driver.n_steps
            driver.ends.clear()
            began = due = time.perf_counter()
            while (now := time.perf_counter()) - began < 0.6:
                if rate and now >= due:
                    due += 1 / rate
                    start = next(following)
                    driver.submit(RequestSpec(prompt=(), params=length(1), start=start, save=True))
                driver.step()
                n_moved[name] += 2 * len(driver.ends)
                driver.ends.clear()
            times[name].append((time.perf_counter() - began) / (driver.n_steps - n_steps) * 1e3)
    undisturbed = median(times["none"])
    for name in kinds:
        ratio = median(times[name]) / undisturbed
        finding: Finding = {
            "timing": f"step of {N_ROWS} rows that decode while states move: {name}",
            "ms": round(median(times[name]), 4),
            "n_moved": n_moved[name],
            "times_undisturbed": round(ratio, 4),
        }
        if name == "100 a second":
            finding |= {"bar": SLOWED, "ok": ratio < SLOWED}
        yield finding
    for one in decoding:
        driver.engine.cancel(one, time.monotonic())


def table(findings: Sequence[Finding]) -> str:
    """One line for each finding."""
    lines = list[str]()
    for finding in findings:
        what = str(finding.get("timing", finding.get("check")))
        number = f"{finding['ms']:.3f} ms" if "ms" in finding else ""
        others = ("bar_ms", "bare_copy_ms", "times_bare", "bar", "times_undisturbed", "n_moved")
        rest = ", ".join(f"{name} {finding[name]}" for name in others if name in finding)
        is_ok = {True: "ok", False: "MISSED", None: ""}[finding.get("ok")]
        lines.append(f"{what:<76} {number:>10}  {is_ok:<6}  {rest}")
    return "\n".join(lines)


def main() -> int:
    """Build the engine, measure, and write."""
    arguments = parser_of(__doc__).parse_args()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        write_random(path, SIZES["1.5B"], dtype=torch.bfloat16, device="cuda")
        torch.cuda.empty_cache()
        config = EngineConfig(n_slots=128, device="cuda", request_timeout_s=1e6)
        engine = build_engine(path, config, served_name="moved")
    built_s = time.monotonic() - began
    layout = engine.info.layout
    if layout is None:
        raise RuntimeError("the engine has no states")
    found = list[Finding]()
    with recorded(arguments) as findings:
        driver = Driver(engine)
        arena = Arena(layout, N_FORKS + 2, "cuda")
        mover = StateMover(layout.record_bytes, "cuda")
        about: Finding = {"record_bytes": layout.record_bytes, "built_s": round(built_s, 1)}
        for finding in chain(moves(arena, mover), to_the_token(driver), beside(driver)):
            found.append(finding)
            findings.add({**finding, **about})
    print(table(found))
    print(f"{time.monotonic() - began:.1f} s in all, {built_s:.1f} s of it for the engine")
    return int(findings.n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
