"""Messages about the connection itself: tags 0x01 to 0x0f."""

from typing import Annotated

import msgspec

from wkvm_protocol.fields import MAX_FRAME_BYTES, Count, LongText, Message, PackedIds, ShortText


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
    tenant: ShortText = ""
    """Whose the key is, where the feature ``tenant`` was agreed. Else it is empty, and not sent."""


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
