"""A store on a disk that has no room left: nothing is lost, and deleting makes room."""

import contextlib
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.soak import SOAKING, amount, seed, tell
from tests.state.images import LARGE, an_image, same
from tests.state.stores import CREATE, MEMORY, Clock, crash, files, opened, put
from tests.states.power import KINDS, LoopDisk
from wkvm.core.errors import BadStoreError, StoreFullError
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass
from wkvm.state.ballast import BALLAST_BYTES
from wkvm.state.store import Store

NO_RESERVE = StoreLimits(disk_reserve=0.0)

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")


@contextmanager
def tmpfs(folder: Path, n_bytes: int, *, n_files: int = 0) -> Iterator[Path]:
    """A disk of so many bytes, and of so many files and folders at most; 0 for any number."""
    folder.mkdir()
    options = f"size={n_bytes},nr_inodes={n_files},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, name: str = "filler") -> Path:
    """Take all bytes that are left, up to the last one."""
    path = folder / name
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for n in (2**20, 4096, 1):
            try:
                while True:
                    file.write(bytes(n))
            except OSError:
                pass
    return path


def commit_until_full(store: Store) -> int:
    """How many states there was room for."""
    for at in range(10_000):
        try:
            store.commit("t", f"n{at}", an_image(at, layout=LARGE), provenance=CREATE)
        except StoreFullError:
            return at
    raise AssertionError("there was room for all")


