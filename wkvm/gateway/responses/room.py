"""How much one tenant may keep of responses and conversations, and what makes room.

A response that was deleted, has expired or had to make room is not shown any more. Its row stays
for as long as another response goes on from it, whose conversation it is a part of.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from wkvm.gateway.failures import FULL, HttpError
from wkvm.gateway.responses.resource import FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one tenant may keep.

    Attributes:
        n_responses: that are shown; the oldest make room. Conversations may be as many.
        n_bytes: of all that is kept, states aside.
        ttl_s: how long a response is shown.
    """

    n_responses: int
    n_bytes: int
    ttl_s: float


def check_room(db: sqlite3.Connection, tenant: bytes, n_bytes: int, limits: Limits) -> None:
    """Check that a tenant may keep so many bytes more.

    Raises:
        HttpError: 507; it may not.
    """
    if _n_bytes(db, tenant) + n_bytes > limits.n_bytes:
        why = f"responses and conversations have {limits.n_bytes} bytes already: delete some"
        raise HttpError(507, why, FULL, code="quota_exceeded")


def make_room(
    db: sqlite3.Connection,
    tenant: bytes,
    n_bytes: int,
    limits: Limits,
    now: float,
    is_made: Callable[[str, str], bool],
) -> list[str]:
    """Show no more what has expired, and of the rest the oldest, until there is room.

    Args:
        is_made: whether somebody makes a response, by its id and its owner.

    Returns:
        Those of the latter: what has expired has no state any more.
    """
    expired = db.execute(
        "SELECT id FROM responses WHERE tenant = ? AND is_shown AND created_at <= ?",
        (tenant, now - limits.ttl_s),
    ).fetchall()
    for (name,) in expired:
        hide(db, name)
    made = list[str]()
    (n_shown,) = db.execute(
        "SELECT COUNT(*) FROM responses WHERE tenant = ? AND is_shown = 1", (tenant,)
    ).fetchone()
    while n_shown >= limits.n_responses or _n_bytes(db, tenant) + n_bytes > limits.n_bytes:
        oldest = _oldest(db, tenant, is_made)
        if oldest is None:
            break
        hide(db, oldest)
        made.append(oldest)
        n_shown -= 1
    if n_shown >= limits.n_responses:
        why = f"{n_shown} responses are being made, which is as many as are kept"
        raise HttpError(507, why, FULL, code="quota_exceeded")
    check_room(db, tenant, n_bytes, limits)
    return made


def _oldest(
    db: sqlite3.Connection, tenant: bytes, is_made: Callable[[str, str], bool]
) -> str | None:
    """The oldest response that is over, or that nobody makes any more."""
    rows = db.execute(
        "SELECT id, status, owner FROM responses WHERE tenant = ? AND is_shown = 1 "
        "ORDER BY created_at",
        (tenant,),
    )
    for name, status, owner in rows:
        if status in FINAL or not is_made(name, owner):
            return str(name)
    return None


def hide(db: sqlite3.Connection, response_id: str) -> None:
    """Show a response no more."""
    db.execute("UPDATE responses SET is_shown = 0, events = NULL WHERE id = ?", (response_id,))
    drop_unneeded(db, response_id)


def drop_unneeded(db: sqlite3.Connection, response_id: str) -> None:
    """Remove a row that is not shown and that nothing goes on from, and so those before it."""
    at: str | None = response_id
    while at is not None:
        found = db.execute(
            "SELECT parent FROM responses WHERE id = :id AND NOT is_shown "
            "AND NOT EXISTS (SELECT 1 FROM responses WHERE parent = :id)",
            {"id": at},
        ).fetchone()
        if found is None:
            return
        db.execute("DELETE FROM items WHERE holder = ?", (at,))
        db.execute("DELETE FROM responses WHERE id = ?", (at,))
        db.execute("DELETE FROM asked WHERE response = ?", (at,))
        (at,) = found


def _n_bytes(db: sqlite3.Connection, tenant: bytes) -> int:
    (n_bytes,) = db.execute(
        "SELECT (SELECT TOTAL(n_bytes) FROM responses WHERE tenant = :tenant) + "
        "(SELECT TOTAL(n_bytes) FROM talks WHERE tenant = :tenant)",
        {"tenant": tenant},
    ).fetchone()
    return int(n_bytes)
