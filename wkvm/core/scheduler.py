"""Which requests run in the next step, and what became of them in the last.

Pure bookkeeping: no tensors, no clock (``now`` comes in), no random numbers. The scheduler
knows no phases. A request has ids, known so far, and a state that has absorbed
``n_computed`` of them; a step absorbs more, and where it reaches the last known id, the
next one is sampled.

Up to ``depth`` plans are in flight, and a request is planned as if all of them had run: it may
absorb an id that is still on its way.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from wkvm.core.beginning import told_before
from wkvm.core.checks import check_room, check_spec
from wkvm.core.config import CUT_MULTIPLE, EngineConfig
from wkvm.core.counters import Counters
from wkvm.core.deadlines import Deadlines
from wkvm.core.decode import decode_rows
from wkvm.core.errors import (
    DrainingError,
    InvalidParameterError,
    StalledError,
    StepFailedError,
    WkvmError,
)
from wkvm.core.grammar import Constraint, Unbound
from wkvm.core.outcome import apply, held_back
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.prompts import divide, prompt_row
from wkvm.core.request import (
    Event,
    RequestSpec,
    SavedEvent,
    Status,
)
from wkvm.core.saving import Purpose, Savings, Wanted, checkpoint_after, saved_of
from wkvm.core.slots import TenantSlots
from wkvm.core.start import Save, Saved, SavedRecord
from wkvm.core.table import Ending, Request, RequestTable, choices_of
from wkvm.core.waiting import WaitingLine

MAX_ENTRIES = 4
"""States that are put into slots by one plan, those of one record counted once: the device waits
for all of them, which must not take longer than a step."""


class Scheduler:
    """Requests in, plans out; results in, events out.

    Admission: in ``plan``, a waiting request gets a slot iff one is free and its tenant
    holds less than it may. Tenants take turns; among a tenant's own requests the lower
    priority goes first, then arrival. The bounds of the queue hold for each tenant, so that
    one cannot keep another out.

    Budget: a running request that lacks one id (each of those that decode) always gets it;
    such rows never wait. Of ``max_num_batched_tokens``, what they leave goes to prompts, but
    at least ``CUT_MULTIPLE``, so that there is always progress; and at most
    ``decode_prompt_tokens`` as long as others wait for their next id, whose time it adds to.
    Tenants share it. Of a tenant's requests the lower priority takes what it can use, equal ones
    share, and those that waited longest come first where there is too little for all.

    Credit and holds: a request that may not produce an id absorbs its prompt up to the last
    cut before its end, and waits there. One that is held and wants prompt log probabilities
    absorbs nothing. Ids whose steps were in flight when the hold came are still delivered.
    A stop id costs no credit, but is not looked for without.

    Grammars: a request that has one waits in the same way until ``bind`` brings what was made
    of it, and no clock of a stall runs.

    Stops: a stop id that is sampled before ``min_tokens`` is output like any other.

    In flight: no row is planned that only an end by length or a lack of credit would make
    superfluous; a request with a constraint waits for its id, which says what may follow. What
    is left to chance is a stop id. The row that follows one is ignored at ``commit``, as are
    all rows of requests that ended otherwise, were cancelled, or had a row in a plan that failed:
    a plan that was made before an earlier one failed is committed for all others.
    The slot of a request that ended may be in a plan in flight still. It is handed out all the
    same: the rows of a later plan run later, and its first row starts from zero.

    Args:
        depth: how many plans may be in flight, at least 1.
        decode_prompt_tokens: as configured, or what suits the device; None for no such limit.
        blank: the record of the empty sequence, for requests that end before they absorb anything.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        depth: int = 1,
        decode_prompt_tokens: int | None = None,
        blank: Any = None,
    ) -> None:
        self._config = config
        self._blank = blank
        self._decode_prompt_tokens = decode_prompt_tokens or config.max_num_batched_tokens
        self._depth = depth
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._slots = TenantSlots(config.n_slots, config.max_slots_per_tenant)
        self._table = RequestTable(config.max_completed_requests)
        self._waiting = WaitingLine()
        self._running = dict[int, Request]()
        self._active = dict[int, Request]()
        self._savings = Savings()
        self._checkpointed = dict[int, Request]()
        self._deadlines = Deadlines(self._due)
        self._in_flight = deque[StepPlan]()
        self._unbound = list[Unbound]()
        self._events = list[Event]()
        self._turn = 0
        self._draining = False
        self._counters = Counters()

    # --- requests in ----------------------------------------------------------------------

    def submit(
        self,
        request_ids: Sequence[int],
        spec: RequestSpec,
        *,
        seed: int,
        branches: Sequence[int],
        now: float,
    ) -> None:
        """Queue a request for each choice, ``n`` in all. If it raises, nothing has changed.

        Linear in the ids that the spec brings, whatever ``n``.

        Args:
            request_ids: ``n`` of them, never used before.
            spec: what the choices have in common.
            seed, branches: with a position, the keys of their random numbers; ``n`` branches.

        Raises:
            RequestError: the request is wrong.
            DrainingError: nothing new is taken.
            QueueFullError: the free slots do not suffice for what its tenant has waiting and
                these, and beyond them there would be more than ``max_queue`` requests, or in
                all more than ``max_queued_tokens`` ids.
            ValueError: an id is in use, or there are not ``n`` ids and branches.
        """
        config = self._config
        stops = check_spec(
            spec, self._vocab_size, self._eos_ids, max_model_len=config.max_model_len
        )
        if self._draining:
            raise DrainingError
        check_room(spec, config, self._waiting, self._slots.n_free_for(spec.tenant))
        deadline = now + (config.request_timeout_s if spec.timeout_s is None else spec.timeout_s)
        requests = choices_of(
            request_ids,
            spec,
            seed=seed,
            branches=branches,
            stops=stops,
            vocab_size=self._vocab_size,
            now=now,
            deadline=deadline,
        )
        self._table.add(*requests)
        for request in requests:
            self._waiting.push(request)
            self._deadlines.set(request.request_id, deadline)
        self._counters.n_requests += len(requests)

    def cancel(self, request_id: int, now: float) -> None:
        """End a request, whatever it does. Unknown and ended ones are ignored.

        So is one that is complete and lacks the copy of its state: its end comes with that.
        """
        request = self._table.get(request_id)
        if request is not None and request.ending is None:
            self._end(request, Status.CANCELLED, now)

    def interrupt(self, request_id: int, now: float) -> None:
        """End a request as cancelled, with its state if it saves it.

        The ids of steps in flight are still delivered, and its end by one of them counts. Unknown
        and ended requests are ignored, and complete ones.
        """
        request = self._table.get(request_id)
        if request is None or request.ending is not None or request.is_interrupted:
            return
        if not request.spec.save:
            self._end(request, Status.CANCELLED, now)
        elif request.slot is None or request.is_fresh:
            self._end_unsaved(request, Status.CANCELLED, now)
        else:
            request.is_interrupted = True
            self._pull(request)
            self._savings.want(request, Purpose.LAST)

    def snapshot(self, request_id: int) -> bool:
        """Have the state of a request told as it is after the steps in flight.

        Returns:
            Whether a SavedEvent will come, unless the request ends before; else it is unknown, has
            ended or is about to.

        Raises:
            InvalidParameterError: its output is not kept: it neither saves nor had a start.
        """
        request = self._table.get(request_id)
        if request is None or request.ending is not None or request.is_interrupted:
            return False
        if request.output is None:
            raise InvalidParameterError("save", "the state of this request is not kept")
        if request.slot is None or request.is_fresh:
            saved = self._unchanged(request)
            self._events.append(SavedEvent(request_id, saved, is_checkpoint=False))
        else:
            self._savings.want(request, Purpose.ASKED)
        return True

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        """Add to a request's credit. Unknown, ended and unlimited ones are left as they are.

        Raises:
            ValueError: ``n_tokens`` is below 1.
        """
        if n_tokens < 1:
            raise ValueError(f"cannot grant {n_tokens} tokens")
        request = self._table.get(request_id)
        if request is not None and request.credit is not None:
            request.credit += n_tokens
            self._note_pause(request, now)

    def hold(self, request_id: int, now: float) -> None:
        """Produce nothing for a request until released. Holds do not add up."""
        self._set_held(request_id, now, held=True)

    def release(self, request_id: int, now: float) -> None:
        """End a hold, if there is one."""
        self._set_held(request_id, now, held=False)

    def _set_held(self, request_id: int, now: float, *, held: bool) -> None:
        request = self._table.get(request_id)
        if request is not None:
            request.held = held
            self._note_pause(request, now)

    def take_unbound(self) -> list[Unbound]:
        """The requests with grammars that got slots since the last call, perhaps ended since."""
        unbound, self._unbound = self._unbound, []
        return unbound

    def bind(self, request_id: int, constraint: Constraint) -> None:
        """Let a request with a grammar produce. Unknown and ended ones are ignored."""
        request = self._table.get(request_id)
        if request is not None:
            request.constraint = constraint
            request.is_ready = True

    def refuse(self, request_id: int, error: WkvmError, now: float) -> None:
        """End a request whose grammar is wrong. Unknown and ended ones are ignored."""
        request = self._table.get(request_id)
        if request is not None:
            self._end(request, Status.FINISHED_ERROR, now, error=error)

    def drain(self) -> None:
        """Refuse new requests from now on; those that are queued or running go on."""
        self._draining = True

    # --- a step ---------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Expire what is overdue, admit what fits, and choose the next step's rows.

        About 1 us a row, beyond what is admitted, ended or absorbed from prompts.

        Returns:
            A plan, which is then in flight until ``commit`` or ``fail``; None if there is
            nothing to run now.

        Raises:
            ValueError: ``depth`` plans are in flight.
        """
        if len(self._in_flight) == self._depth:
            raise ValueError(f"{self._depth} plans are in flight")
        self._expire(now)
        saves = self._saves()
        are_more = True
        rows = list[RowPlan]()
        while are_more and not rows:
            are_more = self._admit(now)
            rows, prompts, anybody_waits = decode_rows(self._active.values())
            if prompts:
                left = self._config.max_num_batched_tokens - len(rows)
                if anybody_waits:
                    left = min(left, self._decode_prompt_tokens)
                rows += self._prompt_rows(prompts, max(left, CUT_MULTIPLE))
        if not (rows or saves):
            if not self._in_flight:
                self._counters.idle()
            return None
        self._counters.planned(now)
        plan = StepPlan(tuple(rows), self._slots.take_freed(), saves)
        self._in_flight.append(plan)
        return plan

    def _saves(self) -> tuple[Save, ...]:
        """What is to be copied before the rows of a plan; slots that are left with it are free."""
        for request in self._checkpointed.values():
            if request.n_computed == request.next_checkpoint:
                request.next_checkpoint = checkpoint_after(request)
                self._savings.want(request, Purpose.CHECKPOINT)
        saves = list[Save]()
        for save, wanted in self._savings.take():
            saves.append(save)
            if wanted.purpose is Purpose.LAST:
                wanted.request.slot = None
                self._slots.free(save.slot, wanted.request.tenant)
        return tuple(saves)

    def _expire(self, now: float) -> None:
        for request_id in self._deadlines.pop_due(now):
            request = self._table.get(request_id)
            if request is None:
                raise ValueError(f"request {request_id} ended and has a deadline")
            if request.deadline <= now:
                self._end(request, Status.TIMED_OUT, now)
            else:
                stalled = StalledError(self._config.stall_timeout_s)
                self._end(request, Status.FINISHED_ERROR, now, error=stalled)

    def _admit(self, now: float) -> bool:
        """Give out slots. Returns whether somebody was passed over for want of room for records."""
        entries, n_passed = dict[int, object](), 0

        def may_go(request: Request) -> bool:
            nonlocal n_passed
            if not self._slots.n_free_for(request.tenant):
                return False
            entry = request.entry
            fits = entry is None or id(entry.record) in entries or len(entries) < MAX_ENTRIES
            n_passed += not fits
            return fits

        while self._slots.n_free:
            request = self._waiting.pop(may_go)
            if request is None:
                break
            if request.entry is not None:
                entries[id(request.entry.record)] = request.entry
            request.slot = self._slots.alloc(request.tenant)
            request.admitted_at = now
            self._counters.admitted(now - request.submitted_at)
            self._table.move(request, Status.RUNNING)
            self._running[request.request_id] = self._active[request.request_id] = request
            if not request.n_known:
                self._end_unsaved(request, Status.LENGTH, now)
                continue
            request.next_checkpoint = checkpoint_after(request)
            if request.next_checkpoint is not None:
                self._checkpointed[request.request_id] = request
            self._next_turn(request)
            self._note_pause(request, now)
            if request.grammar is not None:
                wanted = Unbound(
                    request.request_id,
                    request.grammar,
                    request.stops,
                    request.params.allowed_ids,
                    told_before(request.spec),
                )
                self._unbound.append(wanted)
        return n_passed > 0

    def _prompt_rows(self, prompts: list[Request], budget: int) -> list[RowPlan]:
        """Rows for the prompts that get a share of ``budget``."""
        rows = list[RowPlan]()
        for request, n_tokens in divide(prompts, budget):
            self._next_turn(request)
            row = prompt_row(request, n_tokens)
            rows.append(row)
            request.n_computed += n_tokens
            request.is_fresh = False
            if row.samples:
                request.n_known += 1
                request.n_ahead = 1
        return rows

    def _next_turn(self, request: Request) -> None:
        self._turn += 1
        request.turn = self._turn

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a step's result. Rows whose requests ended meanwhile are ignored.

        Raises:
            ValueError: ``plan`` is not the oldest in flight, or ``result`` does not fit it.
        """
        if len(result.token_ids) != len(plan.rows):
            raise ValueError(f"{len(result.token_ids)} results for {len(plan.rows)} rows")
        self._land(plan, now)
        self._take_saved(plan, result, now)
        counters = self._counters
        for row in plan.rows:
            if row.position < row.n_prompt:
                counters.n_prompt_tokens += len(row.ids)
        outcome = apply(plan, result, self._running)
        self._events += outcome.events
        for request in outcome.first:
            request.first_token_at = now
            counters.first_token(now - request.submitted_at)
        counters.produced(len(outcome.first), outcome.n_following)
        for request in outcome.spent:
            self._note_pause(request, now)
        for request, ending, error in outcome.ended:
            if error is None and request.spec.save:
                self._part(request, ending)
            else:
                self._end(request, ending.status, now, stop_id=ending.stop_id, error=error)

    def _take_saved(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Tell the copies of a plan, which were made before its rows ran."""
        for save in plan.saves:
            wanted = self._savings.landed(save)
            if wanted is None:
                continue
            record = result.saved.get(save.ticket)
            if record is None:
                error = result.unsaved.get(save.ticket, StepFailedError())
                self._not_saved(wanted, error, now)
                continue
            request, ending = wanted.request, wanted.request.ending
            if wanted.purpose is not Purpose.LAST:
                saved = saved_of(request, record, wanted.n_computed)
                is_checkpoint = wanted.purpose is Purpose.CHECKPOINT
                self._events.append(SavedEvent(request.request_id, saved, is_checkpoint))
            elif ending is None:
                saved = saved_of(request, record, wanted.n_computed)
                self._end(request, Status.CANCELLED, now, saved=saved)
            else:
                saved = saved_of(request, record, ending.n_computed, ending)
                self._end(request, ending.status, now, stop_id=ending.stop_id, saved=saved)

    def _not_saved(self, wanted: Wanted, error: WkvmError, now: float) -> None:
        request = wanted.request
        if wanted.purpose is Purpose.LAST:
            self._end(request, Status.FINISHED_ERROR, now, error=error)
        else:
            is_checkpoint = wanted.purpose is Purpose.CHECKPOINT
            self._events.append(SavedEvent(request.request_id, None, is_checkpoint, error))

    def _part(self, request: Request, ending: Ending) -> None:
        """A request is complete but for the copy of its state."""
        request.ending = ending
        self._pull(request)
        del self._running[request.request_id]
        self._deadlines.forget(request.request_id)
        # An interrupted one has a copy on its way, of the state that it has now.
        if not request.is_interrupted:
            self._savings.want(request, Purpose.LAST)

    def _pull(self, request: Request) -> None:
        """Plan no more rows for a request. Those in flight count."""
        self._active.pop(request.request_id, None)
        self._checkpointed.pop(request.request_id, None)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan that did not run, but those that ended meanwhile.

        Raises:
            ValueError: ``plan`` is not the oldest in flight.
        """
        self._land(plan, now)
        for save in plan.saves:
            wanted = self._savings.landed(save)
            if wanted is not None:
                self._not_saved(wanted, error, now)
        for row in plan.rows:
            request = self._running.get(row.request_id)
            if request is not None:
                self._end(request, Status.FINISHED_ERROR, now, error=error)

    def _land(self, plan: StepPlan, now: float) -> None:
        if not self._in_flight or plan is not self._in_flight[0]:
            raise ValueError("the plan is not the oldest in flight")
        self._in_flight.popleft()
        self._counters.landed(now)

    def _end(
        self,
        request: Request,
        status: Status,
        now: float,
        *,
        stop_id: int | None = None,
        error: WkvmError | None = None,
        saved: Saved | None = None,
    ) -> None:
        """The one way out: the slot, the deadline and the place in the line are given up."""
        if request.in_line:
            self._waiting.remove(request)
        elif request.slot is not None:
            self._slots.free(request.slot, request.tenant)
            request.slot = None
        self._pull(request)
        self._running.pop(request.request_id, None)
        self._deadlines.forget(request.request_id)
        self._table.move(request, status)
        end = request.end_event(status, now, stop_id=stop_id, error=error, saved=saved)
        self._counters.ended(end)
        self._events.append(end)

    def _end_unsaved(self, request: Request, status: Status, now: float) -> None:
        """End a request whose state is what it began with: there is nothing to be copied."""
        saved = None
        if request.spec.save:
            ending = Ending(status, None, 0, held_back(request))
            saved = self._unchanged(request, ending if status is Status.LENGTH else None)
        self._end(request, status, now, saved=saved)

    def _unchanged(self, request: Request, ending: Ending | None = None) -> Saved:
        """The state of a request that has absorbed nothing since it got, or lost, its slot."""
        record, entry = SavedRecord(self._blank), request.entry
        if entry is not None:
            record = SavedRecord(entry.record, tuple(entry.counts), frozenset(entry.seen))
        return saved_of(request, record, request.n_computed, ending)

    # --- times ----------------------------------------------------------------------------

    def _due(self, request_id: int) -> float:
        request = self._table.get(request_id)
        if request is None:
            raise ValueError(f"request {request_id} ended and has a deadline")
        if request.paused_since is None:
            return request.deadline
        return min(request.deadline, request.paused_since + self._config.stall_timeout_s)

    def _note_pause(self, request: Request, now: float) -> None:
        """Start or stop the clock of a request that holds a slot it may not use."""
        if request.slot is None or request.ending is not None:
            return
        if request.may_produce:
            request.paused_since = None
        elif request.paused_since is None:
            request.paused_since = now
            self._deadlines.set(request.request_id, self._due(request.request_id))

    def next_deadline(self) -> float | None:
        """When ``plan`` should be called although nothing else happens; None for never."""
        return self._deadlines.next()

    # --- what happened --------------------------------------------------------------------

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def status(self, request_id: int) -> Status | None:
        """Where a request is; None if it is unknown, or ended so long ago that it is forgotten."""
        return self._table.status(request_id)

    def stats(self) -> Mapping[str, int]:
        """Gauges, and what was counted since the start; names as in ``docs/protocol.md``."""
        n_running = len(self._table.live) - len(self._waiting)
        return {
            "n_slots": self._slots.n_slots,
            "n_free_slots": self._slots.n_free,
            "n_queued": len(self._waiting),
            "n_running": n_running,
            "n_paused": sum(r.paused_since is not None for r in self._running.values()),
            "n_completed_remembered": self._table.n_completed,
            "draining": int(self._draining),
            **self._counters.by_name(),
        }
