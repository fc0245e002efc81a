"""Queries of the catalogue that change nothing."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping

from wkvm.core.errors import StateDamagedError, StateNotFoundError
from wkvm.core.registry import HandleRecord, RandomKey, Ref, VersionRecord
from wkvm.core.states import Descent, LineagePage
from wkvm.state.catalogue import Catalogue
from wkvm.state.columns import (
    HANDLE_COLUMNS,
    HANDLE_WIDTH,
    PAYLOAD_COLUMNS,
    VERSION_COLUMNS,
    VERSION_WIDTH,
)
from wkvm.state.edits import Base
from wkvm.state.index import ALL, Entry, Row
from wkvm.state.tables import (
    HandleRow,
    PayloadRow,
    VersionRow,
    checkpoint_seal,
    handle_record,
    rows,
    version_record,
)

_HEADS = (
    f"SELECT {HANDLE_COLUMNS}, {VERSION_COLUMNS}, {PAYLOAD_COLUMNS}, "
    "(SELECT count(*) FROM versions o WHERE o.handle = h.id) FROM handles h "
    "JOIN versions v ON v.handle = h.id JOIN payloads p ON p.id = v.payload "
)
_ONE = f"{_HEADS}WHERE h.tenant = ? AND h.name = ? AND v.version = h.head"
_LIST = (
    f"{_HEADS}WHERE h.tenant = ? AND h.name > ? AND h.name >= ? AND h.name < ? "
    "AND v.version = h.head AND (h.expires_at IS NULL OR h.expires_at > ?) ORDER BY h.name LIMIT ?"
)
_LINEAGE = (
    f"SELECT {HANDLE_COLUMNS}, {VERSION_COLUMNS}, {PAYLOAD_COLUMNS} FROM handles h "
    "CROSS JOIN versions v ON v.handle = h.id CROSS JOIN payloads p ON p.id = v.payload "
    "WHERE h.tenant = ? AND h.name >= ? AND h.name < ? "
    "AND (h.expires_at IS NULL OR h.expires_at > ?) AND (h.name > ? OR v.version > ?) "
    "AND v.version > coalesce(h.head - ?, 0) ORDER BY h.name, v.version LIMIT ?"
)
_HEADED_BY = (
    "SELECT h.tenant, h.name FROM payloads p CROSS JOIN versions v ON v.payload = p.id "
    "CROSS JOIN handles h ON h.id = v.handle AND h.head = v.version WHERE p.uid = ?"
)
_AFTER_NAMES = "\x7f"
"""Comes after every character that a name may have."""


def find_version(
    catalogue: Catalogue, tenant: str, ref: Ref, now: float
) -> tuple[HandleRow, VersionRecord, PayloadRow]:
    """A version, its handle and its payload.

    What is another tenant's is looked for and not found as what never was.

    Raises:
        StateNotFoundError: the tenant has none such.
        StateDamagedError: a row is not what was written.
    """
    entry = catalogue.find((tenant, ref.name, ref.version))
    if entry is None:
        raise StateNotFoundError(str(ref))
    return _built(entry, ref, now)


def known_version(
    catalogue: Catalogue, tenant: str, ref: Ref, now: float
) -> tuple[HandleRow, VersionRecord, PayloadRow] | None:
    """The same, if its rows are in memory: without a system call.

    Raises:
        StateNotFoundError, StateDamagedError: as for ``find_version``.
    """
    entry = catalogue.index.find((tenant, ref.name, ref.version))
    return None if entry is None else _built(entry, ref, now)


def _built(entry: Entry, ref: Ref, now: float) -> tuple[HandleRow, VersionRecord, PayloadRow]:
    if entry.built is None:
        handle, version, payload = _split(entry.row)
        handle.check()
        entry.built = handle, version_record(handle, version, payload), payload
    built: tuple[HandleRow, VersionRecord, PayloadRow] = entry.built
    if _is_over(built[0], now):
        raise StateNotFoundError(str(ref))
    return built


def get_handle(catalogue: Catalogue, tenant: str, name: str, now: float) -> HandleRecord:
    """A handle.

    Raises:
        StateNotFoundError, StateDamagedError: as for ``find_version``.
    """
    handle, head, _ = find_version(catalogue, tenant, Ref(name), now)
    return handle_record(handle, head, _n_versions(catalogue, handle))


def handle_in(db: sqlite3.Connection, tenant: str, name: str) -> HandleRecord:
    """A handle as a transaction has made it, be it over by now.

    Raises:
        StateNotFoundError, StateDamagedError: as for ``find_version``.
    """
    found = rows(db, _ONE, (tenant, name))
    if not found:
        raise StateNotFoundError(name)
    *columns, n_versions = found[0]
    handle, version, payload = _split(tuple(columns))
    handle.check()
    return handle_record(handle, version_record(handle, version, payload), n_versions)


def list_handles(
    catalogue: Catalogue,
    tenant: str,
    now: float,
    *,
    prefix: str,
    tags: Mapping[str, str],
    after: str,
    limit: int,
) -> list[HandleRecord]:
    """The tenant's handles by name. Damaged ones are left out: ``check`` names them."""
    found = list[HandleRecord]()
    while len(found) < limit:
        page = catalogue.read(
            _LIST, (tenant, after, prefix, prefix + _AFTER_NAMES, now, limit - len(found))
        )
        for row in page:
            after = row[2]
            try:
                handle, head = _head_of(catalogue, row[:-1])
            except StateDamagedError:
                continue
            given = json.loads(handle.tags) if tags else {}
            if all(given.get(tag) == value for tag, value in tags.items()):
                found.append(handle_record(handle, head, row[-1]))
        if not page:
            break
    return found


