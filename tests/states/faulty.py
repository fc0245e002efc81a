"""A file system of which operations can be made to fail, one or all from one on."""

import errno
import os
from collections.abc import Sequence

from wkvm.state.io import Folder, SystemFolder, SystemIO


class Faults:
    """Which of the operations that write will fail."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._for_ever = False
        self._error = errno.EIO
        self.n_failed = 0

    def fail(self, nth: int, *, for_ever: bool, error: int = errno.EIO) -> None:
        """Let ``nth`` more operations pass and fail the next one, or all from there on."""
        self._left, self._for_ever, self._error = nth, for_ever, error
        self.n_failed = 0

    def fail_no_more(self) -> None:
        self._left = None

    def check(self) -> None:
        """Called ahead of every operation that writes."""
        if self._left is None:
            return
        if self._left > 0:
            self._left -= 1
            return
        if not self._for_ever:
            self._left = None
        self.n_failed += 1
        raise OSError(self._error, os.strerror(self._error))


class FaultyFolder(SystemFolder):
    def __init__(self, folder: SystemFolder, faults: Faults) -> None:
        super().__init__(folder._fd, folder.path)
        self._faults = faults

    def folder(self, name: str) -> "FaultyFolder":
        return FaultyFolder(super().folder(name), self._faults)

    def create(self, name: str) -> int:
        self._faults.check()
        return super().create(name)

    def rename(self, name: str, target: Folder, new_name: str) -> None:
        self._faults.check()
        super().rename(name, target, new_name)

    def sync(self) -> None:
        self._faults.check()
        super().sync()


class FaultyIO(SystemIO):
    def __init__(self) -> None:
        self.faults = Faults()

    def open_root(self, path: str, *, create: bool) -> FaultyFolder:
        return FaultyFolder(super().open_root(path, create=create), self.faults)

    def reserve(self, fd: int, n_bytes: int) -> None:
        self.faults.check()
        super().reserve(fd, n_bytes)

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        self.faults.check()
        return super().write(fd, buffers)

    def sync(self, fd: int) -> None:
        self.faults.check()
        super().sync(fd)
