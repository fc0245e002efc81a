"""What keeps a store in order: verifying it, removing what nobody needs, moving bytes down."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from wkvm.core.errors import (
    BadStateFileError,
    StateDamagedError,
    StoreFailedError,
)
from wkvm.core.registry import Ref
from wkvm.state import reading
from wkvm.state.catalogue import Catalogue
from wkvm.state.columns import (
    HANDLE_COLUMNS,
    HANDLE_WIDTH,
    PAYLOAD_COLUMNS,
    VERSION_COLUMNS,
    VERSION_WIDTH,
)
from wkvm.state.edits import Edit
from wkvm.state.opening import Folders
from wkvm.state.shelf import Shelf
from wkvm.state.tables import HandleRow, PayloadRow, VersionRow, checkpoint_seal, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        tenant, ref: the state that it concerns; empty where it concerns none.
        what: in words.
    """

    tenant: str
    ref: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check read, and what it found."""

    n_handles: int
    n_versions: int
    n_payloads: int
    n_bytes: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a collection removed. ``n_objects_left`` could not be, and will be tried again."""

    n_expired: int
    n_files: int
    n_isolated: int
    n_objects: int
    n_objects_left: int
    n_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStat:
    """Payloads and bytes in one tier."""

    n_payloads: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStat:
    """How much of what is in a store.

    Attributes:
        memory: what a crash would lose.
        host: what is in host memory, whether it is elsewhere too or not.
        disk, objects: what is there; both may hold the same payload.
        n_damaged: payloads of which no good copy is left.
        n_quarantined, quarantined_bytes: files that were put apart.
        free_bytes, total_bytes: of the disk.
        is_writable: whether it takes commits; if not, its disk failed and it must be reopened.
    """

    n_tenants: int
    n_handles: int
    n_versions: int
    n_checkpoints: int
    memory: TierStat
    host: TierStat
    disk: TierStat
    objects: TierStat
    n_damaged: int
    n_quarantined: int
    quarantined_bytes: int
    free_bytes: int
    total_bytes: int
    is_writable: bool


def check(catalogue: Catalogue, shelf: Shelf) -> CheckReport:
    """Read and verify every row and every payload on disk or among the objects.

    Raises:
        StoreFailedError: the disk refused.
    """
    findings = catalogue.view(_check_rows)
    n_bytes = 0
    payloads = [
        PayloadRow(*row) for row in catalogue.read(f"SELECT {PAYLOAD_COLUMNS} FROM payloads p")
    ]
    for payload in payloads:
        n_bytes += payload.n_bytes
        why = _damage_of(shelf, payload)
        if why is not None and _is_unchanged(catalogue, payload):
            if payload.damage is None:
                shelf.damaged(payload, why)
            findings += [
                Finding(tenant=payload.tenant, ref=ref, what=why)
                for ref in _users_of(catalogue, payload)
            ]
    return CheckReport(
        n_handles=_count(catalogue, "handles"),
        n_versions=_count(catalogue, "versions"),
        n_payloads=len(payloads),
        n_bytes=n_bytes,
        findings=tuple(findings),
    )


def collect(
    catalogue: Catalogue, shelf: Shelf, edit: Callable[[Callable[[Edit], int]], int]
) -> GcReport:
    """Remove what has expired and what nobody needs.

    Args:
        edit: runs a change in a transaction that frees room.

    Raises:
        StoreFailedError: the disk refused.
    """
    n_expired = edit(lambda one: one.expire())
    n_keys = edit(lambda one: one.forget_keys())
    edit(lambda one: one.forget_names())
    n_files, n_isolated = shelf.payloads.sweep(
        lambda: reading.known_files(catalogue), catalogue.is_sound
    )
    n_objects = n_left = 0
    if shelf.objects is not None:
        for (name,) in catalogue.read("SELECT object FROM objects"):
            if name in shelf.moving:
                continue
            try:
                shelf.objects.delete(name)
            except StoreFailedError:
                n_left += 1
                continue
            edit(lambda one, name=name: one.forget_object(name))  # type: ignore[misc]
            n_objects += 1
    return GcReport(
        n_expired=n_expired,
        n_files=n_files,
        n_isolated=n_isolated,
        n_objects=n_objects,
        n_objects_left=n_left,
        n_keys=n_keys,
    )


