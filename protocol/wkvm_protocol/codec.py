"""Messages to payloads and back. Whatever is wrong with a payload is a RemoteProtocolError.

Decoding is typed from the first byte on, so a payload costs what its message costs and
stops at the first thing that does not belong there.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import UnionType
from typing import Final, Generic, TypeVar

import msgspec

from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.messages import (
    TENANT_FEATURE,
    Embed,
    Embedding,
    End,
    EndOn,
    EndReason,
    Generate,
    GenerateConstrained,
    GenerateOn,
    HelloOk,
    Logprobs,
    Message,
    PromptHint,
    Sampling,
    Score,
    StateChanges,
    StateCreate,
    StateExportBegin,
    StateInfo,
    StatePage,
    StateVersions,
    Tokens,
    unpack_ids,
)

_encoder: Final = msgspec.msgpack.Encoder()
_PATH = re.compile(r"(?P<what>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")


MessageT = TypeVar("MessageT", bound=Message)


class Codec(Generic[MessageT]):
    """Decodes payloads of some message types, and encodes messages of these types."""

    def __init__(self, *types: type[MessageT]) -> None:
        union: type[MessageT] | UnionType = types[0]
        for message_type in types[1:]:
            union = union | message_type
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(union)
        self._types = {message_type.__struct_config__.tag: message_type for message_type in types}
        self._classes = frozenset(types)

    def recognizes(self, payload: bytes) -> bool:
        """Whether a payload has the tag of one of the types, written in a short form.

        Under a microsecond: nothing else of it is looked at.
        """
        return _tag(payload) in self._types

    def decode(self, payload: bytes) -> MessageT:
        """Decode one payload.

        Raises:
            RemoteProtocolError: the payload is not MessagePack, not one of the types, or
                its fields contradict each other. The message names the field.
        """
        try:
            message = self._decoder.decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RemoteProtocolError(self._explain(payload, error)) from None
        check = _CHECKS.get(type(message))
        if check is not None and (problem := check(message)) is not None:
            raise RemoteProtocolError(f"{type(message).__name__}.{problem}")
        return message

    def encode(self, message: MessageT) -> bytes:
        """Encode a message to a payload, and check that the peer would take it.

        Raises:
            LocalProtocolError: it is of another type, or a field holds what the protocol
                does not allow.
        """
        if type(message) not in self._classes:
            raise LocalProtocolError(f"{type(message).__name__} cannot be sent here")
        try:
            payload = payload_of(message)
            self.decode(payload)
        except (RemoteProtocolError, TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(str(error)) from error
        return payload

    def _explain(self, payload: bytes, error: Exception) -> str:
        text = str(error) or type(error).__name__
        message_type = self._types.get(_tag(payload))
        if message_type is None:
            return f"not a message that is expected now: {text}"
        match = _PATH.fullmatch(text)
        if match is None:
            return f"{message_type.__name__}: {text}"
        name = message_type.__name__ + _field_names(message_type, match["path"])
        return f"{name}: {'of a key: ' if match['key'] else ''}{match['what']}"


def payload_of(message: Message) -> bytes:
    """A message as it is sent, unchecked: an array of its tag and all of its fields.

    A field that came later than version 1 is left out where it says nothing: who did not agree
    to it takes no longer array.
    """
    if isinstance(message, HelloOk) and not message.tenant:
        fields = msgspec.structs.astuple(message)
        return _encoder.encode((message.__struct_config__.tag, *fields[:-1]))
    return _encoder.encode(message)


def _tag(payload: bytes) -> int | None:
    """The tag of an array, if written in the shortest form."""
    if len(payload) > 1 and payload[0] & 0xF0 == 0x90 and payload[1] < 0x80:
        return payload[1]
    if len(payload) > 3 and payload[0] == 0xDC and payload[3] < 0x80:
        return payload[3]
    return None


def _field_names(message_type: type[Message], path: str) -> str:
    """Turn ``[3][1]``, places in arrays, into ``.sampling.top_k``."""
    indices = _INDEX.findall(path)
    if not indices or not indices[0].isdigit() or indices[0] == "0":
        return path
    fields = message_type.__struct_fields__
    if int(indices[0]) > len(fields):
        return path
    name = fields[int(indices[0]) - 1]
    rest = indices[1:]
    if name == "sampling" and rest and rest[0].isdigit():
        inner = Sampling.__struct_fields__
        if int(rest[0]) < len(inner):
            return f".{name}.{inner[int(rest[0])]}"
    return f".{name}" + "".join(f"[{index}]" for index in rest)


# --- what the types do not say ------------------------------------------------------------


def token_entries(message: Tokens) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Go through a Tokens: lane, choice and ids of each entry, in order."""
    ids = unpack_ids(message.ids)
    lanes = unpack_ids(message.lanes)
    choices = unpack_ids(message.choices) if message.choices else bytes(len(lanes))
    if not message.counts:
        for i, lane in enumerate(lanes):
            yield lane, choices[i], ids[i : i + 1]
        return
    start = 0
    for lane, choice, count in zip(lanes, choices, unpack_ids(message.counts), strict=True):
        yield lane, choice, ids[start : start + count]
        start += count


