"""The fields that the bodies of completions and chats have in common.

Names are OpenAI's and, for what OpenAI does not have, those of vLLM. Values that only the
engine can judge are left to it; its refusal names the field all the same.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from wkvm_client import Grammar

from wkvm.gateway.config import MAX_STREAM_INTERVAL
from wkvm.gateway.failures import invalid
from wkvm.gateway.states.fields import StateFields
from wkvm.gateway.streams.pieces import TextOptions
from wkvm.gateway.structured import StructuredOutputs
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.texts import Texts

MAX_N = 128
NO_LIMIT = -1
"""What clients of llama.cpp's server and of its kin send as ``max_tokens`` where they mean none."""
MAX_STOPS = 64
MAX_STOP_LENGTH = 256
"""Characters of one stop string."""
MAX_BIASES = 1024
"""Entries of ``logit_bias``."""
MAX_REQUEST_ID_LENGTH = 128
MAX_BAD_WORDS = 512
MAX_BAD_WORD_LENGTH = 64
"""Characters, and tokens, of one of ``bad_words``."""

Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What fits the engine's messages; whether it makes sense is checked where it is used."""


class StreamOptions(msgspec.Struct):
    """What a stream reports beside its text.

    Attributes:
        include_usage: a last chunk has no choices but what all cost.
        continuous_usage_stats: every chunk has what was spent up to it.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonFields(StateFields, kw_only=True):
    """Fields of completions and chats alike. What becomes of others, ``policy`` says.

    None stands for a field that is absent: what the model's maker suggests counts, and then the
    default. Their meaning is that of ``wkvm_client.aio.Client.generate``, where not noted here.

    Attributes:
        structured_outputs: vLLM's; what the text must be.
        top_k: -1 and 0 keep all.
        seed: any 64-bit integer, negative ones included.
        n: choices for each prompt. Each is a lane of its own; see ``Lanes.open``.
        logit_bias: by id, as OpenAI has it: the keys are decimal.
        stop: strings that end a choice.
        stop_token_ids: ids that do.
        include_stop_str_in_output: whether the text ends with what stopped it.
        min_tokens: neither stop ids nor stop strings count before this many.
        skip_special_tokens: whether special tokens have no text.
        stream_interval: ids of one event of a stream, but for the first.
        timeout_s: of the whole request.
        return_metrics: whether the answer says how long it took.
        return_token_ids: whether the answer has ids besides text.
        bad_words: texts that the output does not have, as far as they are made of the ids that the
            tokenizer makes of them, with a space before them or without.
        cache_salt: only requests with the same one go on from each other's prompts.
        user: taken and not used.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_decay: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Integer] | None = None
    seed: int | None = None
    n: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    stream_interval: Integer | None = None
    skip_special_tokens: bool | None = None
    priority: Integer | None = None
    timeout_s: float | None = None
    request_id: str | None = None
    return_metrics: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    bad_words: list[str] | None = None
    user: str | None = None

    @property
    def n_choices(self) -> int:
        """How many choices each prompt gets.

        Raises:
            HttpError: 400; ``n`` is not in [1, MAX_N].
        """
        n = 1 if self.n is None else self.n
        if not 1 <= n <= MAX_N:
            raise invalid("n", f"{n} is not in [1, {MAX_N}]")
        return n

    @property
    def stops(self) -> list[str]:
        """The stop strings.

        Raises:
            HttpError: 400; there are too many, or one is empty or too long.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS:
            raise invalid("stop", f"{len(stops)} strings; at most {MAX_STOPS} are allowed")
        for stop in stops:
            if not stop:
                raise invalid("stop", "a stop string must not be empty")
            if len(stop) > MAX_STOP_LENGTH:
                why = f"a string of {len(stop)} characters; at most {MAX_STOP_LENGTH} are allowed"
                raise invalid("stop", why)
        return stops

    def keywords(self, texts: Texts, *, max_tokens: int, grammar: Grammar | None) -> dict[str, Any]:
        """The keywords of ``Client.generate``: of the request, else what the model suggests.

        ``n`` is not among them: choices are opened by ``Lanes.open``. Nor are log probabilities,
        which each route asks for in its own way.

        Args:
            texts: with what the model suggests. Of that ``top_k``, ``top_p`` and ``min_p`` do
                not count where there is a grammar.
            max_tokens: of each choice.
            grammar: what each choice must be.

        Raises:
            HttpError: 400; a field has a value that cannot be, or is not supported.
        """
        check_interval(self.stream_interval)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "needs stream to be true")
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "penalty_decay": self.penalty_decay,
            "logit_bias": self._biases(),
            "allowed_ids": self.allowed_token_ids,
            "stop_ids": self.stop_token_ids,
            "seed": self._seed(),
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "priority": self.priority,
            "timeout_s": self.timeout_s,
            "cache_salt": self.cache_salt,
        }
        given = {name: value for name, value in given.items() if value is not None}
        suggested = texts.suggested if grammar is None else _without_cuts(texts.suggested)
        keywords = {**suggested, **given, "max_tokens": max_tokens}
        if self.bad_words:
            grammar = without_words(self.bad_words, grammar, texts.tokenizer)
        if grammar is not None:
            keywords["grammar"] = grammar
        return keywords

    def text_options(
        self,
        *,
        logprobs: bool = False,
        stops: tuple[str, ...] = (),
        shown: frozenset[int] = frozenset(),
    ) -> TextOptions:
        """How the ids of this request become text.

        Args:
            logprobs: whether log probabilities were asked for.
            stops: stop strings besides those of the request, such as a chat template's.
            shown: special tokens that have text whatever ``skip_special_tokens`` says.

        Raises:
            HttpError: 400; as ``stops``.
        """
        return TextOptions(
            stops=(*self.stops, *stops),
            include_stop=bool(self.include_stop_str_in_output),
            skip_special=self.skip_special_tokens is not False,
            shown=shown,
            min_tokens=self.min_tokens or 0,
            logprobs=logprobs,
            clock=time.monotonic if self.return_metrics else None,
        )

    def stop_reason(self, reason: str | int | None) -> str | int | None:
        """What ended a choice, as vLLM tells it: None for the model's own end."""
        if isinstance(reason, int) and reason not in (self.stop_token_ids or ()):
            return None
        return reason

    def response_id(self, prefix: str, request_id: str) -> str:
        """The id of a response: the request's own name for it, else the one of the call.

        Raises:
            HttpError: 400; the name is too long.
        """
        if self.request_id is None:
            return f"{prefix}-{request_id}"
        if len(self.request_id) > MAX_REQUEST_ID_LENGTH:
            raise invalid("request_id", f"more than {MAX_REQUEST_ID_LENGTH} characters")
        return f"{prefix}-{self.request_id}"

    def _seed(self) -> int | None:
        if self.seed is None:
            return None
        if not -(2**63) <= self.seed < 2**64:
            raise invalid("seed", f"{self.seed} does not fit 64 bits")
        return self.seed % 2**64

    def _biases(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        if len(self.logit_bias) > MAX_BIASES:
            # The engine's limit, before every key is looked at.
            why = f"{len(self.logit_bias)} entries, the limit is {MAX_BIASES}"
            raise invalid("logit_bias", why)
        biases = dict[int, float]()
        for key, bias in self.logit_bias.items():
            if not (key.isascii() and key.isdecimal() and len(key) <= 10):
                raise invalid("logit_bias", f"{key[:20]!r} is not a token id")
            biases[int(key)] = bias
        return biases


def limit_of(max_tokens: int | None) -> int | None:
    """The limit that a body names; None for none, and for ``NO_LIMIT``."""
    return None if max_tokens == NO_LIMIT else max_tokens


def without_words(words: Sequence[str], grammar: Grammar | None, tokenizer: Tokenizer) -> Grammar:
    """A grammar that lacks some texts, and follows another one besides.

    Args:
        words: each is looked for as the tokenizer writes it, with a space before it and without.
        grammar: the other one; None for none.

    Raises:
        HttpError: 400; there are too many, or one is empty or too long.
    """
    if len(words) > MAX_BAD_WORDS:
        raise invalid("bad_words", f"{len(words)} texts; at most {MAX_BAD_WORDS} are allowed")
    sequences = dict[tuple[int, ...], None]()
    for word in words:
        if not word.strip() or len(word) > MAX_BAD_WORD_LENGTH:
            why = f"a text has 1 to {MAX_BAD_WORD_LENGTH} characters, and not only white space"
            raise invalid("bad_words", why)
        for written in (word, f" {word.lstrip()}"):
            ids = tokenizer.encode(written)
            if len(ids) > MAX_BAD_WORD_LENGTH:
                raise invalid("bad_words", f"{word!r} is more than {MAX_BAD_WORD_LENGTH} tokens")
            sequences[tuple(ids)] = None
    source: dict[str, object] = {"ids": list(sequences)}
    if grammar is not None:
        source |= {"kind": grammar.kind, "source": grammar.source}
    return Grammar("without", msgspec.json.encode(source).decode())


def _without_cuts(suggested: Mapping[str, float | int]) -> dict[str, float | int]:
    """The suggested sampling of an answer that a grammar constrains.

    It was suggested for free text. Where the grammar leaves a model little that it would say,
    the ids that these cut off may be the only ones that lead to an end.
    """
    return {name: x for name, x in suggested.items() if name not in ("top_k", "top_p", "min_p")}


def check_interval(interval: int | None) -> None:
    """Check how many ids an event of a stream should have.

    Raises:
        HttpError: 400; it cannot be so many.
    """
    if interval is not None and not 1 <= interval <= MAX_STREAM_INTERVAL:
        raise invalid("stream_interval", f"{interval} is not in [1, {MAX_STREAM_INTERVAL}]")
