"""Operations on states: messages to calls, and what comes of them to replies. One match."""

from collections.abc import Sequence

import msgspec
from wkvm_protocol import messages as wire
from wkvm_protocol.messages import unpack_ids

from wkvm.core.errors import InvalidParameterError
from wkvm.core.registry import canonical_json, parse_ref
from wkvm.core.states import Moved, StateInfo
from wkvm.server.interface import States
from wkvm.server.state_fields import (
    durability_of,
    expiry_of,
    info_message,
    lineage_entry,
    log_entry,
    parameters_of,
    replayed_json,
    tier_of,
    what_fits,
)

MAX_LOG = 256
"""Versions in one part of a log."""
MAX_INFO_BYTES = 1000
"""Of what is told of a fork, beside its tags: one parent, and 32 ids."""
ROOM = 256
"""Bytes that a reply has beside its list."""

Call = (
    wire.StateCreate
    | wire.StateGet
    | wire.StateList
    | wire.StateFork
    | wire.StateHibernate
    | wire.StateResume
    | wire.StateRollback
    | wire.StateEdit
    | wire.StateDelete
    | wire.StateMutate
    | wire.StateDiff
    | wire.StateLog
    | wire.StateReplay
    | wire.StateLineage
    | wire.MigrateBegin
    | wire.MigrateEnd
)
"""What takes one reply and needs nothing but the store and the engine."""

Reply = wire.StateVersions | wire.StatePage | wire.StateText | wire.StateLineagePage


async def carry_out(
    states: States, tenant: str, message: Call, *, now: float, max_bytes: int
) -> Reply:
    """Carry out an operation.

    Args:
        states: whose they are.
        tenant: who asks.
        message: what for.
        now: seconds since 1970.
        max_bytes: of the reply.

    Raises:
        WkvmError: it cannot be, and nothing was changed.
    """
    lane = message.request_id
    match message:
        case wire.StateList() if message.versions_of:
            return await _versions(states, tenant, message, max_bytes)
        case wire.StateList():
            return await _handles(states, tenant, message, max_bytes)
        case wire.StateDiff():
            found = await states.difference(
                tenant, parse_ref(message.state), parse_ref(message.other, "other")
            )
            return wire.StateText(lane, _fitting(canonical_json(found.to_json()), max_bytes), 0)
        case wire.StateLog():
            return await _log(states, tenant, message, max_bytes)
        case wire.StateLineage():
            return await _lineage(states, tenant, message, max_bytes)
        case wire.StateReplay():
            timeout_s = _seconds(message.timeout_ms)
            replayed = await states.replay(tenant, parse_ref(message.state), timeout_s=timeout_s)
            return wire.StateText(lane, canonical_json(replayed_json(replayed)), 0)
        case _:
            if isinstance(message, wire.StateFork):
                _check_answer_fits(message, max_bytes)
            infos = await _versions_made(states, tenant, message, now)
            return wire.StateVersions(lane, tuple(map(info_message, infos)))


async def _versions_made(
    states: States, tenant: str, message: Call, now: float
) -> Sequence[StateInfo]:
    match message:
        case wire.StateCreate():
            info = await states.create(
                tenant,
                message.name,
                unpack_ids(message.prompt),
                state=parse_ref(message.state) if message.state else None,
                tags=message.tags,
                expires_at=expiry_of(message.expires_in_ms, now),
                expected_version=message.expected_version,
                durability=durability_of(message.durability),
                checkpoint_every=message.checkpoint_every or None,
                timeout_s=_seconds(message.timeout_ms),
                priority=message.priority,
                idempotency_key=message.idempotency_key or None,
            )
        case wire.StateGet():
            info = await states.get(tenant, parse_ref(message.state))
        case wire.StateFork():
            if not message.names or len(set(message.names)) < len(message.names):
                raise InvalidParameterError("names", "one at least, and each once")
            return await states.fork(
                tenant,
                parse_ref(message.state),
                message.names,
                tags=message.tags,
                expires_at=expiry_of(message.expires_in_ms, now),
                keeps_key=message.keep_randomness,
                durability=durability_of(message.durability),
                idempotency_key=message.idempotency_key or None,
            )
        case wire.StateHibernate():
            info = await states.hibernate(
                tenant, parse_ref(message.state), tier=tier_of(message.tier)
            )
        case wire.StateResume():
            info = await states.resume(tenant, parse_ref(message.state))
        case wire.StateRollback():
            if (message.version is None) == (message.position is None):
                raise InvalidParameterError("version", "exactly one of version and position")
            info = await states.rollback(
                tenant,
                _name(message.state),
                version=message.version,
                position=message.position,
                expected_version=message.expected_version,
                idempotency_key=message.idempotency_key or None,
            )
        case wire.StateEdit():
            info = await _edit(states, tenant, message, now)
        case wire.StateDelete():
            await states.delete(
                tenant, parse_ref(message.state), expected_version=message.expected_version
            )
            return ()
        case wire.StateMutate():
            if not message.states:
                raise InvalidParameterError("states", "one at least")
            info = await states.mutate(
                tenant,
                message.operation,
                parameters_of(message.parameters),
                [parse_ref(one, "states") for one in message.states],
                save_as=message.save_as,
                tags=message.tags,
                expires_at=expiry_of(message.expires_in_ms, now),
                expected_version=message.expected_version,
                durability=durability_of(message.durability),
                idempotency_key=message.idempotency_key or None,
            )
        case wire.MigrateBegin():
            info = await states.migrate_begin(
                tenant, _name(message.state), timeout_s=_seconds(message.timeout_ms)
            )
        case wire.MigrateEnd():
            left = await states.migrate_end(tenant, _name(message.state), moved=_moved(message))
            return () if left is None else (left,)
        case _:
            raise AssertionError(f"{type(message).__name__} makes no versions")
    return (info,)