def stat(catalogue: Catalogue, shelf: Shelf, folders: Folders) -> StoreStat:
    """How much of what is in a store.

    Raises:
        StoreFailedError: the disk refused.
    """
    try:
        space, quarantine = folders.root.space(), folders.quarantine.entries()
    except OSError as error:
        raise StoreFailedError("look at the disk", str(error.strerror)) from error
    ((n_damaged,),) = catalogue.read("SELECT count(*) FROM payloads WHERE damage IS NOT NULL")
    ((n_tenants,),) = catalogue.read("SELECT count(DISTINCT tenant) FROM handles")
    return StoreStat(
        n_tenants=n_tenants,
        n_handles=_count(catalogue, "handles"),
        n_versions=_count(catalogue, "versions"),
        n_checkpoints=_count(catalogue, "checkpoints"),
        memory=_tier(catalogue, "file IS NULL AND object IS NULL AND damage IS NULL"),
        host=TierStat(n_payloads=shelf.host.n_images, n_bytes=shelf.host.n_bytes),
        disk=_tier(catalogue, "file IS NOT NULL"),
        objects=_tier(catalogue, "object IS NOT NULL"),
        n_damaged=n_damaged,
        n_quarantined=len(quarantine),
        quarantined_bytes=sum(one.n_bytes for one in quarantine),
        free_bytes=space.free,
        total_bytes=space.total,
        is_writable=not (catalogue.is_failed or shelf.payloads.is_failed),
    )


def demote(catalogue: Catalogue, shelf: Shelf, payload: PayloadRow, name: str) -> None:
    """Move a payload from disk to the object store.

    Raises:
        StoreFailedError: there is no object store, or it refused, or it gave back other bytes.
        BadStateFileError: the file is not what it should be.
    """
    if shelf.objects is None:
        raise StoreFailedError("write an object", "no object store is set up")
    if payload.object is None and payload.file is not None:
        pieces = shelf.payloads.pieces(payload.file, payload.digest)
        # Noted before it is made: should we die between, the collection finds it.
        shelf.moving.add(name)
        try:
            catalogue.write(lambda db: _note_object(db, name))
            shelf.objects.put(name, pieces, payload.n_bytes)
            try:
                shelf.verify_object(payload, name)
            except BadStateFileError as error:
                raise StoreFailedError("write an object", error.why) from error
            catalogue.write(lambda db: _place_object(db, payload, name))
        finally:
            shelf.moving.discard(name)
    if payload.file is not None and catalogue.write(lambda db: _leave_disk(db, payload)):
        shelf.payloads.remove(payload.file)


def _note_object(db: sqlite3.Connection, name: str) -> None:
    db.execute("INSERT INTO objects VALUES (?)", (name,))


def _place_object(db: sqlite3.Connection, payload: PayloadRow, name: str) -> None:
    changed = db.execute(
        "UPDATE payloads SET object = ? WHERE uid = ? AND object IS NULL", (name, payload.uid)
    )
    if changed.rowcount:
        db.execute("DELETE FROM objects WHERE object = ?", (name,))


def _leave_disk(db: sqlite3.Connection, payload: PayloadRow) -> bool:
    changed = db.execute(
        "UPDATE payloads SET file = NULL WHERE uid = ? AND file = ? AND object IS NOT NULL",
        (payload.uid, payload.file),
    )
    return changed.rowcount > 0


