"""The scheduler under any order of calls, against a model of what each request is owed.

The steps run on a fake device, up to three of them in flight.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.device import FakeDevice, continuation
from tests.core.driver import scores
from tests.machines import walk
from tests.soak import amount, tell
from wkvm.core.config import CUT_MULTIPLE, EngineConfig
from wkvm.core.errors import (
    DrainingError,
    NonFiniteError,
    OverloadedError,
    QueueFullError,
    StalledError,
    StepFailedError,
)
from wkvm.core.grammar import Grammar
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.request import (
    EndEvent,
    PooledEvent,
    PromptLogprobsEvent,
    RequestSpec,
    ReusedEvent,
    SavedEvent,
    Status,
    TokenEvent,
    by_request,
)
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

VOCAB_SIZE = 16
EOS_ID = 0
STALL_TIMEOUT_S = 8.0
LENGTHS = st.sampled_from([1, 2, 63, 64, 65, 128, 130, 300])


@dataclass
class Expected:
    """What the test knows of a request, from what it asked for and what it was told.

    ``fed`` counts what is in flight too; ``n_ahead`` of its ids are on their way.
    """

    request_id: int
    spec: RequestSpec
    deadline: float
    credit: int | None
    known: list[int]
    fed: int = 0
    n_ahead: int = 0
    constraint: "Noted | None" = None
    outputs: list[int] = field(default_factory=list[int])
    n_scored: int = 0
    held: bool = False
    slot: int | None = None
    sampled: int | None = None
    end: EndEvent | None = None

    @property
    def lacks_leave(self) -> bool:
        return self.held or (self.credit == 0 and self.spec.params.max_tokens > 0)

    @property
    def is_unbound(self) -> bool:
        return self.spec.grammar is not None and self.constraint is None

    @property
    def n_known(self) -> int:
        return len(self.known) + self.n_ahead

    @property
    def may_follow(self) -> bool:
        """Whether it may have a row that samples, whatever becomes of those in flight."""
        if not self.n_ahead:
            return True
        has_credit = self.credit is None or self.credit > self.n_ahead
        is_short = len(self.outputs) + self.n_ahead < self.spec.params.max_tokens
        return has_credit and is_short and self.constraint is None

    @property
    def runs(self) -> bool:
        return self.slot is not None and self.end is None


@dataclass
class Noted:
    """Stands for a constraint, and counts the ids that it was told."""

    n_ids: int = 0

    @property
    def may_end(self) -> bool:
        raise AssertionError

    def next_ids(self, *, may_stop: bool) -> bytes:
        raise AssertionError

    def advance(self, token_id: int) -> bool:
        self.n_ids += 1
        return False


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 3),
        n_slots=st.integers(1, 4),
        budget=st.sampled_from([1, 64, 100, 200, 1000]),
        max_queue=st.integers(0, 4),
        max_queued_tokens=st.sampled_from([0, 5, 200, 100_000]),
        max_completed=st.integers(0, 3),
    )
    def start(
        self,
        depth: int,
        n_slots: int,
        budget: int,
        max_queue: int,
        max_queued_tokens: int,
        max_completed: int,
    ) -> None:
        self.config = EngineConfig(
            n_slots=n_slots,
            max_num_batched_tokens=budget,
            max_queue=max_queue,
            max_queued_tokens=max_queued_tokens,
            max_completed_requests=max_completed,
            stall_timeout_s=STALL_TIMEOUT_S,
            max_hibernated=0,
        )
        self.scheduler = Scheduler(
            self.config, vocab_size=VOCAB_SIZE, eos_ids=(EOS_ID,), depth=depth
        )
        self.device = FakeDevice(VOCAB_SIZE)
        self.depth = depth
        self.now = 0.0
        self.requests = dict[int, Expected]()
        self.in_flight = deque[StepPlan]()
        self.draining = False

    def live(self) -> list[Expected]:
        return [r for r in self.requests.values() if r.end is None]

    def one_of_all(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.requests)))

    # --- calls that may come at any time ----------------------------------------------------

    @rule(
        length=LENGTHS,
        max_tokens=st.integers(0, 4),
        min_tokens=st.integers(0, 4),
        stop_ids=st.sampled_from([(), (5,), (0, 3)]),
        ignore_eos=st.booleans(),
        scored=st.booleans(),
        tenant=st.sampled_from("ab"),
        priority=st.integers(-1, 1),
        timeout_s=st.none() | st.sampled_from([1.0, 5.0, 50.0]),
        credit=st.none() | st.integers(0, 3),
        has_grammar=st.sampled_from([False, False, False, True]),
        n=st.integers(1, 3),
    )
    def submit(
        self,
        *,
        length: int,
        max_tokens: int,
        min_tokens: int,
        stop_ids: tuple[int, ...],
        ignore_eos: bool,
        scored: bool,
        tenant: str,
        priority: int,
        timeout_s: float | None,
        credit: int | None,
        has_grammar: bool,
        n: int,
    ) -> None:
        first = len(self.requests)
        request_ids = range(first, first + n)
        spec = RequestSpec(
            prompt=tuple((first + 7 * i) % VOCAB_SIZE for i in range(length)),
            params=SamplingParams(
                max_tokens=max_tokens,
                min_tokens=min(min_tokens, max_tokens),
                stop_ids=stop_ids,
                ignore_eos=ignore_eos,
                prompt_logprobs=0 if scored else None,
                n=n,
            ),
            tenant=tenant,
            priority=priority,
            timeout_s=timeout_s,
            credit=credit,
            grammar=Grammar("regex", "a") if has_grammar else None,
        )
        before = self.scheduler.stats()
        n_free = before["n_free_slots"]
        queued = [
            r for r in self.live() if self.status(r) == Status.QUEUED and r.spec.tenant == tenant
        ]
        specs = {id(r.spec): r.spec for r in queued}
        n_tokens = len(spec.prompt) + sum(len(one.prompt) for one in specs.values())
        has_room = len(queued) + n <= n_free or (
            len(queued) + n <= n_free + self.config.max_queue
            and n_tokens <= self.config.max_queued_tokens
        )
        try:
            self.scheduler.submit(request_ids, spec, seed=first, branches=range(n), now=self.now)
        except DrainingError:
            assert self.draining
            assert self.scheduler.stats() == before
        except QueueFullError:
            assert not has_room
            self.check_refused(before, n)
        except OverloadedError:
            assert has_room
            assert n_free <= before["n_queued"], "it need not have waited"
            self.check_refused(before, n)
        else:
            assert not self.draining
            assert has_room
            wait_s = self.config.request_timeout_s if timeout_s is None else timeout_s
            for request_id in request_ids:
                self.requests[request_id] = Expected(
                    request_id, spec, self.now + wait_s, credit, list(spec.prompt)
                )

    def check_refused(self, before: Mapping[str, int], n: int) -> None:
        refused = {"refused_total": before["refused_total"] + n}
        assert self.scheduler.stats() == {**before, **refused}

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = self.one_of_all(data)
        self.scheduler.cancel(request_id, self.now)
        expected = self.requests.get(request_id)
        was_live = expected is not None and expected.end is None
        self.take_events()
        if expected is not None and was_live:
            assert expected.end is not None
            assert expected.end.status == Status.CANCELLED

    @rule(data=st.data(), n_tokens=st.integers(1, 3))
    def grant(self, data: st.DataObject, n_tokens: int) -> None:
        request_id = self.one_of_all(data)
        self.scheduler.grant(request_id, n_tokens, self.now)
        expected = self.requests.get(request_id)
        if expected is not None and expected.credit is not None:
            expected.credit += n_tokens

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        request_id = self.one_of_all(data)
        self.scheduler.hold(request_id, self.now)
        if request_id in self.requests:
            self.requests[request_id].held = True

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request_id = self.one_of_all(data)
        self.scheduler.release(request_id, self.now)
        if request_id in self.requests:
            self.requests[request_id].held = False

    @rule()
    def bind(self) -> None:
        for wanted in self.scheduler.take_unbound():
            r = self.requests[wanted.request_id]
            constraint = Noted()
            self.scheduler.bind(r.request_id, constraint)
            r.constraint = constraint if r.end is None else None

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.requests) > 8)
    @rule()
    def drain(self) -> None:
        self.scheduler.drain()
        self.draining = True

    # --- steps ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def plan(self) -> None:
        plan = self.scheduler.plan(self.now)
        self.take_events()
        stats = self.scheduler.stats()
        assert stats["n_queued"] == 0 or stats["n_free_slots"] == 0
        assert all(r.deadline > self.now for r in self.live())
        rows = () if plan is None else plan.rows
        running = [r for r in self.live() if self.status(r) == Status.RUNNING]
        ready = [r for r in running if not r.lacks_leave and not r.is_unbound and r.may_follow]
        decoding = [r for r in ready if r.n_known - r.fed == 1]
        self.check_budget(rows)
        for slot in () if plan is None else plan.freed:
            holder = [r for r in self.live() if r.slot == slot]
            assert all(r.fed == 0 for r in holder), "a slot in use was called free"
        for row in rows:
            self.check_row(row)
        self.check_admission()
        planned = {row.request_id for row in rows}
        assert len(planned) == len(rows)
        assert len({row.slot for row in rows}) == len(rows)
        for r in decoding:
            assert r.request_id in planned, "a row that decodes had to wait"
        if plan is None:
            assert all(r.fed == r.n_known for r in ready), "nothing runs though something could"
        else:
            assert rows
            self.in_flight.append(plan)

    def check_row(self, row: RowPlan) -> None:
        r = self.requests[row.request_id]
        assert r.end is None
        assert r.slot in (None, row.slot), "a slot changed its number"
        r.slot = row.slot
        end = row.position + row.n_ids
        assert row.position == r.fed
        if r.n_ahead:
            assert row.ids == ()
        else:
            assert row.ids
            assert list(row.ids) == r.known[r.fed : end]
        assert row.fresh == (r.fed == 0)
        assert row.n_output == len(r.outputs) + r.n_ahead
        assert row.n_prompt == len(r.spec.prompt)
        assert row.seed + row.branch == row.request_id
        params = r.spec.params
        assert row.samples == (end == r.n_known and params.max_tokens > 0)
        assert end <= r.n_known
        assert end == r.n_known or end % CUT_MULTIPLE == 0
        if end == r.n_known:
            assert not r.lacks_leave, "it has no leave to produce"
            assert not r.is_unbound
            assert r.may_follow, "a row that could only be in vain"
        assert row.constraint is r.constraint
        assert row.awaits_constraint == r.is_unbound
        if row.samples and r.constraint is not None:
            assert r.constraint.n_ids == len(r.outputs), "it does not know the last id"
        wants_next = params.prompt_logprobs is not None and end < row.n_prompt
        assert row.next_id == (r.known[end] if wants_next else None)
        gated = row.samples and row.n_output < params.min_tokens
        assert set(row.banned_ids) == (self.stops(r) if gated else set())
        assert set(row.stops) == self.stops(r)
        r.fed = end
        r.n_ahead += row.samples

    def check_admission(self) -> None:
        running = {r.request_id for r in self.live() if self.status(r) == Status.RUNNING}
        queued = [r for r in self.live() if self.status(r) == Status.QUEUED]
        stats = self.scheduler.stats()
        assert (len(running), len(queued)) == (stats["n_running"], stats["n_queued"])
        slots = [r.slot for r in self.live() if r.runs]
        assert len(set(slots)) == len(slots), "a slot is shared"
        for r in queued:
            assert r.slot is None
            assert r.fed == 0
            before = [
                other
                for other in self.requests.values()
                if other.spec.priority == r.spec.priority
                and other.spec.tenant == r.spec.tenant
                and other.request_id > r.request_id
            ]
            assert not any(other.request_id in running for other in before), "overtaken"

    def check_budget(self, rows: tuple[RowPlan, ...]) -> None:
        one = [row for row in rows if self.requests[row.request_id].n_known - row.position == 1]
        given = sum(row.n_ids for row in rows) - len(one)
        budget = self.config.max_num_batched_tokens
        assert given <= max(budget - len(one), CUT_MULTIPLE)

    def stops(self, r: Expected) -> set[int]:
        return {*r.spec.params.stop_ids, *(() if r.spec.params.ignore_eos else (EOS_ID,))}

    def status(self, r: Expected) -> Status | None:
        return self.scheduler.status(r.request_id)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        rows = self.in_flight[0].rows
        bad = frozenset(index for index in range(len(rows)) if data.draw(st.integers(0, 15)) == 15)
        self.run_step(bad)

    def run_step(self, bad: frozenset[int] = frozenset()) -> None:
        """Run and commit the oldest plan in flight; the rows in ``bad`` give no finite logits."""
        plan = self.in_flight.popleft()
        ids = self.device.run(plan)
        alive = list[tuple[int, Expected, int]]()
        for index, row in enumerate(plan.rows):
            r = self.requests[row.request_id]
            if index in bad:
                ids[index] = None
            if r.end is not None:
                continue
            alive.append((index, r, len(r.outputs)))
            r.n_ahead -= row.samples
            r.sampled = ids[index]
            assert (r.sampled is not None) == (row.samples and index not in bad), "frozen early"
            log = self.device.slots[row.slot].log
            assert log == r.known[: row.position + row.n_ids], "lost, doubled or not its own"
            if row.constraint is not None and r.sampled is not None:
                row.constraint.advance(r.sampled)
        result = StepResult(
            tuple(ids),
            not_finite=bad,
            prompt_logprobs={
                index: scores(row)
                for index, row in enumerate(plan.rows)
                if row.params.prompt_logprobs is not None and index not in bad
            },
        )
        self.scheduler.commit(plan, result, self.now)
        self.take_events()
        for index, r, n_output in alive:
            row = plan.rows[index]
            if index in bad:
                assert r.end is not None
                assert isinstance(r.end.error, NonFiniteError)
                assert r.end.error.position == row.position + row.n_ids
                continue
            assert (r.end is not None) == self.is_over(r, n_output, row)
            stopped = r.end is not None and r.end.status == Status.STOPPED
            assert r.sampled is None or stopped or r.outputs[n_output:] == [r.sampled]
            r.sampled = None

    def is_over(self, r: Expected, n_output: int, row: RowPlan) -> bool:
        """Whether a request that had ``n_output`` ids before this step is complete now."""
        params = r.spec.params
        if r.sampled is None:
            return params.max_tokens == 0 and row.position + row.n_ids == len(r.spec.prompt)
        stopped = r.sampled in self.stops(r) and n_output >= params.min_tokens
        return stopped or n_output + 1 == params.max_tokens

    @rule(n_steps=st.integers(1, 6))
    def run_undisturbed(self, n_steps: int) -> None:
        """Turns of a loop: the pipeline is filled, and the oldest step ends."""
        for _ in range(n_steps):
            self.fill()
            if not self.in_flight:
                return
            self.run_step()

    def fill(self) -> None:
        while len(self.in_flight) < self.depth:
            n_before = len(self.in_flight)
            self.plan()
            if len(self.in_flight) == n_before:
                return

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def cancel_in_flight(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(data.draw(st.sampled_from(self.in_flight)).rows))
        self.scheduler.cancel(row.request_id, self.now)
        self.take_events()
        self.run_step()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self) -> None:
        """The oldest plan in flight ran, and collecting it failed."""
        plan = self.in_flight.popleft()
        self.device.run(plan)
        rows = [self.requests[row.request_id] for row in plan.rows]
        alive = [r for r in rows if r.end is None]
        others = [r for r in self.live() if r not in rows]
        self.scheduler.fail(plan, StepFailedError(), self.now)
        self.take_events()
        for r in alive:
            assert r.end is not None
            assert isinstance(r.end.error, StepFailedError)
        assert all(r.end is None for r in others)

    # --- what is told -----------------------------------------------------------------------

    def take_events(self) -> None:
        for event in by_request(self.scheduler.take_events()):
            r = self.requests[event.request_id]
            assert r.end is None, "something happened after the end"
            match event:
                case TokenEvent():
                    assert event.index == len(r.outputs)
                    assert event.token_id == r.sampled
                    r.outputs.append(event.token_id)
                    r.known.append(event.token_id)
                    assert r.credit is None or r.credit > 0, "more ids than credit"
                    if r.credit is not None:
                        r.credit -= 1
                case PromptLogprobsEvent():
                    assert event.first == r.n_scored + 1
                    r.n_scored += len(event.logprobs)
                    scored = [logprobs.token_id for logprobs in event.logprobs]
                    assert scored == r.known[event.first : event.first + len(scored)]
                case SavedEvent() | PooledEvent() | ReusedEvent():
                    raise AssertionError("nobody asked for it")
                case EndEvent():
                    r.end = event
                    self.check_end(r, event)

    def check_end(self, r: Expected, end: EndEvent) -> None:
        params = r.spec.params
        alone, stop_id = continuation(
            r.request_id,
            r.spec.prompt,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            stops=self.stops(r),
            vocab_size=VOCAB_SIZE,
        )
        assert r.outputs == alone[: len(r.outputs)]
        if end.status in (Status.LENGTH, Status.STOPPED):
            assert (r.outputs, end.stop_id) == (alone, stop_id)
        assert (end.n_prompt, end.n_output) == (len(r.spec.prompt), len(r.outputs))
        assert (end.error is not None) == (end.status == Status.FINISHED_ERROR)
        assert (end.stop_id is not None) == (end.status == Status.STOPPED)
        if end.status == Status.LENGTH:
            assert len(r.outputs) == params.max_tokens
        if end.status == Status.STOPPED:
            assert end.stop_id == r.sampled
            assert end.stop_id in self.stops(r)
            assert len(r.outputs) >= params.min_tokens
        if end.status in (Status.LENGTH, Status.STOPPED) and params.prompt_logprobs is not None:
            assert r.n_scored == len(r.spec.prompt) - 1
        if end.status == Status.TIMED_OUT:
            assert self.now >= r.deadline
        if isinstance(end.error, StalledError):
            assert r.lacks_leave
        if isinstance(end.error, OverloadedError):
            assert r.fed == 0, "it was given up when it had cost something"
            assert self.now < r.deadline

    @invariant()
    def no_slot_is_lost(self) -> None:
        stats = self.scheduler.stats()
        assert stats["n_free_slots"] + stats["n_running"] == stats["n_slots"]
        assert stats["n_running"] + stats["n_queued"] == len(self.live())
        assert stats["requests_total"] == len(self.requests)
        assert stats["output_tokens_total"] == sum(len(r.outputs) for r in self.requests.values())

    @invariant()
    def finished_requests_are_forgotten(self) -> None:
        ended = [r for r in self.requests.values() if r.end is not None]
        remembered = [r for r in ended if self.status(r) is not None]
        assert len(remembered) == min(len(ended), self.config.max_completed_requests)
        assert all(r.end is not None and self.status(r) == r.end.status for r in remembered)

    @invariant()
    def the_next_deadline_is_no_later_than_any(self) -> None:
        at = self.scheduler.next_deadline()
        earliest = min((r.deadline for r in self.live()), default=None)
        assert (at is None) == (earliest is None)
        assert at is None or earliest is None or at <= earliest

    def teardown(self) -> None:
        """Once everybody may go on, everybody gets to an end, exactly one."""
        if not hasattr(self, "scheduler"):
            return
        while self.in_flight:
            self.run_step()
        for r in self.live():
            self.scheduler.release(r.request_id, self.now)
            self.scheduler.grant(r.request_id, 100, self.now)
            r.held = False
            r.credit = None if r.credit is None else r.credit + 100
        for _ in range(400):
            self.bind()
            self.run_undisturbed(1)
        assert not self.live()
        assert self.scheduler.next_deadline() is None
        assert self.scheduler.stats()["n_free_slots"] == self.config.n_slots


def test_every_request_is_owed_what_a_model_says_in_any_order_of_calls() -> None:
    n_steps = walk(SchedulerMachine, amount(10_000, 250_000))
    tell(0, "a scheduler against its model", n_steps, "steps")