def _head_of(catalogue: Catalogue, row: Row) -> tuple[HandleRow, VersionRecord]:
    """A handle and its head from their row: where it is known, as they were built of it before.

    Raises:
        StateDamagedError: it is not what was written.
    """
    entry = catalogue.index.find((row[1], row[2], None))
    if entry is not None and entry.built is not None and entry.row == row:
        built: tuple[HandleRow, VersionRecord, PayloadRow] = entry.built
        return built[0], built[1]
    handle, version, payload = _split(row)
    handle.check()
    head = version_record(handle, version, payload)
    if entry is not None and entry.row == row:
        entry.built = handle, head, payload
    return handle, head


def names_between(prefix: str, name: str | None) -> tuple[str, str]:
    """The first name, and one behind the last, of those with a prefix; or of one name alone."""
    return (prefix, prefix + _AFTER_NAMES) if name is None else (name, name + "\0")


def list_tagged(catalogue: Catalogue, tag: str) -> list[tuple[str, str, str]]:
    """Tenant, name and the tag's value of all handles that have it; damaged ones are left out."""
    found = list[tuple[str, str, str]]()
    columns = f"SELECT {HANDLE_COLUMNS} FROM handles h WHERE instr(tags, ?)"
    for row in catalogue.read(columns, (json.dumps(tag),)):
        handle = HandleRow(*row)
        value = json.loads(handle.tags).get(tag) if handle.is_whole else None
        if value is not None:
            found.append((handle.tenant, handle.name, value))
    return found


def list_lineage(
    catalogue: Catalogue,
    tenant: str,
    now: float,
    *,
    names: tuple[str, str],
    after: Ref,
    newest: int | None,
    limit: int,
) -> LineagePage:
    """Versions of the tenant's handles by name and number; damaged ones are left out.

    Args:
        names: the first, and one behind the last.
        after: the version to begin behind.
        newest: only numbers among so many up to the head's; None for all.
    """
    found = catalogue.read(
        _LINEAGE, (tenant, max(names[0], after.name), names[1], now, *after, newest, limit)
    )
    versions, is_whole = list[Descent](), dict[int, bool]()
    for row in found:
        handle, version, payload = _split(row)
        after = Ref(handle.name, version.version)
        if not is_whole.setdefault(handle.id, handle.is_whole):
            continue
        try:
            record = version_record(handle, version, payload)
        except StateDamagedError:
            continue
        versions.append(Descent(record=record, made_as=version.name))
    return LineagePage(versions=tuple(versions), next_after=after if len(found) == limit else None)


def list_heads_of(catalogue: Catalogue, uids: Iterable[str]) -> list[tuple[str, str]]:
    """Tenant and name of the handles whose heads are these payloads."""

    def look(db: sqlite3.Connection) -> list[tuple[str, str]]:
        return [row for uid in uids for row in rows(db, _HEADED_BY, (uid,))]

    return catalogue.view(look)


def list_versions(
    catalogue: Catalogue, handle: HandleRow, newest: int, limit: int
) -> list[VersionRecord]:
    """Versions of a handle from ``newest`` down.

    Raises:
        StateDamagedError: a row is not what was written.
    """
    found = catalogue.read(
        f"{ALL} WHERE h.id = ? AND v.version <= ? ORDER BY v.version DESC LIMIT ?",
        (handle.id, newest, limit),
    )
    return [version_record(*_split(row)) for row in found]


