"""The SQLite database of responses and conversations: its file, its tables, its transactions.

It has one thread, in which everything that touches it runs: the event loop waits for no disk.
Several processes may have one file open. What the rows mean is the business of ``records`` and
``talks``.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Container, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec

from wkvm.gateway.errors import SettingError
from wkvm.gateway.failures import FULL, SERVER, HttpError
from wkvm.gateway.responses.owners import Owners

FILE = "responses.db"
BUSY_TIMEOUT_S = 10.0
"""How long one process waits for another's transaction; they take milliseconds."""
VERSION = 1
RESERVED_SHARE = 0.01
MIN_RESERVED, MAX_RESERVED = 1024 * 1024, 64 * 1024 * 1024
"""How much of the disk what is new leaves free: in bytes, and in between a share of all of it.

What ends and what is deleted has to be written too, here and in the store of states, which may be
on the same disk. Where there was no room for that, nothing could be done that makes room.
"""
COPIES = 3
"""How often a new byte is written: where it stays, in the log, and for its conversation."""

# What may be megabytes long is in no table WITHOUT ROWID: there it is part of the key, and every
# search that comes by such a row reads all of it. Files that were made so can be used as well.
_TABLES = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    tenant BLOB NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    is_shown INTEGER NOT NULL,
    status TEXT NOT NULL,
    owner TEXT NOT NULL,
    is_cancelled INTEGER NOT NULL DEFAULT 0,
    parent TEXT,
    conversation TEXT,
    talk_end INTEGER,
    resource BLOB NOT NULL,
    state TEXT,
    n_tokens INTEGER NOT NULL DEFAULT 0,
    read_bytes INTEGER,
    read_digest BLOB,
    events BLOB,
    n_bytes INTEGER NOT NULL
);
CREATE INDEX responses_of ON responses(tenant, is_shown, created_at, n_bytes);
CREATE INDEX responses_after ON responses(parent) WHERE parent IS NOT NULL;
CREATE TABLE items (
    holder TEXT NOT NULL,
    part INTEGER NOT NULL,
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    tenant BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (holder, part, position)
);
CREATE INDEX items_called ON items(tenant, id);
CREATE TABLE talks (
    id TEXT PRIMARY KEY,
    tenant BLOB NOT NULL,
    created_at REAL NOT NULL,
    metadata BLOB NOT NULL,
    running TEXT,
    owner TEXT,
    last TEXT,
    revision INTEGER NOT NULL DEFAULT 0,
    next_position INTEGER NOT NULL DEFAULT 0,
    n_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX talks_of ON talks(tenant, n_bytes);
"""

# Of versions before this one there are files without it.
_KEYS = """
CREATE TABLE IF NOT EXISTS asked (
    tenant BLOB NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    response TEXT,
    conversation TEXT,
    first INTEGER,
    past INTEGER,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS asked_made ON asked(response) WHERE response IS NOT NULL;
CREATE INDEX IF NOT EXISTS asked_in ON asked(conversation) WHERE conversation IS NOT NULL
"""

P = ParamSpec("P")
T = TypeVar("T")


class Connection:
    """The database, in its thread.

    Args:
        folder: where it is, or is to be; None for one that is gone with this process.
        making: ids of the responses that this process makes.

    Attributes:
        owners: this process among those that have it open.

    Raises:
        sqlite3.Error, OSError: it cannot be opened there.
    """

    def __init__(self, folder: Path | None, making: Container[str]) -> None:
        self._making = making
        self._folder = folder
        with contextlib.ExitStack() as stack:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.owners = Owners(folder)
            stack.callback(self.owners.close)
            if folder is not None:
                _leave_wal(folder / FILE)
            # An empty name is a file without one.
            path = "" if folder is None else os.fspath(folder / FILE)
            self.db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
            stack.callback(self.db.close)
            self._open(is_shared=folder is not None)
            stack.pop_all()

    def _open(self, *, is_shared: bool) -> None:
        db = self.db
        _is_new(db)  # before anything of it is changed
        # No file is mapped: on a full disk that copies what is written, a mapped page may be a
        # SIGBUS, and the end of the process. What processes share of a WAL would be mapped.
        db.execute("PRAGMA mmap_size = 0")
        db.execute("PRAGMA journal_mode = " + ("TRUNCATE" if is_shared else "MEMORY"))
        db.execute("PRAGMA synchronous = " + ("FULL" if is_shared else "OFF"))
        db.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            if _is_new(db):
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
            for statement in _KEYS.split(";"):
                db.execute(statement)
        self.owners.sweep()

    def is_made(self, response_id: str, owner: str) -> bool:
        """Whether somebody makes a response.

        Args:
            owner: who has begun to.
        """
        if owner == self.owners.name:
            return response_id in self._making
        return self.owners.is_alive(owner)

    def check_disk(self, n_bytes: int) -> None:
        """Check that the disk has room for something new, beside what is left free.

        Cost: some microseconds.

        Raises:
            HttpError: 507; it has none.
        """
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # then the writing says what is wrong
            disk = shutil.disk_usage(self._folder)
            reserved = min(max(disk.total * RESERVED_SHARE, MIN_RESERVED), MAX_RESERVED)
            if disk.free < n_bytes * COPIES + reserved:
                raise _full()

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """All that is written in the block, or nothing of it."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self.db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close it."""
        self.db.close()
        self.owners.close()


def _is_new(db: sqlite3.Connection) -> bool:
    """Whether there is nothing in it yet.

    Raises:
        sqlite3.DatabaseError: there is something else in it.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if version == 0 and not tables:
        return True
    if not tables.issuperset(("responses", "items", "talks")):
        raise sqlite3.DatabaseError("it is a database of something else")
    if version != VERSION:
        raise sqlite3.DatabaseError(f"it has format {version}, this wkvm knows {VERSION}")
    return False


def _leave_wal(path: Path) -> None:
    """Take a database out of WAL mode, in which versions before this one kept it.

    Raises:
        sqlite3.Error: it is no database of this kind, or one of those versions has it open.
    """
    try:
        with path.open("rb") as file:
            is_wal = file.read(20)[18:] == b"\2\2"
    except FileNotFoundError:
        return
    if not is_wal:
        return
    # By this VFS of SQLite's what is shared of a WAL is in this process's memory.
    name = f"file:{quote(os.fsencode(path))}?vfs=unix-excl"
    with contextlib.closing(sqlite3.connect(name, uri=True, timeout=BUSY_TIMEOUT_S)) as db:
        _is_new(db)
        db.execute("PRAGMA journal_mode = TRUNCATE")
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


class Database:
    """A database for an event loop. It is opened by whoever first asks for something.

    Args:
        folder: as of ``Connection``.

    Attributes:
        making: ids of the responses that are being made here.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="wkvm-responses")
        self._connection: Connection | None = None
        self._is_closed = False
        self.making = set[str]()

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do something with the database. Cancelling this does not cancel what has begun.

        Raises:
            HttpError: 507, the disk is full; 503, it fails, is damaged, cannot be opened, or is
                closed. Nothing was written.
        """

        def there() -> T:
            try:
                if self._connection is None:
                    self._connection = Connection(self._folder, self.making)
                return work(self._connection, *args, **kwargs)
            except (sqlite3.Error, OSError, msgspec.MsgspecError, zlib.error) as error:
                raise _failure(error) from error

        if self._is_closed:
            why = "the gateway is closing"
            raise HttpError(503, why, SERVER, code="draining", retry_after_s=1.0)
        return await asyncio.get_running_loop().run_in_executor(self._pool, there)

    async def open(self) -> None:
        """Open it now. What may pass, such as a full disk, is left to who needs it.

        Raises:
            SettingError: it is no database of responses, or the folder cannot be used.
        """
        try:
            await self.run(lambda _: None)
        except HttpError as error:
            cause = error.__cause__
            if _code(cause) not in _PASSING:
                raise SettingError("responses-dir", f"{self._folder}: {cause}") from cause

    async def aclose(self) -> None:
        """Close it, after what has begun. Twice is as good as once."""
        if self._is_closed:
            return
        self._is_closed = True

        def there() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._pool, there)
        self._pool.shutdown(wait=False)


_PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR)
"""Codes of what may be over by itself."""


def _code(error: BaseException | None) -> int:
    """What SQLite calls something that went wrong."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return sqlite3.SQLITE_FULL
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _failure(error: Exception) -> HttpError:
    if _code(error) == sqlite3.SQLITE_FULL:
        return _full()
    # The text of an OSError has the path.
    what = error.strerror or "an error" if isinstance(error, OSError) else error
    return HttpError(503, f"what is kept cannot be used: {what}", SERVER, code="store_failed")


def _full() -> HttpError:
    why = "the disk has no room for what is to be kept; delete something"
    return HttpError(507, why, FULL, code="store_full")
