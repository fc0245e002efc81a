"""The catalogue's database fails, and the disk under it lies while bytes are written."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.state.images import an_image, same
from tests.state.stores import crash, files, opened, put
from wkvm.core.errors import StateNotFoundError, StoreFailedError, StoreFullError
from wkvm.core.registry import Durability, Ref
from wkvm.state.io import SystemIO
from wkvm.state.store import Store


class Failing:
    """A connection on which one statement fails, before or after it did what it should."""

    def __init__(self, real: Any, statement: str, code: int, *, after: bool = False) -> None:
        self._real = real
        self._statement = statement
        self._code = code
        self._after = after

    def execute(self, statement: str, *parameters: Any) -> Any:
        if not statement.startswith(self._statement):
            return self._real.execute(statement, *parameters)
        if self._after:
            self._real.execute(statement, *parameters)
        error = sqlite3.OperationalError("as the test says")
        error.sqlite_errorcode = self._code
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def fail(store: Store, statement: str, code: int, *, after: bool = False) -> None:
    catalogue = store._catalogue
    real = catalogue._writer
    catalogue._writer = Failing(real, statement, code, after=after)  # type: ignore[assignment]


def mend(store: Store) -> None:
    failing: Any = store._catalogue._writer
    store._catalogue._writer = failing._real


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT INTO versions", "UPDATE handles", "COMMIT"])
def test_a_catalogue_without_room_refuses_and_goes_on_when_there_is_some(
    tmp_path: Path, statement: str
) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        before = files(tmp_path)
        fail(store, statement, sqlite3.SQLITE_FULL)
        for durability in Durability:
            with pytest.raises(StoreFullError):
                put(store, "a", 2, durability=durability)
        mend(store)
        assert files(tmp_path) == before
        assert store.get("t", "a").version == 1
        assert store.stat().host.n_payloads == 1
        assert put(store, "a", 2).version == 2
        assert store.check().findings == ()


@pytest.mark.parametrize("was_committed", [False, True])
def test_after_a_failed_commit_nothing_is_promised_and_reopening_tells(
    tmp_path: Path, was_committed: bool
) -> None:
    store = Store.open(str(tmp_path), clock=lambda: 0.0)
    put(store, "a", 1)
    fail(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC, after=was_committed)
    with pytest.raises(StoreFailedError):
        put(store, "a", 2)
    mend(store)
    assert not store.stat().is_writable
    for durability in Durability:
        with pytest.raises(StoreFailedError, match="reopen"):
            put(store, "b", 3, durability=durability)
    with pytest.raises(StoreFailedError):
        store.delete("t", "a")
    assert same(store.load("t", "a@1").image, an_image(1))
    crash(store)
    with opened(tmp_path) as store:
        # The version is there whole, with its file, or not at all, without it.
        assert store.get("t", "a").version == 1 + was_committed
        assert same(store.load("t", "a").image, an_image(1 + was_committed))
        assert len(files(tmp_path)) == 1 + was_committed
        assert store.check().findings == ()


def test_an_error_that_says_nothing_of_the_disk_leaves_no_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fail(store, "BEGIN", sqlite3.SQLITE_CANTOPEN)
        with pytest.raises(StoreFailedError):
            put(store, "a", 1)
        mend(store)
        assert files(tmp_path) == []
        assert store.stat().is_writable
        put(store, "a", 1)


def test_what_was_committed_is_answered_though_nothing_can_be_read_then(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        catalogue = store._catalogue
        reader = catalogue._reader
        failing: Any = Failing(reader, "SELECT", sqlite3.SQLITE_CANTOPEN)

        commit = catalogue._commit

        def commit_and_go_blind(writer: sqlite3.Connection) -> None:
            commit(writer)
            catalogue._reader = failing

        catalogue._commit = commit_and_go_blind  # type: ignore[method-assign]
        for change in (
            lambda: put(store, "b", 2, expected_version=0),
            lambda: store.rename("t", "a", "c"),
            lambda: store.set_tags("t", "c", {"x": "y"}),
            lambda: store.set_expiry("t", "c", 1e12),
            lambda: store.fork("t", "c", ["d"]),
            lambda: store.rollback("t", "c", version=1),
            lambda: store.delete("t", "d"),
        ):
            change()
            catalogue._reader = reader
        del catalogue._commit
        assert [one.name for one in store.handles("t")] == ["b", "c"]
        assert store.handle("t", "c").tags == {"x": "y"}
        assert store.handle("t", "c").n_versions == 2
        assert len(files(tmp_path)) == 2
        store.gc()
        assert store.check().findings == ()


class Liar(SystemIO):
    """A file system that writes other bytes than it is given, so many times."""

    def __init__(self, n_lies: int) -> None:
        self.n_lies = n_lies

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        if self.n_lies:
            self.n_lies -= 1
            *others, last = buffers
            buffers = [*others, memoryview(bytes(last[:-1]) + bytes([last[-1] ^ 1]))]
        return super().write(fd, buffers)


def test_bytes_that_read_back_differently_are_written_again(tmp_path: Path) -> None:
    with opened(tmp_path, io=Liar(1)) as store:
        put(store, "a", 1)
        assert len(files(tmp_path)) == 1
        assert store.check().findings == ()


def test_bytes_that_read_back_differently_twice_are_not_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path, io=Liar(2)) as store:
        with pytest.raises(StoreFailedError):
            put(store, "a", 1)
        assert files(tmp_path) == []
        with pytest.raises(StateNotFoundError):
            store.get("t", "a")


def test_nothing_of_a_deleted_row_is_left_in_the_database(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "canary-name", 1, tags={"canary": "canary-tag"})
        put(store, "a", 2)
        store.delete("t", "canary-name")
    content = b"".join(one.read_bytes() for one in tmp_path.glob("catalogue.db*"))
    assert b"canary-tag" not in content


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
    with pytest.raises(StoreFailedError, match="closed"):
        store.get("t", Ref("a"))


def test_no_file_of_a_store_is_mapped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        assert same(store.load("t", "a@1").image, an_image(1))
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
