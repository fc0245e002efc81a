"""Every message of protocol version 1. Tags and field order are the format.

A message is a MessagePack array: its tag, then its fields in the order given here.
``docs/protocol.md`` is normative; this module is one implementation of it.
Token ids travel as packed little-endian uint32 in a bytes field: one copy, not one
object per id.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
MAGIC = "wkvm"

MAX_HELLO_FRAME_BYTES = 64 * 1024
"""Payload limit before HELLO_OK."""
MAX_FRAME_BYTES = 1024 * 1024
"""Payload limit of a message after HELLO_OK."""
MAX_LANES = 1024
"""Open lanes of one connection."""
MAX_REQUEST_ID = 2**32 - 1
MAX_SHORT_TEXT = 256
MAX_LONG_TEXT = 4096
"""Characters in the texts of messages: names are short; keys and explanations are long."""

GRAMMAR_FEATURE = "grammar"
"""The feature under which a client may send GenerateConstrained."""
SCORE_FEATURE = "score"
"""The feature under which a client may send Score."""

RequestId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUEST_ID)]
"""Chosen by the client; names a lane of the connection until its last End or Failed."""
PackedIds: TypeAlias = bytes
"""Token ids, or counts, as packed little-endian uint32."""
PackedFloats: TypeAlias = bytes
"""Numbers as packed little-endian float32."""
ShortText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_SHORT_TEXT)]
LongText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LONG_TEXT)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class EndReason(IntEnum):
    """Why a completion ended. Errors come as Failed, not as an End."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    TIMED_OUT = 4

    def __str__(self) -> str:
        """Its name in lower case, such as ``timed_out``."""
        return self.name.lower()


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Base of all messages. ``gc=False`` is safe: no message can hold a cycle."""


# --- the connection: 0x01 to 0x0f ---------------------------------------------------------


class Hello(Message, frozen=True, tag=0x01):
    """Client to server, first: offer versions and features, and authenticate.

    Answered by HelloOk, or by Error and the end of the connection.
    """

    magic: ShortText
    min_version: Count
    max_version: Count
    features: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=64)] = ()
    max_frame_bytes: Count = MAX_FRAME_BYTES
    api_key: LongText = ""
    client: ShortText = ""


class HelloOk(Message, frozen=True, tag=0x02):
    """Server to client: the connection is open. What was agreed, and what is served."""

    version: Count
    features: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=64)]
    max_frame_bytes: Count
    max_lanes: Count
    ping_interval_ms: Count
    server: ShortText
    model: ShortText
    model_digest: ShortText
    layout_fingerprint: ShortText
    tokenizer_digest: ShortText
    """Hex SHA-256 of the tokenizer's file; empty where the model brings none."""
    vocab_size: Count
    eos_ids: PackedIds
    n_slots: Count
    max_model_len: Count
    """0 where there is no limit."""


class Ping(Message, frozen=True, tag=0x03):
    """Either side: answered by a Pong with the same nonce, ahead of anything queued later."""

    nonce: Count = 0


class Pong(Message, frozen=True, tag=0x04):
    """Either side: the answer to a Ping."""

    nonce: Count = 0


class GoAway(Message, frozen=True, tag=0x05):
    """Either side: no new lanes on this connection; open ones go on to their ends."""

    message: LongText = ""
    retry_after_ms: Count = 0


class Error(Message, frozen=True, tag=0x06):
    """Server to client: the connection is at fault and closes after this message."""

    code: Count
    retryable: bool
    message: LongText


# --- generation: 0x10 to 0x1f -------------------------------------------------------------


class Sampling(Message, frozen=True):
    """How ids are chosen. Ranges are those of docs/protocol.md, checked by the server.

    A value out of range ends the lane with Failed; the connection stays usable.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_decay: float = 1.0
    bias_ids: PackedIds = b""
    bias_values: PackedFloats = b""
    allowed_ids: PackedIds | None = None
    stop_ids: PackedIds = b""
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 256
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    n: int = 1


class Generate(Message, frozen=True, tag=0x10):
    """Client to server: open a lane and complete a prompt.

    Answered by any number of Tokens and Logprobs, then by one End for each of the ``n``
    choices; or by one Failed for the lane, at any time.
    """

    request_id: RequestId
    prompt: PackedIds
    sampling: Sampling = Sampling()
    credit: Count = 0
    """Ids that may be sent before more credit is granted, all choices together; 0 is no limit."""
    timeout_ms: Count = 0
    """From arrival to the end; 0 takes the server's default."""
    priority: int = 0
    """Lower runs first."""