def _check_rows(db: sqlite3.Connection) -> list[Finding]:
    findings = [
        Finding(tenant="", ref="", what=f"the database says: {text}")
        for (text,) in rows(db, "PRAGMA integrity_check(100)")
        if text != "ok"
    ]
    for row in rows(
        db,
        f"SELECT {HANDLE_COLUMNS}, {VERSION_COLUMNS}, {PAYLOAD_COLUMNS} FROM versions v "
        "LEFT JOIN handles h ON h.id = v.handle LEFT JOIN payloads p ON p.id = v.payload",
    ):
        middle = HANDLE_WIDTH + VERSION_WIDTH
        handle, version = HandleRow(*row[:HANDLE_WIDTH]), VersionRow(*row[HANDLE_WIDTH:middle])
        payload = PayloadRow(*row[middle:])
        ref = str(Ref(handle.name, version.version))
        if row[0] is None or row[middle] is None:
            what = f"a version {version.version} without a handle or a payload"
            findings.append(Finding(tenant="", ref="", what=what))
            continue
        try:
            version.check(payload)
        except StateDamagedError as error:
            findings.append(Finding(tenant=handle.tenant, ref=ref, what=error.why))
    for row in rows(
        db,
        f"SELECT {HANDLE_COLUMNS}, (SELECT count(*) FROM versions v WHERE v.handle = h.id "
        "AND v.version = h.head) FROM handles h",
    ):
        handle = HandleRow(*row[:HANDLE_WIDTH])
        try:
            handle.check()
        except StateDamagedError as error:
            findings.append(Finding(tenant=handle.tenant, ref=handle.name, what=error.why))
            continue
        if row[HANDLE_WIDTH] != 1:
            findings.append(
                Finding(tenant=handle.tenant, ref=handle.name, what="its head is missing")
            )
    for handle_id, number, seal, *columns in rows(
        db,
        f"SELECT c.handle, c.version, c.seal, {PAYLOAD_COLUMNS} FROM checkpoints c "
        "LEFT JOIN payloads p ON p.id = c.payload",
    ):
        if columns[0] is None or seal != checkpoint_seal(handle_id, number, PayloadRow(*columns)):
            what = f"a checkpoint's row (handle {handle_id}, version {number}) was changed"
            findings.append(Finding(tenant="", ref="", what=what))
    return findings + _check_counts(db)


def _check_counts(db: sqlite3.Connection) -> list[Finding]:
    findings = list[Finding]()
    for tenant, content_id in rows(
        db,
        "SELECT tenant, content_id FROM payloads p WHERE n_refs != "
        "(SELECT count(*) FROM versions WHERE payload = p.id) + "
        "(SELECT count(*) FROM checkpoints WHERE payload = p.id) OR n_refs < 1",
    ):
        what = f"payload {content_id[:16]} is used by more or fewer than it counts"
        findings.append(Finding(tenant=tenant, ref="", what=what))
    for (tenant,) in rows(
        db,
        "SELECT tenant FROM tenants t WHERE "
        "n_handles != (SELECT count(*) FROM handles WHERE tenant = t.tenant) OR "
        "n_bytes != (SELECT coalesce(sum(n_bytes), 0) FROM payloads WHERE tenant = t.tenant)",
    ):
        what = "the tenant has more or less than is counted"
        findings.append(Finding(tenant=tenant, ref="", what=what))
    return findings


def _damage_of(shelf: Shelf, payload: PayloadRow) -> str | None:
    """What is wrong with a payload's bytes; None if nothing is."""
    try:
        if payload.file is not None:
            shelf.payloads.verify(payload.file, payload.digest)
        elif payload.object is not None and shelf.objects is not None:
            shelf.verify_object(payload, payload.object)
    except BadStateFileError as error:
        return error.why
    return payload.damage


def _is_unchanged(catalogue: Catalogue, payload: PayloadRow) -> bool:
    found = catalogue.read(
        f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE uid = ?", (payload.uid,)
    )
    return bool(found) and (found[0][-3:] == (payload.file, payload.object, payload.damage))


def _users_of(catalogue: Catalogue, payload: PayloadRow) -> list[str]:
    found = catalogue.read(
        "SELECT h.name, v.version FROM versions v JOIN handles h ON h.id = v.handle "
        "WHERE v.payload = ?",
        (payload.id,),
    )
    checkpoints = catalogue.read(
        "SELECT h.name, c.version FROM checkpoints c JOIN handles h ON h.id = c.handle "
        "WHERE c.payload = ?",
        (payload.id,),
    )
    return [f"{name}@{version}" for name, version in found] + [
        f"a checkpoint of {name}@{version}" for name, version in checkpoints
    ]


def _count(catalogue: Catalogue, table: str) -> int:
    ((n,),) = catalogue.read(f"SELECT count(*) FROM {table}")
    return int(n)


def _tier(catalogue: Catalogue, where: str) -> TierStat:
    ((n, n_bytes),) = catalogue.read(
        f"SELECT count(*), coalesce(sum(n_bytes), 0) FROM payloads WHERE {where}"
    )
    return TierStat(n_payloads=n, n_bytes=n_bytes)
