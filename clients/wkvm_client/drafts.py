"""Keyword arguments to a request that fits the wire. What the values mean, the server checks.

Only what cannot be packed, or concerns the client alone, is refused here.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from wkvm_protocol.errors import LocalProtocolError
from wkvm_protocol.messages import (
    EMBED_FEATURE,
    FEATURES,
    GRAMMAR_FEATURE,
    MAX_SHORT_TEXT,
    SCORE_FEATURE,
    STATES_FEATURE,
    WATCH_FEATURE,
    Embed,
    Generate,
    GenerateConstrained,
    GenerateOn,
    Generation,
    Message,
    PromptHint,
    Sampling,
    Score,
    StateOperation,
    Stats,
    Watch,
    pack_floats,
    pack_ids,
)

from wkvm_client.errors import (
    ClientError,
    InvalidParameterError,
    RequestTooLargeError,
    TokenOutOfRangeError,
    UnsupportedOperationError,
)
from wkvm_client.states import NOTHING_KEPT, Keep

DEFAULT_CREDIT = 1024
"""Ids of one lane that may be waiting for their consumer."""
MAX_CREDIT = 2**31 - 1
MAX_TOKENS = 2**31 - 1
"""A server takes no higher ``max_tokens``; what is higher is for it to refuse."""
MAX_CHOICES = 1024
"""Choices for which this client makes room. Servers take far fewer."""

Sent: TypeAlias = Generation | Score | Embed | Stats | StateOperation | Watch
"""What opens a lane."""

# what is wrong with grammar_kind has the field grammar, as the server says it too
_FIELD = re.compile(r"\w+\.(?:sampling\.)?(grammar|\w+)")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must be. Servers take up to 65,536 bytes of it, in UTF-8.

    Attributes:
        kind: how ``source`` is written.
        source: a JSON schema, as JSON; a regular expression, which all of the output must
            match; a grammar in the dialect of Lark that llguidance has; or, as JSON, sequences of
            ids that the output has nowhere, and perhaps another grammar.
    """

    kind: Literal["json_schema", "regex", "lark", "without"]
    source: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A request without its number, checked as far as a client can.

    Attributes:
        message: what is sent once ``request_id`` is filled in.
        window: ids that may wait for their consumer; None for no limit.
        timeout_s: what the server was told; None for the server's default.
        data: a state to start from, which is sent along.
        hint: what is known of the prompt; of no number either.
    """

    message: Generation | Score | Embed
    window: int | None
    timeout_s: float | None
    data: bytes = b""
    hint: PromptHint | None = None

    def numbered(self, request_id: int) -> Generation | Score | Embed:
        """The message for one lane."""
        return msgspec.structs.replace(self.message, request_id=request_id)

    @property
    def n(self) -> int:
        """How many choices there will be. At least 1: something has to hold the refusal."""
        return 1 if isinstance(self.message, Score | Embed) else max(self.message.sampling.n, 1)

    @property
    def max_ids(self) -> int:
        """No more ids than this can come, all choices together."""
        if isinstance(self.message, Score | Embed):
            return 0
        return self.n * min(self.message.sampling.max_tokens, MAX_TOKENS)

    @property
    def logprobs(self) -> int | None:
        """How many of the most likely ids come with each id; None for no log probabilities."""
        if isinstance(self.message, Score | Embed):
            return None
        return self.message.sampling.logprobs

    @property
    def prompt_logprobs(self) -> int | None:
        """Likewise, with each id of the prompt but the first."""
        if isinstance(self.message, Score):
            return self.message.n_top
        if isinstance(self.message, Embed):
            return None
        return self.message.sampling.prompt_logprobs


def draft(
    prompt: Iterable[int],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    penalty_decay: float,
    logit_bias: Mapping[int, float] | None,
    allowed_ids: Iterable[int] | None,
    stop_ids: Iterable[int],
    ignore_eos: bool,
    min_tokens: int,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    seed: int | None,
    n: int,
    credit: int | None,
    timeout_s: float | None,
    priority: int,
    grammar: Grammar | None = None,
    keep: Keep = NOTHING_KEPT,
    borders: Iterable[int] = (),
    cache_salt: str = "",
) -> Draft:
    """Check and pack one request.

    Args:
        keep: what it does with states.
        borders, cache_salt: what is known of the prompt; servers that have no use for it are not
            told.

    Raises:
        TokenOutOfRangeError: an id does not fit 32 bits.
        InvalidParameterError: ids or biases that are no numbers, or an ``n``, ``credit``
            or ``timeout_s`` that is not allowed.
    """
    bias = dict(logit_bias) if logit_bias else {}
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        penalty_decay=penalty_decay,
        bias_ids=pack("logit_bias", bias) if bias else b"",
        bias_values=_pack_biases(bias.values()) if bias else b"",
        allowed_ids=None if allowed_ids is None else pack("allowed_ids", allowed_ids),
        stop_ids=pack("stop_ids", stop_ids),
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        seed=seed,
        n=n,
    )
    if credit is not None and not 1 <= credit <= MAX_CREDIT:
        raise InvalidParameterError(
            f"credit: {credit} is not in [1, {MAX_CREDIT}]; None is no limit", field="credit"
        )
    if n > MAX_CHOICES:
        raise InvalidParameterError(f"n: {n} exceeds {MAX_CHOICES}", field="n")
    hint = None
    if cache_salt or borders:
        hint = PromptHint(0, pack("borders", borders), cache_salt)
        if len(cache_salt) > MAX_SHORT_TEXT or not _is_text(cache_salt):
            why = f"text of at most {MAX_SHORT_TEXT} characters is allowed"
            raise InvalidParameterError(f"cache_salt: {why}", field="cache_salt")
    message: Generation
    if keep != NOTHING_KEPT:
        return Draft(
            GenerateOn(
                request_id=0,
                prompt=pack("prompt", prompt),
                sampling=sampling,
                credit=credit or 0,
                timeout_ms=milliseconds("timeout_s", timeout_s),
                priority=priority,
                state=keep.state,
                inline_bytes=len(keep.data),
                save_as=keep.save_as,
                expected_version=keep.expected_version,
                on_disconnect=keep.on_disconnect,
                durability=keep.durability,
                want_inline=keep.return_state,
                checkpoint_every=keep.checkpoint_every,
                replay=keep.replay,
                idempotency_key=keep.idempotency_key,
                received=keep.received,
                grammar_kind="" if grammar is None else grammar.kind,
                grammar="" if grammar is None else grammar.source,
                tags=None if keep.tags is None else dict(keep.tags),
                expires_in_ms=milliseconds("expires_in_s", keep.expires_in_s),
            ),
            credit,
            timeout_s,
            keep.data,
            hint,
        )
    if grammar is None:
        message = Generate(
            request_id=0,
            prompt=pack("prompt", prompt),
            sampling=sampling,
            credit=credit or 0,
            timeout_ms=milliseconds("timeout_s", timeout_s),
            priority=priority,
        )
    else:
        message = GenerateConstrained(
            request_id=0,
            prompt=pack("prompt", prompt),
            grammar_kind=grammar.kind,
            grammar=grammar.source,
            sampling=sampling,
            credit=credit or 0,
            timeout_ms=milliseconds("timeout_s", timeout_s),
            priority=priority,
        )
    return Draft(message, credit, timeout_s, hint=hint)


def score_draft(
    ids: Iterable[int], *, path: str, n_top: int, timeout_s: float | None, priority: int
) -> Draft:
    """Check and pack the scoring of a text.

    Raises:
        TokenOutOfRangeError, InvalidParameterError: as ``draft``.
    """
    message = Score(
        request_id=0,
        prompt=pack("prompt", ids),
        path=path,
        n_top=n_top,
        timeout_ms=milliseconds("timeout_s", timeout_s),
        priority=priority,
    )
    return Draft(message, None, timeout_s)


def embed_draft(
    ids: Iterable[int], *, pooling: str, timeout_s: float | None, priority: int
) -> Draft:
    """Check and pack the embedding of a text.

    Raises:
        TokenOutOfRangeError, InvalidParameterError: as ``draft``.
    """
    message = Embed(
        request_id=0,
        prompt=pack("prompt", ids),
        pooling=pooling,
        timeout_ms=milliseconds("timeout_s", timeout_s),
        priority=priority,
    )
    return Draft(message, None, timeout_s)


REFUSALS = {
    EMBED_FEATURE: ("the server makes no embeddings", ""),
    GRAMMAR_FEATURE: ("the server takes no grammars", "grammar"),
    SCORE_FEATURE: ("the server does not score texts", ""),
    STATES_FEATURE: ("the server keeps no states", ""),
    WATCH_FEATURE: ("the server does not tell what changes", ""),
}
"""What is said of a server without a feature, and the field that asks for it."""


def check_features(message: Sent, features: frozenset[str]) -> None:
    """Check that a server takes such messages.

    Raises:
        UnsupportedOperationError: it does not.
    """
    feature = FEATURES.get(type(message))
    if feature is not None and feature not in features:
        why, field = REFUSALS[feature]
        raise UnsupportedOperationError(why, field=field)


def refusal(message: Sent, error: LocalProtocolError, *, max_frame_bytes: int) -> ClientError:
    """Why a request could not be sent: it is too long, or a field is of the wrong kind."""
    try:
        n_bytes = len(msgspec.msgpack.encode(message))
    except (TypeError, ValueError, OverflowError):
        n_bytes = 0
    if n_bytes > max_frame_bytes:
        return RequestTooLargeError(n_bytes, max_frame_bytes)
    parts: list[Message] = [message]
    if isinstance(message, Generate | GenerateConstrained | GenerateOn):
        parts.insert(0, message.sampling)
    for part in parts:
        for name in part.__struct_fields__:
            value = getattr(part, name)
            # The encoder does not say which number it has no form for.
            if isinstance(value, int) and not -(2**63) <= value < 2**64:
                return InvalidParameterError(f"{name}: {value} is out of range", field=name)
            if isinstance(value, str) and not _is_text(value):
                return InvalidParameterError(f"{name}: it holds a surrogate", field=name)
    text = str(error)
    match = _FIELD.match(text)
    if match is None:
        return InvalidParameterError(text, field="")
    return InvalidParameterError(text[match.start(1) :], field=match[1])


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def pack(field: str, ids: Iterable[int]) -> bytes:
    """Ids as they are sent.

    Raises:
        TokenOutOfRangeError, InvalidParameterError: they cannot be.
    """
    if ids == ():
        return b""
    try:
        return pack_ids(ids)
    except OverflowError:
        raise TokenOutOfRangeError(f"{field}: an id does not fit 32 bits", field=field) from None
    except TypeError as error:
        raise InvalidParameterError(f"{field}: {error}", field=field) from None


def _pack_biases(values: Iterable[float]) -> bytes:
    try:
        return pack_floats(values)
    except (TypeError, OverflowError) as error:
        raise InvalidParameterError(f"logit_bias: {error}", field="logit_bias") from None


def milliseconds(field: str, seconds: float | None) -> int:
    """Rounded up: 0 would mean what None means, that nothing was asked for.

    Raises:
        InvalidParameterError: it is no positive time, or more than 136 years.
    """
    if seconds is None:
        return 0
    if not 0 < seconds < 2**32:
        why = f"{field}: {seconds:g} s is not above 0 and below 2^32"
        raise InvalidParameterError(why, field=field)
    return math.ceil(seconds * 1000)
