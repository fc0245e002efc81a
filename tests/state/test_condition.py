"""Whether a store would take a durable version is found out without making one."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.state.images import an_image
from tests.state.simulated import Disk, Plan, SimIO
from tests.state.stores import CREATE, opened, put
from wkvm.core.errors import StoreFailedError, StoreFullError
from wkvm.core.limits import StoreLimits
from wkvm.state.condition import Refusal

WRITES = frozenset({"create", "reserve", "write", "sync"})


@pytest.mark.parametrize(
    ("fault", "error", "refusal"),
    [
        (errno.EIO, StoreFailedError, Refusal.FAILED),
        (errno.EROFS, StoreFailedError, Refusal.FAILED),
        (errno.ENOSPC, StoreFullError, Refusal.FULL),
        (errno.EDQUOT, StoreFullError, Refusal.FULL),
    ],
)
def test_a_disk_that_refused_is_tried_until_it_takes_something_again(
    tmp_path: Path, fault: int, error: type[Exception], refusal: Refusal
) -> None:
    io = SimIO(Disk(tmp_path))
    with opened("/", io=io) as store:
        assert store.refusal(1) is Refusal.NONE
        n_files = len(io.disk.root.cached)
        io.plan = Plan(at=io.n_operations, fault=fault, is_sticky=True, only=WRITES)
        assert store.refusal(1) is Refusal.NONE  # nobody has found out
        with pytest.raises(error):
            put(store, "a", 1)
        assert [store.refusal(1) for _ in range(2)] == [refusal] * 2
        io.plan = Plan()
        assert store.refusal(1) is Refusal.NONE
        put(store, "a", 1)
        assert len(io.disk.root.cached) == n_files


def test_it_is_full_where_no_state_has_room_beside_the_reserve(tmp_path: Path) -> None:
    with opened(tmp_path / "s", limits=replace(StoreLimits(), disk_reserve=0.999999)) as store:
        assert store.refusal(1) is Refusal.FULL
    with opened(tmp_path / "s", limits=replace(StoreLimits(), disk_reserve=0.0)) as store:
        assert store.refusal(1) is Refusal.NONE
        assert store.refusal(2**62) is Refusal.FULL


def test_a_store_that_has_to_be_opened_anew_says_so_until_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store._catalogue._is_failed = True
        assert store.refusal(1) is Refusal.FAILED
    with opened(tmp_path / "s") as store:
        assert store.refusal(1) is Refusal.NONE
        store.commit("t", "a", an_image(1), provenance=CREATE)
