"""What the native routes take and give: JSON, to and from the client's own terms. No HTTP here."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client import Completion, TokenLogprobs

from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.fields import Integer, check_interval
from wkvm.gateway.states.fields import STATE_FIELDS, STATE_NAMES, StateFields, StateReport, report
from wkvm.gateway.structured import checked_grammar

MAX_ID_CHARACTERS = 128
"""In the name of a request."""
NAMES = {**STATE_NAMES, "prompt": "ids"}
"""What these bodies call the engine's fields, where they do not have its names."""

# --- asking -------------------------------------------------------------------------------


class GrammarBody(msgspec.Struct, forbid_unknown_fields=True):
    """What the output must be; see ``wkvm_client.Grammar``."""

    kind: Literal["json_schema", "regex", "lark", "without"]
    source: str


class GenerateBody(StateFields, kw_only=True, forbid_unknown_fields=True):
    """A request: ``ids`` is the prompt; the others are the client's keywords.

    What is not given has the client's default: the sampling that a model's maker suggests has no
    part in it. Ranges are those of the binary protocol, and the engine checks them.
    """

    ids: list[int] = msgspec.field(default_factory=list[int])
    model: str | None = None
    temperature: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    penalty_decay: float | UnsetType = UNSET
    logit_bias: dict[int, float] | UnsetType | None = UNSET
    allowed_ids: list[int] | UnsetType | None = UNSET
    stop_ids: list[int] | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    min_tokens: int | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    logprobs: int | UnsetType | None = UNSET
    prompt_logprobs: int | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    n: int | UnsetType = UNSET
    timeout_s: float | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    stream_interval: Integer | None = None
    grammar: GrammarBody | UnsetType | None = UNSET
    borders: list[int] | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET

    def keywords(self) -> dict[str, Any]:
        """What was given, as keywords of ``wkvm_client.aio.Client.generate``.

        Raises:
            HttpError: 400; there is nothing to go on from, or as ``state_keywords``.
        """
        if not self.ids and not self.continues:
            raise invalid("ids", "is required, and not empty, where there is no state")
        given = msgspec.structs.asdict(self)
        check_interval(self.stream_interval)
        for name in ("ids", "model", "stream_interval", *STATE_FIELDS):
            del given[name]
        if isinstance(self.grammar, GrammarBody):
            given["grammar"] = checked_grammar(self.grammar.kind, self.grammar.source, "grammar")
        n = self.n if isinstance(self.n, int) else 1
        given = {name: value for name, value in given.items() if value is not UNSET}
        return given | self.state_keywords(n=n)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log probabilities of the prompt were asked for."""
        return isinstance(self.prompt_logprobs, int)

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of the output were asked for."""
        return isinstance(self.logprobs, int)


class ScoreBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to be scored: its ids; the others are the client's keywords."""

    ids: list[int]
    model: str | None = None
    path: str = "chunked"
    n_top: int = 0
    timeout_s: float | None = None
    priority: int = 0


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which request to cancel."""

    id: Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARACTERS)]


# --- answering ----------------------------------------------------------------------------


class Top(msgspec.Struct):
    """One of the most likely ids at a position."""

    id: int
    logprob: float


class Position(msgspec.Struct):
    """Log probabilities at one position."""

    id: int
    logprob: float
    rank: int
    top: list[Top]


class Usage(msgspec.Struct, omit_defaults=True):
    """How many ids: the prompt once, the output of all choices.

    Attributes:
        n_cached: what was not computed: of a request on a state what that had absorbed, which is
            not among ``n_prompt``; else those of the prompt with which another one began.
    """

    n_prompt: int
    n_output: int
    n_cached: int | UnsetType = UNSET


class Times(msgspec.Struct):
    """Seconds on the engine's clock, from the arrival of the request; 0 for what never was."""

    queue_s: float
    first_token_s: float
    total_s: float


class ChoiceAnswer(msgspec.Struct, omit_defaults=True):
    """One choice, complete."""

    index: int
    ids: list[int]
    reason: str
    stop_id: int | UnsetType | None = UNSET
    logprobs: list[Position] | UnsetType = UNSET


class Answer(msgspec.Struct, omit_defaults=True):
    """One request, complete. ``status`` is there where it was asked for by id."""

    id: str
    model: str
    choices: list[ChoiceAnswer]
    usage: Usage
    timings: Times
    status: str | UnsetType = UNSET
    prompt_logprobs: list[Position] | UnsetType = UNSET
    state: StateReport | UnsetType = UNSET


