"""Processes are killed and disks lose power, really; what was acknowledged is there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import amount, seed, tell
from tests.state.crashes import LIMITS, Ledger, Nursery
from tests.state.stores import files, opened
from tests.states.power import KINDS, LoopDisk
from wkvm.core.errors import WkvmError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


def verify(folder: Path, ledger: Ledger) -> list[str]:
    """Open the store and compare it with what was acknowledged."""
    try:
        with opened(folder, limits=LIMITS) as store:
            lost = ledger.losses(store)
            lost += [str(one) for one in store.check().findings]
            stored = {file for (file,) in store._catalogue.read("SELECT file FROM payloads")}
            if set(files(folder)) != stored:
                lost.append("files that nobody knows, or rows without a file")
            return lost
    except WkvmError as error:
        return [str(error)]


def kill_often(nursery: Nursery, folder: Path, n: int) -> None:
    ledger = Ledger()
    for at in range(n):
        nursery.run_and_kill(folder, seed() * 10_000 + at, ledger, after_acks=at % 7)
        assert verify(folder, ledger) == [], f"after kill {at}"


def test_kill_9_loses_nothing_that_was_acknowledged(nursery: Nursery, tmp_path: Path) -> None:
    n = amount(20, 125)
    kill_often(nursery, tmp_path / "store", n)
    tell(2, "kill -9 of a process with a store", n, "kills")


# --- power --------------------------------------------------------------------------------


def cut_power_often(
    nursery: Nursery, tmp_path: Path, n: int, *, kind: str = "ext4", form: str = "honest"
) -> list[str]:
    """Cut power ``n`` times. What is lost in the end, and after which cut."""
    ledger = Ledger()
    with LoopDisk(tmp_path, kind=kind) as disk:
        store = disk.path / "store"
        for at in range(n):
            one = seed() * 10_000 + at
            nursery.run_and_kill(store, one, ledger, after_acks=3 + at % 9, form=form)
            disk.cut()
            lost = verify(store, ledger)
            if lost:
                return [f"cut {at}", *lost]
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_power_loss_loses_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, kind: str
) -> None:
    n = amount(10 if kind == "ext4" else 3, 125)
    assert cut_power_often(nursery, tmp_path, n, kind=kind) == []
    tell(3, f"loss of power on {kind}", n, "cuts")


@pytest.mark.parametrize("form", ["files are not synced", "the catalogue is not synced"])
def test_power_loss_is_noticed_where_syncs_are_left_out(
    nursery: Nursery, tmp_path: Path, form: str
) -> None:
    # Most cuts show it. Not each: what was not synced may have been written all the same.
    noticed = cut_power_often(nursery, tmp_path, 100, form=form)
    assert noticed != []
    tell(3, f"where {form}, it is noticed", 1, "losses", cuts=int(noticed[0].split()[1]) + 1)
