"""What ``wkvm.LLM`` returns."""

from dataclasses import dataclass

from wkvm_client.results import TokenLogprobs
from wkvm_client.states import StateEnd


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: which of the ``n`` it is.
        text: without the stop string that ended it; the answer of a chat also without the space
            that belongs to its template.
        ids: its ids, without a stop id, up to the one that completed the stop string.
        finish_reason: ``stop`` or ``length``; or, if the server ended it early, ``timed_out``
            or ``cancelled``.
        stop_reason: the stop string that ended it, or the one of ``stop_ids``; None at the
            model's own end.
        logprobs: one entry for each of ``ids``; None if none were asked for.
        state: what the state at the end was saved as; None if it was not.
        cached_tokens: of the state before the prompt and of the prompt, how many were not computed.
    """

    index: int
    text: str
    ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: list[TokenLogprobs] | None
    state: StateEnd | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its completions.

    Attributes:
        prompt: the text, for a conversation as its template wrote it; None where ids were given.
        prompt_ids: its ids.
        prompt_logprobs: one entry for each id of the prompt but the first; None if none were
            asked for.
        outputs: ``n`` completions.
    """

    prompt: str | None
    prompt_ids: list[int]
    prompt_logprobs: list[TokenLogprobs] | None
    outputs: list[CompletionOutput]

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt, and of the state before it, none of them had computed."""
        return min((output.cached_tokens for output in self.outputs), default=0)
