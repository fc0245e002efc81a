"""What is kept of responses: functions of ``Database.run``. What makes room is in ``room``."""

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses.database import Connection
from wkvm.gateway.responses.items import Kept
from wkvm.gateway.responses.keys import Key, claim, response_of
from wkvm.gateway.responses.resource import FINAL, Resource, ended
from wkvm.gateway.responses.room import Limits, drop_unneeded, make_room
from wkvm.gateway.responses.rows import (
    INPUT,
    OUTPUT,
    decode,
    encode,
    items_of,
    occupy,
    put_items,
    release,
    told_apart,
)
from wkvm.gateway.text.written import ReadMark

STATES_GIVEN_UP = 16
"""Where there is no room for states, one in so many goes."""
LOST = "the server that made it ended before it was over"

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A response that is to be kept, before it is made.

    Attributes:
        parent: whose conversation it goes on with.
        conversation: to which it belongs.
        revision: of that, when it was read.
        items: its input.
        key: with which it is asked for.
    """

    id: str
    tenant: bytes
    resource: Resource
    items: Sequence[Kept]
    parent: str | None = None
    conversation: str | None = None
    revision: int = 0
    key: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state that a response ended in.

    Attributes:
        ref: ``NAME@VERSION``.
        mark: of what it has read.
        n_tokens: how many tokens it has.
    """

    ref: str
    mark: ReadMark
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A response that is kept."""

    id: str
    tenant: bytes
    resource: Resource
    parent: str | None
    conversation: str | None
    talk_end: int | None
    origin: Origin | None
    owner: str

    @property
    def status(self) -> str:
        """How far it is."""
        status: str = self.resource["status"]
        return status

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.status in FINAL


_COLUMNS = (
    "id, tenant, resource, parent, conversation, talk_end, state, n_tokens, read_bytes, "
    "read_digest, owner"
)


def begin(there: Connection, begun: Begun, limits: Limits) -> list[str]:
    """Keep a response that begins. Its conversation is then its own until it ends.

    Returns:
        Names of responses that had to make room: their states are needed no more.

    Raises:
        HttpError: 409, the conversation has a response that is being made, or the key another
            one; 507, there is no room.
    """
    now = time.time()
    resource = encode(begun.resource)
    items = told_apart(there.db, begun.id, begun.items)
    bodies = [encode(item) for item in items]
    n_bytes = len(resource) + sum(map(len, bodies))
    there.check_disk(n_bytes)
    with there.transaction() as db:
        if begun.conversation is not None:
            occupy(there, begun.conversation, begun.id, begun.revision)
        made_room = make_room(db, begun.tenant, n_bytes, limits, now, there.is_made)
        if begun.key is not None:
            claim(there, begun.tenant, begun.key, begun.id)
        db.execute(
            "INSERT INTO responses (id, tenant, created_at, expires_at, is_shown, status, owner, "
            "parent, conversation, resource, n_bytes) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)",
            (
                begun.id,
                begun.tenant,
                now,
                now + limits.ttl_s,
                begun.resource["status"],
                there.owners.name,
                begun.parent,
                begun.conversation,
                resource,
                n_bytes,
            ),
        )
        put_items(db, begun.tenant, begun.id, INPUT, 0, zip(items, bodies, strict=True))
    return made_room


def finish(
    there: Connection,
    response_id: str,
    resource: Resource,
    origin: Origin | None,
) -> bool:
    """Keep how a response ended, if that is not kept. Its items then belong to its conversation.

    Args:
        origin: its state, if that is kept.

    Returns:
        Whether it is still wanted: it may have been deleted meanwhile.

    Raises:
        HttpError: 507; there is no room.
    """
    output = resource["output"]
    bodies = [encode(item) for item in output]
    told = encode({**resource, "output": []})
    n_bytes = len(told) + sum(map(len, bodies))
    with there.transaction() as db:
        found = db.execute(
            "SELECT tenant, conversation, is_shown, resource, status FROM responses WHERE id = ?",
            (response_id,),
        ).fetchone()
        if found is None:
            db.execute(
                "UPDATE talks SET running = NULL, owner = NULL WHERE running = ?", (response_id,)
            )
            return False
        tenant, conversation, is_shown, was, status = found
        if status in FINAL:
            return bool(is_shown)
        end = None
        if conversation is not None:
            keeps = resource["status"] in ("completed", "incomplete")
            end = release(db, conversation, response_id, [*bodies] if keeps else None)
        db.execute(
            "UPDATE responses SET status = ?, resource = ?, state = ?, n_tokens = ?, "
            "read_bytes = ?, read_digest = ?, talk_end = ?, "
            "n_bytes = n_bytes + ? WHERE id = ?",
            (
                resource["status"],
                told,
                None if origin is None else origin.ref,
                0 if origin is None else origin.n_tokens,
                None if origin is None else origin.mark.n_bytes,
                None if origin is None else origin.mark.digest,
                end,
                n_bytes - len(was),
                response_id,
            ),
        )
        put_items(db, tenant, response_id, OUTPUT, 0, zip(output, bodies, strict=True))
        return bool(is_shown)


def find(there: Connection, tenant: bytes, response_id: str) -> Record | None:
    """A response that is shown. One that nobody makes any more, and that is not over, has failed.

    So are those whose makers have died, and those whose ends found no room on the disk.
    """
    found = there.db.execute(
        f"SELECT {_COLUMNS} FROM responses "
        "WHERE id = ? AND tenant = ? AND is_shown AND expires_at > ?",
        (response_id, tenant, time.time()),
    ).fetchone()
    if found is None:
        return None
    record = _record(there.db, found)
    if record.is_over or there.is_made(record.id, record.owner):
        return record
    error = HttpError(500, LOST, "server_error")
    failed = ended(record.resource, "failed", [], error=error)
    with contextlib.suppress(sqlite3.Error):
        finish(there, response_id, failed, None)
        # Whoever made it may have ended it, and itself, since it was looked at.
        record = _any(there.db, response_id) or record
    return record if record.is_over else replace(record, resource=failed)


def asked_before(there: Connection, tenant: bytes, key: Key) -> Record | None:
    """The response that was asked for with a key, if there is no reason to make it anew.

    Raises:
        HttpError: 409; the key stands for something else.
    """
    name = response_of(there.db, tenant, key)
    record = None if name is None else find(there, tenant, name)
    return None if record is None or record.status in ("failed", "cancelled") else record


def keep_events(there: Connection, response_id: str, events: bytes) -> None:
    """Keep the events of a response that is over, framed, to be sent again.

    Raises:
        HttpError: 507; the disk has no room for them.
    """
    packed = zlib.compress(events)
    there.check_disk(len(packed))
    with there.transaction() as db:
        db.execute(
            "UPDATE responses SET events = ?, n_bytes = n_bytes + ? WHERE id = ? AND is_shown",
            (packed, len(packed), response_id),
        )


def events_of(there: Connection, response_id: str) -> bytes | None:
    """All events of a response that is over, framed; None if they are not kept."""
    found = there.db.execute("SELECT events FROM responses WHERE id = ?", (response_id,)).fetchone()
    return None if found is None or found[0] is None else zlib.decompress(found[0])


def delete(there: Connection, tenant: bytes, response_id: str) -> bool:
    """Show a response no more. False if there is none."""
    with there.transaction() as db:
        changed = db.execute(
            "UPDATE responses SET is_shown = 0, events = NULL "
            "WHERE id = ? AND tenant = ? AND is_shown AND expires_at > ?",
            (response_id, tenant, time.time()),
        )
        if not changed.rowcount:
            return False
        drop_unneeded(db, response_id)
        return True


def origin_of(there: Connection, response_id: str) -> Origin | None:
    """The state at the end of a response, if it is shown."""
    found = there.db.execute(
        f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND is_shown", (response_id,)
    ).fetchone()
    return None if found is None else _record(there.db, found).origin


def give_up_states(there: Connection, tenant: bytes) -> list[str]:
    """Let a part of a tenant's responses be without their states, the oldest of them.

    Returns:
        Their names: the states are to be removed. What goes on from them reads their items.
    """
    with there.transaction() as db:
        (n_states,) = db.execute(
            "SELECT COUNT(*) FROM responses WHERE tenant = ? AND state IS NOT NULL", (tenant,)
        ).fetchone()
        rows = db.execute(
            "SELECT id FROM responses WHERE tenant = ? AND state IS NOT NULL "
            "ORDER BY created_at LIMIT ?",
            (tenant, n_states // STATES_GIVEN_UP + 1),
        ).fetchall()
        db.executemany("UPDATE responses SET state = NULL WHERE id = ?", rows)
    return [name for (name,) in rows]


def ask_to_cancel(there: Connection, response_id: str) -> None:
    """Note that whoever makes a response is to stop."""
    with there.transaction() as db:
        db.execute("UPDATE responses SET is_cancelled = 1 WHERE id = ?", (response_id,))


def asked_to_cancel(there: Connection) -> list[str]:
    """Those that this process makes and is to stop making."""
    rows = there.db.execute(
        "SELECT id FROM responses WHERE is_cancelled AND owner = ? "
        "AND status IN ('queued', 'in_progress')",
        (there.owners.name,),
    ).fetchall()
    return [name for (name,) in rows]


def history(there: Connection, record: Record) -> list[Kept] | None:
    """All items of a conversation up to the end of a response, from its beginning.

    Returns:
        None if the conversation that it belonged to was deleted.
    """
    chain = list[list[Kept]]()
    at: Record | None = record
    while at is not None:
        if at.conversation is not None:
            end = -1 if at.talk_end is None else at.talk_end
            if not there.db.execute(
                "SELECT 1 FROM talks WHERE id = ?", (at.conversation,)
            ).fetchone():
                return None
            chain.append(items_of(there.db, at.conversation, INPUT, before=end))
            break
        output = items_of(there.db, at.id, OUTPUT)
        chain.append([*items_of(there.db, at.id, INPUT), *output])
        at = None if at.parent is None else _any(there.db, at.parent)
    return [item for items in reversed(chain) for item in items]


def referred(there: Connection, tenant: bytes, item_id: str) -> Kept | None:
    """The item of a tenant with an id, in what is shown; the last one that was kept."""
    found = there.db.execute(
        "SELECT i.body FROM items i "
        "LEFT JOIN responses r ON r.id = i.holder LEFT JOIN talks t ON t.id = i.holder "
        "WHERE i.tenant = ? AND i.id = ? AND (t.id IS NOT NULL OR (r.is_shown AND "
        "r.expires_at > ?)) ORDER BY r.created_at DESC LIMIT 1",
        (tenant, item_id, time.time()),
    ).fetchone()
    return None if found is None else decode(found[0])


def _any(db: sqlite3.Connection, response_id: str) -> Record | None:
    found = db.execute(f"SELECT {_COLUMNS} FROM responses WHERE id = ?", (response_id,)).fetchone()
    return None if found is None else _record(db, found)


def _record(db: sqlite3.Connection, row: Row) -> Record:
    name, tenant, resource, parent, conversation, end, state, n_tokens, n_bytes, digest, owner = row
    origin = None
    if state is not None and n_bytes is not None:
        origin = Origin(ref=state, mark=ReadMark(n_bytes, digest), n_tokens=n_tokens)
    told: Resource = decode(resource)
    told["output"] = items_of(db, name, OUTPUT)
    return Record(
        id=name,
        tenant=tenant,
        resource=told,
        parent=parent,
        conversation=conversation,
        talk_end=end,
        origin=origin,
        owner=owner,
    )
