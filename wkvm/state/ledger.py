"""Payloads, counts and keys of the catalogue, from within a transaction.

What a transaction frees is noted, and removed by the store once the transaction stands.
"""

import json
import sqlite3
from dataclasses import dataclass, replace

from wkvm.core.errors import KeyReusedError, QuotaError, StateDamagedError
from wkvm.core.limits import StoreLimits, check_key
from wkvm.state.columns import PAYLOAD_COLUMNS
from wkvm.state.tables import PayloadRow, find_payload, rows


@dataclass(frozen=True, slots=True)
class Content:
    """What the row of a payload says of it, whoever has it."""

    content_id: str
    digest: str
    n_bytes: int
    identity: str
    n_computed: int
    n_pending: int
    tail: str


class TierError(Exception):
    """A transaction is to be of one durability, and a payload that it names is of another."""

    def __init__(self, payload: PayloadRow) -> None:
        super().__init__(payload.uid)
        self.payload = payload


class Ledger:
    """The changes of one transaction.

    Args:
        durable: it will be on disk; otherwise what it makes is in memory alone.
        reserved: up to which number a crash cannot give a number of a version again.

    Attributes:
        files: that nobody needs once the transaction stands.
        uids: of payloads that are gone once it stands.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        now: float,
        limits: StoreLimits,
        *,
        durable: bool = True,
        reserved: int = 0,
    ) -> None:
        self.durable = durable
        self.reserved = reserved
        self.db = db
        self.now = now
        self.limits = limits
        self.files = list[str]()
        self.uids = list[str]()

    # --- payloads -----------------------------------------------------------------------

    def payload(self, tenant: str, content_id: str) -> PayloadRow | None:
        """The tenant's payload with these bytes."""
        found = rows(
            self.db,
            f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE tenant = ? AND content_id = ?",
            (tenant, content_id),
        )
        return PayloadRow(*found[0]) if found else None

    def put_payload(self, tenant: str, uid: str, content: Content, file: str | None) -> PayloadRow:
        """The payload with these bytes: the one that is there, or a new one that nobody uses yet.

        Args:
            file: where the bytes are. A payload that has them on disk keeps its own file.

        Raises:
            QuotaError: it is new, and the tenant has as many bytes as it may have.
            TierError: what is there is damaged, and a file would mend it.
        """
        payload = self.payload(tenant, content.content_id)
        if payload is not None:
            if file is not None and payload.file is None:
                self.place(payload.id, file=file)
                return replace(payload, file=file, damage=None)
            if payload.damage is not None:
                raise TierError(payload)
            return payload
        limit = self.limits.bytes_per_tenant
        if self.count_of(tenant, "n_bytes") + content.n_bytes > limit:
            raise QuotaError("bytes of states", limit)
        self.add_to(tenant, n_bytes=content.n_bytes)
        row = PayloadRow(
            0,
            uid,
            tenant,
            content.content_id,
            content.digest,
            content.n_bytes,
            content.identity,
            content.n_computed,
            content.n_pending,
            content.tail,
            0,
            file,
            None,
            None,
        )
        cursor = self.db.execute(
            "INSERT INTO payloads (uid, tenant, content_id, digest, n_bytes, identity, n_computed, "
            "n_pending, tail, n_refs, file) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (uid, *row.facts(), file),
        )
        return replace(row, id=cursor.lastrowid or 0)

    def check_tier(self, payload: PayloadRow) -> None:
        """Check that a payload is on disk if this transaction will be, and not otherwise.

        Raises:
            TierError: it is not so.
            StateDamagedError: it is nowhere.
        """
        if payload.damage is not None:
            raise StateDamagedError(payload.content_id[:16], payload.damage)
        if payload.is_durable != self.durable:
            raise TierError(payload)

    def place(self, payload: int, *, file: str) -> None:
        """A payload has a verified file."""
        self.db.execute("UPDATE payloads SET file = ?, damage = NULL WHERE id = ?", (file, payload))

    # --- what was applied ---------------------------------------------------------------

    def applied(self, tenant: str, key: str | None, operation: str) -> list[list[int]] | None:
        """What came of an operation that was applied under this key; None if none was.

        Raises:
            InvalidParameterError: the key is too long.
            KeyReusedError: the key stands for another operation.
        """
        if key is None:
            return None
        check_key(key)
        found = self.under_key(tenant, key)
        if found is None:
            return None
        if found[0] != operation:
            raise KeyReusedError
        return found[1]

    def under_key(self, tenant: str, key: str) -> tuple[str, list[list[int]]] | None:
        """The operation that was applied under a key, and what came of it."""
        found = rows(
            self.db,
            "SELECT operation, result FROM applied WHERE tenant = ? AND key = ? AND created_at > ?",
            (tenant, key, self.now - self.limits.idempotency_s),
        )
        return (found[0][0], json.loads(found[0][1])) if found else None

    def note_applied(
        self, tenant: str, key: str | None, operation: str, result: list[list[int]]
    ) -> None:
        """Remember what came of an operation, so that it is applied once."""
        if key is not None:
            self.db.execute(
                "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
                (tenant, key, operation, json.dumps(result), self.now),
            )

    def forget_keys(self) -> int:
        """Forget idempotency keys that are too old. How many."""
        cursor = self.db.execute(
            "DELETE FROM applied WHERE created_at <= ?", (self.now - self.limits.idempotency_s,)
        )
        return cursor.rowcount

    def forget_object(self, name: str) -> int:
        """An object is gone from the object store."""
        return self.db.execute("DELETE FROM objects WHERE object = ?", (name,)).rowcount

    # --- numbers ------------------------------------------------------------------------

    def meta(self, name: str) -> int:
        """A number of the store: ``floor`` or ``reserved``."""
        ((value,),) = rows(self.db, "SELECT value FROM meta WHERE name = ?", (name,))
        return int(value)

    def set_meta(self, name: str, value: int) -> None:
        """Write a number of the store."""
        self.db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))

    def hold(self, payload: int) -> None:
        """One more uses a payload."""
        self.db.execute("UPDATE payloads SET n_refs = n_refs + 1 WHERE id = ?", (payload,))

    def release(self, payload: int) -> None:
        """One fewer uses a payload; the last one takes it along."""
        self.db.execute("UPDATE payloads SET n_refs = n_refs - 1 WHERE id = ?", (payload,))
        row = find_payload(self.db, payload)
        if row is None or row.n_refs > 0:
            return
        if row.file is not None:
            self.files.append(row.file)
        if row.object is not None:
            self.db.execute("INSERT OR IGNORE INTO objects VALUES (?)", (row.object,))
        self.db.execute("DELETE FROM payloads WHERE id = ?", (payload,))
        self.add_to(row.tenant, n_bytes=-row.n_bytes)
        self.uids.append(row.uid)

    def count_of(self, tenant: str, column: str) -> int:
        """A number of a tenant: ``n_handles``, ``n_bytes`` or ``floor``."""
        found = rows(self.db, f"SELECT {column} FROM tenants WHERE tenant = ?", (tenant,))
        return int(found[0][0]) if found else 0

    def add_to(self, tenant: str, *, n_handles: int = 0, n_bytes: int = 0) -> None:
        """Count what a tenant has more, or less."""
        self.db.execute(
            "INSERT INTO tenants VALUES (?, ?, ?, 0) ON CONFLICT (tenant) DO UPDATE SET "
            "n_handles = n_handles + excluded.n_handles, n_bytes = n_bytes + excluded.n_bytes",
            (tenant, n_handles, n_bytes),
        )