@needs_root
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Of whatever size: 64 of them from less than opening takes to room for some."""
    sizes = [9 * 1024 + 300 * at for at in range(4)] + [20 * 1024 + 511]
    if SOAKING:
        sizes = [60 + 233 * at + at * at % 7 for at in range(64)]
    n_opened = 0
    for n_kib in sizes:
        folder = tmp_path / f"{n_kib}"
        folder.mkdir()
        n_opened += fill_and_look_again(folder, n_kib)
    assert n_opened >= len(sizes) - 1
    tell(4, "disks of another size are filled", len(sizes), "sizes", opened=n_opened)


def fill_and_look_again(folder: Path, n_kib: int) -> bool:
    """Fill a disk with states, and see what of them is there. False if none could be opened."""
    with tmpfs(folder / "disk", n_kib * 1024) as disk:
        try:
            Store.open(str(disk / "store"), clock=Clock(), limits=NO_RESERVE).close()
        except BadStoreError:
            return False
        with opened(disk / "store", limits=NO_RESERVE) as store:
            n = commit_until_full(store)
            assert [one.name for one in store.handles("t")] == [f"n{at}" for at in range(n)]
            assert len(files(disk / "store")) == n
        with opened(disk / "store", limits=NO_RESERVE) as store:
            for at in range(n):
                assert same(store.load("t", f"n{at}").image, an_image(at, layout=LARGE))
            if n:
                store.delete("t", "n0")
                store.commit("t", "again", an_image(0, layout=LARGE), provenance=CREATE)
            assert store.check().findings == ()
    return True


def fill_and_free(store: Store, choose: random.Random, model: dict[str, int]) -> tuple[int, int]:
    """Commit until there is no room, and then delete some. How many states that were.

    Args:
        model: by name the seed of what is there.
    """
    n_full, n_made = 0, 0
    while n_full < 3:
        name, one = f"n{choose.randrange(60)}", choose.randrange(2**20)
        options: dict[str, Any] = {"keep": 1}
        if choose.random() < 0.2:
            options["durability"] = MEMORY
        try:
            put(store, name, one, n_tokens=choose.choice((1, 1000, 8000, 30_000)), **options)
        except StoreFullError:
            n_full += 1
        else:
            model[name] = one
            n_made += 1
        some = choose.choice(sorted(model))
        assert store.load("t", some).image.carried.pending == (model[some],)
    n_freed = choose.randint(1, len(model))
    for name in choose.sample(sorted(model), n_freed):
        store.delete("t", name)
        del model[name]
    assert [one.name for one in store.handles("t", limit=100)] == sorted(model)
    return n_made, n_freed


@needs_root
def test_a_disk_that_is_filled_and_freed_again_and_again_is_as_good_as_new(tmp_path: Path) -> None:
    n_cycles, n_made, n_freed = amount(10, 250), 0, 0
    choose, model = random.Random(seed()), dict[str, int]()
    limits = StoreLimits(disk_reserve=0.0, host_bytes=2**18)
    with tmpfs(tmp_path / "disk", 7 * 2**20) as disk:
        with opened(disk / "store", limits=limits) as store:
            free = store.stat().free_bytes
        for _ in range(n_cycles):
            with opened(disk / "store", limits=limits) as store:
                one_made, one_freed = fill_and_free(store, choose, model)
                n_made, n_freed = n_made + one_made, n_freed + one_freed
                with contextlib.suppress(StoreFullError):
                    store.flush()
                for one in store.handles("t", limit=100):
                    if one.head.ack is not AckClass.DURABLE:
                        del model[one.name]
        with opened(disk / "store", limits=limits) as store:
            assert store.check().findings == ()
            for name in model:
                store.delete("t", name)
            assert files(disk / "store") == []
        with opened(disk / "store", limits=limits) as store:
            # But for what the database keeps for rows to come.
            assert store.stat().free_bytes > free - 2**19
    tell(4, "a disk is filled and freed", n_cycles, "cycles", made=n_made, freed=n_freed)


@needs_root
def test_a_disk_without_room_for_a_file_refuses_deletes_and_opens(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 2**26, n_files=60) as disk:
        with opened(disk / "store", limits=NO_RESERVE) as store:
            assert 30 < put_until_full(store) < 60
            store.delete("t", "n0")
            put(store, "again", 0)
            store.delete("t", "n1")
            fillers = fill_with_files(disk)
            store.delete("t", "n2")
            fillers += fill_with_files(disk)
        for at in range(3, 6):
            fillers += fill_with_files(disk)
            assert os.statvfs(disk).f_ffree == 0
            with opened(disk / "store", limits=NO_RESERVE) as store:
                assert same(store.load("t", f"n{at}").image, an_image(at))
                store.delete("t", f"n{at}")
                fillers += fill_with_files(disk)
                with pytest.raises(StoreFullError):
                    put(store, "more", 5000)
        for path in fillers:
            path.unlink()
        with opened(disk / "store", limits=NO_RESERVE) as store:
            put(store, "more", 5000)
            assert store.check().findings == ()


def put_until_full(store: Store) -> int:
    """How many small states there was room for."""
    for at in range(10_000):
        try:
            put(store, f"n{at}", at)
        except StoreFullError:
            return at
    raise AssertionError("there was room for all")


def fill_with_files(folder: Path) -> list[Path]:
    """Take all files that may still be made."""
    made = list[Path]()
    with contextlib.suppress(OSError):
        while True:
            path = folder / f"filler {random.getrandbits(64)}"
            path.touch(exist_ok=False)
            made.append(path)
    return made


@needs_root
def test_deleting_works_when_not_a_byte_is_left(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 24 * 2**20) as disk:
        with opened(disk / "store", limits=NO_RESERVE) as store:
            for at in range(40):
                put(store, f"n{at}", at, n_tokens=3000)
            filler = fill(disk)
            assert os.statvfs(disk).f_bavail == 0
            with pytest.raises(StoreFullError):
                put(store, "more", 50, n_tokens=3000)
            for at in range(39):
                store.delete("t", f"n{at}")
            filler_again = fill(disk / "store" / "quarantine")
            assert os.statvfs(disk).f_bavail == 0
            assert [one.name for one in store.handles("t")] == ["n39"]
        # It can be opened again without a byte, and the last one goes too.
        with opened(disk / "store", limits=NO_RESERVE) as store:
            assert same(store.load("t", "n39").image, an_image(39, n_tokens=3000))
            store.delete("t", "n39")
            assert store.handles("t") == []
            filler.unlink()
            filler_again.unlink()
            put(store, "more", 50)
            store.delete("t", "more")
            assert (disk / "store" / "ballast").stat().st_size == BALLAST_BYTES
            assert store.check().findings == ()


@needs_root
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_store_opens_on_a_disk_without_a_byte_and_deletes(
    tmp_path: Path, was_killed: bool
) -> None:
    with tmpfs(tmp_path / "disk", 16 * 2**20) as disk:
        store = Store.open(str(disk / "store"), clock=Clock(), limits=NO_RESERVE)
        for at in range(10):
            put(store, f"n{at}", at, n_tokens=3000)
        if was_killed:
            put(store, "lost", 11, durability=MEMORY)
            crash(store)
        else:
            store.close()
        for at in range(9):
            # Whoever takes what was given up, and what was deleted, takes it each time.
            fill(disk, f"filler {at}")
            assert os.statvfs(disk).f_bavail == 0
            with opened(disk / "store", limits=NO_RESERVE) as store:
                for other in range(at, 10):
                    assert same(store.load("t", f"n{other}").image, an_image(other, n_tokens=3000))
                fill(disk, f"filler {at} too")
                store.delete("t", f"n{at}")
                assert [one.name for one in store.handles("t")] == [
                    f"n{other}" for other in range(at + 1, 10)
                ]
        for filler in disk.glob("filler*"):
            filler.unlink()
        with opened(disk / "store", limits=NO_RESERVE) as store:
            put(store, "more", 50)
            assert store.check().findings == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_file_system_that_is_full_opens_deletes_and_takes_states_again(
    tmp_path: Path, kind: str
) -> None:
    with LoopDisk(tmp_path, mib=64, kind=kind) as disk:
        folder = disk.path / "store"
        with opened(folder, limits=NO_RESERVE) as store:
            for at in range(8):
                store.commit("t", f"n{at}", an_image(at, layout=LARGE), provenance=CREATE)
        for at in range(4):
            fill(disk.path, f"filler {at}")
            with opened(folder, limits=NO_RESERVE) as store:
                assert same(store.load("t", "n7").image, an_image(7, layout=LARGE))
                fill(disk.path, f"filler {at} too")
                image = an_image(50, layout=LARGE)
                with pytest.raises(StoreFullError):
                    store.commit("t", "more", image, provenance=CREATE)
                store.delete("t", f"n{at}")
                assert len(files(folder)) == 7 - at
        for filler in disk.path.glob("filler*"):
            filler.unlink()
        subprocess.run(["sync", "-f", str(disk.path)], check=True)
        disk.cut()
        with opened(folder, limits=NO_RESERVE) as store:
            assert [one.name for one in store.handles("t")] == ["n4", "n5", "n6", "n7"]
            store.commit("t", "more", an_image(50, layout=LARGE), provenance=CREATE)
            assert store.check().findings == ()


@needs_root
def test_a_disk_without_a_byte_and_without_ballast_is_read_and_says_so(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 16 * 2**20) as disk:
        with opened(disk / "store", limits=NO_RESERVE) as store:
            put(store, "a", 1)
        (disk / "store" / "ballast").unlink()
        filler = fill(disk)
        with opened(disk / "store", limits=NO_RESERVE) as store:
            assert same(store.load("t", "a").image, an_image(1))
            with pytest.raises(StoreFullError):
                store.delete("t", "a")
            filler.unlink()
            store.delete("t", "a")
        filler = fill(disk)
        with pytest.raises(BadStoreError, match=r"full|No space"):
            Store.open(str(disk / "another"), clock=Clock())


@needs_root
def test_a_version_in_memory_stays_there_while_the_disk_is_full(tmp_path: Path) -> None:
    limits = StoreLimits(disk_reserve=0.0, host_bytes=2 * an_image(0, layout=LARGE).nbytes)
    with tmpfs(tmp_path / "disk", 10 * 2**20) as disk, opened(disk / "s", limits=limits) as store:
        for at in range(2):
            image = an_image(at, layout=LARGE)
            store.commit("t", f"n{at}", image, provenance=CREATE, durability=MEMORY)
        filler = fill(disk)
        with pytest.raises(StoreFullError):
            store.persist("t", "n0")
        image = an_image(2, layout=LARGE)
        with pytest.raises(StoreFullError):
            store.commit("t", "n2", image, provenance=CREATE, durability=MEMORY)
        for at in range(2):
            assert same(store.load("t", f"n{at}").image, an_image(at, layout=LARGE))
        filler.unlink()
        assert store.persist("t", "n0").ack is AckClass.DURABLE


def test_a_file_that_may_not_be_so_long_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, limits=NO_RESERVE) as store:
        put(store, "a", 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
        try:
            with pytest.raises(StoreFullError):
                store.commit("t", "b", an_image(1, layout=LARGE), provenance=CREATE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [one.name for one in store.handles("t")] == ["a"]
        assert len(files(tmp_path)) == 1
        store.commit("t", "b", an_image(1, layout=LARGE), provenance=CREATE)


def test_a_catalogue_whose_log_may_not_be_so_long_goes_on(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path, limits=StoreLimits(disk_reserve=0.0)) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, hard))
        try:
            for at in range(40):
                put(store, "a", at, keep=1)
                put(store, f"n{at}", at)
            log = tmp_path / "catalogue.db-wal"
            assert log.stat().st_size <= 2**19
            assert store.stat().is_writable
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.get("t", "a").version == 40
        assert store.check().findings == ()


def test_the_reserve_is_left_for_the_catalogue(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(disk_reserve=0.999999)) as store:
        with pytest.raises(StoreFullError):
            put(store, "a", 1)
        assert files(tmp_path) == []
        # what is in memory is not concerned, until it has to go
        put(store, "a", 1, durability=MEMORY)
        with pytest.raises(StoreFullError):
            store.persist("t", "a")
        assert store.get("t", "a").ack is AckClass.VISIBLE
        store.delete("t", "a")


def test_what_has_no_room_in_memory_nor_on_disk_is_refused(tmp_path: Path) -> None:
    limits = StoreLimits(host_bytes=an_image(0).nbytes - 1, disk_reserve=0.999999)
    with opened(tmp_path, Clock(), limits=limits) as store:
        with pytest.raises(StoreFullError):
            put(store, "a", 1, durability=MEMORY)
        assert store.handles("t") == []
        assert files(tmp_path) == []
