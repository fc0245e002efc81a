"""Fields of messages about states to values of the core, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from wkvm_protocol import messages as wire
from wkvm_protocol.messages import pack_ids

from wkvm.core.errors import InvalidParameterError
from wkvm.core.registry import Durability, VersionRecord, parse_ref
from wkvm.core.states import Descent, OnDisconnect, Replayed, StateInfo, StateUse, Tier

FIELD_NAMES: Mapping[type[wire.Message], Mapping[str, str]] = {
    wire.MigrateBegin: {"timeout_s": "timeout_ms"},
    wire.StateCreate: {"save_as": "name"},
    wire.StateEdit: {"new_name": "rename"},
    wire.StateMutate: {"parents": "states"},
}
"""What messages call the parameters of the operations that they ask for, if otherwise."""
MAX_SECONDS = 2**40
"""Of a time to expire: about 35,000 years."""


def durability_of(text: str) -> Durability | None:
    """``disk``, ``memory``, or the best there is.

    Raises:
        InvalidParameterError: another word.
    """
    if not text:
        return None
    try:
        return Durability(text)
    except ValueError:
        raise InvalidParameterError("durability", "disk, memory, or empty") from None


def tier_of(text: str) -> Tier:
    """A tier to hibernate to.

    Raises:
        InvalidParameterError: another word.
    """
    if text in ("host", "disk", "cold"):
        return Tier(text)
    raise InvalidParameterError("tier", "host, disk or cold")


def form_of(text: str) -> str:
    """The form of a file.

    Raises:
        InvalidParameterError: another word.
    """
    if text in ("state", "blinkdl", "fla"):
        return text
    raise InvalidParameterError("format", "state, blinkdl or fla")


def expiry_of(expires_in_ms: int, now: float) -> float | None:
    """When something expires, in seconds since 1970; None for 0.

    Raises:
        InvalidParameterError: no calendar goes that far.
    """
    if expires_in_ms > MAX_SECONDS * 1000:
        raise InvalidParameterError("expires_in_ms", f"at most {MAX_SECONDS * 1000}")
    return now + expires_in_ms / 1000 if expires_in_ms else None


def parameters_of(text: str) -> Mapping[str, Any]:
    """The parameters of a mutation.

    Raises:
        InvalidParameterError: it is not a JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidParameterError("parameters", "a JSON object") from None


def use_of(message: wire.GenerateOn, now: float, inline: bytes | None) -> StateUse:
    """What a request does with states.

    Raises:
        InvalidParameterError: a value is none that is allowed, or two do not go together.
    """
    try:
        on_disconnect = OnDisconnect(message.on_disconnect)
    except ValueError:
        raise InvalidParameterError("on_disconnect", "cancel, finish or hibernate") from None
    if message.state and message.inline_bytes:
        raise InvalidParameterError("inline_bytes", "state names one to start from already")
    return StateUse(
        state=parse_ref(message.state) if message.state else None,
        inline=inline,
        save_as=message.save_as or None,
        expected_version=message.expected_version,
        durability=durability_of(message.durability),
        on_disconnect=on_disconnect,
        returns_state=message.want_inline,
        checkpoint_every=message.checkpoint_every or None,
        keeps_key=message.replay,
        tags=message.tags or {},
        expires_at=expiry_of(message.expires_in_ms, now),
        idempotency_key=message.idempotency_key or None,
        received=message.received,
    )


def info_message(info: StateInfo) -> wire.StateInfo:
    """What a client is told of a version and its handle."""
    handle, version = info.handle, info.version
    return wire.StateInfo(
        name=version.name,
        version=version.version,
        head=handle.head.version,
        n_versions=handle.n_versions,
        ack=version.ack.value,
        tier=info.tier.value,
        content_id=version.content_id,
        n_bytes=version.n_bytes,
        n_computed=version.n_computed,
        n_pending=version.n_pending,
        operation=version.provenance.operation,
        parents=tuple(one.ref for one in version.provenance.parents[: wire.MAX_STATES]),
        tags=dict(handle.tags),
        created_ms=_ms(version.created_at),
        updated_ms=_ms(handle.updated_at),
        expires_ms=None if handle.expires_at is None else _ms(handle.expires_at),
        model_digest=version.identity.model_digest,
        layout_fingerprint=version.identity.fingerprint,
        tokenizer_digest=version.identity.tokenizer_digest,
        tail=pack_ids(version.tail),
    )


def lineage_entry(descent: Descent) -> wire.LineageEntry:
    """What a client is told of where a version comes from."""
    record = descent.record
    return wire.LineageEntry(
        name=record.name,
        version=record.version,
        made_as=descent.made_as,
        operation=record.provenance.operation,
        parents=tuple(one.ref for one in record.provenance.parents[: wire.MAX_STATES]),
        created_ms=_ms(record.created_at),
        n_computed=record.n_computed,
        n_pending=record.n_pending,
        n_bytes=record.n_bytes,
        content_id=record.content_id,
    )


def log_entry(record: VersionRecord) -> dict[str, Any]:
    """How one version came to be, for JSON."""
    return {
        "name": record.name,
        "version": record.version,
        "content_id": record.content_id,
        "ack": record.ack.value,
        "created_ms": _ms(record.created_at),
        "n_computed": record.n_computed,
        "n_pending": record.n_pending,
        "provenance": record.provenance.to_json(),
    }


def replayed_json(replayed: Replayed) -> dict[str, Any]:
    """What came of a replay, for JSON."""
    return {
        "state": str(replayed.ref),
        "n_operations": replayed.n_operations,
        "equal": replayed.equal,
        "content_id": replayed.content_id,
        "replayed_content_id": replayed.replayed_content_id,
        "first_difference": replayed.first_difference,
    }


def what_fits(sizes: Sequence[int], n_bytes: int) -> int:
    """How many of some parts fit into a reply, one at least if there is one."""
    n_used = 0
    for n, size in enumerate(sizes):
        n_used += size
        if n and n_used > n_bytes:
            return n
    return len(sizes)


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 0)