def _packed(owner: Message, *names: str, prefix: str = "") -> str | None:
    for name in names:
        value: bytes | None = getattr(owner, name)
        if value is not None and len(value) % 4:
            return f"{prefix}{name}: {len(value)} bytes is not a multiple of 4"
    return None


def _check_hello_ok(message: Message) -> str | None:
    assert isinstance(message, HelloOk)
    if bool(message.tenant) != (TENANT_FEATURE in message.features):
        return f"tenant: told if and only if the feature {TENANT_FEATURE} is in use"
    return _packed(message, "eos_ids")


def _check_generate(message: Message) -> str | None:
    assert isinstance(message, Generate | GenerateConstrained | GenerateOn)
    sampling = message.sampling
    if len(message.prompt) % 4:
        return _packed(message, "prompt")
    if not (sampling.bias_ids or sampling.bias_values or sampling.stop_ids or sampling.allowed_ids):
        return None
    problem = _packed(
        sampling, "bias_ids", "bias_values", "allowed_ids", "stop_ids", prefix="sampling."
    )
    if problem is None and len(sampling.bias_ids) != len(sampling.bias_values):
        problem = (
            f"sampling.bias_values: {len(sampling.bias_values) // 4} numbers for "
            f"{len(sampling.bias_ids) // 4} bias_ids"
        )
    return problem


def _check_prompt(message: Message) -> str | None:
    return _packed(message, "prompt")


def _check_embedding(message: Message) -> str | None:
    return _packed(message, "vector")


def _check_hint(message: Message) -> str | None:
    return _packed(message, "borders")


def _check_end(message: Message) -> str | None:
    assert isinstance(message, End)
    if message.reason is EndReason.MOVED:
        return "reason: only what began with a state can move"
    return None


def _check_state(message: Message) -> str | None:
    """Of a StateInfo within a reply."""
    assert isinstance(message, StateVersions | StatePage | StateExportBegin)
    if isinstance(message, StateExportBegin):
        return _check_tails(() if message.state is None else (message.state,))
    return _check_tails(message.states)


def _check_tails(states: Iterable[StateInfo]) -> str | None:
    return next(
        (problem for one in states if (problem := _packed(one, "tail", prefix="state."))), None
    )


def _check_changes(message: Message) -> str | None:
    assert isinstance(message, StateChanges)
    if len(message.used_s) % 4:
        return _packed(message, "used_s")
    if len(message.used_s) != 4 * len(message.states):
        return f"used_s: {len(message.used_s) // 4} for {len(message.states)} states"
    return _check_tails(message.states)


def _check_end_on(message: Message) -> str | None:
    return _packed(message, "pending")


def _check_tokens(message: Message) -> str | None:
    assert isinstance(message, Tokens)
    n_bytes = len(message.lanes)
    problem = _packed(message, "lanes", "ids", "choices", "counts")
    if problem is not None:
        return problem
    if message.choices and len(message.choices) != n_bytes:
        return f"choices: {len(message.choices) // 4} for {n_bytes // 4} lanes"
    if message.counts and len(message.counts) != n_bytes:
        return f"counts: {len(message.counts) // 4} for {n_bytes // 4} lanes"
    n_ids = sum(unpack_ids(message.counts)) if message.counts else n_bytes // 4
    if n_ids * 4 != len(message.ids):
        return f"ids: {len(message.ids) // 4}, the counts add up to {n_ids}"
    return None


def _check_logprobs(message: Message) -> str | None:
    assert isinstance(message, Logprobs)
    problem = _packed(message, "ids", "logprobs", "ranks", "top_ids", "top_logprobs")
    if problem is not None:
        return problem
    n_positions = len(message.ids) // 4
    wanted = {
        "logprobs": n_positions,
        "ranks": n_positions,
        "top_ids": n_positions * message.n_top,
        "top_logprobs": n_positions * message.n_top,
    }
    for name, n in wanted.items():
        value: bytes = getattr(message, name)
        if len(value) != n * 4:
            return f"{name}: {len(value) // 4} entries, {n} expected"
    return None


_CHECKS: Final[dict[type[Message], Callable[[Message], str | None]]] = {
    HelloOk: _check_hello_ok,
    Generate: _check_generate,
    GenerateConstrained: _check_generate,
    GenerateOn: _check_generate,
    StateCreate: _check_prompt,
    Score: _check_prompt,
    Embed: _check_prompt,
    Embedding: _check_embedding,
    PromptHint: _check_hint,
    End: _check_end,
    EndOn: _check_end_on,
    StateVersions: _check_state,
    StatePage: _check_state,
    StateExportBegin: _check_state,
    StateChanges: _check_changes,
    Tokens: _check_tokens,
    Logprobs: _check_logprobs,
}
