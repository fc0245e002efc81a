"""What a call has cost so far: tokens in and out, and when the first one was there."""

from collections.abc import Sequence
from dataclasses import dataclass

from wkvm_client.aio import Stream
from wkvm_client.errors import ClientError


@dataclass(slots=True)
class Spent:
    """What the streams of a call have cost.

    Attributes:
        n_prompt: of each prompt once, however many choices it has.
        n_output: of all choices, also of those that were given up.
        n_cached: tokens that were not computed for the call.
        first_token_s: from the arrival of the first stream at the engine to its first id; None
            while there is none.
    """

    n_prompt: int = 0
    n_output: int = 0
    n_cached: int = 0
    first_token_s: float | None = None

    @property
    def n_tokens(self) -> int:
        """All of them."""
        return self.n_prompt + self.n_output

    def add(self, streams: Sequence[Stream]) -> int:
        """Add what some streams have cost, and return how many tokens that is.

        One that is not over has cost what has arrived of it.
        """
        prompts, n_output = set[bytes](), 0
        for stream in streams:
            prompts.add(stream.prompt)
            for choice in stream.choices:
                n_output += choice.n_ids
                try:
                    result = choice.result if choice.is_over else None
                except ClientError:
                    result = None
                if result is not None:
                    self.n_cached = max(self.n_cached, result.cached_tokens)
                    first_s = result.timings.first_token_s
                    if first_s and (self.first_token_s is None or first_s < self.first_token_s):
                        self.first_token_s = first_s
        n_prompt = sum(len(prompt) for prompt in prompts) // 4
        self.n_prompt += n_prompt
        self.n_output += n_output
        return n_prompt + n_output
