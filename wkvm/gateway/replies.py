"""The JSON of answers: what routes of OpenAI's interface have in common, and completions."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from wkvm.gateway.fields import StreamOptions
from wkvm.gateway.monitoring.times import RequestMetrics
from wkvm.gateway.states.fields import StateReport
from wkvm.gateway.streams.pieces import Finish, FinishReason


class PromptTokensDetails(msgspec.Struct):
    """Of the ids of prompts, and of states before them: how many were not computed for this."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """What a request cost: each prompt once, with what its state had absorbed; all choices' ids."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @staticmethod
    def of(
        prompt_lengths: Iterable[int],
        output_lengths: Iterable[int],
        n_cached: int = 0,
        n_reused: int = 0,
    ) -> "Usage":
        """Add up.

        Args:
            prompt_lengths: one for each prompt.
            output_lengths: one for each choice.
            n_cached: tokens that the states had absorbed, from which the prompts went on.
            n_reused: tokens of the prompts that were not computed.
        """
        n_prompt, n_output = n_cached + sum(prompt_lengths), sum(output_lengths)
        details = PromptTokensDetails(n_cached + n_reused)
        return Usage(n_prompt, n_output, n_prompt + n_output, details)


def n_reused(finishes: Iterable[Finish], n: int) -> int:
    """How many tokens of prompts were not computed: of each, what none of its choices did.

    Args:
        finishes: of all choices, those of a prompt next to each other.
        n: choices of each prompt.
    """
    counts = [finish.n_reused for finish in finishes]
    return sum(min(counts[at : at + n]) for at in range(0, len(counts), n))


class Frame:
    """What the events of one stream have in common, encoded once.

    Args:
        common: the fields of an event besides ``choices`` and ``usage``.
        options: of the stream.

    Attributes:
        start, end: what is before and after the choices of an event.
        tells_costs: whether each event says what its own choice has cost so far.
    """

    def __init__(self, common: Mapping[str, object], options: StreamOptions) -> None:
        self._tells_total = bool(options.include_usage)
        self.tells_costs = bool(options.continuous_usage_stats)
        self.start = b"data: " + msgspec.json.encode(common)[:-1] + b',"choices":['
        self._tail = (b',"usage":null' if self._tells_total else b"") + b"}\n\n"
        self.end = b"]" + self._tail

    def event(self, choice: msgspec.Struct, cost: Usage | None, *, more: bytes = b"") -> bytes:
        """An event of one choice.

        Args:
            cost: so far, if events tell it.
            more: further fields, encoded, each after a comma.
        """
        tail = self._tail if cost is None else b',"usage":%b}\n\n' % msgspec.json.encode(cost)
        return b"%b%b]%b%b" % (self.start, msgspec.json.encode(choice), more, tail)

    def total(
        self,
        cost: Usage,
        state: StateReport | UnsetType = UNSET,
        metrics: RequestMetrics | UnsetType = UNSET,
    ) -> bytes:
        """The event, if it was asked for, of all choices: what they cost, the state at their end.

        Args:
            state: if one was kept.
            metrics: if they were asked for.
        """
        more = b"" if state is UNSET else b',"state":' + msgspec.json.encode(state)
        if metrics is not UNSET:
            more += b',"metrics":' + msgspec.json.encode(metrics)
        if self._tells_total:
            more += b',"usage":' + msgspec.json.encode(cost)
        return b"%b]%b}\n\n" % (self.start, more) if more else b""


class TokenInfo(msgspec.Struct):
    """vLLM's entry for one id at one position of a prompt."""

    logprob: float
    rank: int
    decoded_token: str


class CompletionLogprobs(msgspec.Struct):
    """OpenAI's legacy format: parallel lists, one entry for each id.

    Attributes:
        tokens: the text of each id.
        token_logprobs: null for the first id of a prompt, which nothing precedes.
        top_logprobs: the most likely ids by their text, and the id itself.
        text_offset: where its text begins, in characters of the choice's whole text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """One choice, or what a chunk says of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_logprobs: list[dict[str, TokenInfo] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """The answer to a completion that is not streamed."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: RequestMetrics | UnsetType = UNSET
    state: StateReport | UnsetType = UNSET
