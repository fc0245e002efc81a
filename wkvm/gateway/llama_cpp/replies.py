"""What ``POST /completion`` answers, whole and in events."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client import TokenLogprobs
from wkvm_client.results import Timings

from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.logprobs import finite
from wkvm.gateway.streams.pieces import Finish
from wkvm.gateway.text import Tokenizer

StopType: TypeAlias = Literal["none", "eos", "limit", "word"]


class Probability(msgspec.Struct, omit_defaults=True):
    """An id at a position, and the most likely ones there."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: "list[Probability] | UnsetType" = UNSET


class Times(msgspec.Struct):
    """How long it took, in milliseconds; 0 for what is not known."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float

    @staticmethod
    def of(timings: Timings | None, n_prompt: int, n_cached: int, n_output: int) -> "Times":
        """From the engine's seconds; None where the engine has not ended it."""
        prompt_s = output_s = 0.0
        if timings is not None:
            prompt_s = max((timings.first_token_s or timings.total_s) - timings.queue_s, 0.0)
            output_s = max(timings.total_s - timings.queue_s - prompt_s, 0.0)
        return Times(
            n_cached,
            n_prompt,
            prompt_s * 1e3,
            prompt_s * 1e3 / n_prompt if n_prompt else 0.0,
            n_prompt / prompt_s if prompt_s else 0.0,
            n_output,
            output_s * 1e3,
            output_s * 1e3 / n_output if n_output else 0.0,
            n_output / output_s if output_s else 0.0,
        )


class Event(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is new of a completion. The last one of a stream, and a whole answer, has all fields."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[Probability] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    generation_settings: Mapping[str, Any] | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: StopType | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    timings: Times | UnsetType = UNSET


def probabilities(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], n_top: int
) -> list[Probability]:
    """One entry for each id, with the ``n_top`` most likely ones there."""

    def told(token_id: int, logprob: float) -> Probability:
        try:
            data = tokenizer.token_bytes(token_id)
        except UnknownTokenError:
            data = b""
        return Probability(token_id, data.decode(errors="replace"), list(data), finite(logprob))

    result = list[Probability]()
    for entry in entries:
        one = told(entry.token_id, entry.logprob)
        one.top_logprobs = [told(top.token_id, top.logprob) for top in entry.top[:n_top]]
        result.append(one)
    return result


def stop_of(finish: Finish) -> tuple[StopType, str]:
    """How a completion ended, and by which string."""
    if finish.reason == "length":
        return "limit", ""
    if isinstance(finish.stop_reason, str):
        return "word", finish.stop_reason
    return "eos", ""
