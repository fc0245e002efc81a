"""The catalogue's database: opening it, its schema, and transactions.

SQLite in WAL mode. One connection writes, under a lock; another one reads and does not wait for
writers. Between two opens of a store nobody else has the files: the store's lock sees to that.
What the tables mean is in ``wkvm.state.tables``.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from wkvm.core.errors import BadStoreError, StoreFailedError, StoreFullError
from wkvm.state.ballast import Ballast
from wkvm.state.index import FIND, Entry, Index, Key, Row
from wkvm.state.totals import DiskTotals

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA_VERSION = 1
"""Stores of an earlier one are brought up to date, those of a later one are refused."""

APPLICATION_ID = 0x776B766D
"""``wkvm``, where SQLite keeps whose file it is."""

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tenants (
  tenant TEXT PRIMARY KEY, n_handles INTEGER NOT NULL, n_bytes INTEGER NOT NULL,
  floor INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE payloads (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
  content_id TEXT NOT NULL, digest TEXT NOT NULL, n_bytes INTEGER NOT NULL,
  identity TEXT NOT NULL, n_computed INTEGER NOT NULL, n_pending INTEGER NOT NULL,
  tail TEXT NOT NULL, n_refs INTEGER NOT NULL, file TEXT UNIQUE, object TEXT UNIQUE, damage TEXT,
  UNIQUE (tenant, content_id)
);
CREATE INDEX payloads_in_memory ON payloads (id)
  WHERE file IS NULL AND object IS NULL AND damage IS NULL;
CREATE TABLE handles (
  id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, name TEXT NOT NULL,
  head INTEGER NOT NULL, next_version INTEGER NOT NULL, tags TEXT NOT NULL,
  created_at REAL NOT NULL, updated_at REAL NOT NULL, expires_at REAL, seal BLOB NOT NULL,
  UNIQUE (tenant, name)
);
CREATE INDEX handles_expiry ON handles (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE versions (
  handle INTEGER NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL,
  payload INTEGER NOT NULL, base_handle INTEGER, base_version INTEGER, base_tokens INTEGER,
  key TEXT, provenance TEXT NOT NULL, created_at REAL NOT NULL, seal BLOB NOT NULL,
  PRIMARY KEY (handle, version)
) WITHOUT ROWID;
CREATE INDEX versions_payload ON versions (payload);
CREATE TABLE checkpoints (
  handle INTEGER NOT NULL, version INTEGER NOT NULL, n_computed INTEGER NOT NULL,
  payload INTEGER NOT NULL, seal BLOB NOT NULL, PRIMARY KEY (handle, version, n_computed)
) WITHOUT ROWID;
CREATE INDEX checkpoints_payload ON checkpoints (payload);
CREATE TABLE names (
  id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, handle INTEGER NOT NULL,
  floor INTEGER NOT NULL, UNIQUE (tenant, name)
);
CREATE TABLE applied (
  tenant TEXT NOT NULL, key TEXT NOT NULL, operation TEXT NOT NULL, result TEXT NOT NULL,
  created_at REAL NOT NULL, PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX applied_age ON applied (created_at);
CREATE TABLE objects (object TEXT PRIMARY KEY) WITHOUT ROWID;
"""

_META = {"store_id": str, "floor": int, "reserved": int}
"""Rows that ``meta`` has at least."""

_FULL = 13
_BROKEN = frozenset({10, 11, 26})
"""SQLITE_IOERR, SQLITE_CORRUPT and SQLITE_NOTADB."""
_UNWRITTEN = frozenset({10 | 3 << 8, 10 | 19 << 8})
"""SQLITE_IOERR_WRITE and _SHMSIZE: the log did not take pages. They count for nothing without the
page of the commit behind them, so the database is as it was. A quota says this, too."""
_NOT_OPENED = frozenset({10, 13, 14})
"""SQLITE_IOERR, SQLITE_FULL and SQLITE_CANTOPEN: what opening on a full disk says."""


