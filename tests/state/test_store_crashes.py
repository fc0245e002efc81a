"""Processes are killed and disks lose power, really; what was acknowledged is there."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.state.crashes import LIMITS, Ledger, Nursery
from tests.state.stores import files, opened
from tests.states.power import settle
from wkvm.core.errors import WkvmError

pytestmark = pytest.mark.long

IMAGE_BYTES = 24 * 2**20


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
        nursery.run_and_kill(folder, at, ledger, after_acks=at % 7)
        assert verify(folder, ledger) == [], f"after kill {at}"


@pytest.mark.parametrize(
    "n",
    [
        20,
        pytest.param(100, marks=pytest.mark.slow),
        pytest.param(1000, marks=pytest.mark.slow),
    ],
)
def test_kill_9_loses_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, n: int
) -> None:
    kill_often(nursery, tmp_path / "store", n)


# --- power --------------------------------------------------------------------------------


def can_mount() -> bool:
    """Whether this user may mount an ext4 image."""
    return (
        os.getuid() == 0
        and shutil.which("mkfs.ext4") is not None
        and os.path.exists("/dev/loop-control")
    )


needs_mount = pytest.mark.skipif(not can_mount(), reason="root, mkfs.ext4 and loop devices")


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    settle("mount", "-o", "loop", str(image), str(folder))
    try:
        yield folder
    finally:
        settle("umount", str(folder))


def cut_power_often(nursery: Nursery, tmp_path: Path, n: int, form: str = "honest") -> list[str]:
    """Cut power ``n`` times. What is lost in the end, and after which cut."""
    image, copy = tmp_path / "disk", tmp_path / "copy"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    ledger = Ledger()
    for at in range(n):
        with mounted(image, tmp_path / "mnt") as disk:
            nursery.run_and_kill(disk / "store", at, ledger, after_acks=3 + at % 9, form=form)
            # What the file system has not written to the image yet is lost with the machine.
            shutil.copyfile(image, copy)
        with mounted(copy, tmp_path / "mnt") as disk:
            lost = verify(disk / "store", ledger)
            if lost:
                return [f"cut {at}", *lost]
        os.replace(copy, image)
    return []


@needs_mount
@pytest.mark.parametrize(
    "n",
    [10, pytest.param(40, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.slow)],
)
def test_power_loss_loses_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, n: int
) -> None:
    assert cut_power_often(nursery, tmp_path, n) == []


@needs_mount
@pytest.mark.parametrize("form", ["files are not synced", "the catalogue is not synced"])
def test_power_loss_is_noticed_where_syncs_are_left_out(
    nursery: Nursery, tmp_path: Path, form: str
) -> None:
    # Most cuts show it. Not each: what was not synced may have been written all the same.
    assert cut_power_often(nursery, tmp_path, 100, form=form) != []
