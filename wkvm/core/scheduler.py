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

from wkvm.core.checks import check_room, check_spec
from wkvm.core.config import CUT_MULTIPLE, EngineConfig
from wkvm.core.counters import Counters
from wkvm.core.deadlines import Deadlines
from wkvm.core.decode import decode_rows
from wkvm.core.errors import (
    DrainingError,
    StalledError,
    WkvmError,
)
from wkvm.core.grammar import Constraint, Unbound
from wkvm.core.outcome import apply
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.prompts import divide, prompt_row
from wkvm.core.request import (
    Event,
    RequestSpec,
    Status,
)
from wkvm.core.slots import TenantSlots
from wkvm.core.table import Request, RequestTable, choices_of
from wkvm.core.waiting import WaitingLine


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
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        depth: int = 1,
        decode_prompt_tokens: int | None = None,
    ) -> None:
        self._config = config
        self._decode_prompt_tokens = decode_prompt_tokens or config.max_num_batched_tokens
        self._depth = depth
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._slots = TenantSlots(config.n_slots, config.max_slots_per_tenant)
        self._table = RequestTable(config.max_completed_requests)
        self._waiting = WaitingLine()
        self._running = dict[int, Request]()
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
        """End a request, whatever it does. Unknown and ended ones are ignored."""
        request = self._table.get(request_id)
        if request is not None:
            self._end(request, Status.CANCELLED, now)

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
        self._admit(now)
        rows, prompts, anybody_waits = decode_rows(self._running.values())
        if prompts:
            left = self._config.max_num_batched_tokens - len(rows)
            if anybody_waits:
                left = min(left, self._decode_prompt_tokens)
            rows += self._prompt_rows(prompts, max(left, CUT_MULTIPLE))
        if not rows:
            if not self._in_flight:
                self._counters.idle()
            return None
        self._counters.planned(now)
        plan = StepPlan(tuple(rows), self._slots.take_freed())
        self._in_flight.append(plan)
        return plan

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

    def _admit(self, now: float) -> None:
        while self._slots.n_free:
            request = self._waiting.pop(lambda tenant: self._slots.n_free_for(tenant) > 0)
            if request is None:
                return
            request.slot = self._slots.alloc(request.tenant)
            request.admitted_at = now
            self._counters.admitted(now - request.submitted_at)
            self._table.move(request, Status.RUNNING)
            self._running[request.request_id] = request
            self._next_turn(request)
            self._note_pause(request, now)
            if request.grammar is not None:
                wanted = Unbound(
                    request.request_id, request.grammar, request.stops, request.params.allowed_ids
                )
                self._unbound.append(wanted)

    def _prompt_rows(self, prompts: list[Request], budget: int) -> list[RowPlan]:
        """Rows for the prompts that get a share of ``budget``."""
        rows = list[RowPlan]()
        for request, n_tokens in divide(prompts, budget):
            self._next_turn(request)
            row = prompt_row(request, n_tokens)
            rows.append(row)
            request.n_computed += n_tokens
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
        for request, status, stop_id, error in outcome.ended:
            self._end(request, status, now, stop_id=stop_id, error=error)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan that did not run, but those that ended meanwhile.

        Raises:
            ValueError: ``plan`` is not the oldest in flight.
        """
        self._land(plan, now)
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
    ) -> None:
        """The one way out: the slot, the deadline and the place in the line are given up."""
        if request.slot is None:
            self._waiting.remove(request)
        else:
            del self._running[request.request_id]
            self._slots.free(request.slot, request.tenant)
        self._deadlines.forget(request.request_id)
        self._table.move(request, status)
        end = request.end_event(status, now, stop_id=stop_id, error=error)
        self._counters.ended(end)
        self._events.append(end)

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
        if request.slot is None:
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
        n_running = len(self._running)
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
