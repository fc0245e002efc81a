"""What is damaged, exchanged, missing or foreign is found before it is used, and kept apart."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.state.images import LARGE, an_image, same
from tests.state.stores import CREATE, MEMORY, Clock, crash, files, opened, put
from wkvm.core.errors import (
    BadStoreError,
    StateDamagedError,
    StateNotFoundError,
    StoreError,
    StoreFailedError,
    StoreLockedError,
)
from wkvm.core.registry import Ref
from wkvm.state.format import CHUNK_BYTES
from wkvm.state.store import Store

BLOCK = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store with two handles of two versions."""
    path = tmp_path / "store"
    with opened(path) as store:
        for name, seed in (("a", 1), ("a", 2), ("b", 3), ("b", 4)):
            put(store, name, seed)
    return path


def file_of(folder: Path, name: str, version: int) -> Path:
    ((file,),) = database(
        folder,
        "SELECT p.file FROM payloads p JOIN versions v ON v.payload = p.id "
        "JOIN handles h ON h.id = v.handle WHERE h.name = ? AND v.version = ?",
        name,
        version,
    )
    return folder / "payloads" / file


def database(folder: Path, statement: str, *parameters: object) -> list[tuple[str, ...]]:
    with sqlite3.connect(folder / "catalogue.db") as connection:
        found = connection.execute(statement, parameters).fetchall()
    connection.close()
    return found


def assert_others_are_whole(store: Store, but: str) -> None:
    for name, seeds in (("a", (1, 2)), ("b", (3, 4))):
        for version, seed in enumerate(seeds, start=1):
            if f"{name}@{version}" != but:
                assert same(store.load("t", Ref(name, version)).image, an_image(seed))


def assert_found(folder: Path, ref: str = "a@1") -> None:
    """It is damaged, says so each time, lies in quarantine, and concerns nobody else."""
    with opened(folder) as store:
        for _ in range(2):
            with pytest.raises(StateDamagedError) as caught:
                store.load("t", ref)
            assert caught.value.ref == ref
        assert_others_are_whole(store, ref)
        assert [one.ref for one in store.check().findings] == [ref]
        assert store.stat().n_damaged == 1
    with opened(folder) as store:
        with pytest.raises(StateDamagedError):
            store.load("t", ref)
        assert_others_are_whole(store, ref)


def every_class_of_byte(file: bytes) -> list[int]:
    n_header = 8 + int.from_bytes(file[:8], "little")
    header, at = file[:n_header], [0, 7, 8, n_header - 1, n_header, len(file) - 1]
    words = (b"wkvm.carried", b"wkvm.digest", b"wkvm.identity", b"data_offsets", b"shape")
    return at + [header.index(word) + 2 for word in words]


def test_every_class_of_flipped_byte_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
    path = file_of(tmp_path, "a", 1)
    good = path.read_bytes()
    for at in every_class_of_byte(good):
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        with opened(tmp_path) as store:
            with pytest.raises(StateDamagedError):
                store.load("t", "a")
            (quarantined,) = (tmp_path / "quarantine").iterdir()
            assert quarantined.read_bytes() == bad
            quarantined.unlink()
            put(store, "b", 1)  # the same bytes, which mend it
            assert same(store.load("t", "a").image, an_image(1))
            store.delete("t", "b")
        path = file_of(tmp_path, "a", 1)


def test_a_flipped_bit_is_found_in_each_chunk_of_a_large_file(tmp_path: Path) -> None:
    image = an_image(1, layout=LARGE)
    with opened(tmp_path) as store:
        store.commit("t", "a", image, provenance=CREATE)
    good = file_of(tmp_path, "a", 1).read_bytes()
    for at in range(CHUNK_BYTES // 2, len(good), CHUNK_BYTES):
        bad = bytearray(good)
        bad[at] ^= 1
        file_of(tmp_path, "a", 1).write_bytes(bad)
        with opened(tmp_path) as store:
            with pytest.raises(StateDamagedError):
                store.load("t", "a")
            store.commit("t", "mended", image, provenance=CREATE)


def test_a_file_cut_at_each_block_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1, n_tokens=5000)
    good = file_of(tmp_path, "a", 1).read_bytes()
    cuts = [*range(0, len(good), BLOCK), len(good) - 1]
    assert len(cuts) > 5
    for n in cuts:
        for content in {good[:n], good[:n].ljust(len(good), b"\0")} - {good}:
            file_of(tmp_path, "a", 1).write_bytes(content)
            with opened(tmp_path) as store:
                with pytest.raises(StateDamagedError):
                    store.load("t", "a")
                put(store, "mended", 1, n_tokens=5000)
    with opened(tmp_path) as store:
        assert same(store.load("t", "a").image, an_image(1, n_tokens=5000))


