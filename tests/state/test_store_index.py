"""What is looked up in memory is what the database says, whatever was written or failed."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.state.stores import MEMORY, Clock, opened, put
from tests.state.test_store_catalogue import fail, mend
from wkvm.core.errors import StateNotFoundError, StoreFailedError, WkvmError
from wkvm.core.registry import Ref
from wkvm.state import index
from wkvm.state.columns import HANDLE_WIDTH, PAYLOAD_COLUMNS, VERSION_WIDTH
from wkvm.state.index import FIND
from wkvm.state.store import Store

N_REFS = HANDLE_WIDTH + VERSION_WIDTH + PAYLOAD_COLUMNS.split(", ").index("p.n_refs")
"""The one column that is not kept up to date: nobody reads it there."""

WRITES: dict[str, Callable[[Store], object]] = {
    "commit": lambda store: put(store, "a", 5),
    "commit in memory": lambda store: put(store, "a", 5, durability=MEMORY),
    "commit of equal bytes": lambda store: put(store, "m", 2),
    "commit that drops others": lambda store: put(store, "a", 5, keep=1),
    "new": lambda store: put(store, "n", 5, tags={"x": "y"}),
    "fork": lambda store: store.fork("t", "a", ["f", "g"]),
    "many forks": lambda store: store.fork("t", "a", [f"f{at}" for at in range(20)]),
    "rollback": lambda store: store.rollback("t", "a", version=1),
    "rename": lambda store: store.rename("t", "a", "z"),
    "tags": lambda store: store.set_tags("t", "a", {"x": "y"}),
    "expiry": lambda store: store.set_expiry("t", "a", 5000.0),
    "delete": lambda store: store.delete("t", "a"),
    "delete the head": lambda store: store.delete("t", "a@2"),
    "delete a version": lambda store: store.delete("t", "a@1"),
    "persist": lambda store: store.persist("t", "m"),
    "flush": lambda store: store.flush(),
    "gc": lambda store: store.gc(),
    "damage": lambda store: damage(store),
}


def damage(store: Store) -> None:
    for path in Path(store._folders.payloads.path).iterdir():
        path.write_bytes(b"rot")
    store.check()


def look_up_all(store: Store) -> None:
    for name in ("a", "b", "s", "e", "m", "n", "z", "f", "g"):
        for version in (None, 1, 2, 3):
            try:
                store.get("t", Ref(name, version))
            except WkvmError:
                continue


def assert_exact(store: Store) -> None:
    """Every row in memory is that of the database."""
    entries = store._catalogue.index._entries
    assert entries
    for key, entry in entries.items():
        (row,) = store._catalogue.read(FIND, key)
        assert row[:N_REFS] + row[N_REFS + 1 :] == entry.row[:N_REFS] + entry.row[N_REFS + 1 :]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def prepare(store: Store) -> None:
    put(store, "a", 1)
    put(store, "a", 2)
    put(store, "b", 3)
    put(store, "s", 1)  # shares its bytes with a@1
    put(store, "e", 4, expires_at=1001.0)
    put(store, "m", 6, durability=MEMORY)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_no_row_in_memory_is_stale_after_a_write(
    tmp_path: Path, clock: Clock, write: Callable[[Store], object]
) -> None:
    with opened(tmp_path, clock) as store:
        prepare(store)
        look_up_all(store)
        clock.now += 1
        write(store)
        assert_exact(store)
        look_up_all(store)
        assert_exact(store)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_FSYNC])
@pytest.mark.parametrize("was_committed", [False, True])
def test_no_row_in_memory_is_stale_after_a_write_that_failed(
    tmp_path: Path,
    clock: Clock,
    write: Callable[[Store], object],
    code: int,
    was_committed: bool,
) -> None:
    with opened(tmp_path, clock) as store:
        prepare(store)
        look_up_all(store)
        clock.now += 1
        fail(store, "COMMIT", code, after=was_committed)
        with contextlib.suppress(WkvmError):
            write(store)
        mend(store)
        assert_exact(store)
        look_up_all(store)
        assert_exact(store)


def without_database(store: Store, *refs: str) -> list[int]:
    """The versions of what is looked up while the database cannot be asked."""
    reader, forbidden = store._catalogue._reader, object()
    store._catalogue._reader = forbidden  # type: ignore[assignment]
    try:
        return [store.get("t", ref).version for ref in refs]
    finally:
        store._catalogue._reader = reader


def test_heads_are_looked_up_without_the_database(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        put(store, "b", 2)
        put(store, "b", 3)
        assert without_database(store, "a", "b") == [1, 2]
    with opened(tmp_path) as store:
        assert without_database(store, "a", "b") == [1, 2]
        store.get("t", "b@1")
        assert without_database(store, "b@1") == [1]


def test_a_row_that_was_read_before_a_write_is_not_kept_after_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        catalogue, key = store._catalogue, ("t", "a", None)
        epoch = catalogue.index.epoch
        (row,) = catalogue.read(FIND, key)
        put(store, "a", 2)
        catalogue.index.fill(key, row, epoch)
        assert store.get("t", "a").version == 2


def test_while_a_transaction_is_committed_nothing_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        catalogue, seen = store._catalogue, list[int]()
        commit = catalogue._writer

        class Slow:
            def execute(self, statement: str, *parameters: Any) -> Any:
                if statement == "COMMIT":
                    seen.append(store.get("t", "a").version)
                assert commit is not None
                return commit.execute(statement, *parameters)

            def __getattr__(self, name: str) -> Any:
                return getattr(commit, name)

        catalogue._writer = Slow()  # type: ignore[assignment]
        put(store, "a", 2)
        catalogue._writer = commit
        assert seen == [1]
        assert store.get("t", "a").version == 2


def test_readers_see_what_was_acknowledged_and_never_go_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 0)
        acknowledged, is_over = [1], threading.Event()

        def write() -> None:
            try:
                for seed in range(1, 60):
                    record = put(store, "a", seed % 5, durability=MEMORY, keep=3)
                    acknowledged[0] = record.version
            finally:
                is_over.set()

        def read() -> None:
            last = 0
            while not is_over.is_set():
                known = acknowledged[0]
                version = store.get("t", "a").version
                assert version >= max(known, last)
                last = version

        with ThreadPoolExecutor(3) as threads:
            for one in [threads.submit(work) for work in (write, read, read)]:
                one.result(300)


def test_memory_for_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_ENTRIES", 3)
    with opened(tmp_path) as store:
        for at in range(6):
            put(store, f"n{at}", at)
            look_up_all(store)
        for at in range(6):
            assert store.get("t", f"n{at}").version == 1
            assert len(store._catalogue.index._entries) <= 3
        assert len(store._catalogue.index._keys) <= 6
        assert_exact(store)


def test_a_closed_store_answers_nothing_from_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
    with pytest.raises(StoreFailedError):
        store.get("t", "a")


def test_what_is_over_is_not_found_though_its_row_is_in_memory(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock) as store:
        put(store, "a", 1, expires_at=1001.0)
        store.get("t", "a")
        clock.now += 1
        with pytest.raises(StateNotFoundError):
            store.get("t", "a")
