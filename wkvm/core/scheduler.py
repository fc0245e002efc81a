"""Which requests run in the next step, and what became of them in the last.

Pure bookkeeping: no tensors, no clock (``now`` comes in), no random numbers. The scheduler
knows no phases. A request has ids, known so far, and a state that has absorbed
``n_computed`` of them; a step absorbs more, and where it reaches the last known id, the
next one is sampled.

Up to ``depth`` plans are in flight, and a request is planned as if all of them had run: it may
absorb an id that is still on its way.
"""

from collections import deque
from collections.abc import Container, Mapping, Sequence
from itertools import starmap
from typing import Any

from wkvm.core.admission import Admission
from wkvm.core.checks import check_n, check_room, check_spec
from wkvm.core.config import CUT_MULTIPLE, EngineConfig
from wkvm.core.decode import decode_rows
from wkvm.core.errors import CapacityError, DrainingError, WkvmError
from wkvm.core.outcome import apply
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.prefixes import Budget
from wkvm.core.prompts import Served, divide, prompt_row
from wkvm.core.request import RequestSpec, ReusedEvent, Status
from wkvm.core.saving import MAX_SAVES, Purpose, checkpoint_after
from wkvm.core.start import Copy, Save
from wkvm.core.table import Request, choices_of


class Scheduler(Admission):
    """Requests in, plans out; results in, events out.

    Admission: in ``plan``, a waiting request gets a slot iff one is free and its tenant
    holds less than it may. Tenants take turns; among a tenant's own requests the lower
    priority goes first, then arrival. The bounds of the queue hold for each tenant, so that
    one cannot keep another out. Where states have guests, pages for all that the request may
    absorb must be free as well, and it gets them together with the slot. If they are not, nobody
    whose turn comes after gets any: a long request is not overtaken until it starves.

    Budget: a running request that lacks one id (each of those that decode) always gets it;
    such rows never wait. Of ``max_num_batched_tokens``, what they leave goes to prompts, but
    at least ``CUT_MULTIPLE``, so that there is always progress; and at most
    ``decode_prompt_tokens`` as long as others wait for their next id, whose time it adds to.
    Tenants share it, and who got less of it before is given more. Of a tenant's requests the lower
    priority takes what it can use; of equal ones the first gets an eighth in the long run, and the
    rest goes to those that are over soonest.

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
        has_guest: whether states have pages in a guest pool.
        loads_beside: whether these are filled while other steps run, before the first row.
        budget: for what is kept of prompts, from which others go on; None keeps nothing.
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
        has_guest: bool = False,
        loads_beside: bool = False,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(
            config, blank=blank, has_guest=has_guest, loads_beside=loads_beside, budget=budget
        )
        self._decode_prompt_tokens = decode_prompt_tokens or config.max_num_batched_tokens
        self._depth = depth
        self._served = Served()
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._in_flight = deque[StepPlan]()
        self._draining = False

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
                all more than ``max_queued_tokens`` ids; or more than ``max_queue_of_all``
                requests of all tenants, and more of its own than its share.
            OverloadedError: so many wait that it would not be over in its time.
            ValueError: an id is in use, or there are not ``n`` ids and branches.
        """
        config = self._config
        stops = check_spec(
            spec, self._vocab_size, self._eos_ids, max_model_len=config.max_model_len
        )
        check_n(spec, config)
        if self._guests is not None:
            self._guests.check(spec)
        if self._draining:
            raise DrainingError
        timeout_s = config.request_timeout_s if spec.timeout_s is None else spec.timeout_s
        n_free, foresight = self._slots.n_free_for(spec.tenant), self._foresight
        try:
            check_room(spec, config, self._waiting, foresight, n_free)
            foresight.check(spec, timeout_s, n_free=n_free, may_stop=bool(stops))
        except CapacityError:
            self._counters.n_refused += spec.params.n
            raise
        deadline = now + timeout_s
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
        if self._reuse is not None:
            self._reuse.siblings.enter(requests)
        for request in requests:
            self._waiting.push(request)
            self._deadlines.set(request.request_id, deadline)
        self._counters.n_requests += len(requests)

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
        self._make_room(now)
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
        guests, reuse, copies = self._guests, self._reuse, tuple[Copy, ...]()
        if reuse is not None:
            more, copies = reuse.take()
            saves += more
            self._events += starmap(ReusedEvent, reuse.started())
        if not (rows or saves or copies):
            if not self._in_flight:
                self._counters.idle()
            # What comes late comes with the result of a plan: of an empty one, at worst.
            is_late = self._late or (guests is not None and guests.is_loading)
            if self._in_flight or not is_late:
                return None
        self._counters.planned(now)
        freed = self._slots.take_freed()
        if guests is None:
            plan = StepPlan(tuple(rows), freed, saves, copies=copies)
        else:
            of_guests = guests.grants(), guests.take_freed()
            plan = StepPlan(tuple(rows), freed, saves, *of_guests, copies)
        self._in_flight.append(plan)
        return plan

    def _saves(self) -> tuple[Save, ...]:
        """What is to be copied before the rows of a plan; slots that are left with it are free."""
        for request in self._checkpointed.values():
            if request.n_computed == request.next_checkpoint:
                request.next_checkpoint = checkpoint_after(request)
                self._savings.want(request, Purpose.CHECKPOINT)
        saves, guests = list[Save](), self._guests
        for save, wanted in self._savings.take():
            request, is_last = wanted.request, wanted.purpose is Purpose.LAST
            if guests is not None:
                n_tokens = request.n_start + wanted.n_computed
                save = save._replace(pages=guests.keep(save.ticket, request, n_tokens))
                if is_last:
                    guests.leave(save.ticket, request)
            saves.append(save)
            if is_last:
                self._slots.free(save.slot, request.tenant)
        if self._reuse is not None:
            self._reuse.capture(MAX_SAVES - len(saves))
        return tuple(saves)

    def _prompt_rows(self, prompts: list[Request], budget: int) -> list[RowPlan]:
        """Rows for the prompts that get a share of ``budget``."""
        rows = list[RowPlan]()
        for request, n_tokens in divide(prompts, budget, self._served):
            row = prompt_row(request, n_tokens)
            rows.append(row)
            request.n_computed += n_tokens
            request.is_fresh, request.entry = False, None
            if row.samples:
                request.n_known += 1
                request.n_ahead = 1
        return rows

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a step's result. Rows whose requests ended meanwhile are ignored.

        Raises:
            ValueError: ``plan`` is not the oldest in flight, or ``result`` does not fit it.
        """
        if len(result.token_ids) != len(plan.rows):
            raise ValueError(f"{len(result.token_ids)} results for {len(plan.rows)} rows")
        self._land(plan, now)
        self._take_saved(plan, result, now)
        self._take_copied(plan, lost=result.unsaved)
        if self._guests is not None:
            self._take_loaded(self._guests, result, now)
        counters = self._counters
        for row in plan.rows:
            if row.position < row.n_prompt:
                counters.n_prompt_tokens += len(row.ids)
        outcome = apply(plan, result, self._running)
        self._events += outcome.events
        if outcome.first or outcome.n_following:
            self._foresight.stepped(counters.turn_s)
        for request in outcome.first:
            request.first_token_at = now
            self._foresight.began(request, now)
            counters.first_token(now - request.submitted_at)
        counters.produced(len(outcome.first), outcome.n_following)
        for request in outcome.spent:
            self._note_pause(request, now)
        for request, ending, error in outcome.ended:
            if error is None and request.spec.save:
                self._part(request, ending)
            else:
                self._end(request, ending.status, now, stop_id=ending.stop_id, error=error)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan that did not run, but those that ended meanwhile.

        Raises:
            ValueError: ``plan`` is not the oldest in flight.
        """
        self._land(plan, now)
        guests = self._guests
        for save in plan.saves:
            if guests is not None:
                guests.let_go(save.ticket)
            if self._reuse is not None and self._reuse.landed(save.ticket, None):
                continue
            wanted = self._savings.landed(save.ticket)
            if wanted is not None:
                self._not_saved(wanted, error, now)
        self._take_copied(plan, lost={copy.ticket for copy in plan.copies})
        lost = [] if guests is None else guests.lost(plan.grants, self._running.values())
        for row in plan.rows:
            request = self._running.get(row.request_id)
            if request is not None:
                self._end(request, Status.FINISHED_ERROR, now, error=error)
        for request in lost:
            if guests is not None and request.is_fresh:
                guests.grant_again(request)
            elif not request.status.is_final:
                self._end(request, Status.FINISHED_ERROR, now, error=error)

    def _take_copied(self, plan: StepPlan, *, lost: Container[int]) -> None:
        if self._reuse is not None:
            for copy in plan.copies:
                self._reuse.copied(copy.ticket, is_there=copy.ticket not in lost)

    def _land(self, plan: StepPlan, now: float) -> None:
        if not self._in_flight or plan is not self._in_flight[0]:
            raise ValueError("the plan is not the oldest in flight")
        self._in_flight.popleft()
        self._counters.landed(now)

    # --- what happened --------------------------------------------------------------------

    def stats(self) -> Mapping[str, int]:
        """Gauges, and what was counted since the start; names as in ``docs/protocol.md``."""
        live = self._table.live
        n_running = sum(request.status is Status.RUNNING for request in live)
        guests = self._guests
        of_guests = {}
        if guests is not None:
            of_guests = {
                "n_pages": guests.n_pages,
                "n_free_pages": guests.n_free,
                "most_request_tokens": guests.most_tokens,
            }
        of_prefixes = {} if self._reuse is None else self._reuse.by_name()
        return {
            "n_slots": self._slots.n_slots,
            "n_free_slots": self._slots.n_free,
            **of_guests,
            **of_prefixes,
            "n_queued": len(live) - n_running,
            "n_running": n_running,
            "n_hibernated": len(self._hibernated),
            "n_paused": sum(r.paused_since is not None for r in self._running.values()),
            "n_completed_remembered": self._table.n_completed,
            "draining": int(self._draining),
            **self._counters.by_name(),
        }
