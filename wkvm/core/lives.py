"""The requests of a scheduler between their steps: how they pause, leave their slots, and end.

All that happens to one request outside of a plan's rows; ``wkvm.core.scheduler`` makes the plans.
"""

from collections import Counter
from typing import Any

from wkvm.core.config import EngineConfig
from wkvm.core.counters import Counters
from wkvm.core.deadlines import Deadlines
from wkvm.core.errors import InvalidParameterError, StalledError, StepFailedError, WkvmError
from wkvm.core.foresight import Foresight
from wkvm.core.grammar import Unbound
from wkvm.core.guests import Guests
from wkvm.core.outcome import held_back
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.prefixes import Budget
from wkvm.core.request import Event, SavedEvent, Status
from wkvm.core.reuse import Reuse
from wkvm.core.saving import Purpose, Savings, Wanted, saved_of
from wkvm.core.slots import TenantSlots
from wkvm.core.start import Entry, Saved, SavedRecord
from wkvm.core.table import Ending, Request, RequestTable
from wkvm.core.waiting import WaitingLine

PATIENCE_S = 0.25
"""How long a request that may not produce keeps a slot that another waits for."""


class Lives:
    """Requests that wait, run, pause and end; the base of the scheduler.

    Saving: a request whose state is to be saved at its end gives up its slot with the plan that
    has the copy, and ends with that plan's result. One that is interrupted does the same, after
    the steps that were in flight.

    Args:
        blank: the record of the empty sequence, for requests that end before they absorb anything.
        has_guest: whether states have pages, too.
        loads_beside: whether these are filled while other steps run.
        budget: for checkpoints of prompts; None keeps none.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        blank: Any,
        has_guest: bool,
        loads_beside: bool,
        budget: Budget | None,
    ) -> None:
        self._config = config
        self._blank = blank
        self._slots = TenantSlots(config.n_slots, config.max_slots_per_tenant)
        self._guests: Guests | None = None
        if has_guest:
            self._guests = Guests(
                config.n_pages,
                limit=config.max_pages_per_tenant,
                most=config.max_pages_per_slot,
                notes_freed=config.poison_freed_slots,
                loads_beside=loads_beside,
            )
        self._table = RequestTable(config.max_completed_requests)
        self._waiting = WaitingLine()
        self._foresight = Foresight(config, self._waiting)
        self._running = dict[int, Request]()
        """Those whose rows count."""
        self._active = dict[int, Request]()
        """Those of them that get rows."""
        self._paused = dict[int, Request]()
        """Those of these that may not produce, the longest first."""
        self._hibernated = set[int]()
        """Those whose state is in host memory, or on its way."""
        self._checkpointed = dict[int, Request]()
        self._n_active = Counter[tuple[str, int]]()
        """By tenant and priority."""
        self._planned_at = 0.0
        self._savings = Savings()
        self._reuse: Reuse | None = None
        if budget is not None:
            self._reuse = Reuse(budget, self._waiting, self._slots, self._guests, self._savings)
        self._late = set[int]()
        """Tickets of copies that come with the result of a later plan than their own."""
        self._deadlines = Deadlines(self._due)
        self._unbound: list[Unbound] = []
        self._events = list[Event]()
        self._counters = Counters()

    # --- calls that may come at any time -----------------------------------------------------

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
        elif not request.is_leaving and (request.slot is None or request.is_fresh):
            self._end_unsaved(request, Status.CANCELLED, now)
        else:
            request.is_interrupted = True
            self._leave(request)

    def snapshot(self, request_id: int) -> bool:
        """Have the state of a request told as it is after the steps in flight.

        Returns:
            Whether a SavedEvent will come, unless the request ends before; one for all that asked
            meanwhile. Else it is unknown, has ended or is about to.

        Raises:
            InvalidParameterError: its output is not kept: it neither saves nor had a start.
        """
        request = self._table.get(request_id)
        if request is None or request.ending is not None or request.is_interrupted:
            return False
        if request.output is None:
            raise InvalidParameterError("save", "the state of this request is not kept")
        if request.is_leaving:
            request.is_asked_for = True
        elif request.slot is None or request.is_fresh:
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

    def status(self, request_id: int) -> Status | None:
        """Where a request is; None if it is unknown, or ended so long ago that it is forgotten."""
        return self._table.status(request_id)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # --- states that are copied ----------------------------------------------------------

    def _take_saved(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Tell the copies of a plan, which were made before its rows ran, and those that are late.

        Those of plans before come first.
        """
        tickets = list[int]()
        if self._late:
            tickets += [one for one in (*result.saved, *result.unsaved) if one in self._late]
            self._late.difference_update(tickets)
        tickets += [save.ticket for save in plan.saves if save.ticket not in result.late]
        self._late |= result.late
        for ticket in tickets:
            if self._guests is not None:
                self._guests.let_go(ticket)
            record, reuse = result.saved.get(ticket), self._reuse
            if reuse is not None and reuse.landed(ticket, record and record.record):
                continue
            wanted = self._savings.landed(ticket)
            if wanted is None:
                continue
            if record is None:
                error = result.unsaved.get(ticket, StepFailedError())
                self._not_saved(wanted, error, now)
                continue
            self._counters.n_saves += 1
            request, ending = wanted.request, wanted.request.ending
            if wanted.purpose is not Purpose.LAST:
                self._tell(wanted, saved_of(request, record, wanted.n_computed))
            elif ending is not None:
                saved = saved_of(request, record, ending.n_computed, ending)
                self._end(request, ending.status, now, stop_id=ending.stop_id, saved=saved)
            elif request.is_interrupted:
                saved = saved_of(request, record, wanted.n_computed)
                self._end(request, Status.CANCELLED, now, saved=saved)
            else:
                self._put_back(request, record)

    def _take_loaded(self, guests: Guests, result: StepResult, now: float) -> None:
        """Let requests run whose images are loaded, and end those whose images cannot be."""
        for ticket in result.loaded:
            request = guests.loaded(ticket)
            if request is not None:
                self._activate(request)
        for ticket, error in result.unloaded.items():
            for request in guests.unloaded(ticket, self._running.values()):
                self._end(request, Status.FINISHED_ERROR, now, error=error)

    def _activate(self, request: Request) -> None:
        """Let a request that has a slot have rows."""
        self._active[request.request_id] = request
        self._n_active[request.tenant, request.priority] += 1

    def _tell(self, wanted: Wanted, saved: Saved | None, error: WkvmError | None = None) -> None:
        is_checkpoint = wanted.purpose is Purpose.CHECKPOINT
        event = SavedEvent(wanted.request.request_id, saved, is_checkpoint, error)
        self._events.append(event)

    def _not_saved(self, wanted: Wanted, error: WkvmError, now: float) -> None:
        request = wanted.request
        if wanted.purpose is Purpose.LAST:
            self._end(request, Status.FINISHED_ERROR, now, error=error)
        else:
            self._tell(wanted, None, error)

    def _unchanged(self, request: Request, ending: Ending | None = None) -> Saved:
        """The state of a request that has absorbed nothing since it got, or lost, its slot."""
        record, entry = SavedRecord(self._blank), request.entry
        if request.prefix is not None:
            return saved_of(
                request, record, 0, ending
            )  # of another's prompt nothing is its own yet
        if entry is not None:
            record = SavedRecord(entry.record, tuple(entry.counts), frozenset(entry.seen))
        return saved_of(request, record, request.n_computed, ending)

    # --- ends -------------------------------------------------------------------------------

    def _part(self, request: Request, ending: Ending) -> None:
        """A request is complete but for the copy of its state."""
        request.ending = ending
        self._leave(request)
        del self._running[request.request_id]
        self._deadlines.forget(request.request_id)

    def _leave(self, request: Request) -> None:
        """Have the state of a request copied for good. Its rows in flight count."""
        self._pull(request)
        # One that leaves already has a copy on its way, of the state that it has now.
        if not request.is_leaving:
            request.is_leaving = True
            self._savings.want(request, Purpose.LAST)

    def _pull(self, request: Request) -> None:
        """Plan no more rows for a request."""
        if self._active.pop(request.request_id, None) is not None:
            key = request.tenant, request.priority
            self._n_active[key] -= 1
            if not self._n_active[key]:
                del self._n_active[key]
        self._paused.pop(request.request_id, None)
        self._checkpointed.pop(request.request_id, None)
        if self._reuse is not None:
            self._reuse.left(request)

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
        else:
            self._give_back(request)
        self._pull(request)
        self._running.pop(request.request_id, None)
        self._hibernated.discard(request.request_id)
        self._deadlines.forget(request.request_id)
        self._table.move(request, status)
        end = request.end_event(status, now, stop_id=stop_id, error=error, saved=saved)
        self._counters.ended(end)
        self._foresight.ended(request, status, now)
        self._events.append(end)

    def _give_back(self, request: Request) -> None:
        """Take the slot and the pages of a request, if it has any."""
        if request.slot is not None:
            self._slots.free(request.slot, request.tenant)
            request.slot = None
            if self._guests is not None:
                self._guests.give_back(request)

    def _end_unsaved(self, request: Request, status: Status, now: float) -> None:
        """End a request whose state is what it began with: there is nothing to be copied."""
        saved = None
        if request.spec.save:
            ending = Ending(status, None, 0, held_back(request))
            saved = self._unchanged(request, ending if status is Status.LENGTH else None)
        self._end(request, status, now, saved=saved)

    # --- times ------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``plan`` should be called although nothing else happens; None for never."""
        at = self._deadlines.next()
        if len(self._waiting) and self._config.max_hibernated:
            for request in self._paused.values():
                patient_until = (request.paused_since or 0.0) + PATIENCE_S
                if patient_until > self._planned_at:
                    return patient_until if at is None else min(at, patient_until)
        return at

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

    def _due(self, request_id: int) -> float:
        request = self._table.get(request_id)
        if request is None:
            raise ValueError(f"request {request_id} ended and has a deadline")
        if request.paused_since is None:
            return request.deadline
        return min(request.deadline, request.paused_since + self._config.stall_timeout_s)

    def _note_pause(self, request: Request, now: float) -> None:
        """Start or stop the clock of a request that holds a slot it may not use."""
        if request.ending is not None or request.in_line or request.is_leaving:
            return
        if request.may_produce:
            request.paused_since = None
            self._paused.pop(request.request_id, None)
            if request.slot is None:
                self._waiting.push(request, first=True)
        elif request.paused_since is None:
            request.paused_since = now
            self._paused[request.request_id] = request
            self._deadlines.set(request.request_id, self._due(request.request_id))

    # --- hibernation ------------------------------------------------------------------------

    def _put_back(self, request: Request, record: SavedRecord) -> None:
        """A request whose state is in host memory waits again."""
        if request.is_asked_for:
            request.is_asked_for = False
            saved = saved_of(request, record, request.n_computed)
            self._events.append(SavedEvent(request.request_id, saved, is_checkpoint=False))
        request.entry = Entry(
            record=record.record, n_start=request.n_start, counts=record.counts, seen=record.seen
        )
        request.is_fresh, request.is_leaving = True, False
        self._counters.n_hibernated += 1
        self._queue_again(request)

    def _queue_again(self, request: Request) -> None:
        """A request without a slot waits again, once it may produce."""
        del self._running[request.request_id]
        self._table.move(request, Status.QUEUED)
        if request.may_produce:
            request.paused_since = None
            self._waiting.push(request, first=True)
