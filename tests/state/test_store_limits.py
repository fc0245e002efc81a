"""What the store's limits allow, and what is one beyond them, at their default values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.images import an_image
from tests.state.stores import opened, put
from wkvm.core.errors import InvalidParameterError, QuotaError, StoreFullError
from wkvm.core.limits import MAX_KEY_CHARS, StoreLimits
from wkvm.core.registry import Durability, Ref
from wkvm.state.store import Store

LIMITS = StoreLimits()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store") as store:
        put(store, "a", 1)
        yield store


@pytest.mark.parametrize("n", [LIMITS.forks_at_once - 1, LIMITS.forks_at_once])
def test_so_many_forks_are_made_at_once(store: Store, n: int) -> None:
    assert len(store.fork("t", "a", [f"b{i}" for i in range(n)])) == n


def test_one_fork_more_is_refused_and_none_is_made(store: Store) -> None:
    with pytest.raises(InvalidParameterError, match="names"):
        store.fork("t", "a", [f"b{i}" for i in range(LIMITS.forks_at_once + 1)])
    assert [one.name for one in store.handles("t")] == ["a"]


@pytest.mark.parametrize("n", [LIMITS.tags_per_handle - 1, LIMITS.tags_per_handle])
def test_a_handle_has_so_many_tags(store: Store, n: int) -> None:
    tags = {f"k{i}": "v" for i in range(n)}
    put(store, "b", 2, tags=tags)
    assert store.handle("t", "b").tags == tags


def test_one_tag_more_is_refused(store: Store) -> None:
    with pytest.raises(InvalidParameterError, match="tags"):
        put(store, "b", 2, tags={f"k{i}": "v" for i in range(LIMITS.tags_per_handle + 1)})


@pytest.mark.parametrize("n", [LIMITS.tag_chars - 1, LIMITS.tag_chars])
def test_a_tag_has_so_many_characters(store: Store, n: int) -> None:
    put(store, "b", 2, tags={"k" * n: "v" * n})
    assert store.handle("t", "b").tags == {"k" * n: "v" * n}


@pytest.mark.parametrize(("key", "value"), [(LIMITS.tag_chars + 1, 1), (1, LIMITS.tag_chars + 1)])
def test_a_character_more_of_a_tag_is_refused(store: Store, key: int, value: int) -> None:
    with pytest.raises(InvalidParameterError, match="tags"):
        put(store, "b", 2, tags={"k" * key: "v" * value})


@pytest.mark.parametrize("n", [1, MAX_KEY_CHARS - 1, MAX_KEY_CHARS])
def test_an_idempotency_key_has_so_many_characters(store: Store, n: int) -> None:
    first = put(store, "b", 2, idempotency_key="k" * n, expected_version=0)
    assert put(store, "b", 2, idempotency_key="k" * n, expected_version=0) == first


@pytest.mark.parametrize("n", [0, MAX_KEY_CHARS + 1])
def test_no_key_and_one_that_is_too_long_are_refused(store: Store, n: int) -> None:
    with pytest.raises(InvalidParameterError, match="idempotency_key"):
        put(store, "b", 2, idempotency_key="k" * n)
    assert [one.name for one in store.handles("t")] == ["a"]


@pytest.mark.parametrize(("n_bytes", "fits"), [(-1, False), (0, True), (1, True)])
def test_a_tenant_has_so_many_bytes_in_host_memory_alone(
    tmp_path: Path, n_bytes: int, fits: bool
) -> None:
    size = an_image(1, n_tokens=3).nbytes
    limits = StoreLimits(host_bytes_per_tenant=3 * size + n_bytes)
    with opened(tmp_path / "store", limits=limits) as store:
        for n in range(3 if fits else 2):
            put(store, f"a{n}", n, durability=Durability.MEMORY)
        with pytest.raises(QuotaError, match="host memory"):
            put(store, "b", 7, durability=Durability.MEMORY)
        put(store, "b", 7)
        put(store, "c", 8, tenant="u", durability=Durability.MEMORY)
        store.delete("t", Ref("a0"))
        put(store, "d", 9, durability=Durability.MEMORY)
        store.cool("t", Ref("d"))
        put(store, "e", 10, durability=Durability.MEMORY)


def test_a_full_disk_is_told_without_figures_where_there_are_none() -> None:
    assert "10 bytes, 5 are free" in str(StoreFullError(10, 5))
    assert "0 bytes" not in str(StoreFullError())
