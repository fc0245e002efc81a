"""Who gets a slot next, and what it begins with there."""

from wkvm.core.beginning import told_before
from wkvm.core.errors import WkvmError
from wkvm.core.grammar import Constraint, Unbound
from wkvm.core.hibernation import Hibernation
from wkvm.core.request import Status
from wkvm.core.saving import checkpoint_after
from wkvm.core.table import Request

MAX_ENTRIES = 4
"""States that are put into slots by one plan, those of one record counted once: the device waits
for all of them, which must not take longer than a step."""


class Admission(Hibernation):
    """Requests that get slots. The rules are in the scheduler's description."""

    def _admit(self, now: float) -> bool:
        """Give out slots. Returns whether somebody was passed over for want of room for records."""
        entries, n_passed = dict[int, object](), 0
        guests, lacks_pages = self._guests, False

        def may_go(request: Request) -> bool | None:
            nonlocal n_passed, lacks_pages
            if lacks_pages or not self._slots.n_free_for(request.tenant):
                return False
            if self._reuse is not None and not self._reuse.look_up(request):
                return None
            record = _record_of(request)
            fits = record is None or id(record) in entries or len(entries) < MAX_ENTRIES
            n_passed += not fits
            if guests is None or not fits:
                return fits
            if guests.is_at_limit(request):
                return False
            lacks_pages = guests.n_needed(request) > guests.n_free
            return not lacks_pages

        n_admitted = 0
        while self._slots.n_free:
            request = self._waiting.pop(may_go)
            if request is None:
                break
            n_admitted += 1
            if self._foresight.is_too_late(request, now, is_alone=not self._running):
                error = self._foresight.too_late(request)
                self._counters.n_too_late += 1
                self._end(request, Status.FINISHED_ERROR, now, error=error)
                continue
            self._settle(request, now)
            if request.entry is not None:
                self._counters.n_starts += 1
                if request.entry.record is not None:
                    entries[id(request.entry.record)] = request.entry
            if not request.n_known:
                self._end_unsaved(request, Status.LENGTH, now)
                continue
            request.next_checkpoint = checkpoint_after(request)
            if request.next_checkpoint is not None:
                self._checkpointed[request.request_id] = request
            self._note_pause(request, now)
            if not request.is_ready:
                assert request.grammar is not None
                wanted = Unbound(
                    request.request_id,
                    request.grammar,
                    request.stops,
                    request.params.allowed_ids,
                    told_before(request.spec),
                )
                self._unbound.append(wanted)
        self._foresight.admitted(n_admitted, now)
        return n_passed > 0

    def _settle(self, request: Request, now: float) -> None:
        """Give a request a slot."""
        if self._reuse is not None:
            self._reuse.begin(request)
        if self._guests is not None:
            self._guests.take(request)
        request.slot = self._take_slot(request)
        if request.admitted_at is None:
            request.admitted_at = now
            self._counters.admitted(now - request.submitted_at)
        self._table.move(request, Status.RUNNING)
        self._hibernated.discard(request.request_id)
        self._running[request.request_id] = request
        if self._guests is None or not self._guests.must_load(request):
            self._activate(request)

    def _take_slot(self, request: Request) -> int:
        reuse = self._reuse
        if reuse is not None and not self._slots.n_unused and not reuse.reclaim_slot():
            return reuse.take_over(request)
        return self._slots.alloc(request.tenant)

    # --- grammars -----------------------------------------------------------------------------

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


def _record_of(request: Request) -> object:
    """What would have to go to the device for a request; None for nothing."""
    if request.prefix is not None:
        return request.prefix.record
    return None if request.entry is None else request.entry.record