def test_a_commit_does_not_rely_on_equal_bytes_that_have_rotted(folder: Path) -> None:
    path = file_of(folder, "a", 1)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with opened(folder) as store:
        put(store, "again", 1)
        assert_others_are_whole(store, "")
        assert same(store.load("t", "again").image, an_image(1))
        assert store.stat().n_quarantined == 1
    with opened(folder) as store:
        assert same(store.load("t", "a@1").image, an_image(1))
        assert store.check().findings == ()


def test_a_missing_file_is_found(folder: Path) -> None:
    file_of(folder, "a", 1).unlink()
    assert_found(folder)


def test_another_versions_file_in_its_place_is_found(folder: Path) -> None:
    file_of(folder, "a", 1).write_bytes(file_of(folder, "a", 2).read_bytes())
    assert_found(folder)


def test_a_link_or_a_fifo_in_its_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    file_of(folder, "a", 1).rename(outside)
    path = folder / "payloads" / file_of(folder, "a", 1).name
    path.symlink_to(outside)
    other = file_of(folder, "b", 1)
    other.unlink()
    os.mkfifo(other)
    before = outside.read_bytes()
    with opened(folder) as store:
        for ref in ("a@1", "b@1"):
            with pytest.raises(StateDamagedError):
                store.load("t", ref)
        assert same(store.load("t", "a@2").image, an_image(2))
    assert outside.read_bytes() == before


def test_a_link_that_is_planted_while_the_store_is_open_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    path, outside = file_of(folder, "a", 1), tmp_path / "outside"
    with opened(folder) as store:
        path.rename(outside)
        path.symlink_to(outside)
        with pytest.raises(StateDamagedError):
            store.load("t", "a@1")
        assert_others_are_whole(store, "a@1")
    assert outside.is_file()


SWAPS: dict[str, str] = {
    "payloads of versions": "UPDATE versions SET payload = 3 - payload WHERE payload < 3",
    "a version's number": "UPDATE versions SET version = 9 WHERE version = 2 AND handle = 1",
    "a version's handle": "UPDATE versions SET handle = 2, version = 5 "
    "WHERE handle = 1 AND version = 1",
    "provenance": "UPDATE versions SET provenance = replace(provenance, 'create', 'delete') "
    "WHERE handle = 1",
    "a key": "UPDATE versions SET key = '00000000000000010000000000000002' WHERE handle = 1",
    "a digest": "UPDATE payloads SET digest = (SELECT digest FROM payloads WHERE id = 3) "
    "WHERE id < 3",
    "a content id": "UPDATE payloads SET content_id = replace(content_id, '0', '1') WHERE id < 3",
    "an identity": "UPDATE payloads SET identity = replace(identity, 'ab', 'cd') WHERE id < 3",
    "a file": "UPDATE payloads SET file = file || 'x' WHERE id < 3",
    "a head": "UPDATE handles SET head = 1 WHERE id = 1",
    "a tenant": "UPDATE handles SET tenant = 'u' WHERE id = 1",
    "a name": "UPDATE handles SET name = 'z' WHERE id = 1",
    "an expiry": "UPDATE handles SET expires_at = 1e12 WHERE id = 1",
    "a count": "UPDATE payloads SET n_refs = 2 WHERE id = 1",
    "a tenant's count": "UPDATE tenants SET n_bytes = n_bytes + 1",
}


@pytest.mark.parametrize("statement", SWAPS.values(), ids=SWAPS.keys())
def test_a_row_that_was_changed_is_found(folder: Path, statement: str) -> None:
    database(folder, statement)
    with opened(folder) as store:
        assert store.check().findings
        if "n_refs" not in statement and "tenants" not in statement:
            for tenant, ref in (("t", "a@1"), ("t", "a"), ("t", "z"), ("u", "a"), ("t", "b@5")):
                try:
                    loaded = store.load(tenant, ref)
                except (StateDamagedError, StateNotFoundError):
                    continue
                # What is still given out is what was committed under that very name.
                assert (tenant, loaded.record.name) == ("t", "a")
                expected = {1: 1, 2: 2}[loaded.record.version]
                assert same(loaded.image, an_image(expected))
        assert same(store.load("t", "b@2").image, an_image(4))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_state_leaves_memory_only_when_its_file_was_looked_at(
    tmp_path: Path, is_gone: bool
) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        (name,) = files(tmp_path)
        file = tmp_path / "payloads" / name
        if is_gone:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        store.cool("t", "a")
        assert store.stat().host.n_payloads == 0
        assert files(tmp_path) not in ([], [name])
        assert store.stat().n_quarantined == (not is_gone)
        assert same(store.load("t", "a").image, an_image(1))
        assert store.check().findings == ()
        assert store.stat().n_damaged == 0


def test_a_damaged_handle_is_left_out_of_the_list_and_others_are_not(folder: Path) -> None:
    database(folder, 'UPDATE handles SET tags = \'{"x":"y"}\' WHERE id = 1')
    with opened(folder) as store:
        assert [one.name for one in store.handles("t")] == ["b"]
        with pytest.raises(StateDamagedError):
            store.handle("t", "a")