async def _edit(states: States, tenant: str, message: wire.StateEdit, now: float) -> StateInfo:
    name = _name(message.state)
    n_changes = bool(message.rename) + (message.tags is not None)
    if n_changes + (message.expires_in_ms is not None) != 1:
        raise InvalidParameterError("rename", "exactly one of rename, tags and expires_in_ms")
    expected = message.expected_version
    if message.rename:
        return await states.rename(tenant, name, message.rename, expected_version=expected)
    if message.tags is not None:
        return await states.set_tags(tenant, name, message.tags, expected_version=expected)
    expires_at = expiry_of(message.expires_in_ms or 0, now)
    return await states.set_expiry(tenant, name, expires_at, expected_version=expected)


async def _handles(
    states: States, tenant: str, message: wire.StateList, max_bytes: int
) -> wire.StatePage:
    page = await states.handles(
        tenant,
        prefix=message.prefix,
        tags=message.tags,
        after=message.cursor,
        limit=_limit(message.limit, wire.MAX_PAGE),
    )
    infos = [info_message(one) for one in page.states]
    n = what_fits([len(msgspec.msgpack.encode(one)) for one in infos], max_bytes - ROOM)
    following = infos[n - 1].name if n < len(infos) else page.next_after or ""
    return wire.StatePage(message.request_id, tuple(infos[:n]), following)


async def _versions(
    states: States, tenant: str, message: wire.StateList, max_bytes: int
) -> wire.StatePage:
    limit = _limit(message.limit, wire.MAX_PAGE)
    before = None
    if message.cursor:
        if not (message.cursor.isascii() and message.cursor.isdigit()):
            raise InvalidParameterError("cursor", "not one of a list of versions")
        before = int(message.cursor)
    found = await states.versions(
        tenant, _name(message.versions_of, "versions_of"), before=before, limit=limit
    )
    infos = [info_message(one) for one in found]
    n = what_fits([len(msgspec.msgpack.encode(one)) for one in infos], max_bytes - ROOM)
    more = n and (n < len(infos) or len(infos) == limit) and infos[n - 1].version > 1
    return wire.StatePage(
        message.request_id, tuple(infos[:n]), str(infos[n - 1].version) if more else ""
    )


async def _log(
    states: States, tenant: str, message: wire.StateLog, max_bytes: int
) -> wire.StateText:
    limit = _limit(message.limit, MAX_LOG)
    ref = parse_ref(message.state)
    before = message.before or None
    if ref.version is not None:
        before, limit = ref.version + 1, 1
        await states.get(tenant, ref)
    records = await states.log(tenant, ref.name, before=before, limit=limit)
    entries = [canonical_json(log_entry(one)) for one in records]
    n = what_fits([len(one.encode()) + 1 for one in entries], max_bytes - ROOM)
    text = _fitting(f"[{','.join(entries[:n])}]", max_bytes)
    is_all = ref.version is not None or (n == len(entries) and n < limit)
    more = n and not is_all and records[n - 1].version > 1
    return wire.StateText(message.request_id, text, records[n - 1].version if more else 0)


async def _lineage(
    states: States, tenant: str, message: wire.StateLineage, max_bytes: int
) -> wire.StateLineagePage:
    if message.prefix and message.state:
        raise InvalidParameterError("state", "a name, or a prefix of names")
    page = await states.lineage(
        tenant,
        prefix=message.prefix,
        name=_name(message.state) if message.state else None,
        newest=message.newest or None,
        after=parse_ref(message.cursor, "cursor") if message.cursor else None,
        limit=_limit(message.limit, wire.MAX_LINEAGE),
    )
    entries = [lineage_entry(one) for one in page.versions]
    n = what_fits([len(msgspec.msgpack.encode(one)) for one in entries], max_bytes - ROOM)
    following = page.next_after if n == len(entries) else page.versions[n - 1].record.ref
    return wire.StateLineagePage(
        message.request_id, tuple(entries[:n]), "" if following is None else str(following)
    )


def _check_answer_fits(message: wire.StateFork, max_bytes: int) -> None:
    """Check before anything is done that what is told of all forks fits a frame.

    Raises:
        InvalidParameterError: it would not.
    """
    tags = len(msgspec.msgpack.encode(message.tags))
    if len(message.names) * (tags + MAX_INFO_BYTES) > max_bytes - ROOM:
        raise InvalidParameterError(
            "names", "with these tags the answer is longer than a frame; fork fewer at once"
        )


def _fitting(text: str, max_bytes: int) -> str:
    if len(text.encode()) > max_bytes - ROOM:
        raise InvalidParameterError(
            "max_frame_bytes", "the answer is longer than a frame of this connection"
        )
    return text


def _name(text: str, field: str = "state") -> str:
    """A name, where no version may follow."""
    ref = parse_ref(text, field)
    if ref.version is not None:
        raise InvalidParameterError(field, "a name alone, without a version")
    return ref.name


def _moved(message: wire.MigrateEnd) -> Moved | None:
    if not message.committed:
        return None
    if not message.target:
        raise InvalidParameterError("target", "where the state is now")
    if not message.target_version:
        raise InvalidParameterError("target_version", "a version there, from 1")
    name = parse_ref(f"{message.target_name}@{message.target_version}", "target_name")
    return Moved(target=message.target, ref=name)


def _limit(limit: int, most: int) -> int:
    if not 1 <= limit <= most:
        raise InvalidParameterError("limit", f"1 to {most}")
    return limit


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms else None
