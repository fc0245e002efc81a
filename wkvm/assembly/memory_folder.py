"""The temporary folder of states that are kept in memory, gone with the process that made it.

A process that is killed leaves its folder behind. Whoever makes one removes those of this user
whose makers are gone: a maker holds a lock on its folder, and the system lets go of it at the end.
"""

import fcntl
import logging
import os
import shutil
import tempfile

logger = logging.getLogger("wkvm.assembly")

PREFIX = "wkvm-memory-"


class MemoryFolder:
    """A new folder that nobody else removes while this process lives.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        remove_left_over()
        self._folder, self._lock = _locked_folder()
        self.path = self._folder.name

    def close(self) -> None:
        """Remove it, and all that is in it. May be called again."""
        self._folder.cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder() -> tuple["tempfile.TemporaryDirectory[str]", int]:
    while True:
        # Until it is locked, another process may take it for one that was left behind.
        folder = tempfile.TemporaryDirectory(prefix=PREFIX)
        lock = _lock(folder.name)
        if lock is not None:
            return folder, lock
        folder.cleanup()


def _lock(path: str) -> int | None:
    """A descriptor of a folder that nobody else has locked; None if it is locked, or gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def remove_left_over() -> None:
    """Remove the folders of processes that were killed. What cannot be removed is left alone."""
    with os.scandir(tempfile.gettempdir()) as entries:
        paths = [one.path for one in entries if one.name.startswith(PREFIX) and _is_ours(one)]
    for path in paths:
        try:
            lock = _lock(path)
        except OSError:
            continue
        if lock is not None:
            logger.info("a process that is gone has left states in memory behind: removed")
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
        return entry.is_dir(follow_symlinks=False) and about.st_uid == os.geteuid()
    except OSError:
        return False
