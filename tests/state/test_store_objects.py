"""Facts about the tier below the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.state.images import an_image, same
from tests.state.stores import crash, files, opened, put
from wkvm.core.errors import ConfigError, StateDamagedError, StoreFailedError
from wkvm.core.states import Tier
from wkvm.state.objects import ObjectTier, open_objects
from wkvm.state.store import Store


class Bucket:
    """An object store that does what the test says."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.is_down = False
        self.mangle: Callable[[bytes], bytes] = lambda content: content

    def put(self, name: str, content: bytes | Iterator[bytes]) -> None:
        self._check()
        whole = content if isinstance(content, bytes) else b"".join(content)
        self.objects[name] = self.mangle(whole)

    def get(self, name: str) -> Any:
        self._check()
        if name not in self.objects:
            raise FileNotFoundError(name)
        content = self.objects[name]

        class Answer:
            def stream(self, min_chunk_size: int) -> Iterator[bytes]:
                for at in range(0, len(content), min_chunk_size):
                    yield content[at : at + min_chunk_size]

        return Answer()

    def delete(self, name: str) -> None:
        self._check()
        self.objects.pop(name, None)

    def _check(self) -> None:
        if self.is_down:
            raise ConnectionError("nobody answers")


pytestmark = pytest.mark.usefixtures("either_kind")


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def cold(path: Path, bucket: Bucket) -> Any:
    return opened(path, objects=ObjectTier(bucket))


def let_go(store: Store) -> None:
    """Nothing stays in host memory."""
    for uid in list(store._shelf.host._held):
        store._shelf.host.cool(uid)


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_version_moves_to_an_object_store_and_comes_back_equal(
    tmp_path: Path, scheme: str
) -> None:
    url = "memory:///" if scheme == "memory" else f"file://{tmp_path}/bucket"
    with opened(tmp_path / "store", objects=open_objects(url)) as store:
        put(store, "a", 1)
        store.fork("t", "a", ["b"])
        store.demote("t", "a")
        assert files(tmp_path / "store") == []
        assert store.tier("t", "b") is Tier.COLD
        assert same(store.load("t", "b").image, an_image(1))
        assert store.check().findings == ()
        for name in ("a", "b"):
            store.delete("t", name)
        assert store.gc().n_objects == 1


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError):
        open_objects("nowhere://x")


def test_a_version_among_the_objects_outlives_the_process(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        store.demote("t", "a")
    with cold(tmp_path, bucket) as store:
        assert same(store.load("t", "a").image, an_image(1))
        assert put(store, "b", 1).content_id == store.get("t", "a").content_id
        let_go(store)
        assert store.tier("t", "a") is Tier.DISK


def test_the_disk_keeps_its_copy_unless_the_object_came_back_as_it_was(
    tmp_path: Path, bucket: Bucket
) -> None:
    bucket.mangle = lambda content: content[:-1] + b"\xff"
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        with pytest.raises(StoreFailedError):
            store.demote("t", "a")
        let_go(store)
        assert same(store.load("t", "a").image, an_image(1))
        assert len(bucket.objects) == 1
        # what was half done is removed later
        assert store.gc().n_objects == 1
        assert bucket.objects == {}
        bucket.mangle = lambda content: content
        store.demote("t", "a")
        assert files(tmp_path) == []


def test_another_whole_state_in_its_place_is_not_taken(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        put(store, "b", 2)
        store.demote("t", "b")
        (other,) = bucket.objects.values()
        bucket.mangle = lambda content: other
        with pytest.raises(StoreFailedError):
            store.demote("t", "a")
        let_go(store)
        assert same(store.load("t", "a").image, an_image(1))


def test_an_object_that_was_damaged_is_found(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        store.demote("t", "a")
        let_go(store)
        (name,) = bucket.objects
        bucket.objects[name] = bucket.objects[name][:-1] + b"\xff"
        with pytest.raises(StateDamagedError):
            store.load("t", "a")
        assert [one.ref for one in store.check().findings] == ["a@1"]
        put(store, "b", 1)
        let_go(store)
        assert same(store.load("t", "a").image, an_image(1))


def test_a_bucket_that_is_down_changes_nothing(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        put(store, "b", 2)
        store.demote("t", "b")
        let_go(store)
        bucket.is_down = True
        with pytest.raises(StoreFailedError):
            store.demote("t", "a")
        with pytest.raises(StoreFailedError):
            store.load("t", "b")
        assert same(store.load("t", "a").image, an_image(1))
        store.delete("t", "b")
        assert store.gc().n_objects_left == 2
        bucket.is_down = False
        assert store.gc().n_objects == 2
        assert bucket.objects == {}


def test_an_object_whose_making_was_interrupted_is_collected(
    tmp_path: Path, bucket: Bucket
) -> None:
    def die(content: bytes) -> bytes:
        bucket.objects["half"] = content
        raise KeyboardInterrupt

    store = Store.open(str(tmp_path), clock=lambda: 0.0, objects=ObjectTier(bucket))
    put(store, "a", 1)
    bucket.mangle = die
    with pytest.raises(KeyboardInterrupt):
        store.demote("t", "a")
    crash(store)
    bucket.objects = {name: b"half" for (name,) in _noted(tmp_path)}
    with cold(tmp_path, bucket) as store:
        assert same(store.load("t", "a").image, an_image(1))
        assert store.gc().n_objects == 1
        assert bucket.objects == {}


def _noted(path: Path) -> list[tuple[str]]:
    import sqlite3

    connection = sqlite3.connect(path / "catalogue.db")
    found = connection.execute("SELECT object FROM objects").fetchall()
    connection.close()
    return found


def test_a_damaged_file_is_replaced_by_its_object(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        store.demote("t", "a")
        put(store, "b", 1)  # the same bytes, on disk again
        (file,) = files(tmp_path)
        (tmp_path / "payloads" / file).write_bytes(b"rot")
        let_go(store)
        assert same(store.load("t", "a").image, an_image(1))
        assert store.stat().n_quarantined == 1
        assert store.check().findings == ()


def test_a_store_whose_objects_are_not_set_up_says_so(tmp_path: Path, bucket: Bucket) -> None:
    with cold(tmp_path, bucket) as store:
        put(store, "a", 1)
        store.demote("t", "a")
    with opened(tmp_path) as store:
        with pytest.raises(StoreFailedError, match="not set up"):
            store.load("t", "a")
        with pytest.raises(StoreFailedError):
            store.demote("t", "a")
