"""The sampling parameters as ``wkvm.LLM`` takes them: those of the engine, and stop strings."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from wkvm.core.errors import InvalidParameterError
from wkvm.core.sampling import SamplingParams as EngineParams


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a text is chosen and where it ends.

    What is None here and can be suggested by a model's maker, in ``generation_config.json``, is
    as suggested; without a suggestion it is off, and the temperature 1.

    Attributes:
        temperature: 0 picks the most likely id. In [0, 100].
        top_k: keep the k most likely ids; 0 keeps all.
        top_p: keep the smallest set of most likely ids whose mass reaches this. In (0, 1].
        min_p: drop ids less likely than this times the most likely one. In [0, 1].
        repetition_penalty: on ids of prompt and output. In (0, 100]; 1 is off.
        presence_penalty: subtracted once from ids in the output. In [-100, 100].
        frequency_penalty: subtracted per occurrence in the output. In [-100, 100].
        penalty_decay: each new id multiplies the earlier occurrence counts by this.
            In (0, 1]; 1 is off.
        logit_bias: id to a number in [-100, 100] that is added to its logit.
        allowed_ids: only these may be chosen; None allows all.
        stop_ids: the text ends when one of these is sampled; it is not part of it.
        ignore_eos: go on after the model's own end ids, and in a chat after the strings that end
            an answer by its template.
        min_tokens: no stop id can be sampled before this many.
        max_tokens: the text ends after this many ids.
        logprobs: report the log probability of each id and of this many most likely ones.
        prompt_logprobs: likewise for the ids of the prompt but the first.
        seed: fixes the random numbers; None: see ``LLM``.
        n: how many completions of each prompt.
        stop: a string, or several, before which the text ends.

    Raises:
        wkvm.core.errors.InvalidParameterError: a value is not allowed. Whether the model has
            the ids is checked when it is asked.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_decay: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_ids: Sequence[int] | None = None
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 256
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    stop: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is None and field.default is not None:
                raise InvalidParameterError(field.name, "None is not a value of it")
        if not all(map(_can_stop, self.stops)):
            raise InvalidParameterError("stop", "a stop must be a string, and not empty")
        values = self.keywords({})
        values["logit_bias"] = tuple((self.logit_bias or {}).items())
        EngineParams(**values, n=self.n)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def keywords(self, suggested: Mapping[str, float | int]) -> dict[str, Any]:
        """What to ask an engine for: what is said here, then what is suggested.

        Returns:
            Keywords of ``wkvm_client.aio.Client.generate``, without ``n`` and those that are None.
        """
        said = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name not in ("n", "stop") and (value := getattr(self, field.name)) is not None
        }
        return {**suggested, **said}


def _can_stop(stop: object) -> bool:
    return isinstance(stop, str) and stop != ""