class Lineage:
    """What a version goes on from, step by step back: its bases, and checkpoints between them."""

    def __init__(self, db: sqlite3.Connection, handle: HandleRow, version: int) -> None:
        self._db = db
        self._handle = handle
        self._version = version

    def positions(self) -> list[int]:
        """Token positions at which there is a state, in order."""
        return sorted({payload.n_computed for _, payload, _ in self._walk()})

    def at(self, position: int) -> tuple[Base, PayloadRow, RandomKey | None]:
        """The newest state at a position, where it is a base, and its key.

        Raises:
            StateNotFoundError: there is none.
        """
        for base, payload, key in self._walk():
            if payload.n_computed == position:
                return base, payload, key
        raise StateNotFoundError(f"{self._handle.name} at token {position}")

    def below(self, position: int) -> tuple[Base, PayloadRow, RandomKey | None]:
        """The newest state at or below a position.

        Raises:
            StateNotFoundError: there is none.
        """
        for base, payload, key in self._walk():
            if payload.n_computed <= position:
                return base, payload, key
        raise StateNotFoundError(f"{self._handle.name} at or before token {position}")

    def _walk(self) -> Iterator[tuple[Base, PayloadRow, RandomKey | None]]:
        at: tuple[int, int] | None = (self._handle.id, self._version)
        # A version reaches no further than to where the one after it left it.
        bound = 2**63 - 1
        while at is not None:
            found = rows(
                self._db,
                f"SELECT {VERSION_COLUMNS}, {PAYLOAD_COLUMNS} FROM versions v "
                "JOIN payloads p ON p.id = v.payload WHERE v.handle = ? AND v.version = ?",
                at,
            )
            if not found:
                return
            version = VersionRow(*found[0][:VERSION_WIDTH])
            payload = PayloadRow(*found[0][VERSION_WIDTH:])
            version.check(payload)
            key = version.random_key()
            if payload.n_computed <= bound:
                yield Base(*at, payload.n_computed), payload, key
            for checkpoint in self._checkpoints(*at, bound):
                yield Base(*at, checkpoint.n_computed), checkpoint, key
            if version.base_handle is None or version.base_version is None:
                return
            at = (version.base_handle, version.base_version)
            bound = min(bound, version.base_tokens or 0)

    def _checkpoints(self, handle: int, version: int, bound: int) -> list[PayloadRow]:
        found = rows(
            self._db,
            f"SELECT c.seal, {PAYLOAD_COLUMNS} FROM checkpoints c JOIN payloads p "
            "ON p.id = c.payload WHERE c.handle = ? AND c.version = ? AND c.n_computed <= ? "
            "ORDER BY c.n_computed DESC",
            (handle, version, bound),
        )
        payloads = list[PayloadRow]()
        for seal, *columns in found:
            payload = PayloadRow(*columns)
            if seal != checkpoint_seal(handle, version, payload):
                raise StateDamagedError(self._handle.name, "a checkpoint's row was changed")
            payloads.append(payload)
        return payloads


def record_of(catalogue: Catalogue, handle: int, version: int) -> VersionRecord:
    """A version by the number of its handle.

    Raises:
        StateNotFoundError: it is gone.
        StateDamagedError: a row is not what was written.
    """
    found = catalogue.read(f"{ALL} WHERE h.id = ? AND v.version = ?", (handle, version))
    if not found:
        raise StateNotFoundError("that it came from: it was deleted")
    return version_record(*_split(found[0]))


def payload_by_id(catalogue: Catalogue, payload: int) -> PayloadRow | None:
    """A payload as it is now."""
    found = catalogue.read(f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE id = ?", (payload,))
    return PayloadRow(*found[0]) if found else None


def payloads_in_memory(catalogue: Catalogue) -> list[PayloadRow]:
    """Payloads that a crash would lose."""
    found = catalogue.read(
        f"SELECT {PAYLOAD_COLUMNS} FROM payloads p "
        "WHERE file IS NULL AND object IS NULL AND damage IS NULL"
    )
    return [PayloadRow(*row) for row in found]


def has_memory(catalogue: Catalogue) -> bool:
    """Whether versions were in memory alone when the catalogue was last open."""
    ((reserved,),) = catalogue.read("SELECT value FROM meta WHERE name = 'reserved'")
    return reserved != 0 or bool(payloads_in_memory(catalogue))


def payload_of(catalogue: Catalogue, tenant: str, content_id: str) -> PayloadRow | None:
    """The tenant's payload with these bytes."""
    found = catalogue.read(
        f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE tenant = ? AND content_id = ?",
        (tenant, content_id),
    )
    return PayloadRow(*found[0]) if found else None


def uid_of_file(catalogue: Catalogue, file: str) -> str | None:
    """The payload that a file belongs to."""
    found = catalogue.read("SELECT uid FROM payloads WHERE file = ?", (file,))
    return found[0][0] if found else None


def known_files(catalogue: Catalogue) -> frozenset[str]:
    """The files of all payloads."""
    found = catalogue.read("SELECT file FROM payloads WHERE file IS NOT NULL")
    return frozenset(file for (file,) in found)


def _split(row: Row) -> tuple[HandleRow, VersionRow, PayloadRow]:
    middle = HANDLE_WIDTH + VERSION_WIDTH
    return (
        HandleRow(*row[:HANDLE_WIDTH]),
        VersionRow(*row[HANDLE_WIDTH:middle]),
        PayloadRow(*row[middle:]),
    )


def _is_over(handle: HandleRow, now: float) -> bool:
    return handle.expires_at is not None and handle.expires_at <= now


def _n_versions(catalogue: Catalogue, handle: HandleRow) -> int:
    ((n,),) = catalogue.read("SELECT count(*) FROM versions WHERE handle = ?", (handle.id,))
    return int(n)