class Catalogue:
    """An open database. Threads may call any method at the same time.

    Args:
        path: of the database's file; it is made where it is missing.
        store_id: for a new database.
        ballast: given up where the disk is full, to open and for what frees space.

    Raises:
        BadStoreError: it is damaged, of a newer wkvm, or of another program; or there is neither
            room on the disk nor a ballast.
    """

    def __init__(self, path: str, store_id: str, ballast: Ballast) -> None:
        self._ballast = ballast
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        self._is_failed = False
        self._synchronous = ""
        self.index, self.on_disk = Index(), DiskTotals()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        while True:
            try:
                self._open(path, store_id)
                return
            except (sqlite3.Error, ValueError) as error:
                self.close()
                may_be_full = _code(error) & 0xFF in _NOT_OPENED
                if may_be_full and ballast.give_up():
                    continue
                why = f"the database cannot be opened: {error}"
                if may_be_full and not ballast.has_room():
                    why = "the disk is full, and to open the database takes some KiB"
                raise BadStoreError(path, why) from error
            except BaseException:
                self.close()
                raise

    def _open(self, path: str, store_id: str) -> None:
        self._writer = _connect(path)
        if not _prepare(self._writer, path, store_id):
            raise BadStoreError(path, "the database is not one of wkvm")
        self.index.watch(self._writer)
        self.on_disk.watch(self._writer)
        self._reader = _connect(path)
        self._reader.execute("PRAGMA query_only=1")
        meta = dict(self._reader.execute("SELECT name, value FROM meta"))
        if any(type(meta.get(name)) is not kind for name, kind in _META.items()):
            raise BadStoreError(path, "the database is damaged: what it says of itself is missing")
        self.store_id: str = meta["store_id"]

    @property
    def is_failed(self) -> bool:
        """The disk failed under it: nothing can be written before the store is reopened."""
        return self._is_failed

    def read(self, query: str, parameters: Row = ()) -> list[Row]:
        """The rows of one query. About 10 us for one row by key.

        Raises:
            StoreFailedError: the database cannot be read.
        """
        return self.view(lambda reader: reader.execute(query, parameters).fetchall())

    def find(self, key: Key) -> Entry | None:
        """The row of a version with its handle and payload; None if there is none.

        About 0.2 us for what was looked up or written before, without a call of the system.

        Raises:
            StoreFailedError: the database cannot be read.
        """
        entry = self.index.find(key)
        if entry is not None and self._reader is not None:
            return entry
        epoch = self.index.epoch
        found = self.read(FIND, key)
        return self.index.fill(key, found[0], epoch) if found else None

    def view(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run queries, each of which sees what was committed before it.

        Raises:
            StoreFailedError: the database cannot be read.
        """
        with self._read_lock:
            if self._reader is None:
                raise StoreFailedError("read the catalogue", "the store is closed")
            try:
                return look(self._reader)
            except sqlite3.Error as error:
                raise StoreFailedError("read the catalogue", str(error)) from error

    def is_sound(self) -> bool:
        """Whether SQLite finds nothing wrong with the database. It reads all of it: 2 ms a MiB."""
        try:
            return self.read("PRAGMA integrity_check(1)") == [("ok",)]
        except StoreFailedError:
            return False

    def write(
        self,
        change: Callable[[sqlite3.Connection], T],
        *,
        durable: bool = True,
        frees: bool = False,
    ) -> T:
        """Run ``change`` in a transaction, and commit it.

        Args:
            change: may run twice. What it raises undoes all of it.
            durable: return only when the transaction is on the disk.
            frees: it makes room: where the disk is full it gets the ballast's.

        Raises:
            StoreFullError: the disk is full. Nothing was changed.
            StoreFailedError: the disk failed. Nothing was changed as long as the store is open;
                what is found when it is opened again is the transaction whole, or nothing of it.
        """
        with self._write_lock:
            ways = iter((self._restart, self._ballast.give_up) if frees else (self._restart,))
            while True:
                try:
                    return self._run(change, durable)
                except (StoreFullError, StoreFailedError) as error:
                    wants_room = _code(error.__cause__) & 0xFF == _FULL or (
                        _code(error.__cause__) in _UNWRITTEN
                    )
                    if not wants_room or not any(make_room() for make_room in ways):
                        raise

    def close(self) -> None:
        """Close both connections. What was not committed is undone."""
        with self._write_lock, self._read_lock:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _run(self, change: Callable[[sqlite3.Connection], T], durable: bool) -> T:
        writer = self._writer
        if writer is None or self._is_failed:
            why = "the store is closed" if writer is None else "it failed before; reopen the store"
            raise StoreFailedError("write the catalogue", why)
        try:
            self._choose_synchronous(writer, "FULL" if durable else "NORMAL")
            self.index.begin()
            self.on_disk.begin()
            writer.execute("BEGIN IMMEDIATE")
            result = change(writer)
            self._commit(writer)
        except BaseException as error:
            self._undo(writer)
            if not isinstance(error, sqlite3.Error):
                raise
            code = _code(error)
            is_unwritten = code in _UNWRITTEN
            if code == _FULL or (is_unwritten and not self._ballast.has_room()):
                raise StoreFullError() from error
            if code & 0xFF in _BROKEN and not is_unwritten:
                # Whether a page that could not be synced is on the disk, only recovery knows.
                self._is_failed = True
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise  # a bug
            raise StoreFailedError("write the catalogue", str(error)) from error
        return result

    def _commit(self, writer: sqlite3.Connection) -> None:
        was_committed = False
        self.index.before_commit()
        try:
            writer.execute("COMMIT")
            was_committed = True
        finally:
            self.on_disk.after_commit(was_committed=was_committed)
            self.index.after_commit(writer, was_committed=was_committed)

    def _undo(self, writer: sqlite3.Connection) -> None:
        if not writer.in_transaction:
            return
        try:
            writer.execute("ROLLBACK")
        except sqlite3.Error:
            logger.exception("a transaction could not be undone")
            self._is_failed = True

    def _restart(self) -> bool:
        """Take the log into the database, so that the next transaction is at its beginning again.

        So it needs no room beyond what the log has. False if that did not succeed.
        """
        if self._writer is None or self._is_failed:
            return False
        try:
            ((is_busy, _, _),) = self._writer.execute("PRAGMA wal_checkpoint(RESTART)")
        except sqlite3.Error:
            logger.warning("the log could not be taken into the database", exc_info=True)
            return False
        return not is_busy

    def _choose_synchronous(self, writer: sqlite3.Connection, level: str) -> None:
        if level != self._synchronous:
            writer.execute(f"PRAGMA synchronous={level}")
            self._synchronous = level


def _code(error: BaseException | None) -> int:
    """SQLite's extended code of an error; 1 for one that has none."""
    return getattr(error, "sqlite_errorcode", 1)


def _connect(path: str) -> sqlite3.Connection:
    # By this VFS of SQLite's what connections share is in this process's memory, and in no mapped
    # file: on a full disk one may be a SIGBUS, and the end of the process.
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?vfs=unix-excl",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    # A damaged page is an error where it is read, not an answer. Databases are read, not mapped.
    connection.execute("PRAGMA cell_size_check=1")
    connection.execute("PRAGMA mmap_size=0")
    connection.execute("PRAGMA trusted_schema=0")
    # What was deleted is overwritten: rows hold a state's last ids.
    connection.execute("PRAGMA secure_delete=1")
    return connection


def _prepare(writer: sqlite3.Connection, path: str, store_id: str) -> bool:
    """Make the schema, or check it. False if the database is somebody else's."""
    ((mode,),) = writer.execute("PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise BadStoreError(path, f"the database cannot be in WAL mode, only in {mode!r}")
    writer.execute("PRAGMA synchronous=FULL")
    writer.execute("PRAGMA journal_size_limit=4194304")
    ((application,),) = writer.execute("PRAGMA application_id")
    ((version,),) = writer.execute("PRAGMA user_version")
    ((n_tables,),) = writer.execute("SELECT count(*) FROM sqlite_schema")
    if application == 0 and version == 0 and n_tables == 0:
        writer.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id={APPLICATION_ID}; "
            f"PRAGMA user_version={SCHEMA_VERSION}; "
            f"INSERT INTO meta VALUES ('store_id', '{store_id}'), ('floor', 0), ('reserved', 0); "
            "COMMIT"
        )
        return True
    if application != APPLICATION_ID:
        return False
    if version != SCHEMA_VERSION:
        raise BadStoreError(
            path, f"the store has format {version}, this wkvm knows {SCHEMA_VERSION}"
        )
    return True
