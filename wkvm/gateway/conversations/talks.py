"""What is kept of conversations: functions of ``Database.run``. They do not expire.

A conversation is its items. The state of the last response that went on with it is used for as
long as the items begin with what that has read, whatever was added or deleted meanwhile.
"""

import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wkvm.gateway.failures import FULL, HttpError
from wkvm.gateway.responses import records, rows
from wkvm.gateway.responses.database import Connection
from wkvm.gateway.responses.items import Kept
from wkvm.gateway.responses.keys import Key, note_talk, talk_of
from wkvm.gateway.responses.records import Origin
from wkvm.gateway.responses.room import Limits, check_room


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation.

    Attributes:
        id: of it.
        created_at: in seconds since 1970.
        metadata: the client's own words.
    """

    id: str
    created_at: int
    metadata: dict[str, str]

    def told(self) -> dict[str, Any]:
        """What answers say of it."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkSoFar:
    """What a response goes on with.

    Attributes:
        items: all there are.
        origin: the state of the last response, if it has one.
        revision: changes with everything.
    """

    items: Sequence[Kept]
    origin: Origin | None
    revision: int


def create(
    there: Connection,
    tenant: bytes,
    metadata: Mapping[str, str],
    items: Sequence[Kept],
    limits: Limits,
    key: Key | None = None,
) -> Talk:
    """Keep a new one; or find that which was made with the key.

    Raises:
        HttpError: 507, the tenant has as much as it may; 409, the key stands for something else.
    """
    name, now = f"conv_{uuid.uuid4().hex}", time.time()
    with there.transaction() as db:
        made = None if key is None else talk_of(db, tenant, key)
        if made is not None:
            return get(there, tenant, made[0])
        (n_talks,) = db.execute("SELECT COUNT(*) FROM talks WHERE tenant = ?", (tenant,)).fetchone()
        if n_talks >= limits.n_responses:
            why = f"there are {n_talks} conversations already: delete some"
            raise HttpError(507, why, FULL, code="quota_exceeded")
        db.execute(
            "INSERT INTO talks (id, tenant, created_at, metadata, n_bytes) VALUES (?, ?, ?, ?, 0)",
            (name, tenant, now, msgspec.json.encode(metadata)),
        )
        _append(there, tenant, name, items, limits)
        note_talk(db, tenant, key, name)
    return Talk(id=name, created_at=int(now), metadata=dict(metadata))


def get(there: Connection, tenant: bytes, name: str) -> Talk:
    """One of them.

    Raises:
        HttpError: 404; there is none of this name.
    """
    _, created_at, metadata = _row(there.db, tenant, name, "created_at, metadata")
    return Talk(
        id=name,
        created_at=int(created_at),
        metadata=msgspec.json.decode(metadata, type=dict[str, str]),
    )


def update(there: Connection, tenant: bytes, name: str, metadata: Mapping[str, str]) -> Talk:
    """Give it other metadata.

    Raises:
        HttpError: 404, as ``get``; 507, the disk is full.
    """
    with there.transaction() as db:
        _row(db, tenant, name, "1")
        db.execute(
            "UPDATE talks SET metadata = ? WHERE id = ?", (msgspec.json.encode(metadata), name)
        )
    return get(there, tenant, name)


def delete(there: Connection, tenant: bytes, name: str) -> None:
    """Forget it with all its items. Responses that went on with it stay.

    Raises:
        HttpError: 404, as ``get``; 409, one is being made.
    """
    with there.transaction() as db:
        _check_idle(there, tenant, name)
        db.execute("DELETE FROM items WHERE holder = ?", (name,))
        db.execute("DELETE FROM talks WHERE id = ?", (name,))
        db.execute("DELETE FROM asked WHERE conversation = ?", (name,))


def history(there: Connection, tenant: bytes, name: str) -> TalkSoFar:
    """What a response goes on with.

    Raises:
        HttpError: 404, as ``get``; 409, one is being made.
    """
    _check_idle(there, tenant, name)
    _, last, revision = _row(there.db, tenant, name, "last, revision")
    origin = None if last is None else records.origin_of(there, last)
    items = rows.items_of(there.db, name, rows.INPUT)
    return TalkSoFar(items=items, origin=origin, revision=revision)


