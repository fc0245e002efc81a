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


def test_a_cut_loses_what_was_not_synced_and_keeps_what_was(tmp_path: Path) -> None:
    with LoopDisk(tmp_path, mib=32) as disk:
        write(disk.path / "before", "synced")
        write(disk.path / "after", "not synced")
        assert (disk.path / "after").stat().st_size == 10_000
        disk.cut()
        assert (disk.path / "before").read_bytes() == b"x" * 10_000
        after = disk.path / "after"
        assert not after.exists() or after.read_bytes() != b"x" * 10_000


def test_a_process_whose_syncs_are_ignored_loses_what_it_believes_to_be_safe(
    tmp_path: Path,
) -> None:
    library = library_that_ignores_sync(tmp_path)
    with LoopDisk(tmp_path, mib=32) as disk:
        write(disk.path / "one", "synced", preload=library)
        disk.cut()
        one = disk.path / "one"
        assert not one.exists() or one.read_bytes() != b"x" * 10_000