class GenerateConstrained(Message, frozen=True, tag=0x13):
    """Client to server: as Generate, but the output follows a grammar.

    Legal only where the feature ``grammar`` was agreed.
    """

    request_id: RequestId
    prompt: PackedIds
    grammar_kind: ShortText
    """``json_schema``, ``regex`` or ``lark``."""
    grammar: str
    sampling: Sampling = Sampling()
    credit: Count = 0
    timeout_ms: Count = 0
    priority: int = 0


class Score(Message, frozen=True, tag=0x14):
    """Client to server: open a lane and tell the log probabilities of given ids.

    Answered by Logprobs of the prompt, then by one End; or by Failed. Legal only where the
    feature ``score`` was agreed.
    """

    request_id: RequestId
    prompt: PackedIds
    path: ShortText
    """``chunked``: as prompts are absorbed; ``decode``: one id a step, as output is."""
    n_top: int = 0
    """How many of the most likely ids to tell at each position."""
    timeout_ms: Count = 0
    priority: int = 0


class Cancel(Message, frozen=True, tag=0x11):
    """Client to server: end a lane. Answered by its End or Failed; unknown lanes are ignored."""

    request_id: RequestId


class Credit(Message, frozen=True, tag=0x12):
    """Client to server: let a lane send ``n_tokens`` more ids. Unknown lanes are ignored."""

    request_id: RequestId
    n_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Tokens(Message, frozen=True, tag=0x18):
    """Server to client: the ids of one step, for all lanes of the connection.

    Entry i belongs to lane ``lanes[i]`` and choice ``choices[i]`` and has ``counts[i]`` of
    the ``ids``, in order. Empty ``choices`` means all 0, empty ``counts`` all 1.
    """

    lanes: PackedIds
    ids: PackedIds
    choices: PackedIds = b""
    counts: PackedIds = b""


class Logprobs(Message, frozen=True, tag=0x19):
    """Server to client: log probabilities, in nats, of prompt ids or of ids in the next Tokens.

    Position i holds ``ids[i]``; its ``n_top`` most likely ids are
    ``top_ids[i * n_top : (i + 1) * n_top]``, best first.
    """

    request_id: RequestId
    choice: Count
    of_prompt: bool
    first: Count
    """Index of the first position, in the output or the prompt."""
    n_top: Count
    ids: PackedIds
    logprobs: PackedFloats
    ranks: PackedIds
    top_ids: PackedIds
    top_logprobs: PackedFloats


class End(Message, frozen=True, tag=0x1A):
    """Server to client: one choice of a lane is complete.

    After the last choice the lane is closed and its request id may be used again.
    """

    request_id: RequestId
    choice: Count
    reason: EndReason
    stop_id: Count | None
    n_prompt: Count
    n_output: Count
    queue_us: Count
    first_token_us: Count
    total_us: Count


class Failed(Message, frozen=True, tag=0x1B):
    """Server to client: the lane is closed without success. Other lanes are unaffected."""

    request_id: RequestId
    code: Count
    retryable: bool
    message: LongText
    field: ShortText = ""
    """The field of the request that is at fault, where one is."""
    retry_after_ms: Count = 0


# --- 0x20 to 0x3f are reserved for operations on states -----------------------------------

# --- the server: 0x40 to 0x4f -------------------------------------------------------------


class Stats(Message, frozen=True, tag=0x40):
    """Client to server: ask for counters. Answered by StatsReply, or by Failed."""

    request_id: RequestId


class StatsReply(Message, frozen=True, tag=0x41):
    """Server to client: counters and gauges by name, as listed in docs/protocol.md."""

    request_id: RequestId
    values: Annotated[dict[ShortText, int], msgspec.Meta(max_length=1024)]


Generation: TypeAlias = Generate | GenerateConstrained
"""What opens a lane of choices."""
Opening: TypeAlias = Generate | GenerateConstrained | Score | Stats
"""What opens a lane."""
ClientMessage: TypeAlias = Hello | Ping | Pong | GoAway | Opening | Cancel | Credit
ServerMessage: TypeAlias = (
    HelloOk | Ping | Pong | GoAway | Error | Tokens | Logprobs | End | Failed | StatsReply
)


FEATURES: dict[type[Message], str] = {
    GenerateConstrained: GRAMMAR_FEATURE,
    Score: SCORE_FEATURE,
}
"""Messages that are legal only where a feature was agreed."""


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack ids, or counts, as little-endian uint32.

    Raises:
        OverflowError: one is negative or above 2^32 - 1.
    """
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> Sequence[int]:
    """Unpack ids.

    Raises:
        ValueError: the length is not a multiple of 4.
    """
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def pack_floats(values: Iterable[float]) -> bytes:
    """Pack numbers as little-endian float32."""
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_floats(packed: bytes) -> Sequence[float]:
    """Unpack numbers.

    Raises:
        ValueError: the length is not a multiple of 4.
    """
    values = array("f")
    values.frombytes(packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values
