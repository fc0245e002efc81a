"""Who has begun what is not over: processes that share one folder, and whether they still live.

Each holds a lock on a file of its own, which the operating system gives up with the process,
however that ends. So nobody has to write down that they are alive, and nobody can forget to write
down that they are not.
"""

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

_SUFFIX = ".alive"


class Owners:
    """This process as one of the owners of a folder. Not thread-safe.

    Args:
        folder: of all owners; None where there are no others.

    Attributes:
        name: of this one; no other ever has it.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._fd = -1
        self.name = uuid.uuid4().hex
        while folder is not None and self._fd < 0:
            self._fd = _locked(folder / f"{self.name}{_SUFFIX}", creates=True)
            if self._fd < 0:  # somebody took it for that of a dead one before it was locked
                self.name = uuid.uuid4().hex

    def is_alive(self, name: str) -> bool:
        """Whether an owner still lives. Of those that do not, nothing stays in the folder."""
        if name == self.name:
            return True
        if self._folder is None or not name.isalnum():
            return False
        path = self._folder / f"{name}{_SUFFIX}"
        try:
            fd = _locked(path, creates=False)
        except OSError:
            return False  # there is no such file
        if fd < 0:
            return True
        path.unlink(missing_ok=True)
        os.close(fd)
        return False

    def sweep(self) -> None:
        """Remove what dead owners have left."""
        if self._folder is not None:
            for path in self._folder.glob(f"*{_SUFFIX}"):
                self.is_alive(path.name.removesuffix(_SUFFIX))

    def close(self) -> None:
        """This one lives no longer."""
        if self._folder is not None and self._fd >= 0:
            with contextlib.suppress(OSError):
                (self._folder / f"{self.name}{_SUFFIX}").unlink()
            os.close(self._fd)
            self._fd = -1


def _locked(path: Path, *, creates: bool) -> int:
    """A file that this process has locked; -1 if somebody else has, or it is gone meanwhile.

    Raises:
        OSError: there is no such file, or it cannot be made.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if creates else 0)
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1