def append(
    there: Connection,
    tenant: bytes,
    name: str,
    items: Sequence[Kept],
    limits: Limits,
    key: Key | None = None,
) -> list[Kept]:
    """Add items at the end, once with one key.

    Returns:
        The items, as they are kept there; of those that were added before with the key, those
        that still are.

    Raises:
        HttpError: 404, as ``get``; 409, a response is being made, or the key stands for something
            else; 507, there is no room.
    """
    with there.transaction() as db:
        before = None if key is None else talk_of(db, tenant, key)
        if before is not None:
            _, first, past = before
            return rows.items_of(db, name, rows.INPUT, first=first or 0, before=past)
        _check_idle(there, tenant, name)
        added = _append(there, tenant, name, items, limits)
        (past,) = db.execute("SELECT next_position FROM talks WHERE id = ?", (name,)).fetchone()
        note_talk(db, tenant, key, name, (past - len(added), past))
        return added


def item(there: Connection, tenant: bytes, name: str, item_id: str) -> Kept:
    """One item.

    Raises:
        HttpError: 404; there is none of this id, or no such conversation.
    """
    _row(there.db, tenant, name, "1")
    found = there.db.execute(
        "SELECT body FROM items WHERE holder = ? AND part = ? AND id = ? "
        "ORDER BY position DESC LIMIT 1",
        (name, rows.INPUT, item_id),
    ).fetchone()
    if found is None:
        raise no_item(item_id)
    return msgspec.json.decode(found[0], type=dict[str, Any])


def delete_item(there: Connection, tenant: bytes, name: str, item_id: str) -> Talk:
    """Take one item out.

    Raises:
        HttpError: 404, as ``item``; 409, a response is being made.
    """
    with there.transaction() as db:
        _check_idle(there, tenant, name)
        gone = db.execute(
            "DELETE FROM items WHERE holder = ? AND part = ? AND id = ? RETURNING length(body)",
            (name, rows.INPUT, item_id),
        ).fetchall()
        if not gone:
            raise no_item(item_id)
        db.execute(
            "UPDATE talks SET n_bytes = n_bytes - ?, revision = revision + 1 WHERE id = ?",
            (sum(n for (n,) in gone), name),
        )
    return get(there, tenant, name)


def no_item(item_id: str) -> HttpError:
    """404: there is no item of an id."""
    return HttpError(404, f"there is no item {item_id[:80]!r}", code="item_not_found")


def _append(
    there: Connection, tenant: bytes, name: str, items: Sequence[Kept], limits: Limits
) -> list[Kept]:
    db = there.db
    items = rows.told_apart(db, name, items)
    bodies = [msgspec.json.encode(one) for one in items]
    n_bytes = sum(map(len, bodies))
    there.check_disk(n_bytes)
    check_room(db, tenant, n_bytes, limits)
    (position,) = db.execute("SELECT next_position FROM talks WHERE id = ?", (name,)).fetchone()
    rows.put_items(db, tenant, name, rows.INPUT, position, zip(items, bodies, strict=True))
    db.execute(
        "UPDATE talks SET next_position = ?, n_bytes = n_bytes + ?, revision = revision + 1 "
        "WHERE id = ?",
        (position + len(items), n_bytes, name),
    )
    return items


def _row(db: sqlite3.Connection, tenant: bytes, name: str, columns: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = db.execute(
        f"SELECT id, {columns} FROM talks WHERE id = ? AND tenant = ?", (name, tenant)
    ).fetchone()
    if found is None:
        raise rows.no_conversation(name)
    return found


def _check_idle(there: Connection, tenant: bytes, name: str) -> None:
    """Check that it is there, and that no response is being made for it."""
    _, running, owner = _row(there.db, tenant, name, "running, owner")
    if running is not None and there.is_made(running, owner):
        raise rows.locked(name)
