"""A disk that can lose power: a file system in a file, on a loop mount. For root on Linux.

What a file system has not written by then is gone, as it is when the plug is pulled. A kill of a
process cannot show that: the page cache outlives it.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

IGNORES_SYNC = """
int fsync(int fd) { return 0; }
int fdatasync(int fd) { return 0; }
int sync_file_range(int fd, long long a, long long b, unsigned c) { return 0; }
int msync(void *a, unsigned long n, int c) { return 0; }
void sync(void) {}
"""
"""What a disk does that lies, as a library to be loaded before the others."""


KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ext4": (24, ("mkfs.ext4", "-q", "-E", "lazy_itable_init=0")),
    "btrfs": (128, ("mkfs.btrfs", "-q")),
    "xfs": (320, ("mkfs.xfs", "-q")),
}
"""Of each file system how many MiB it wants at least, and what makes it."""


class LoopDisk:
    """A file system in ``folder``, mounted for the length of a ``with`` block.

    Args:
        mib: its size, at least.
        kind: one of ``KINDS``. The test is skipped where there is nothing that makes it.

    Attributes:
        path: where it is mounted, also after a cut.
    """

    def __init__(self, folder: Path, mib: int = 0, *, kind: str = "ext4") -> None:
        self.path = folder / "mounted"
        self._image = folder / "disk"
        self._copy = folder / "copy"
        least, self._make = KINDS[kind]
        self._mib = max(mib, least)

    def cut(self) -> None:
        """Lose power, and come up again: only what the file system had written is there.

        Nobody may have a file open in it: kill whoever does first.
        """
        # Not unmounted first: that would write everything.
        _run("cp", "--sparse=always", str(self._image), str(self._copy))
        settle("umount", str(self.path))
        self._copy.replace(self._image)
        settle(*self._mount())

    def _mount(self) -> tuple[str, ...]:
        return ("mount", "-o", "loop", str(self._image), str(self.path))

    def __enter__(self) -> Self:
        if sys.platform != "linux" or os.geteuid() != 0:
            pytest.skip("a loop mount needs root on Linux")
        if shutil.which(self._make[0]) is None:
            pytest.skip(f"there is no {self._make[0]} here")
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._mib * 2**20)
        try:
            _run(*self._make, str(self._image))
            _run(*self._mount())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no loop mounts here: {error}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _run("umount", "--lazy", str(self.path))


def library_that_ignores_sync(folder: Path) -> str:
    """For LD_PRELOAD: a process with it believes that everything was written."""
    source, library = folder / "ignores_sync.c", folder / "ignores_sync.so"
    source.write_text(IGNORES_SYNC)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed to stub fsync out")
    _run(compiler, "-shared", "-fPIC", "-o", str(library), str(source))
    return str(library)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def settle(*command: str) -> None:
    """Run ``mount`` or ``umount``. A loop device may be another's by then, or in use still."""
    for _ in range(100):
        try:
            return _run(*command)
        except subprocess.CalledProcessError:
            time.sleep(0.1)
    return _run(*command)
