"""Which states are copied to the host, when, and what becomes of their requests then.

A copy is wanted, then part of a plan, under a ticket, and comes back with the plan's result. The
device carries plans out in order, so a copy shows the state after all plans that were made before.
What that is the host knows when it has their results, and these come before the copy.
"""

from array import array
from dataclasses import dataclass, replace
from enum import Enum

from wkvm.core.beginning import told_before
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.registry import SamplerMemory
from wkvm.core.request import Status
from wkvm.core.start import Save, Saved, SavedRecord
from wkvm.core.table import Ending, Request, slot_of

MAX_SAVES = 4
"""Copies of one plan: its result is told when all of them are on the host, and that must not take
longer than a step. Others wait for the next plan, in their slots."""


class Purpose(Enum):
    """What a copy is for. After LAST the slot is free."""

    LAST = "last"
    ASKED = "asked"
    CHECKPOINT = "checkpoint"


@dataclass(slots=True, eq=False)
class Wanted:
    """A copy that is wanted.

    Attributes:
        n_computed: how many tokens of the request the state has absorbed, once it is planned.
    """

    request: Request
    purpose: Purpose
    n_computed: int = 0

    @property
    def counts(self) -> bool:
        """Whether it still matters: one on the way is of no use once the request is complete."""
        request = self.request
        return not request.status.is_final and (
            self.purpose is Purpose.LAST or request.ending is None
        )


class Savings:
    """Copies that are wanted and those on their way.

    Checkpoints come last, so that however many are due nobody waits for the end of a request
    because of them; and one that has not been made when the next is due is that one.
    """

    def __init__(self) -> None:
        self._wanted = dict[tuple[Purpose, int], Wanted]()
        self._checkpoints = dict[int, Wanted]()
        self._planned = dict[int, Wanted]()
        self._n_tickets = 0

    @property
    def leaving(self) -> list[Request]:
        """Those whose slots become free with copies that are wanted and not planned yet."""
        return [
            one.request
            for one in self._wanted.values()
            if one.purpose is Purpose.LAST and one.request.slot is not None
        ]

    def want(self, request: Request, purpose: Purpose) -> None:
        """Have the state of a running request copied with the next plan that has room for it.

        Once, if it is wanted for that purpose already.
        """
        if purpose is Purpose.CHECKPOINT:
            self._checkpoints.setdefault(request.request_id, Wanted(request, purpose))
        else:
            self._wanted.setdefault((purpose, request.request_id), Wanted(request, purpose))

    def take(self) -> list[tuple[Save, Wanted]]:
        """The copies of the next plan. Those whose slots were lost meanwhile are dropped."""
        taken = list[tuple[Save, Wanted]]()
        while (self._wanted or self._checkpoints) and len(taken) < MAX_SAVES:
            wanted = self._next()
            if wanted.request.slot is None or not wanted.counts:
                continue
            wanted.n_computed = wanted.request.n_computed
            ticket = self.ticket()
            self._planned[ticket] = wanted
            taken.append((Save(slot_of(wanted.request), ticket), wanted))
            if wanted.purpose is Purpose.LAST:
                wanted.request.slot = None
        return taken

    def ticket(self) -> int:
        """The number of another copy."""
        self._n_tickets += 1
        return self._n_tickets

    def _next(self) -> Wanted:
        if self._wanted:
            return self._wanted.pop(next(iter(self._wanted)))
        return self._checkpoints.pop(next(iter(self._checkpoints)))

    def landed(self, ticket: int) -> Wanted | None:
        """What a copy that was planned is for; None if nobody wants it any more."""
        wanted = self._planned.pop(ticket, None)
        return None if wanted is None or not wanted.counts else wanted


def checkpoint_after(request: Request) -> int | None:
    """Where the state of a request is copied next: how many of its tokens it has absorbed there.

    At the next multiple of ``checkpoint_every``, counted from the first token of all. In a prompt
    that is where it may be cut at or after that, or its end.
    """
    every = request.spec.checkpoint_every
    if every is None:
        return None
    n_start, n_prompt = request.n_start, request.n_prompt
    at = ((n_start + request.n_computed) // every + 1) * every - n_start
    if at < n_prompt:
        at = min(-(-at // CUT_MULTIPLE) * CUT_MULTIPLE, n_prompt)
    return at


def saved_of(
    request: Request, record: SavedRecord, n_computed: int, ending: Ending | None = None
) -> Saved:
    """The state of a request that has absorbed ``n_computed`` of its ids.

    Args:
        ending: how it ended; None if it may go on from here. Then it knows all ids up to the next
            one that would be sampled, and none beyond.
    """
    output, spec = request.output, request.spec
    if output is None:
        raise ValueError(f"request {request.request_id} does not keep its output")
    n_of_output = n_computed - len(request.prompt)
    absorbed = array("i", request.prompt[:n_computed])
    absorbed.extend(output[: max(n_of_output, 0)])
    if ending is not None:
        pending = ending.pending
    elif n_computed == 0:
        pending = () if spec.start is None else spec.start.pending
    else:
        pending = tuple(output[n_of_output:]) if n_of_output >= 0 else ()
    return Saved(
        record=record.record,
        n_computed=request.n_start + n_computed,
        absorbed=absorbed,
        pending=pending,
        memory=_memory(request, record, n_computed, len(pending), ending),
    )


def _memory(
    request: Request,
    record: SavedRecord,
    n_computed: int,
    n_pending: int,
    ending: Ending | None,
) -> SamplerMemory | None:
    spec, output = request.spec, request.output
    before = None if spec.start is None else spec.start.memory
    position = request.n_start + n_computed + n_pending
    if n_computed == 0 and ending is None:
        return before
    if spec.params.max_tokens == 0:
        if before is None:
            return None
        return replace(
            before,
            position=position,
            n_generated=0,
            counts=record.counts if spec.params.has_penalties else before.counts,
            grammar=None,
            grammar_ids=(),
        )
    # An output that ended by itself is a whole text of its grammar: the next one begins anew.
    grammar = None if ending is not None and ending.status is Status.STOPPED else spec.grammar
    is_stopped = ending is not None and ending.stop_id is not None
    return SamplerMemory(
        seed=request.seed,
        branch=request.branch,
        position=position,
        n_generated=request.n_output + is_stopped,
        counts=record.counts,
        grammar=grammar,
        grammar_ids=() if grammar is None else (*told_before(spec), *(output or ())),
    )
