"""Opening a store: whose folder it is, and what a crash left in it."""

import logging
import sqlite3
from typing import NamedTuple

from wkvm.core.errors import BadStoreError, StoreLockedError
from wkvm.core.limits import StoreLimits
from wkvm.state.ballast import BALLAST, PROBE
from wkvm.state.columns import HANDLE_COLUMNS
from wkvm.state.edits import Edit
from wkvm.state.io import IO, Entry, Folder, Kind, reason
from wkvm.state.tables import HandleRow, rows

logger = logging.getLogger(__name__)

DATABASE = "catalogue.db"
LOCK = "lock"
PAYLOADS = "payloads"
QUARANTINE = "quarantine"
_DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal")
_FILES = frozenset({*_DATABASE_FILES, LOCK, BALLAST, PROBE})
RESPONSES = "responses"
"""Of the HTTP gateway, which keeps here what belongs to these states; the store leaves it alone."""
CRASHES = "crashes"
"""Of the server, which leaves reports here when its engine has failed."""
_FOLDERS = frozenset({PAYLOADS, QUARANTINE, RESPONSES, CRASHES})


class Folders(NamedTuple):
    """The folders of an open store, and its lock."""

    root: Folder
    payloads: Folder
    quarantine: Folder
    lock: int

    def close(self, io: IO) -> None:
        """Give all of it back. The lock goes last."""
        for folder in (self.payloads, self.quarantine, self.root):
            folder.close()
        io.close(self.lock)


def open_folders(io: IO, path: str, *, create: bool) -> Folders:
    """Lock a store's folder and open what is in it.

    Raises:
        BadStoreError: it is no store, or not ours.
        StoreLockedError: another process has it open.
    """
    opened = list[Folder]()
    lock = -1
    try:
        root = io.open_root(path, create=create)
        opened.append(root)
        entries = root.entries()
        _check_entries(path, entries, create=create)
        root.restrict()
        lock = root.lock(LOCK)
        for name in (PAYLOADS, QUARANTINE):
            opened.append(root.folder(name))
        if not any(one.name == DATABASE for one in entries) and opened[1].entries():
            raise BadStoreError(path, "it has payloads and no catalogue; restore both, or neither")
        _isolate_strangers(root, opened[2], entries, io)
        root.sync()
    except BaseException as error:
        for folder in opened:
            folder.close()
        if lock >= 0:
            io.close(lock)
        if isinstance(error, BlockingIOError):
            raise StoreLockedError(path) from error
        if isinstance(error, OSError):
            raise BadStoreError(path, f"cannot be opened: {reason(error)}") from error
        raise
    return Folders(root, opened[1], opened[2], lock)


def check_folder(io: IO, path: str) -> None:
    """Check that ``open_folders`` would open a folder or make it, and leave it as it is.

    Raises:
        BadStoreError, StoreLockedError: as there.
    """
    root, lock = None, -1
    try:
        root = io.open_root(path, create=False)
        entries = root.entries()
        _check_entries(path, entries, create=True)
        if any(one.name == LOCK for one in entries):
            lock = root.lock(LOCK)
    except FileNotFoundError:
        return  # it will be made
    except BlockingIOError as error:
        raise StoreLockedError(path) from error
    except OSError as error:
        raise BadStoreError(path, f"cannot be opened: {reason(error)}") from error
    finally:
        if lock >= 0:
            io.close(lock)
        if root is not None:
            root.close()


def _check_entries(path: str, entries: list[Entry], *, create: bool) -> None:
    by_name = {one.name: one for one in entries}
    is_store = DATABASE in by_name
    if not is_store and (not create or any(one not in _FILES | _FOLDERS for one in by_name)):
        raise BadStoreError(path, "it is not a store" + (", and not empty" if create else ""))
    for name in _FILES & by_name.keys():
        if by_name[name].kind is not Kind.FILE or not by_name[name].is_ours:
            raise BadStoreError(path, f"{name} is no file of this user")
    for name in _FOLDERS & by_name.keys():
        if by_name[name].kind is not Kind.FOLDER:
            raise BadStoreError(path, f"{name} is no folder")


def _isolate_strangers(root: Folder, quarantine: Folder, entries: list[Entry], io: IO) -> None:
    for one in entries:
        if one.name not in _FILES | _FOLDERS:
            logger.warning("a file that is not the store's was put in quarantine")
            root.rename(one.name, quarantine, f"stranger.{io.fresh_id()}")


def forget_memory(edit: Edit, *, after_crash: bool) -> int:
    """Remove the versions that were in memory alone. Their numbers are not given again.

    After a crash not all of them are known: what was not on the disk may be gone. So all numbers
    that may have been given are passed over.

    Returns:
        How many versions were removed.
    """
    db, n_removed = edit.db, 0
    if after_crash:
        edit.set_meta("floor", max(edit.meta("floor"), edit.meta("reserved")))
    edit.set_meta("reserved", 0)
    in_memory = (
        "payload IN (SELECT id FROM payloads "
        "WHERE file IS NULL AND object IS NULL AND damage IS NULL)"
    )
    handles = rows(
        db,
        f"SELECT {HANDLE_COLUMNS} FROM handles h "
        f"WHERE id IN (SELECT handle FROM versions WHERE {in_memory})",
    )
    for row in handles:
        handle = HandleRow(*row)
        if not handle.is_whole:
            continue  # it is refused as it is; to write it again would hide that
        lost = rows(
            db,
            f"SELECT version FROM versions WHERE handle = ? AND {in_memory} ORDER BY version",
            (handle.id,),
        )
        for (version,) in lost:
            edit.drop_version(edit.by_id(handle.id), version)
            n_removed += 1
    return n_removed


def reserve_numbers(db: sqlite3.Connection, limits: StoreLimits, version: int, step: int) -> int:
    """Make sure that no crash lets a number up to ``version`` be given again. Up to which it is."""
    edit = Edit(db, 0.0, limits)
    reserved = max(edit.meta("reserved"), (version // step + 1) * step)
    edit.set_meta("reserved", reserved)
    return reserved
