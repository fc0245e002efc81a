"""A scheduler over the fake device, and what its requests were told."""

from collections import deque
from dataclasses import dataclass, field

from tests.core.device import FakeDevice, continuation
from wkvm.core.config import EngineConfig
from wkvm.core.errors import StepFailedError
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.prefixes import Budget
from wkvm.core.request import (
    EndEvent,
    PooledEvent,
    PromptLogprobsEvent,
    RequestSpec,
    ReusedEvent,
    SavedEvent,
    TokenEvent,
    by_request,
)
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler
from wkvm.core.start import Grant, Saved, SavedRecord, Start

VOCAB_SIZE = 1000
KEY = 3


@dataclass
class Told:
    """What a request was told."""

    ids: list[int] = field(default_factory=list[int])
    saved: list[SavedEvent] = field(default_factory=list[SavedEvent])
    end: EndEvent | None = None
    reused: int = 0

    @property
    def last(self) -> Saved:
        assert self.end is not None
        assert self.end.saved is not None, self.end
        return self.end.saved


class Rig:
    """A scheduler and its device."""

    def __init__(
        self,
        *,
        depth: int = 2,
        n_slots: int = 4,
        max_hibernated: int = 0,
        limit: int | None = None,
        n_pages: int = 0,
        late: int = 0,
        budget: Budget | None = None,
        most_tokens: int = 2048,
    ) -> None:
        """``n_pages``: of the guest, if there is one. ``late``: steps until a copy comes."""
        config = EngineConfig(
            n_slots=n_slots,
            max_hibernated=max_hibernated,
            max_slots_per_tenant=limit,
            guest_tokens=n_pages * PAGE_TOKENS or None,
            poison_freed_slots=n_pages > 0,
            max_num_batched_tokens=most_tokens,
        )
        self.scheduler = Scheduler(
            config,
            vocab_size=VOCAB_SIZE,
            eos_ids=(),
            depth=depth,
            blank=(),
            has_guest=n_pages > 0,
            loads_beside=n_pages > 0 and late > 0,
            budget=budget,
        )
        self.n_computed = 0
        self.n_late = late
        self.late = deque[tuple[dict[int, SavedRecord], tuple[Grant, ...]]]()
        self.unloaded = False
        self.depth = depth
        self.device = FakeDevice(VOCAB_SIZE)
        self.now = 0.0
        self.told = dict[int, Told]()
        self.in_flight = deque[StepPlan]()
        self.unsaved = False
        self.bad = set[int]()

    def submit(self, spec: RequestSpec, *, key: int = KEY) -> int:
        request_id = len(self.told)
        self.scheduler.submit((request_id,), spec, seed=key, branches=(0,), now=self.now)
        self.told[request_id] = Told()
        return request_id

    def fill(self) -> None:
        while len(self.in_flight) < self.depth:
            plan = self.scheduler.plan(self.now)
            self.note()
            if plan is None:
                return
            assert plan.rows or plan.saves or plan.copies or plan.grants or any(map(any, self.late))
            self.n_computed += sum(row.n_ids for row in plan.rows if row.position < row.n_prompt)
            self.in_flight.append(plan)

    def land(self) -> None:
        plan = self.in_flight.popleft()
        ids = self.device.run(plan)
        bad = frozenset(at for at, row in enumerate(plan.rows) if row.request_id in self.bad)
        saved = {} if self.unsaved else self.device.saved
        late = frozenset(saved) if self.n_late else frozenset[int]()
        grants = tuple[Grant, ...]()
        if self.n_late:
            loads = tuple(grant for grant in plan.grants if grant.beside)
            self.late.append((saved, loads))
            saved, grants = self.late.popleft() if len(self.late) > self.n_late else ({}, ())
        for grant in grants:
            self.device.load(grant)
        tickets = frozenset(grant.ticket for grant in grants)
        result = StepResult(
            tuple(None if at in bad else one for at, one in enumerate(ids)),
            not_finite=bad,
            saved=saved,
            unsaved=dict.fromkeys(self._unkept(plan), StepFailedError()),
            late=late,
            loaded=frozenset() if self.unloaded else tickets,
            unloaded=dict.fromkeys(tickets, StepFailedError()) if self.unloaded else {},
        )
        self.scheduler.commit(plan, result, self.now)
        self.note()

    def _unkept(self, plan: StepPlan) -> list[int]:
        """Copies within the device that come to nothing."""
        return [copy.ticket for copy in plan.copies if self.unsaved]

    def fail(self, *, runs: bool = True) -> None:
        plan = self.in_flight.popleft()
        if runs:
            self.device.run(plan)
        if self.n_late:
            # What is loaded beside goes on.
            self.late.append(({}, tuple(grant for grant in plan.grants if grant.beside)))
        self.scheduler.fail(plan, StepFailedError(), self.now)
        self.note()

    def turn(self, n: int = 1) -> None:
        for _ in range(n):
            self.fill()
            if self.in_flight:
                self.land()

    def finish(self) -> None:
        for _ in range(2000):
            is_over = all(one.end is not None for one in self.told.values())
            if is_over and not self.in_flight and not any(map(any, self.late)):
                break
            self.turn()
        else:
            raise AssertionError("somebody never ends")
        stats = self.scheduler.stats()
        assert stats["n_free_slots"] == stats["n_slots"]
        assert stats.get("n_free_pages") == stats.get("n_pages")
        assert stats["n_hibernated"] == stats["n_running"] == stats["n_queued"] == 0

    def run(self, spec: RequestSpec, *, key: int = KEY) -> Told:
        request_id = self.submit(spec, key=key)
        self.finish()
        return self.told[request_id]

    def note(self) -> None:
        for event in by_request(self.scheduler.take_events()):
            told = self.told[event.request_id]
            assert told.end is None, "something was told after the end"
            match event:
                case TokenEvent():
                    assert event.index == len(told.ids)
                    told.ids.append(event.token_id)
                case PromptLogprobsEvent():
                    raise AssertionError
                case PooledEvent():
                    raise AssertionError
                case ReusedEvent():
                    assert not told.ids
                    assert not told.reused
                    told.reused = event.n_tokens
                case SavedEvent():
                    told.saved.append(event)
                case EndEvent():
                    told.end = event


def length(max_tokens: int, **others: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)  # type: ignore[arg-type]


def alone(prompt: tuple[int, ...], n: int, *, key: int = KEY) -> list[int]:
    """What a request gives that is never interrupted."""
    ids, _ = continuation(
        key, prompt, max_tokens=n, min_tokens=0, stops=frozenset(), vocab_size=VOCAB_SIZE
    )
    return ids


def start_of(saved: Saved) -> Start:
    return Start(
        record=saved.record, n_computed=saved.n_computed, pending=saved.pending, memory=saved.memory
    )


def check(saved: Saved, before: tuple[int, ...] = ()) -> None:
    """The record is the state after what was absorbed."""
    assert saved.record == (*before, *saved.absorbed)
    assert saved.n_computed == len(saved.record)
