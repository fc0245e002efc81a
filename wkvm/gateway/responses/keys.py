"""Idempotency keys: what was asked for with each, so that it is done once.

A key is a tenant's, and stands for one request: what it was given for is found by it for as long
as that is kept. Whoever sends the request again is told what came of it.
"""

import hashlib
import sqlite3
from dataclasses import dataclass
from typing import Any

import msgspec

from wkvm.gateway.failures import CONFLICT, HttpError, invalid
from wkvm.gateway.responses.database import Connection
from wkvm.gateway.states.fields import EMPTY, KEY_FIELD, KeyedFields

MAX_KEY = 128
"""Characters of a key, as of the engine's."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key with what it is to stand for.

    Attributes:
        digest: of the request, without the key.
    """

    text: str
    digest: bytes


def key_of(body: KeyedFields, what: str) -> Key | None:
    """The key of a request; None if it has none.

    Cost: as encoding the body.

    Args:
        body: with the key, which is left out of the digest.
        what: is asked for, and of what: two requests with the same body are not the same elsewhere.

    Raises:
        HttpError: 400; it is empty or too long.
    """
    text = body.idempotency_key
    if text is None:
        return None
    if not text:
        raise invalid(KEY_FIELD, EMPTY)
    if len(text) > MAX_KEY:
        raise invalid(KEY_FIELD, f"has at most {MAX_KEY} characters")
    told = msgspec.to_builtins(body)
    told.pop(KEY_FIELD, None)
    digest = hashlib.blake2b(what.encode() + b"\n" + msgspec.json.encode(told), digest_size=16)
    return Key(text, digest.digest())


def response_of(db: sqlite3.Connection, tenant: bytes, key: Key) -> str | None:
    """The id of the response that was asked for with a key.

    Raises:
        HttpError: 409; the key stands for something else.
    """
    found = _find(db, tenant, key, "response")
    return None if found is None else str(found[0])


def talk_of(
    db: sqlite3.Connection, tenant: bytes, key: Key
) -> tuple[str, int | None, int | None] | None:
    """The conversation that was made or added to with a key.

    Returns:
        Its id, and the positions between which what was added lies; None where it was made.

    Raises:
        HttpError: 409; the key stands for something else.
    """
    found = _find(db, tenant, key, "conversation, first, past")
    return None if found is None else (found[0], found[1], found[2])


def _find(db: sqlite3.Connection, tenant: bytes, key: Key, columns: str) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = db.execute(
        f"SELECT digest, {columns} FROM asked WHERE tenant = ? AND key = ?", (tenant, key.text)
    ).fetchone()
    if found is None:
        return None
    digest, *rest = found
    if digest != key.digest:
        why = "the key came before with another request"
        raise HttpError(409, why, CONFLICT, param=KEY_FIELD, code="key_reused")
    return tuple(rest)


def claim(there: Connection, tenant: bytes, key: Key, response_id: str) -> None:
    """Let a key stand for a response that begins; in a transaction.

    Raises:
        HttpError: 409; it stands for something else, or for a response that is being made, or was
            meanwhile.
    """
    db = there.db
    before = response_of(db, tenant, key)
    if before is not None:
        found = db.execute(
            "SELECT status, owner FROM responses WHERE id = ? AND is_shown", (before,)
        ).fetchone()
        if found is not None and (
            found[0] in ("completed", "incomplete") or there.is_made(before, found[1])
        ):
            why = f"response {before} is made with this key: send it again"
            raise HttpError(409, why, CONFLICT, param=KEY_FIELD, code="response_in_progress")
    _put(db, tenant, key, response=response_id)


def note_talk(
    db: sqlite3.Connection,
    tenant: bytes,
    key: Key | None,
    conversation: str,
    added: tuple[int, int] | None = None,
) -> None:
    """Let a key stand for a conversation that is made, or for what is added to it.

    Args:
        added: the positions between which that lies.
    """
    if key is not None:
        first, past = (None, None) if added is None else added
        _put(db, tenant, key, conversation=conversation, first=first, past=past)


def _put(
    db: sqlite3.Connection,
    tenant: bytes,
    key: Key,
    *,
    response: str | None = None,
    conversation: str | None = None,
    first: int | None = None,
    past: int | None = None,
) -> None:
    db.execute(
        "INSERT OR REPLACE INTO asked (tenant, key, digest, response, conversation, first, past) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (tenant, key.text, key.digest, response, conversation, first, past),
    )
