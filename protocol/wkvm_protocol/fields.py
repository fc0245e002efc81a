"""What messages are made of: limits, types of fields, Sampling, and numbers packed in bytes."""

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
EMBED_FEATURE = "embed"
"""The feature under which a client may send Embed."""
SCORE_FEATURE = "score"
"""The feature under which a client may send Score."""
PREFIX_FEATURE = "prefix"
"""The feature under which a client may send PromptHint, and a server Reused."""
TENANT_FEATURE = "tenant"
"""The feature under which HelloOk says whose the key is."""

RequestId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUEST_ID)]
"""Chosen by the client; names a lane of the connection until its last End or Failed."""
PackedIds: TypeAlias = bytes
"""Token ids, or counts, as packed little-endian uint32."""
PackedFloats: TypeAlias = bytes
"""Numbers as packed little-endian float32."""
ShortText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_SHORT_TEXT)]
LongText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LONG_TEXT)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Grant: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
"""How much more may be sent."""


class EndReason(IntEnum):
    """Why a completion ended. Errors come as Failed, not as an End."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    TIMED_OUT = 4
    MOVED = 5
    """It goes on at another server. Only in EndOn."""

    def __str__(self) -> str:
        """Its name in lower case, such as ``timed_out``."""
        return self.name.lower()


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Base of all messages. ``gc=False`` is safe: no message can hold a cycle."""


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
