"""How the next id is chosen: the parameters of one request, validated once for every door."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from wkvm.core.errors import InvalidParameterError, TokenOutOfRangeError

MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP_IDS = 256
MAX_BIASED_IDS = 1024
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**64 - 1


class Pooling(StrEnum):
    """What of a text's run its embedding is made of.

    LAST is the hidden state of the last token, after the final norm: what the head is given.
    MEAN is the mean of those of all tokens. STATE is what the state at the end has in its last
    recurrent layer, its matrices averaged over their keys.
    """

    LAST = "last"
    MEAN = "mean"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request.

    They apply in this order: bias and allowed ids, then penalties, then temperature,
    then top-k, top-p and min-p on the tempered distribution. Log probabilities that
    are reported are those of the raw logits, before any of these.

    Attributes:
        temperature: 0 picks the most likely id. In [0, 100].
        top_k: keep the k most likely ids; 0 keeps all.
        top_p: keep the smallest set of most likely ids whose mass reaches this. In (0, 1].
        min_p: drop ids less likely than this times the most likely one. In [0, 1].
        repetition_penalty: divide (or multiply, where negative) the logits of ids seen in
            the prompt or the output. In (0, 100]; 1 is off.
        presence_penalty: subtracted once from ids in the output. In [-100, 100].
        frequency_penalty: subtracted per occurrence in the output. In [-100, 100].
        penalty_decay: each new id multiplies the earlier occurrence counts by this, so
            that old ones fade (RWKV's convention: 0.996). In (0, 1]; 1 is off.
        logit_bias: pairs of id and a number in [-100, 100] added to its logit.
        allowed_ids: only these may be chosen; None allows all. Not copied, so they must not
            change.
        stop_ids: the request ends when one of these is sampled. It is reported as the
            stop id, not among the output, and it is never fed.
        ignore_eos: end at ``stop_ids`` only, not at the model's own end ids.
        min_tokens: no stop id can be sampled before this many.
        max_tokens: the request ends after this many; 0 absorbs the prompt and ends.
        logprobs: report the log probability of each id and of this many most likely
            ones; None reports none.
        prompt_logprobs: likewise for the ids of the prompt but the first.
        seed: fixes the random numbers; None draws fresh ones.
        n: how many completions of the prompt, each a branch of its own.
        pooling: tell what an embedding of the prompt is made of; None tells nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_decay: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: Sequence[int] | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 256
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above_low=True)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _number("penalty_decay", self.penalty_decay, 0.0, 1.0, above_low=True)
        _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        _integer("max_tokens", self.max_tokens, 0, MAX_TOKENS)
        if self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                "min_tokens", f"{self.min_tokens} exceeds max_tokens, {self.max_tokens}"
            )
        for field in ("logprobs", "prompt_logprobs"):
            value: int | None = getattr(self, field)
            if value is not None:
                _integer(field, value, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        _integer("n", self.n, 1, MAX_N)
        _at_most("logit_bias", len(self.logit_bias), MAX_BIASED_IDS)
        _at_most("stop_ids", len(self.stop_ids), MAX_STOP_IDS)
        for _, bias in self.logit_bias:
            _number("logit_bias", bias, -100.0, 100.0)
        if self.allowed_ids is not None and not self.allowed_ids:
            raise InvalidParameterError("allowed_ids", "an empty list allows nothing")

    def check_ids(self, vocab_size: int) -> None:
        """Check every id in these parameters against the vocabulary.

        Raises:
            TokenOutOfRangeError: an id is not an integer in ``[0, vocab_size)``.
        """
        check_ids("logit_bias", [token_id for token_id, _ in self.logit_bias], vocab_size)
        check_ids("allowed_ids", self.allowed_ids or (), vocab_size)
        check_ids("stop_ids", self.stop_ids, vocab_size)

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on which ids came before, beyond the state."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def check_ids(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Check ids against the vocabulary. About 50 ns an id.

    Raises:
        TokenOutOfRangeError: one is outside ``[0, vocab_size)``.
        InvalidParameterError: one is not an integer; ``True`` is none.
    """
    # Three passes in C instead of one in Python: a prompt can have 10,000 ids and the
    # sockets wait meanwhile. Only a bad one pays for finding out which id it is.
    if not token_ids or (
        set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size
    ):
        return
    for token_id in token_ids:
        if type(token_id) is not int:
            raise InvalidParameterError(field, f"{token_id!r} is not an integer")
        if not 0 <= token_id < vocab_size:
            raise TokenOutOfRangeError(field, token_id, vocab_size)


def _number(field: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    # Not math.isfinite: it raises OverflowError for an int above the largest float.
    if type(value) not in (int, float) or value != value or value in (math.inf, -math.inf):
        raise InvalidParameterError(field, f"{value!r} is not a finite number")
    if value < low or value > high or (above_low and value == low):
        bracket = "(" if above_low else "["
        raise InvalidParameterError(field, f"{value!r} is not in {bracket}{low:g}, {high:g}]")


def _integer(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidParameterError(field, f"{value!r} is not an integer")
    if not low <= value <= high:
        raise InvalidParameterError(field, f"{value} is not in [{low}, {high}]")


def _at_most(field: str, n: int, limit: int) -> None:
    if n > limit:
        raise InvalidParameterError(field, f"{n} entries, the limit is {limit}")
