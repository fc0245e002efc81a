"""The rows of the catalogue, typed, and the seals that tie each to what it says.

A seal is a digest over a row's own facts and over those of the payload that it names. A row that
rotted, or was exchanged for another, does not fit its seal.
"""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xxhash

from wkvm.core.errors import StateDamagedError
from wkvm.core.registry import (
    AckClass,
    HandleRecord,
    Identity,
    Provenance,
    RandomKey,
    Ref,
    VersionRecord,
    canonical_json,
)
from wkvm.core.states import MOVED_TAG, check_not_moved
from wkvm.state.columns import HANDLE_COLUMNS, PAYLOAD_COLUMNS
from wkvm.state.index import Row


@dataclass(frozen=True, slots=True)
class PayloadRow:
    """One payload. Columns in the order of ``PAYLOAD_COLUMNS``.

    Attributes:
        uid: never used again, not even for a row that was undone.
        tail: the last ids of token log and pending, as JSON.
        file: its name on disk; None if it is not there.
        object: its name in the object store; None if it is not there.
        damage: what was found wrong with it; None if nothing was.
    """

    id: int
    uid: str
    tenant: str
    content_id: str
    digest: str
    n_bytes: int
    identity: str
    n_computed: int
    n_pending: int
    tail: str
    n_refs: int
    file: str | None
    object: str | None
    damage: str | None

    @property
    def is_durable(self) -> bool:
        """Whether it is not in memory alone. What is damaged was durable, and is so no less."""
        return not (self.file is None and self.object is None and self.damage is None)

    def facts(self) -> list[Any]:
        """What never changes of it."""
        return [
            self.tenant,
            self.content_id,
            self.digest,
            self.n_bytes,
            self.identity,
            self.n_computed,
            self.n_pending,
            self.tail,
        ]


@dataclass(frozen=True, slots=True)
class HandleRow:
    """One handle. Columns in the order of ``HANDLE_COLUMNS``."""

    id: int
    tenant: str
    name: str
    head: int
    next_version: int
    tags: str
    created_at: float
    updated_at: float
    expires_at: float | None
    seal: bytes

    def facts(self) -> list[Any]:
        """All of it but the seal."""
        return [
            self.id,
            self.tenant,
            self.name,
            self.head,
            self.next_version,
            self.tags,
            self.created_at,
            self.updated_at,
            self.expires_at,
        ]

    @property
    def is_whole(self) -> bool:
        """Whether the row is what was written."""
        return seal_of(self.facts()) == self.seal

    def check_stays(self) -> None:
        """Check that it may be changed: what is elsewhere now would have two heads.

        Raises:
            StateMovedError: it is at another engine.
        """
        if MOVED_TAG in self.tags:
            check_not_moved(self.name, json.loads(self.tags))

    def check(self) -> None:
        """Check the seal.

        Raises:
            StateDamagedError: the row is not what was written.
        """
        if not self.is_whole:
            raise StateDamagedError(str(self.name), "its row in the catalogue was changed")


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version. Columns in the order of ``VERSION_COLUMNS``.

    Attributes:
        name: of the handle when it was committed.
        base_handle, base_version, base_tokens: the version that it goes on from, and after how
            many tokens it left it; None if it goes on from none that is known.
        key: seed and branch in hex, if they are not those of the payload.
    """

    handle: int
    version: int
    name: str
    payload: int
    base_handle: int | None
    base_version: int | None
    base_tokens: int | None
    key: str | None
    provenance: str
    created_at: float
    seal: bytes

    def facts(self, payload: PayloadRow) -> list[Any]:
        """All of it but the seal, and what its payload is."""
        return [
            self.handle,
            self.version,
            self.name,
            self.base_handle,
            self.base_version,
            self.base_tokens,
            self.key,
            self.provenance,
            self.created_at,
            *payload.facts(),
        ]

    def check(self, payload: PayloadRow) -> None:
        """Check the seal.

        Raises:
            StateDamagedError: the row, or the payload's, is not what was written.
        """
        if seal_of(self.facts(payload)) != self.seal:
            raise StateDamagedError(
                str(Ref(str(self.name), self.version)), "its row in the catalogue was changed"
            )

    def random_key(self) -> RandomKey | None:
        """The key that a continuation draws from, if it is not that of the payload."""
        return (
            None if self.key is None else RandomKey(int(self.key[:16], 16), int(self.key[16:], 16))
        )


def seal_of(facts: Iterable[Any]) -> bytes:
    """The seal over some facts."""
    listed = list(facts)
    try:
        text = canonical_json(listed)
    except (TypeError, ValueError):
        text = repr(listed)  # bytes, for one: no row that was written has such
    return xxhash.xxh3_128_digest(text.encode())


def key_text(key: RandomKey | None) -> str | None:
    """A key as its column holds it."""
    return None if key is None else f"{key.seed:016x}{key.branch:016x}"


def checkpoint_seal(handle: int, version: int, payload: PayloadRow) -> bytes:
    """The seal of a row of ``checkpoints``."""
    return seal_of([handle, version, *payload.facts()])


def version_record(handle: HandleRow, version: VersionRow, payload: PayloadRow) -> VersionRecord:
    """A version as the store's callers see it.

    Raises:
        StateDamagedError: a row is not what was written.
    """
    version.check(payload)
    return VersionRecord(
        tenant=handle.tenant,
        name=handle.name,
        version=version.version,
        content_id=payload.content_id,
        n_bytes=payload.n_bytes,
        identity=identity_of(payload.identity),
        n_computed=payload.n_computed,
        n_pending=payload.n_pending,
        tail=tuple(json.loads(payload.tail)),
        key=version.random_key(),
        provenance=Provenance.from_json(json.loads(version.provenance)),
        created_at=version.created_at,
        ack=AckClass.DURABLE if payload.is_durable else AckClass.VISIBLE,
    )


@lru_cache(maxsize=64)
def identity_of(text: str) -> Identity:
    """The identity that a column holds. Most states of a store have the same."""
    return Identity.from_json(json.loads(text))


def handle_record(handle: HandleRow, head: VersionRecord, n_versions: int) -> HandleRecord:
    """A handle as the store's callers see it."""
    return HandleRecord(
        tenant=handle.tenant,
        name=handle.name,
        head=head,
        n_versions=n_versions,
        tags=json.loads(handle.tags),
        created_at=handle.created_at,
        updated_at=handle.updated_at,
        expires_at=handle.expires_at,
    )


def rows(db: sqlite3.Connection, query: str, parameters: Row = ()) -> list[Row]:
    """The rows of a query within a transaction."""
    return db.execute(query, parameters).fetchall()


def find_handle(db: sqlite3.Connection, tenant: str, name: str) -> HandleRow | None:
    """The handle by that name, expired or not.

    Raises:
        StateDamagedError: its row is not what was written.
    """
    found = rows(
        db, f"SELECT {HANDLE_COLUMNS} FROM handles h WHERE tenant = ? AND name = ?", (tenant, name)
    )
    if not found:
        return None
    handle = HandleRow(*found[0])
    handle.check()
    return handle


def find_payload(db: sqlite3.Connection, payload_id: int) -> PayloadRow | None:
    """The payload with that id."""
    found = rows(db, f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE id = ?", (payload_id,))
    return PayloadRow(*found[0]) if found else None
