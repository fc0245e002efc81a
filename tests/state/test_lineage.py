"""What all versions of a tenant were made from, a page at a time."""

import sqlite3
from pathlib import Path

import pytest

from tests.state.stores import Clock, after, opened, put
from wkvm.core.errors import StateNotFoundError
from wkvm.core.registry import Ref
from wkvm.core.states import Descent
from wkvm.state.store import Store


def everything(store: Store, limit: int = 2, **options: object) -> list[Descent]:
    found, after_ref = list[Descent](), None
    while True:
        page = store.lineage("t", after=after_ref, limit=limit, **options)  # type: ignore[arg-type]
        assert len(page.versions) <= limit
        found += page.versions
        after_ref = page.next_after
        if after_ref is None:
            return found


def fill(store: Store) -> None:
    """Two handles of three versions, a fork of the middle, and another tenant's."""
    first = put(store, "a", 1)
    second = put(store, "a", 2, provenance=after(first))
    put(store, "a", 3, provenance=after(second))
    store.fork("t", "a@2", ["b"])
    put(store, "b", 4)
    put(store, "c", 5)
    put(store, "secret", 6, tenant="u")


def refs(found: list[Descent]) -> list[str]:
    return [str(one.record.ref) for one in found]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_all_versions_come_once_by_name_and_number_whatever_the_page(
    tmp_path: Path, limit: int
) -> None:
    with opened(tmp_path) as store:
        fill(store)
        found = everything(store, limit)
        assert refs(found) == ["a@1", "a@2", "a@3", "b@1", "b@2", "c@1"]
        parents = [[one.ref for one in each.record.provenance.parents] for each in found]
        assert parents == [[], ["a@1"], ["a@2"], ["a@2"], [], []]
        assert [one.record for one in found[:3]] == [
            *reversed(store.log("t", "a")),
        ]


def test_a_prefix_a_name_or_the_newest_of_each_can_be_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        put(store, "ab", 7)
        assert refs(everything(store, prefix="a")) == ["a@1", "a@2", "a@3", "ab@1"]
        assert refs(everything(store, name="a")) == ["a@1", "a@2", "a@3"]
        assert refs(everything(store, newest=1)) == ["a@3", "ab@1", "b@2", "c@1"]
        assert refs(everything(store, newest=2, name="a")) == ["a@2", "a@3"]


def test_another_tenants_handle_is_not_found_as_one_that_never_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        errors = list[str]()
        for name in ("secret", "nobody"):
            with pytest.raises(StateNotFoundError) as raised:
                store.lineage("t", name=name)
            errors.append(str(raised.value).replace(name, "NAME"))
        assert errors[0] == errors[1]
        page = store.lineage("t", after=Ref("c", 1))
        assert page.versions == ()


def test_versions_of_a_handle_that_was_renamed_say_what_their_children_call_them(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        fill(store)
        store.rename("t", "a", "z")
        put(store, "z", 9)
        found = {str(one.record.ref): one.made_as for one in everything(store)}
        assert (found["z@2"], found["z@4"], found["b@1"]) == ("a", "z", "b")


def test_what_has_expired_and_rows_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock) as store:
        fill(store)
        store.set_expiry("t", "c", clock.now + 1)
        clock.now += 2
        assert refs(everything(store)) == ["a@1", "a@2", "a@3", "b@1", "b@2"]
    with sqlite3.connect(tmp_path / "catalogue.db") as db:
        db.execute("UPDATE versions SET provenance = '{}' WHERE version = 2 AND name = 'a'")
    with opened(tmp_path, clock) as store:
        for limit in (1, 2, 100):
            assert refs(everything(store, limit)) == ["a@1", "a@3", "b@1", "b@2"]
