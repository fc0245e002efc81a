"""The completion of a choice, from what came on its lane. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from wkvm_protocol.messages import (
    End,
    EndOn,
    EndReason,
    Logprobs,
    unpack_floats,
    unpack_ids,
)

from wkvm_client.results import Completion, Timings, TokenLogprobs, TopLogprob
from wkvm_client.states import end_of


@dataclass(slots=True)
class Before:
    """What earlier legs of a request came to.

    Attributes:
        n_legs: how many there were.
        n_ids: the ids that they brought.
        n_prompt, cached_tokens, queue_us, first_token_us: as the first one had them.
        total_us: of all of them.
    """

    n_legs: int = 0
    n_ids: int = 0
    n_prompt: int = 0
    cached_tokens: int = 0
    queue_us: int = 0
    first_token_us: int = 0
    total_us: int = 0

    def add(self, end: EndOn) -> None:
        """Count one that was left."""
        if self.n_legs == 0:
            self.n_prompt, self.cached_tokens = end.n_prompt, end.cached_tokens
            self.queue_us = end.queue_us
        if self.first_token_us == 0 and end.first_token_us:
            self.first_token_us = self.total_us + end.first_token_us
        self.n_legs += 1
        self.n_ids += end.n_output
        self.total_us += end.total_us


def completion_of(
    message: End | EndOn,
    ids: list[int],
    logprobs: Sequence[TokenLogprobs] | None,
    prompt_logprobs: list[TokenLogprobs] | None,
    *,
    embedding: list[float] | None,
    before: Before,
    data: bytes | None,
    n_reused: int = 0,
) -> Completion:
    """What became of a choice."""
    first_token_us = before.first_token_us or before.total_us + message.first_token_us
    state = None
    if isinstance(message, EndOn):
        state = end_of(message, data, before.cached_tokens if before.n_legs else None)
    return Completion(
        choice=message.choice,
        ids=ids,
        reason=EndReason(message.reason),
        stop_id=message.stop_id,
        n_prompt=before.n_prompt if before.n_legs else message.n_prompt,
        n_output=before.n_ids + message.n_output,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        timings=Timings(
            (before.queue_us if before.n_legs else message.queue_us) / 1e6,
            first_token_us / 1e6,
            (before.total_us + message.total_us) / 1e6,
        ),
        state=state,
        embedding=embedding,
        n_reused=n_reused,
    )


def unpack_logprobs(message: Logprobs) -> list[TokenLogprobs]:
    """One entry for each position of a message. The codec has checked the lengths."""
    top_ids = unpack_ids(message.top_ids)
    top_logprobs = unpack_floats(message.top_logprobs)
    tops = [TopLogprob(*pair) for pair in zip(top_ids, top_logprobs, strict=True)]
    n_top = message.n_top
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(tops[i * n_top : (i + 1) * n_top]))
        for i, (token_id, logprob, rank) in enumerate(
            zip(
                unpack_ids(message.ids),
                unpack_floats(message.logprobs),
                unpack_ids(message.ranks),
                strict=True,
            )
        )
    ]
