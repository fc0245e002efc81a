"""The seam between the store and the file system: all that the store does with files.

Folders are open descriptors and files are names in them, so that a folder that is exchanged for
a link is not followed. The catalogue's own files are SQLite's and not behind this seam.
"""

import enum
import errno
import fcntl
import os
import stat
from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

_MAX_BUFFERS = 1024
"""What ``writev`` takes at once (IOV_MAX)."""


class Kind(enum.Enum):
    """What a name in a folder stands for. A link is OTHER, wherever it points."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


class Entry(NamedTuple):
    """A name in a folder. ``is_ours``: its owner is the user of this process."""

    name: str
    kind: Kind
    n_bytes: int
    is_ours: bool


class Space(NamedTuple):
    """Bytes of a file system: all, and those that are free for this user."""

    total: int
    free: int


class Folder(Protocol):
    """A folder that is open. Every method may raise OSError, and did nothing then."""

    @property
    def path(self) -> str:
        """For messages, and for SQLite, which opens its files by path."""
        ...

    def folder(self, name: str) -> "Folder":
        """Open a folder within, for this user alone; make it where it is missing.

        Raises:
            NotADirectoryError: there is something else by that name.
        """
        ...

    def create(self, name: str) -> int:
        """A descriptor of a new, empty file that others cannot read.

        Raises:
            FileExistsError: the name is taken, be it by a link to nowhere.
        """
        ...

    def open(self, name: str) -> int:
        """A descriptor of a regular file, to read.

        Raises:
            FileNotFoundError: there is nothing by that name.
            OSError: it is a link (ELOOP), or no regular file (EINVAL).
        """
        ...

    def rename(self, name: str, target: "Folder", new_name: str) -> None:
        """Move a name, whatever it stands for. What had the new name is replaced."""
        ...

    def unlink(self, name: str) -> None:
        """Remove the name of a file or a link."""
        ...

    def names(self) -> dict[str, bool]:
        """All names, and whether each is a regular file. Does not touch what they stand for."""
        ...

    def entries(self, names: Container[str] | None = None) -> list[Entry]:
        """All names, or those of ``names``, in any order, with what they stand for."""
        ...

    def sync(self) -> None:
        """Return when names made, moved and removed before are on the disk."""
        ...

    def lock(self, name: str) -> int:
        """A descriptor of a file that only this process has locked, until it is closed.

        Raises:
            BlockingIOError: another process has it.
        """
        ...

    def space(self) -> Space:
        """Of the file system that the folder is on."""
        ...

    def restrict(self) -> None:
        """Take the folder from all other users: mode 0700."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class IO(Protocol):
    """The file system. Every method may raise OSError."""

    def open_root(self, path: str, *, create: bool) -> Folder:
        """Open a folder of this user.

        Args:
            create: make it where it is missing, for this user alone.

        Raises:
            NotADirectoryError: there is something else by that path, such as a link.
        """
        ...

    def database_path(self, folder: Folder, name: str) -> str:
        """Where SQLite finds its file; it does its own input and output."""
        ...

    def reserve(self, fd: int, n_bytes: int) -> None:
        """Have room on the disk for so many bytes of a file. ENOSPC comes now, not later."""
        ...

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """Append some bytes of ``buffers``, at least one. How many is returned."""
        ...

    def read(self, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        """Read from an offset. How many bytes is returned; fewer than asked for at the end."""
        ...

    def size(self, fd: int) -> int:
        """Bytes of a file."""
        ...

    def sync(self, fd: int) -> None:
        """Return when the file's bytes are on the disk.

        After an error they may be lost, and another call may lie: the file is to be abandoned.
        """
        ...

    def close(self, fd: int) -> None:
        """Give a descriptor back. Says nothing of what was written."""
        ...

    def fresh_id(self) -> str:
        """32 hex digits that nobody had before."""
        ...


class SystemFolder:
    """A folder of the operating system."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def folder(self, name: str) -> "SystemFolder":
        """See ``Folder.folder``."""
        try:
            os.mkdir(name, 0o700, dir_fd=self._fd)
            os.fsync(self._fd)
        except FileExistsError:
            pass
        return SystemFolder(_open_folder(name, dir_fd=self._fd), os.path.join(self.path, name))

    def create(self, name: str) -> int:
        """See ``Folder.create``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def open(self, name: str) -> int:
        """See ``Folder.open``."""
        # Without O_NONBLOCK a fifo would be waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return fd

    def rename(self, name: str, target: Folder, new_name: str) -> None:
        """See ``Folder.rename``."""
        if not isinstance(target, SystemFolder):
            raise TypeError("a name moves between folders of one kind")
        os.rename(name, new_name, src_dir_fd=self._fd, dst_dir_fd=target._fd)

    def unlink(self, name: str) -> None:
        """See ``Folder.unlink``."""
        os.unlink(name, dir_fd=self._fd)

    def names(self) -> dict[str, bool]:
        """See ``Folder.names``."""
        with os.scandir(self._fd) as found:
            return {one.name: one.is_file(follow_symlinks=False) for one in found}

    def entries(self, names: Container[str] | None = None) -> list[Entry]:
        """See ``Folder.entries``."""
        found, me = list[Entry](), os.getuid()
        with os.scandir(self._fd) as all_names:
            for one in all_names:
                if names is not None and one.name not in names:
                    continue
                try:
                    about = one.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile, by another thread
                found.append(
                    Entry(one.name, _kind(about.st_mode), about.st_size, about.st_uid == me)
                )
        return found

    def sync(self) -> None:
        """See ``Folder.sync``."""
        os.fsync(self._fd)

    def lock(self, name: str) -> int:
        """See ``Folder.lock``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def space(self) -> Space:
        """See ``Folder.space``."""
        about = os.fstatvfs(self._fd)
        return Space(about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize)

    def restrict(self) -> None:
        """See ``Folder.restrict``."""
        if stat.S_IMODE(os.fstat(self._fd).st_mode) != 0o700:
            os.fchmod(self._fd, 0o700)

    def close(self) -> None:
        """See ``Folder.close``."""
        os.close(self._fd)


class SystemIO:
    """The file system of the operating system."""

    def open_root(self, path: str, *, create: bool) -> SystemFolder:
        """See ``IO.open_root``."""
        path = os.path.abspath(path)
        if create and not os.path.lexists(path):
            os.mkdir(path, 0o700)
            parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
        return SystemFolder(_open_folder(path), path)

    def database_path(self, folder: Folder, name: str) -> str:
        """See ``IO.database_path``."""
        return os.path.join(folder.path, name)

    def reserve(self, fd: int, n_bytes: int) -> None:
        """See ``IO.reserve``."""
        if n_bytes:
            os.posix_fallocate(fd, 0, n_bytes)

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """See ``IO.write``."""
        return os.writev(fd, buffers[:_MAX_BUFFERS])

    def read(self, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        """See ``IO.read``."""
        return os.preadv(fd, buffers[:_MAX_BUFFERS], at)

    def size(self, fd: int) -> int:
        """See ``IO.size``."""
        return os.fstat(fd).st_size

    def sync(self, fd: int) -> None:
        """See ``IO.sync``."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """See ``IO.close``."""
        os.close(fd)

    def fresh_id(self) -> str:
        """See ``IO.fresh_id``."""
        return os.urandom(16).hex()


def _open_folder(path: str, dir_fd: int | None = None) -> int:
    """Open a folder that is this user's."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, dir_fd=dir_fd)
    if os.fstat(fd).st_uid != os.getuid():
        os.close(fd)
        raise PermissionError(errno.EPERM, "the folder is another user's", path)
    return fd


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    return Kind.FOLDER if stat.S_ISDIR(mode) else Kind.OTHER


def write_all(io: IO, fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all of some buffers to the end of a file.

    Raises:
        OSError: it could not be; some of them may have been written.
    """
    left = [buffer for buffer in buffers if len(buffer)]
    while left:
        n = io.write(fd, left)
        if n <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        while left and n >= len(left[0]):
            n -= len(left.pop(0))
        if n:
            left[0] = left[0][n:]


def reason(error: OSError) -> str:
    """What the system says of an error, without the path."""
    return error.strerror or type(error).__name__
