"""The disk that loses power loses what was not synced, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from tests.states.power import LoopDisk, library_that_ignores_sync

WRITE = """
import os, sys
path, is_synced = sys.argv[1], sys.argv[2] == "synced"
with open(path, "wb") as file:
    file.write(b"x" * 10_000)
    file.flush()
    if is_synced:
        os.fsync(file.fileno())
        os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))
"""


def write(path: Path, how: str, preload: str = "") -> None:
    environment = os.environ | ({"LD_PRELOAD": preload} if preload else {})
    subprocess.run([sys.executable, "-c", WRITE, path, how], check=True, env=environment)


N_TRIES = 20
"""The system may write at any time, also what nobody has asked it to; it does not each time."""


def is_whole(path: Path) -> bool:
    return path.exists() and path.read_bytes() == b"x" * 10_000


def test_a_cut_loses_what_was_not_synced_and_keeps_what_was(tmp_path: Path) -> None:
    with LoopDisk(tmp_path, mib=32) as disk:
        for at in range(N_TRIES):
            write(disk.path / "before", "synced")
            after = disk.path / f"after {at}"
            write(after, "not synced")
            assert after.stat().st_size == 10_000
            disk.cut()
            assert is_whole(disk.path / "before")
            if not is_whole(after):
                return
    raise AssertionError("nothing is lost")


def test_a_process_whose_syncs_are_ignored_loses_what_it_believes_to_be_safe(
    tmp_path: Path,
) -> None:
    library = library_that_ignores_sync(tmp_path)
    with LoopDisk(tmp_path, mib=32) as disk:
        for at in range(N_TRIES):
            one = disk.path / f"one {at}"
            write(one, "synced", preload=library)
            disk.cut()
            if not is_whole(one):
                return
    raise AssertionError("nothing is lost")
