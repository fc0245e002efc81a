"""The requests that an engine knows: the live ones in full, of the finished ones the status."""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wkvm.core.beginning import entry_of, ids_to_feed, is_fed_alone, may_be_saved
from wkvm.core.errors import WkvmError
from wkvm.core.forced import Forced
from wkvm.core.grammar import Constraint, Grammar
from wkvm.core.pages import Holding
from wkvm.core.prefixes import Checkpoint, Claim
from wkvm.core.request import TRANSITIONS, EndEvent, RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Entry, Saved


class Ending(NamedTuple):
    """How a request ends whose state is to be saved.

    Attributes:
        n_computed: how many of its tokens the state has absorbed.
        pending: the id that was sampled and not fed, or none.
    """

    status: Status
    stop_id: int | None
    n_computed: int
    pending: tuple[int, ...]


@dataclass(slots=True, eq=False)
class SharedIds:
    """The ids that the choices of one spec have in common: one object, however many wait.

    Attributes:
        n_ids: as in the spec.
        n_waiting: how many of the choices are in the waiting line.
    """

    n_ids: int
    n_waiting: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Family:
    """The requests that have one and the same prompt, as the choices of one have.

    Attributes:
        n_to_begin: how many of them are in the waiting line and have absorbed nothing.
        leader: the last one that began to compute the prompt and has its slot.
    """

    n_to_begin: int = 0
    leader: "Request | None" = None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A live request. Mutable, and nobody's but the scheduler's.

    Attributes:
        spec: what was asked for.
        prompt: the ids that it absorbs before it samples: what is pending in the state that it
            starts from, then the prompt, less what is held back.
        n_prompt: how many of these are not output: all, but for one that is fed alone, as it would
            have been if the request before had gone on.
        params, tenant, priority, grammar: from the spec.
        seed, branch: with a position, the key of its random numbers.
        stops, stop_set: ids that end it once it has produced ``params.min_tokens``.
        submitted_at, admitted_at, first_token_at: of the caller's clock.
        deadline: when it is ended wherever it is.
        slot: where its state lives; None while it waits, and from when it is saved for good.
        holding: its pages of the guest pool, while it has a slot; None without a guest.
        in_line: whether it is in the waiting line.
        entry: what its slot is filled with before its next row, if ``is_fresh``; None for zeros.
        is_fresh: whether it has no row since it got its slot.
        output: the ids that it has produced, if its state may be saved; else None.
        ending: its end, if all that is missing is the copy of its state.
        is_leaving: whether its state is copied for good, or is about to be: to be told at its
            end, or for the request to go on with later.
        is_interrupted: whether it ends as soon as its state is copied.
        is_asked_for: whether a state that is copied for good is to be told, too.
        next_checkpoint: at what ``n_computed`` its state is copied next; None for never.
        shared: what it shares with the other choices of its spec.
        family: those that have just its prompt, if they may share what is kept of it.
        n_computed: how many of its ids the state has absorbed when all that is in flight has run.
        n_known: how many ids it has: the prompt, every id produced so far, and those on their way.
        n_ahead: how many are on their way: rows in flight that sample.
        last_id: the last id that is not on its way.
        n_output: how many ids it has produced.
        credit: how many more it may produce; None is any number.
        held: whether it must produce nothing whatever its credit.
        paused_since: since when it has held its slot without being allowed to produce.
        constraint: what its grammar makes of the output so far, or what forces the output.
        is_ready: whether it has a constraint or needs none; else it may not produce.
        n_owed: tokens of what its equals got that are kept for it, since it came first of them.
        prefix: the checkpoint of another's prompt that it begins from, while it is fresh, or would
            begin from now, while it waits.
        looked_up: as of which version of what is kept that was found out.
        awaits: the checkpoint that it is set aside for.
        is_patient: whether it may be set aside.
        claims: the checkpoints that it is to leave, by their numbers of tokens.
        marks: these numbers, the next one last: it stops there until its state is kept.
        n_stalled: how many plans it has waited for that.
        n_checked: up to where its pages were looked at for NaN.
        n_cached: how many tokens of its prompt came with ``prefix``.
        ids: of its prompt as bytes, while they are compared with others.
    """

    request_id: int
    spec: RequestSpec
    prompt: Sequence[int]
    n_prompt: int
    params: SamplingParams
    tenant: str
    priority: int
    seed: int
    branch: int
    stops: tuple[int, ...]
    stop_set: frozenset[int]
    submitted_at: float
    deadline: float
    shared: SharedIds
    n_known: int
    last_id: int
    credit: int | None
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    is_ready: bool = True
    status: Status = Status.QUEUED
    admitted_at: float | None = None
    first_token_at: float | None = None
    slot: int | None = None
    holding: Holding | None = None
    in_line: bool = False
    entry: Entry | None = None
    is_fresh: bool = True
    output: "array[int] | None" = None
    ending: Ending | None = None
    is_leaving: bool = False
    is_interrupted: bool = False
    is_asked_for: bool = False
    next_checkpoint: int | None = None
    n_computed: int = 0
    n_ahead: int = 0
    n_output: int = 0
    held: bool = False
    paused_since: float | None = None
    n_owed: int = 0
    prefix: Checkpoint | None = None
    looked_up: int = -1
    awaits: Claim | None = None
    is_patient: bool = True
    claims: dict[int, Claim] = field(default_factory=dict[int, Claim])
    marks: list[int] = field(default_factory=list[int])
    n_stalled: int = 0
    n_checked: int = 0
    n_cached: int = 0
    ids: bytes | None = None
    family: Family | None = None

    @property
    def may_produce(self) -> bool:
        """Whether credit and holds let it produce an id. Where none is wanted none is lacking."""
        return not self.held and (self.credit != 0 or self.params.max_tokens == 0)

    @property
    def may_hibernate(self) -> bool:
        """Whether it can give up its slot: it does not already, and waits for no grammar."""
        return self.is_ready and not self.is_leaving

    @property
    def n_start(self) -> int:
        """How many tokens its state had absorbed before the first of its own."""
        return 0 if self.spec.start is None else self.spec.start.n_computed

    def end_event(
        self,
        status: Status,
        now: float,
        *,
        stop_id: int | None,
        error: WkvmError | None,
        saved: Saved | None = None,
    ) -> EndEvent:
        """What is told of its end."""
        since = self.submitted_at
        admitted_at, first_token_at = self.admitted_at, self.first_token_at
        return EndEvent(
            request_id=self.request_id,
            status=status,
            stop_id=stop_id,
            error=error,
            n_prompt=len(self.spec.prompt),
            n_output=self.n_output,
            queue_s=None if admitted_at is None else admitted_at - since,
            first_token_s=None if first_token_at is None else first_token_at - since,
            total_s=now - since,
            saved=saved,
            n_reused=self.n_cached,
        )


def choices_of(
    request_ids: Sequence[int],
    spec: RequestSpec,
    *,
    seed: int,
    branches: Sequence[int],
    stops: tuple[int, ...],
    vocab_size: int,
    now: float,
    deadline: float,
) -> list[Request]:
    """The choices of a spec: queued requests that have absorbed nothing.

    Raises:
        ValueError: there are not ``n`` ids and ``n`` branches.
    """
    if len(request_ids) != spec.params.n:
        raise ValueError(f"{len(request_ids)} ids for {spec.params.n} choices")
    stop_set, shared = frozenset(stops), SharedIds(spec.n_ids)
    fed = ids_to_feed(spec)
    is_decoded = is_fed_alone(spec, fed)
    entry = entry_of(spec, fed)
    return [
        Request(
            request_id=request_id,
            spec=spec,
            prompt=fed,
            n_prompt=0 if is_decoded else len(fed),
            params=spec.params,
            tenant=spec.tenant,
            priority=spec.priority,
            seed=seed,
            branch=branch,
            stops=stops,
            stop_set=stop_set,
            submitted_at=now,
            deadline=deadline,
            shared=shared,
            n_known=len(fed),
            last_id=fed[-1] if fed else 0,
            entry=entry,
            output=array("i") if may_be_saved(spec) else None,
            credit=spec.credit,
            grammar=spec.grammar,
            constraint=Forced(spec.forced, vocab_size) if spec.forced else None,
            is_ready=spec.grammar is None,
        )
        for request_id, branch in zip(request_ids, branches, strict=True)
    ]


def slot_of(request: Request) -> int:
    """The slot of a running request.

    Raises:
        ValueError: it has none.
    """
    if request.slot is None:
        raise ValueError(f"request {request.request_id} has no slot")
    return request.slot


class RequestTable:
    """Every live request by id, and the status of those that finished last.

    The one place where a status changes.
    """

    def __init__(self, max_completed_requests: int) -> None:
        self._max_completed = max_completed_requests
        self._live = dict[int, Request]()
        self._completed = OrderedDict[int, Status]()

    @property
    def live(self) -> Collection[Request]:
        """The requests that have not ended, oldest first."""
        return self._live.values()

    @property
    def n_completed(self) -> int:
        """How many finished requests are remembered."""
        return len(self._completed)

    def add(self, *requests: Request) -> None:
        """Enter requests, all of them or none.

        Raises:
            ValueError: an id is taken.
        """
        added = dict[int, Request]()
        for request in requests:
            request_id = request.request_id
            if request_id in added or self.status(request_id) is not None:
                raise ValueError(f"request {request_id} exists already")
            added[request_id] = request
        self._live.update(added)

    def get(self, request_id: int) -> Request | None:
        """The live request of that id."""
        return self._live.get(request_id)

    def status(self, request_id: int) -> Status | None:
        """Where a request is; None if it is unknown, or ended so long ago that it is forgotten."""
        request = self._live.get(request_id)
        return self._completed.get(request_id) if request is None else request.status

    def move(self, request: Request, status: Status) -> None:
        """Change the status of a live request. With a final one it leaves the table.

        Raises:
            ValueError: ``TRANSITIONS`` has no such change; nothing changed.
        """
        if status not in TRANSITIONS[request.status]:
            raise ValueError(f"request {request.request_id}: {request.status} to {status}")
        request.status = status
        if status.is_final:
            del self._live[request.request_id]
            self._completed[request.request_id] = status
            if len(self._completed) > self._max_completed:
                self._completed.popitem(last=False)
