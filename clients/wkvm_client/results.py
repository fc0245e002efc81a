"""What comes back from a request: completions, log probabilities, timings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from wkvm_protocol.messages import EndReason

from wkvm_client.errors import ConnectionLostError, RequestTimeoutError
from wkvm_client.states import StateEnd

Path: TypeAlias = Literal["chunked", "decode"]
"""How a text is scored: as a prompt is absorbed, many ids at a time; or as output is, id by id."""

Pooling: TypeAlias = Literal["last", "mean", "state"]
"""What an embedding is made of: the hidden state of the last token, after the final norm; the mean
of those of all tokens; or what the state at the end has in its last recurrent layer."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely ids at a position. ``logprob`` is in nats."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, in nats, before temperature and penalties.

    Attributes:
        token_id: the id that stands at the position.
        logprob: its log probability.
        rank: 1 for the most likely id.
        top: the most likely ids, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on the server's clock, from the arrival of the request; 0 for what never happened.

    Attributes:
        queue_s: to its admission.
        first_token_s: to its first id.
        total_s: to its end.
    """

    queue_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice, complete.

    Attributes:
        choice: which of the ``n`` it is.
        ids: the output, without the id that stopped it.
        reason: why it ended. A cancelled or timed-out choice has the ids up to then.
        stop_id: the id that stopped it; None unless the reason is STOP, and where a grammar did.
        n_prompt, n_output: token counts, as the server states them.
        logprobs: one entry for each of ``ids``, made when it is read; None if none were asked for.
        prompt_logprobs: one entry for each id of the prompt but the first; None if none
            were asked for.
        timings: how long it took on the server.
        state: what came of its states; None for a request that has nothing to do with any.
        embedding: of the prompt; None if none was asked for, or it was cut short.
        n_reused: tokens of the prompt that were not computed, since another one began alike.
    """

    choice: int
    ids: list[int]
    reason: EndReason
    stop_id: int | None
    n_prompt: int
    n_output: int
    logprobs: Sequence[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    timings: Timings
    state: StateEnd | None = None
    embedding: list[float] | None = None
    n_reused: int = 0

    @property
    def cached_tokens(self) -> int:
        """Tokens that were not computed for it: of a state before the prompt, and of the prompt."""
        return self.n_reused + (0 if self.state is None else self.state.cached_tokens)


def scores_of(completion: Completion, timeout_s: float | None) -> list[TokenLogprobs]:
    """What came of the scoring of a text: all of it, or nothing.

    Raises:
        RequestTimeoutError: its time was over first.
        ConnectionLostError: the server cancelled it.
    """
    _check_whole(completion, timeout_s)
    return completion.prompt_logprobs or []


def embedding_of(completion: Completion, timeout_s: float | None) -> list[float]:
    """What came of the embedding of a text.

    Raises:
        RequestTimeoutError, ConnectionLostError: as ``scores_of``.
    """
    _check_whole(completion, timeout_s)
    return completion.embedding or []


def _check_whole(completion: Completion, timeout_s: float | None) -> None:
    if completion.reason == EndReason.TIMED_OUT:
        raise RequestTimeoutError(timeout_s or completion.timings.total_s)
    if completion.reason == EndReason.CANCELLED:
        raise ConnectionLostError("the server went away and cancelled the request")
