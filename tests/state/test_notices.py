"""What a store says of what has changed, to who asks."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.state.stores import MEMORY, Clock, opened, put
from tests.state.test_store_index import WRITES
from wkvm.core.errors import WkvmError
from wkvm.core.limits import StoreLimits
from wkvm.state import notices
from wkvm.state.notices import Notices
from wkvm.state.store import Store


def test_nothing_is_collected_where_nobody_asks() -> None:
    one = Notices()
    one.note("ada", "a")
    one.want(lambda: None)
    assert not one.take().handles


def test_what_changed_often_is_told_once_and_wakes_once_until_it_is_taken() -> None:
    one, wakes = Notices(), list[None]()
    one.want(lambda: wakes.append(None))
    for _ in range(3):
        one.note("ada", "a")
        one.note_payload("uid")
    assert len(wakes) == 1
    news = one.take()
    assert (set(news.handles), set(news.payloads), news.is_all) == ({("ada", "a")}, {"uid"}, False)
    one.note("ada", "b")
    assert len(wakes) == 2
    one.unwant()
    assert not one.take().handles


def test_more_than_is_collected_may_be_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_NOTICES", 2)
    one = Notices()
    one.want(lambda: None)
    for name in ("a", "b", "a"):
        one.note("ada", name)
    assert not one.take().is_all
    for name in ("a", "b", "c"):
        one.note("ada", name)
    news = one.take()
    assert (len(news.handles), news.is_all) == (2, True)
    assert not one.take().is_all


def world(store: Store) -> dict[tuple[str, str], Any]:
    """All that a list tells of handles, and where their bytes are."""
    return {
        (one.tenant, one.name): (one, store.tier(one.tenant, one.name))
        for tenant in ("t", "u")
        for one in store.handles(tenant, limit=100)
    }


def noted(store: Store) -> set[tuple[str, str]]:
    news = store.notices.take()
    assert not news.is_all
    return {*news.handles, *store.headed_by(news.payloads)}


@pytest.mark.parametrize("write", WRITES)
def test_whatever_changes_a_handle_says_so_and_of_no_other_tenant(
    tmp_path: Path, write: str
) -> None:
    with opened(tmp_path, Clock()) as store:
        put(store, "a", 1)
        put(store, "a", 2)
        put(store, "m", 3, durability=MEMORY)
        put(store, "e", 4, expires_at=500.0)
        put(store, "a", 1, tenant="u")
        before = world(store)
        store.notices.want(lambda: None)
        WRITES[write](store)
        told, now = noted(store), world(store)
        changed = {at for at in before.keys() | now.keys() if before.get(at) != now.get(at)}
        assert changed <= told
        if write != "damage":
            assert all(tenant == "t" for tenant, _ in told)


def test_bytes_that_come_to_memory_and_those_that_leave_it_for_them_are_told(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        n_bytes = store.load("t", put(store, "a", 1).ref).image.nbytes
    with opened(tmp_path, limits=StoreLimits(host_bytes=n_bytes)) as store:
        put(store, "b", 2)
        store.fork("t", "b", ["c"])
        before = world(store)
        store.notices.want(lambda: None)
        store.load("t", "a")
        told, now = noted(store), world(store)
        assert {at for at in now if before[at] != now[at]} == {("t", "a"), ("t", "b"), ("t", "c")}
        assert told == {("t", "a"), ("t", "b"), ("t", "c")}


def test_a_write_that_fails_may_say_so_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1)
        store.notices.want(lambda: None)
        with suppress(WkvmError):
            put(store, "a", 2, expected_version=7)
        assert noted(store) <= {("t", "a")}