def test_a_damaged_row_keeps_nobody_from_opening_and_cleaning_the_store(folder: Path) -> None:
    with opened(folder) as store:
        put(store, "a", 5, durability=MEMORY)
        put(store, "b", 6, durability=MEMORY)
        crash(store)
        database(folder, "UPDATE handles SET expires_at = 5 WHERE id = 1")
        database(folder, "UPDATE versions SET key = 'ff' WHERE handle = 2 AND version = 1")
    with opened(folder) as store:
        store.gc()
        with pytest.raises(StateDamagedError):
            store.get("t", "a")
        assert store.get("t", "b").version == 2
        store.delete("t", "b@1")
        assert same(store.load("t", "b").image, an_image(4))


# --- folders ------------------------------------------------------------------------------


def test_what_a_crash_left_is_removed_and_what_is_foreign_is_put_apart(
    folder: Path, tmp_path: Path
) -> None:
    payloads = folder / "payloads"
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (payloads / ("0" * 32 + ".tmp")).write_bytes(b"half")
    (payloads / ("1" * 32 + ".safetensors")).write_bytes(b"not committed")
    (payloads / "note.txt").write_text("foreign")
    (payloads / ("2" * 32 + ".safetensors")).symlink_to(outside)
    (payloads / ("3" * 32 + ".tmp")).mkdir()
    os.mkfifo(payloads / "fifo")
    (folder / "link").symlink_to(outside)
    with opened(folder) as store:
        assert_others_are_whole(store, "")
        assert store.check().findings == ()
        assert store.stat().n_quarantined == 5
    assert len(files(folder)) == 4
    assert outside.read_text() == "mine"


def test_a_second_store_on_the_folder_is_refused(folder: Path) -> None:
    with opened(folder) as store:
        with pytest.raises(StoreLockedError):
            Store.open(str(folder), clock=Clock())
        put(store, "c", 5)
    with opened(folder):
        pass


def test_the_folder_is_taken_from_all_others(folder: Path) -> None:
    folder.chmod(0o755)
    with opened(folder):
        for path in (folder, folder / "payloads", folder / "quarantine"):
            assert path.stat().st_mode & 0o777 == 0o700
        assert all(one.stat().st_mode & 0o077 == 0 for one in (folder / "payloads").iterdir())


def test_a_folder_that_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letter.txt").write_text("dear")
    with pytest.raises(BadStoreError, match="not empty"):
        Store.open(str(home), clock=Clock())
    assert [one.name for one in home.iterdir()] == ["letter.txt"]
    assert home.stat().st_mode & 0o777 == 0o755
    with pytest.raises(BadStoreError):
        Store.open(str(tmp_path / "nothing"), clock=Clock(), create=False)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["", "payloads", "quarantine", "catalogue.db", "lock"])
def test_a_link_in_place_of_a_part_of_the_store_is_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    path = folder / name if name else folder
    moved = tmp_path / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(StoreError):
        Store.open(str(folder), clock=Clock())


def test_payloads_without_a_catalogue_are_not_swept_away(folder: Path) -> None:
    (folder / "catalogue.db").unlink()
    before = files(folder)
    with pytest.raises(BadStoreError, match="no catalogue"):
        Store.open(str(folder), clock=Clock())
    assert files(folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"not a database" * 1000),
        lambda path: path.write_bytes(b"\0" * 100 + path.read_bytes()[100:]),
    ],
)
def test_a_catalogue_that_is_damaged_is_refused(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(folder / "catalogue.db")
    before = files(folder)
    with pytest.raises(BadStoreError):
        Store.open(str(folder), clock=Clock())
    assert files(folder) == before


@pytest.mark.parametrize("pragma", ["user_version = 2", "application_id = 5"])
def test_a_catalogue_of_another_format_or_program_is_refused(folder: Path, pragma: str) -> None:
    database(folder, f"PRAGMA {pragma}")
    with pytest.raises(BadStoreError):
        Store.open(str(folder), clock=Clock())


def test_a_catalogue_that_rots_while_it_is_open_gives_errors_and_no_answers(
    folder: Path,
) -> None:
    with opened(folder):
        pass
    path = folder / "catalogue.db"
    content = bytearray(path.read_bytes())
    for at in range(BLOCK, len(content)):
        content[at] = 0xFF
    with opened(folder) as store:
        path.write_bytes(content)
        assert store._catalogue._reader is not None
        store._catalogue._reader.close()
        store._catalogue._reader = sqlite3.connect(path, check_same_thread=False)
        with pytest.raises(StoreFailedError):
            store.get("t", "a@1")


@pytest.fixture(autouse=True)
def no_descriptor_is_lost() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