class Arrival(msgspec.Struct, omit_defaults=True):
    """An event of a stream: ids of one choice that came together.

    The last one of a choice has the fields from ``reason`` on.
    """

    index: int
    ids: list[int]
    logprobs: list[Position] | UnsetType = UNSET
    prompt_logprobs: list[Position] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    stop_id: int | UnsetType | None = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Times | UnsetType = UNSET
    state: StateReport | UnsetType = UNSET


class Scored(msgspec.Struct):
    """How likely the ids of a text are, but the first."""

    id: str
    model: str
    logprobs: list[Position]


class Accepted(msgspec.Struct):
    """A request that was taken and is not waited for."""

    id: str


class Cancelled(msgspec.Struct):
    """``cancelled``: whether it ran; if not, it had ended before."""

    id: str
    cancelled: bool


class PartialChoice(msgspec.Struct):
    """One choice so far."""

    index: int
    ids: list[int]


class StillRunning(msgspec.Struct):
    """A submitted request that has not ended, without the first ``from_`` ids of each choice."""

    id: str
    model: str
    choices: list[PartialChoice]
    from_: int = msgspec.field(name="from")
    status: str = "running"


class Reason(msgspec.Struct):
    """Why a submitted request failed: what it would have been answered, had it been waited for."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None


class FailedAnswer(msgspec.Struct):
    """A submitted request that failed."""

    id: str
    model: str
    error: Reason
    status: str = "failed"


def positions(logprobs: Iterable[TokenLogprobs]) -> list[Position]:
    """Log probabilities as JSON has them. Infinities become null."""
    return [
        Position(
            one.token_id, one.logprob, one.rank, [Top(top.token_id, top.logprob) for top in one.top]
        )
        for one in logprobs
    ]


def arrival(
    index: int,
    ids: list[int],
    *,
    logprobs: Sequence[TokenLogprobs] | None = None,
    prompt_logprobs: Sequence[TokenLogprobs] | None = None,
    completion: Completion | None = None,
) -> bytes:
    """One event; with the end of the choice, if there is a completion. Cost: a microsecond."""
    event = Arrival(index, ids)
    if logprobs is not None:
        event.logprobs = positions(logprobs)
    if prompt_logprobs is not None:
        event.prompt_logprobs = positions(prompt_logprobs)
    if completion is not None:
        event.reason = str(completion.reason)
        event.stop_id = completion.stop_id
        event.usage = usage([completion])
        event.timings = times([completion])
        event.state = report(completion.state)
    return msgspec.json.encode(event)


def answer(
    request_id: str,
    model: str,
    completions: Sequence[Completion],
    *,
    status: str | UnsetType = UNSET,
) -> bytes:
    """A whole answer. Cost: microseconds per thousand ids; several per log probability."""
    prompt = completions[0].prompt_logprobs
    return msgspec.json.encode(
        Answer(
            id=request_id,
            model=model,
            status=status,
            choices=[_choice(completion) for completion in completions],
            prompt_logprobs=UNSET if prompt is None else positions(prompt),
            usage=usage(completions),
            timings=times(completions),
            state=report(completions[0].state),
        )
    )


def failed_answer(request_id: str, model: str, error: HttpError) -> bytes:
    """What is told of a submitted request that failed."""
    reason = Reason(error.status, error.message, error.type, error.param, error.code)
    return msgspec.json.encode(FailedAnswer(request_id, model, reason))


def usage(completions: Sequence[Completion]) -> Usage:
    """Counts over some choices of one request."""
    told = Usage(completions[0].n_prompt, sum(one.n_output for one in completions))
    end, n_reused = completions[0].state, min(one.n_reused for one in completions)
    if end is not None or n_reused:
        told.n_cached = n_reused + (0 if end is None else end.cached_tokens)
    return told


def times(completions: Sequence[Completion]) -> Times:
    """The first choice to get a slot, the first id of any, the end of the last."""
    timings = [one.timings for one in completions]
    firsts = [one.first_token_s for one in timings if one.first_token_s]
    return Times(
        min(one.queue_s for one in timings),
        min(firsts, default=0.0),
        max(one.total_s for one in timings),
    )


def _choice(completion: Completion) -> ChoiceAnswer:
    logprobs = completion.logprobs
    return ChoiceAnswer(
        index=completion.choice,
        ids=completion.ids,
        reason=str(completion.reason),
        stop_id=completion.stop_id,
        logprobs=UNSET if logprobs is None else positions(logprobs),
    )
