"""One unit of work: what was asked, how far it is, and the events that it gives rise to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from wkvm.core.errors import WkvmError
from wkvm.core.grammar import Grammar
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Saved, Start
from wkvm.core.states import StateEnd


class Status(StrEnum):
    """Where a request is. The transitions are ``TRANSITIONS``; every end is final."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPED = "stopped"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    FINISHED_ERROR = "finished_error"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the request."""
        return not TRANSITIONS[self]


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset(
        {Status.RUNNING, Status.CANCELLED, Status.TIMED_OUT, Status.FINISHED_ERROR}
    ),
    Status.RUNNING: frozenset(
        {
            Status.STOPPED,
            Status.LENGTH,
            Status.CANCELLED,
            Status.TIMED_OUT,
            Status.FINISHED_ERROR,
            Status.QUEUED,
        }
    ),
    Status.STOPPED: frozenset(),
    Status.LENGTH: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.TIMED_OUT: frozenset(),
    Status.FINISHED_ERROR: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What a client asks for: ``params.n`` completions of one prompt, each a request.

    Attributes:
        prompt: token ids, at least one unless ``start`` has some pending; not copied, so it
            must not change.
        params: sampling parameters, and how many completions.
        tenant: on whose behalf; tenants take turns.
        priority: lower runs first, among the requests of the tenant.
        timeout_s: from submission to the end, or None for the engine's default.
        credit: how many ids each completion may have before more credit is granted to it;
            None is unlimited.
        grammar: what each completion must be; None for anything.
        forced: what the completion is, id by id: as many as ``params.max_tokens``, of one choice
            and without a grammar. Nothing is left to choose; their log probabilities are what
            is asked for. Not copied either. Empty for anything.
        start: the state that it begins from; None for the empty sequence. Only the positions of
            random numbers count what came before: prompts are cut, and counted, from here on.
        fresh_key: draw other random numbers than those with which ``start`` would go on.
        save: end with the state, unless the end is an error, a timeout or a cancel.
        hold_back_last: absorb all but the last id of the prompt, which is pending at the end: so
            the next request has something to go on from. With ``max_tokens`` 0.
        checkpoint_every: tell the state whenever it has absorbed a multiple of so many tokens; in
            a prompt, where it may be cut next; later, where more copies are due than a step can
            make. None for never.
        borders: after how many tokens of the prompt a message ends: there others may go on from.
            Hints: none is wrong.
        cache_salt: only requests with the same one share what is kept of their prompts.
        reuses: whether it may go on from what is kept of prompts, and leaves its own.
    """

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    tenant: str = "local"
    priority: int = 0
    timeout_s: float | None = None
    credit: int | None = None
    grammar: Grammar | None = None
    forced: Sequence[int] = ()
    start: Start | None = None
    fresh_key: bool = False
    save: bool = False
    hold_back_last: bool = False
    checkpoint_every: int | None = None
    borders: Sequence[int] = ()
    cache_salt: str = ""
    reuses: bool = True

    @property
    def n_ids(self) -> int:
        """How many ids it brings, of those that only the size of a message bounds."""
        n_of_params = len(self.params.allowed_ids or ())
        return len(self.prompt) + len(self.forced) + len(self.borders) + n_of_params


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely ids at a position. ``logprob`` is in nats."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities at one position, from the raw logits, in nats.

    Attributes:
        token_id: the id that stands at the position.
        logprob: its log probability.
        rank: 1 for the most likely id.
        top: the most likely ids, best first; ties by the lower id.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A request produced an id. ``index`` counts its output from 0."""

    request_id: int
    index: int
    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """The ids that one step produced, at most one for each request.

    Three columns of one length, since an object for each id would cost a step of many
    requests more than all else on the host: request ``request_ids[i]`` produced
    ``token_ids[i]``, which is number ``indices[i]`` of its output, from 0.

    Attributes:
        logprobs: by place in the columns, for the requests that asked.
    """

    request_ids: Sequence[int]
    indices: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict[int, Logprobs])


@dataclass(frozen=True, slots=True)
class PromptLogprobsEvent:
    """Log probabilities of prompt ids, for positions ``first`` and following."""

    request_id: int
    first: int
    logprobs: tuple[Logprobs, ...]


@dataclass(frozen=True, slots=True)
class PooledEvent:
    """What some tokens of a prompt add to its embedding; see ``StepResult.pooled``."""

    request_id: int
    values: bytes


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A request reached a final status; its slot, if it had one, is free.

    Attributes:
        stop_id: the id that ended it, sampled and neither output nor fed. A request that
            stopped without one has completed its grammar.
        error: what went wrong, iff the status is FINISHED_ERROR.
        n_prompt, n_output: token counts.
        queue_s, first_token_s, total_s: seconds from submission to admission, to the
            first id, and to the end; None for what never happened.
        saved: the state, if the request was to save it and ended well or was interrupted.
        state: what came of the states of the request, once that is known.
        n_reused: how many tokens of the prompt were not computed, but kept from another one.
    """

    request_id: int
    status: Status
    stop_id: int | None
    error: WkvmError | None
    n_prompt: int
    n_output: int
    queue_s: float | None
    first_token_s: float | None
    total_s: float
    saved: Saved | None = None
    state: StateEnd | None = None
    n_reused: int = 0


@dataclass(frozen=True, slots=True)
class ReusedEvent:
    """A request begins from what was kept of another one's prompt. Before its first id.

    Attributes:
        n_tokens: how many tokens of its own are not computed for that.
    """

    request_id: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """The state of a request that goes on, as it was between two steps.

    Attributes:
        saved: None if there is no copy, for ``error``.
        is_checkpoint: whether it was due by the request's ``checkpoint_every``; else it was
            asked for.
    """

    request_id: int
    saved: Saved | None
    is_checkpoint: bool
    error: WkvmError | None = None


Event = TokensEvent | ReusedEvent | PromptLogprobsEvent | PooledEvent | SavedEvent | EndEvent
"""What an engine tells, in order."""

RequestEvent = TokenEvent | ReusedEvent | PromptLogprobsEvent | PooledEvent | SavedEvent | EndEvent
"""What happened to one request."""


def by_request(events: Iterable[Event]) -> Iterator[RequestEvent]:
    """The same events, one request and one id at a time."""
    for event in events:
        if not isinstance(event, TokensEvent):
            yield event
            continue
        columns = zip(event.request_ids, event.indices, event.token_ids, strict=True)
        for place, (request_id, index, token_id) in enumerate(columns):
            yield TokenEvent(request_id, index, token_id, event.logprobs.get(place))
