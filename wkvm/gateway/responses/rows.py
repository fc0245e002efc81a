"""Items as rows, of responses and conversations alike, and whose turn a conversation is.

All of it is for the database's own thread.
"""

import sqlite3
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from wkvm.gateway.failures import CONFLICT, HttpError
from wkvm.gateway.responses.database import Connection
from wkvm.gateway.responses.items import Kept

INPUT, OUTPUT = 0, 1
"""The parts of a response's items. A conversation has the first alone."""


def items_of(
    db: sqlite3.Connection, holder: str, part: int, *, first: int = 0, before: int | None = None
) -> list[Kept]:
    """Items of a response or a conversation, in their order.

    Args:
        first, before: only those from the one position on, and before the other.
    """
    rows = db.execute(
        "SELECT body FROM items WHERE holder = ? AND part = ? AND position >= ? AND position < ? "
        "ORDER BY position",
        (holder, part, first, 2**62 if before is None else before),
    ).fetchall()
    return [decode(body) for (body,) in rows]


def page(
    there: Connection, holder: str, *, after: str | None, limit: int, descends: bool
) -> tuple[list[Kept], bool] | None:
    """Some of the items that a response took, or a conversation has.

    Args:
        after: the id of the item before the first.
        descends: whether the last come first.

    Returns:
        The items, and whether there are more. None if there is no item ``after``.
    """
    start = None
    if after is not None:
        found = there.db.execute(
            "SELECT position FROM items WHERE holder = ? AND part = ? AND id = ?",
            (holder, INPUT, after),
        ).fetchone()
        if found is None:
            return None
        (start,) = found
    sign, order = ("<", "DESC") if descends else (">", "ASC")
    if start is None:
        start = 2**62 if descends else -1
    rows = there.db.execute(
        f"SELECT body FROM items WHERE holder = ? AND part = ? AND position {sign} ? "
        f"ORDER BY position {order} LIMIT ?",
        (holder, INPUT, start, limit + 1),
    ).fetchall()
    return [decode(body) for (body,) in rows[:limit]], len(rows) > limit


def told_apart(db: sqlite3.Connection, holder: str, items: Iterable[Kept]) -> list[Kept]:
    """Items as they can be added to a holder's: each has an id there that no other has.

    Clients may send an item twice, or one of an earlier answer again.
    """
    rows = db.execute("SELECT id FROM items WHERE holder = ? AND part = ?", (holder, INPUT))
    taken, result = {name for (name,) in rows}, list[Kept]()
    for item in items:
        if item["id"] in taken:
            kind = item["id"].partition("_")[0]
            item = {**item, "id": f"{kind[:16]}_{uuid.uuid4().hex}"}
        taken.add(item["id"])
        result.append(item)
    return result


def put_items(
    db: sqlite3.Connection,
    tenant: bytes,
    holder: str,
    part: int,
    first: int,
    items: Iterable[tuple[Kept, bytes]],
) -> None:
    """Write items with their JSON, from a position on."""
    db.executemany(
        "INSERT INTO items (holder, part, position, id, tenant, body) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (holder, part, first + index, item["id"], tenant, body)
            for index, (item, body) in enumerate(items)
        ],
    )


def occupy(there: Connection, conversation: str, response_id: str, revision: int) -> None:
    """Make a conversation that of one response, until ``finish``.

    Raises:
        HttpError: 409; it is another's, which is being made, or was meanwhile; 404, it is gone.
    """
    found = there.db.execute(
        "SELECT running, owner, revision FROM talks WHERE id = ?", (conversation,)
    ).fetchone()
    if found is None:
        raise no_conversation(conversation)
    running, owner, now = found
    if now != revision or (running is not None and there.is_made(running, owner)):
        raise locked(conversation)
    there.db.execute(
        "UPDATE talks SET running = ?, owner = ? WHERE id = ?",
        (response_id, there.owners.name, conversation),
    )


def release(
    db: sqlite3.Connection, conversation: str, response_id: str, output: list[bytes] | None
) -> int | None:
    """Give a conversation back, with a response's items at its end if there are any.

    Returns:
        Where it ends then; None if it is there no more, or nothing was added.
    """
    found = db.execute(
        "SELECT tenant, next_position FROM talks WHERE id = ? AND running = ?",
        (conversation, response_id),
    ).fetchone()
    if found is None:
        return None
    tenant, position = found
    if output is None:
        db.execute("UPDATE talks SET running = NULL, owner = NULL WHERE id = ?", (conversation,))
        return None
    answered = [*items_of(db, response_id, INPUT), *map(decode, output)]
    items = told_apart(db, conversation, answered)
    bodies = [encode(item) for item in items]
    put_items(db, tenant, conversation, INPUT, position, zip(items, bodies, strict=True))
    end: int = position + len(bodies)
    db.execute(
        "UPDATE talks SET running = NULL, owner = NULL, last = ?, next_position = ?, "
        "revision = revision + 1, n_bytes = n_bytes + ? WHERE id = ?",
        (response_id, end, sum(map(len, bodies)), conversation),
    )
    return end


def locked(conversation: str) -> HttpError:
    """409: a conversation goes on already."""
    return HttpError(
        409,
        f"a response of conversation {conversation} is being made: wait for its end",
        CONFLICT,
        param="conversation",
        code="conversation_locked",
    )


def no_conversation(conversation: str) -> HttpError:
    """404: there is none of this name, or it is another tenant's."""
    return HttpError(
        404,
        f"there is no conversation {conversation[:80]!r}",
        param="conversation",
        code="conversation_not_found",
    )


def encode(value: object) -> bytes:
    """What a row has of an item, or of anything."""
    return msgspec.json.encode(value)


def decode(data: bytes) -> dict[str, Any]:
    """The reverse."""
    return msgspec.json.decode(data, type=dict[str, Any])
