"""What the store says of the disk without looking is what is there, whatever was written."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.state.stores import MEMORY, Clock, files, opened, put
from tests.state.test_store_index import WRITES, prepare
from tests.state.test_store_objects import Bucket, cold
from wkvm.core.errors import QuotaError
from wkvm.core.limits import StoreLimits
from wkvm.state.opening import DATABASE
from wkvm.state.store import Store
from wkvm.state.totals import MAX_TOTAL


def counted(store: Store) -> tuple[int, int]:
    """The same, by looking."""
    disk = store.stat().disk
    return disk.n_payloads, disk.n_bytes


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_write_is_counted(tmp_path: Path, write: Callable[[Store], object]) -> None:
    clock = Clock()
    with opened(tmp_path, clock) as store:
        prepare(store)
        clock.now += 1
        assert store.on_disk == counted(store)
        write(store)
        assert store.on_disk == counted(store)
        assert store.on_disk[0] == len(files(tmp_path))


def test_what_was_there_is_counted_when_a_store_is_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepare(store)
        before = store.on_disk
        assert before[0] == 4  # a@1, a@2, b, e: s has a file of a's, m none
    with opened(tmp_path) as store:
        assert store.on_disk == before


def test_what_fails_is_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(versions_per_handle=1)) as store:
        put(store, "a", 1)
        before = store.on_disk
        with pytest.raises(QuotaError):
            put(store, "a", 2)
        assert store.on_disk == before == counted(store)


def test_what_is_cold_is_not_on_the_disk(tmp_path: Path) -> None:
    with cold(tmp_path, Bucket()) as store:
        put(store, "a", 1)
        put(store, "b", 2, durability=MEMORY)
        store.demote("t", "a")
        assert store.on_disk == counted(store) == (0, 0)


@pytest.mark.parametrize("rot", ["'much'", "1e999", "x'00ff'", "9223372036854775807"])
def test_a_size_that_rotted_keeps_nobody_from_opening_the_store(tmp_path: Path, rot: str) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        put(store, "b", 2)
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute(f"UPDATE payloads SET n_bytes = {rot}")
    db.commit()
    db.close()
    with opened(tmp_path) as store:
        n_states, n_bytes = store.on_disk
        assert n_states == 2
        assert 0 <= n_bytes <= MAX_TOTAL
