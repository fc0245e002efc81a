"""Threads work on one store at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.state.images import an_image, same
from tests.state.stores import MEMORY, files, opened, put
from wkvm.core.errors import StaleVersionError, StateExistsError, StateNotFoundError
from wkvm.core.limits import StoreLimits
from wkvm.state.image import EncodedImage


def together(*works: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(works)) as threads:
        for one in [threads.submit(work) for work in works]:
            one.result(300)


def test_of_commits_on_one_version_one_wins(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 0)
        barrier, won = threading.Barrier(4), list[int]()

        def commit(seed: int) -> None:
            barrier.wait()
            try:
                put(store, "a", seed, expected_version=1)
                won.append(seed)
            except StaleVersionError:
                pass

        together(*(lambda seed=seed: commit(seed) for seed in range(1, 5)))
        assert len(won) == 1
        assert same(store.load("t", "a").image, an_image(won[0]))
        assert len(files(tmp_path)) == 2


def test_the_same_key_at_the_same_time_is_applied_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        barrier = threading.Barrier(4)

        def commit() -> None:
            barrier.wait()
            assert put(store, "a", 1, idempotency_key="k").version == 1

        together(*[commit] * 4)
        assert store.handle("t", "a").n_versions == 1
        assert len(files(tmp_path)) == 1


def test_collections_between_commits_remove_nothing_that_is_needed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        is_over = threading.Event()

        def commit(first: int) -> None:
            try:
                for at in range(first, first + 40):
                    put(store, f"n{at}", at)
            finally:
                is_over.set()

        def collect() -> None:
            while not is_over.is_set():
                store.gc()

        together(lambda: commit(0), lambda: commit(100), collect)
        assert store.check().findings == ()
        assert len(files(tmp_path)) == 80


def test_a_file_that_is_not_committed_yet_is_not_collected(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write = store._shelf.payloads.write

        def write_and_collect(encoded: EncodedImage) -> str:
            name = write(encoded)
            store.gc()
            return name

        store._shelf.payloads.write = write_and_collect  # type: ignore[method-assign]
        put(store, "a", 1)
        assert store.check().findings == ()


def test_states_are_read_whole_or_not_found_while_others_delete_them(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(host_bytes=0)) as store:
        is_over = threading.Event()

        def change() -> None:
            try:
                for at in range(60):
                    put(store, "a", at % 3)
                    store.delete("t", "a")
            finally:
                is_over.set()

        def read() -> None:
            while not is_over.is_set():
                try:
                    image = store.load("t", "a").image
                except StateNotFoundError:
                    continue
                assert same(image, an_image(image.carried.pending[0]))

        together(change, read, read)
        assert store.stat().n_quarantined == 0


def test_memory_and_disk_are_filled_and_emptied_side_by_side(tmp_path: Path) -> None:
    limits = StoreLimits(host_bytes=4 * an_image(0).nbytes)
    with opened(tmp_path, limits=limits) as store:

        def work(name: str, first: int) -> None:
            for at in range(first, first + 30):
                put(store, name, at, durability=MEMORY, keep=2)
                if at % 3 == 0:
                    store.persist("t", name)
                with pytest.raises(StateExistsError):
                    store.fork("t", name, [name], durability=MEMORY)
                assert same(store.load("t", name).image, an_image(at))

        together(*(lambda n=n: work(f"n{n}", 100 * n) for n in range(3)))
        store.flush()
        assert store.check().findings == ()
        assert store.stat().host.n_bytes <= limits.host_bytes
