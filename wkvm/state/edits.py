"""Handles and versions of the catalogue, from within a transaction."""

from dataclasses import astuple, dataclass, replace
from typing import Any

from wkvm.core.errors import (
    QuotaError,
    StaleVersionError,
    StateExistsError,
    StateNotFoundError,
)
from wkvm.core.registry import (
    MAX_VERSION,
    RandomKey,
    Ref,
    VersionRecord,
)
from wkvm.state.columns import HANDLE_COLUMNS, PAYLOAD_COLUMNS, VERSION_COLUMNS, VERSION_WIDTH
from wkvm.state.ledger import Ledger
from wkvm.state.tables import (
    HandleRow,
    PayloadRow,
    VersionRow,
    checkpoint_seal,
    find_handle,
    key_text,
    rows,
    seal_of,
    version_record,
)

RESERVED_AT_ONCE = 64
"""Versions in memory alone for which one transaction on disk suffices."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a version goes on from, and after how many tokens it left that."""

    handle: int
    version: int
    n_tokens: int


class ReservationError(Exception):
    """A version in memory alone needs a number that a crash might give to another."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Edit(Ledger):
    """The changes of one transaction."""

    # --- handles ------------------------------------------------------------------------

    def look(self, tenant: str, name: str) -> HandleRow | None:
        """The handle, if there is one that has not expired. Changes nothing."""
        handle = find_handle(self.db, tenant, name)
        return None if handle is None or self._is_over(handle) else handle

    def live(self, tenant: str, name: str) -> HandleRow | None:
        """The handle, if there is one. One that has expired is removed."""
        handle = find_handle(self.db, tenant, name)
        if handle is not None and self._is_over(handle):
            self.drop_handle(handle)
            return None
        return handle

    def handle(self, tenant: str, name: str) -> HandleRow:
        """The handle.

        Raises:
            StateNotFoundError: there is none.
        """
        handle = self.live(tenant, name)
        if handle is None:
            raise StateNotFoundError(name)
        return handle

    def create(self, tenant: str, name: str, tags: str, expires_at: float | None) -> HandleRow:
        """A new handle, which lacks its first version and is not written yet.

        Raises:
            QuotaError: the tenant has as many as it may have.
        """
        limit = self.limits.handles_per_tenant
        if self.count_of(tenant, "n_handles") >= limit:
            self.expire(tenant)
            if self.count_of(tenant, "n_handles") >= limit:
                raise QuotaError("handles", limit)
        self.add_to(tenant, n_handles=1)
        past = rows(
            self.db, "SELECT floor FROM names WHERE tenant = ? AND name = ?", (tenant, name)
        )
        floor = max(self.count_of(tenant, "floor"), past[0][0] if past else 0)
        self.db.execute("DELETE FROM names WHERE tenant = ? AND name = ?", (tenant, name))
        cursor = self.db.execute(
            "INSERT INTO handles (tenant, name, head, next_version, tags, created_at, updated_at, "
            "expires_at, seal) VALUES (?, ?, 0, ?, '', ?, ?, ?, x'')",
            (tenant, name, floor + 1, self.now, self.now, expires_at),
        )
        return HandleRow(
            cursor.lastrowid or 0,
            tenant,
            name,
            0,
            floor + 1,
            tags,
            self.now,
            self.now,
            expires_at,
            b"",
        )

    def save(self, handle: HandleRow, **changes: Any) -> HandleRow:
        """Write a handle's row with ``changes``."""
        changed = replace(handle, updated_at=self.now, **changes)
        changed = replace(changed, seal=seal_of(changed.facts()))
        self.db.execute(
            "UPDATE handles SET name = ?, head = ?, next_version = ?, tags = ?, updated_at = ?, "
            "expires_at = ?, seal = ? WHERE id = ?",
            (
                changed.name,
                changed.head,
                changed.next_version,
                changed.tags,
                changed.updated_at,
                changed.expires_at,
                changed.seal,
                changed.id,
            ),
        )
        return changed

    def drop_handle(self, handle: HandleRow) -> None:
        """Remove a handle and all of its versions."""
        for table in ("versions", "checkpoints"):
            for (payload,) in rows(
                self.db, f"SELECT payload FROM {table} WHERE handle = ?", (handle.id,)
            ):
                self.release(payload)
            self.db.execute(f"DELETE FROM {table} WHERE handle = ?", (handle.id,))
        self.db.execute("DELETE FROM handles WHERE id = ?", (handle.id,))
        self.add_to(handle.tenant, n_handles=-1)
        self.leave_name(handle)

    def rename(self, handle: HandleRow, name: str) -> None:
        """Give a handle another name.

        Raises:
            StateExistsError: the name is taken, or was by versions that this one has too.
        """
        tenant = handle.tenant
        if self.live(tenant, name) is not None:
            raise StateExistsError(name)
        past = rows(
            self.db, "SELECT handle, floor FROM names WHERE tenant = ? AND name = ?", (tenant, name)
        )
        floor = past[0][1] if past else self.count_of(tenant, "floor")
        ((lowest,),) = rows(
            self.db, "SELECT min(version) FROM versions WHERE handle = ?", (handle.id,)
        )
        if floor >= lowest and not (past and past[0][0] == handle.id):
            raise StateExistsError(name, f"the name stood for other states up to version {floor}")
        self.db.execute("DELETE FROM names WHERE tenant = ? AND name = ?", (tenant, name))
        self.leave_name(handle)
        self.save(handle, name=name, next_version=max(handle.next_version, floor + 1))

    def leave_name(self, handle: HandleRow) -> None:
        """Remember up to which version the name stood for this handle's states."""
        self.db.execute(
            "INSERT OR REPLACE INTO names (tenant, name, handle, floor) VALUES (?, ?, ?, ?)",
            (handle.tenant, handle.name, handle.id, handle.next_version - 1),
        )

    def expire(self, tenant: str | None = None) -> int:
        """Remove the handles, of one tenant or all, whose time is over. How many.

        Those whose rows are damaged stay: who knows whether it is.
        """
        query = f"SELECT {HANDLE_COLUMNS} FROM handles h WHERE expires_at <= ?"
        found = rows(self.db, query, (self.now,))
        handles = [HandleRow(*row) for row in found]
        over = [one for one in handles if tenant in (None, one.tenant) and one.is_whole]
        for handle in over:
            self.drop_handle(handle)
        return len(over)

    def forget_names(self) -> int:
        """Forget the oldest names that stand for nothing, where a tenant has too many. How many.

        New handles of the tenant begin above the numbers that they stood for.
        """
        n = 0
        for (tenant,) in rows(
            self.db,
            "SELECT tenant FROM names GROUP BY tenant HAVING count(*) > ?",
            (self.limits.past_names_per_tenant,),
        ):
            old = (
                "FROM names WHERE tenant = ? AND id NOT IN (SELECT id FROM names "
                "WHERE tenant = ? ORDER BY id DESC LIMIT ?)"
            )
            parameters = (tenant, tenant, self.limits.past_names_per_tenant)
            ((floor,),) = rows(self.db, f"SELECT max(floor) {old}", parameters)
            n += self.db.execute(f"DELETE {old}", parameters).rowcount
            self.db.execute(
                "UPDATE tenants SET floor = max(floor, ?) WHERE tenant = ?", (floor, tenant)
            )
        return n

    def _is_over(self, handle: HandleRow) -> bool:
        return handle.expires_at is not None and handle.expires_at <= self.now

    # --- versions -----------------------------------------------------------------------

    def version(self, handle: HandleRow, version: int | None) -> tuple[VersionRow, PayloadRow]:
        """A version of a handle, its head by default.

        Raises:
            StateNotFoundError: the handle does not have it.
            StateDamagedError: a row is not what was written.
        """
        wanted = handle.head if version is None else version
        found = rows(
            self.db,
            f"SELECT {VERSION_COLUMNS}, {PAYLOAD_COLUMNS} FROM versions v "
            "JOIN payloads p ON p.id = v.payload WHERE v.handle = ? AND v.version = ?",
            (handle.id, wanted),
        )
        if not found:
            raise StateNotFoundError(str(Ref(handle.name, version)))
        row, payload = VersionRow(*found[0][:VERSION_WIDTH]), PayloadRow(*found[0][VERSION_WIDTH:])
        row.check(payload)
        return row, payload

    def add_version(
        self,
        handle: HandleRow,
        payload: PayloadRow,
        *,
        provenance: str,
        key: RandomKey | None,
        base: Base | None,
    ) -> VersionRecord:
        """Give a handle its next version, which becomes the head.

        Raises:
            QuotaError: it has as many as it may have, and old ones are to stay.
            ReservationError: it is in memory alone, and a crash might give its number again.
        """
        limit = self.limits.versions_per_handle
        ((n_versions,),) = rows(
            self.db, "SELECT count(*) FROM versions WHERE handle = ?", (handle.id,)
        )
        is_full = n_versions >= limit
        if is_full and not self.limits.drops_old_versions:
            raise QuotaError("versions of a handle", limit)
        number = max(handle.next_version, self.meta("floor") + 1)
        if number > MAX_VERSION:
            raise QuotaError("versions", MAX_VERSION)
        if not self.durable and number > self.reserved:
            raise ReservationError(number)
        row = VersionRow(
            handle.id,
            number,
            handle.name,
            payload.id,
            None if base is None else base.handle,
            None if base is None else base.version,
            None if base is None else base.n_tokens,
            key_text(key),
            provenance,
            self.now,
            b"",
        )
        row = replace(row, seal=seal_of(row.facts(payload)))
        self.db.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(row)
        )
        self.hold(payload.id)
        handle = self.save(handle, head=number, next_version=number + 1)
        if is_full:
            self.keep_newest(handle.id, limit)  # now, when its bytes may be those of an old one
        return version_record(handle, row, payload)

    def drop_version(self, handle: HandleRow, version: int) -> None:
        """Remove one version and its checkpoints; the handle with the last one.

        Raises:
            StateNotFoundError: the handle does not have it.
        """
        found = rows(
            self.db,
            "SELECT payload FROM versions WHERE handle = ? AND version = ?",
            (handle.id, version),
        )
        if not found:
            raise StateNotFoundError(str(Ref(handle.name, version)))
        for (checkpoint,) in rows(
            self.db,
            "SELECT payload FROM checkpoints WHERE handle = ? AND version = ?",
            (handle.id, version),
        ):
            self.release(checkpoint)
        for table in ("versions", "checkpoints"):
            self.db.execute(
                f"DELETE FROM {table} WHERE handle = ? AND version = ?", (handle.id, version)
            )
        self.release(found[0][0])
        ((head,),) = rows(
            self.db, "SELECT max(version) FROM versions WHERE handle = ?", (handle.id,)
        )
        if head is None:
            self.drop_handle(handle)
        elif version == handle.head:
            self.save(handle, head=head)

    def keep_newest(self, handle: int, n: int) -> None:
        """Remove all versions of a handle but the newest ``n``."""
        handle_row = self.by_id(handle)
        old = rows(
            self.db,
            "SELECT version FROM versions WHERE handle = ? ORDER BY version DESC LIMIT -1 OFFSET ?",
            (handle, n),
        )
        for (version,) in old:
            self.drop_version(handle_row, version)

    def add_checkpoint(self, handle: int, version: int, payload: PayloadRow) -> None:
        """Note a state on the way to a version.

        Raises:
            QuotaError: the handle has as many as it may have.
        """
        limit = self.limits.checkpoints_per_handle
        ((n,),) = rows(self.db, "SELECT count(*) FROM checkpoints WHERE handle = ?", (handle,))
        if n >= limit:
            raise QuotaError("checkpoints of a handle", limit)
        self.db.execute(
            "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
            (
                handle,
                version,
                payload.n_computed,
                payload.id,
                checkpoint_seal(handle, version, payload),
            ),
        )
        self.hold(payload.id)

    def recall(self, result: list[list[int]]) -> list[VersionRecord]:
        """The versions that an operation made.

        Raises:
            StateNotFoundError: one of them was deleted since.
        """
        records = list[VersionRecord]()
        for handle_id, version in result:
            handle = self.by_id(handle_id)
            row, payload = self.version(handle, version)
            records.append(version_record(handle, row, payload))
        return records

    def by_id(self, handle: int) -> HandleRow:
        """The handle with that number.

        Raises:
            StateNotFoundError: it was deleted.
            StateDamagedError: its row is not what was written.
        """
        found = rows(self.db, f"SELECT {HANDLE_COLUMNS} FROM handles h WHERE id = ?", (handle,))
        if not found:
            raise StateNotFoundError("that was made then: it was deleted")
        row = HandleRow(*found[0])
        row.check()
        return row


def check_expected(name: str, handle: HandleRow | None, expected: int | None) -> None:
    """Check that a handle is where the caller believes it to be.

    Args:
        expected: the version of the head; 0 for no handle; None for whatever it is.

    Raises:
        StaleVersionError: it is elsewhere.
    """
    head = 0 if handle is None else handle.head
    if expected is not None and head != expected:
        raise StaleVersionError(name, expected, head)
