"""Rows of the catalogue that were looked up, in memory: what is here is what the database says.

A transaction takes out what it touched before it is committed, and puts the heads of its handles
in once it is; in between nobody else puts anything in. So a look-up that finds something here sees
the state of the database at some moment during the look-up, as one that asks the database does.
What a transaction touched, triggers tell: no change can forget to.
"""

import sqlite3
import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

from wkvm.state.columns import HANDLE_COLUMNS, HANDLE_WIDTH, PAYLOAD_COLUMNS, VERSION_COLUMNS
from wkvm.state.columns import VERSION_WIDTH as _VERSION_WIDTH
from wkvm.state.notices import Notices

Key: TypeAlias = tuple[str, str, int | None]
"""Tenant, name and version; None for the head."""

Row: TypeAlias = tuple[Any, ...]

ALL = (
    f"SELECT {HANDLE_COLUMNS}, {VERSION_COLUMNS}, {PAYLOAD_COLUMNS} FROM handles h "
    "JOIN versions v ON v.handle = h.id JOIN payloads p ON p.id = v.payload "
)
FIND = f"{ALL} WHERE h.tenant = ? AND h.name = ? AND v.version = coalesce(?, h.head)"
_HEAD = f"{ALL} WHERE h.id = ? AND v.version = h.head"
_HEADS = f"{ALL} WHERE v.version = h.head ORDER BY h.updated_at DESC LIMIT ?"

_PAYLOAD_AT = HANDLE_WIDTH + _VERSION_WIDTH

MAX_ENTRIES = 16_384
"""A few KiB each."""

MAX_REFRESHED = 8
"""Heads that a transaction puts in. Those of others are read when they are asked for."""

_OF_HANDLE = ", ".join(
    f"(SELECT {column} FROM main.handles WHERE id = {{0}})" for column in ("tenant", "name")
)

_TRIGGERS = (
    ("insert", "INSERT ON main.handles", "0, new.id, new.tenant, new.name"),
    ("update", "UPDATE ON main.handles", "0, old.id, old.tenant, old.name"),
    ("update_to", "UPDATE OF tenant, name ON main.handles", "0, new.id, new.tenant, new.name"),
    ("delete", "DELETE ON main.handles", "0, old.id, old.tenant, old.name"),
    # Its handle's row changes with it.
    ("version_insert", "INSERT ON main.versions", "0, new.handle, NULL, NULL"),
    (
        "version_update",
        "UPDATE ON main.versions",
        f"0, old.handle, {_OF_HANDLE.format('old.handle')}",
    ),
    (
        "version_update_to",
        "UPDATE OF handle ON main.versions",
        f"0, new.handle, {_OF_HANDLE.format('new.handle')}",
    ),
    (
        "version_delete",
        "DELETE ON main.versions",
        f"0, old.handle, {_OF_HANDLE.format('old.handle')}",
    ),
    # Not when it is counted who uses it: nobody reads that number here.
    (
        "payload_update",
        "UPDATE OF id, uid, tenant, content_id, digest, n_bytes, identity, n_computed, n_pending, "
        "tail, file, object, damage ON main.payloads",
        "1, old.id, NULL, old.uid",
    ),
    ("payload_delete", "DELETE ON main.payloads", "1, old.id, NULL, NULL"),
)


class Entry:
    """One row, and what was made of it by who asked for it first."""

    __slots__ = ("built", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.built: Any = None

    @property
    def handle(self) -> int:
        """The number of its handle."""
        return int(self.row[0])

    @property
    def payload(self) -> int:
        """The number of its payload."""
        return int(self.row[_PAYLOAD_AT])


class Index:
    """Rows by key. ``find`` and ``fill`` are any thread's, the rest is the writer's.

    Attributes:
        notices: told which handles a transaction has changed, once it is committed.
    """

    def __init__(self) -> None:
        self.notices = Notices()
        self._named = set[tuple[str | None, str]]()
        self._entries = dict[Key, Entry]()
        self._keys = dict[tuple[int, int], set[Key]]()
        self._lock = threading.Lock()
        self._epoch = 0
        self._touched = set[tuple[int, int]]()

    @property
    def epoch(self) -> int:
        """Odd while a transaction is being committed."""
        return self._epoch

    def find(self, key: Key) -> Entry | None:
        """What is here for a key. About 0.2 us; waits for nobody."""
        return self._entries.get(key)

    def fill(self, key: Key, row: Row, epoch: int) -> Entry:
        """Put in a row that was read after ``epoch``, if nothing was written since."""
        entry = Entry(row)
        with self._lock:
            if epoch == self._epoch and epoch % 2 == 0:
                self._put(key, entry)
        return entry

    def watch(self, writer: sqlite3.Connection) -> None:
        """Be told what the transactions of a connection touch, and know the newest heads."""
        writer.create_function("touch", 4, self._touch)
        for name, event, what in _TRIGGERS:
            writer.execute(
                f"CREATE TEMP TRIGGER touch_{name} AFTER {event} BEGIN SELECT touch({what}); END"
            )
        for row in writer.execute(_HEADS, (MAX_ENTRIES,)):
            self._put((row[1], row[2], None), Entry(row))

    def begin(self) -> None:
        """A transaction begins."""
        self._touched.clear()
        self._named.clear()

    def before_commit(self) -> None:
        """It will be committed, or fail to be."""
        with self._lock:
            self._epoch += 1
            for one in self._touched:
                for key in list(self._keys.get(one, ())):
                    self._remove(key)

    def after_commit(self, writer: sqlite3.Connection, *, was_committed: bool) -> None:
        """It was, or it failed."""
        handles = [at for kind, at in self._touched if kind == 0]
        rows = list[Row]()
        if was_committed and len(handles) <= MAX_REFRESHED:
            rows = _heads(writer, handles)
        with self._lock:
            for row in rows:
                self._put((row[1], row[2], None), Entry(row))
            self._epoch += 1
        for tenant, name in self._named:
            if tenant is None:
                self.notices.note_payload(name)
            else:
                self.notices.note(tenant, name)

    def _touch(self, kind: int, at: int, tenant: str | None, name: str | None) -> None:
        self._touched.add((kind, at))
        if name is not None:
            self._named.add((tenant, name))

    def _put(self, key: Key, entry: Entry) -> None:
        if key in self._entries:
            self._remove(key)
        elif len(self._entries) >= MAX_ENTRIES:
            self._remove(next(iter(self._entries)))
        self._entries[key] = entry
        for one in ((0, entry.handle), (1, entry.payload)):
            self._keys.setdefault(one, set()).add(key)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        for one in ((0, entry.handle), (1, entry.payload)):
            keys = self._keys[one]
            keys.discard(key)
            if not keys:
                del self._keys[one]


def _heads(writer: sqlite3.Connection, handles: Iterable[int]) -> list[Row]:
    try:
        return [row for at in handles for row in writer.execute(_HEAD, (at,))]
    except sqlite3.Error:
        return []  # they are read, or not, when they are asked for
