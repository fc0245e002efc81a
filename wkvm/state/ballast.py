"""Room that is kept on the disk, to be given up when there is no other and something is deleted."""

import errno
import logging

from wkvm.state.io import IO, Folder, reason

logger = logging.getLogger(__name__)

BALLAST = "ballast"
BALLAST_BYTES = 4 * 2**20
"""Kept on the disk for the day when it is full: then the catalogue needs room to delete."""
_LAST_BYTES = 2**19
"""Of a disk that has less it takes half, for others have to delete too; of the last bytes all."""

_BLOCK = 4096

PROBE = "probe"
"""A file that is made and removed, to see whether the disk has room."""
_PROBE_BYTES = 2**16

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says of a disk, a quota or a file that takes no more."""


class Ballast:
    """The ballast of one store. Its methods never raise ``OSError``.

    Args:
        root: the store's folder.
    """

    def __init__(self, io: IO, root: Folder) -> None:
        self._io = io
        self._root = root

    def make(self) -> None:
        """Take as much of it as there is room for, if it is not there whole already.

        A disk that gives nothing is full, which is no error here.
        """
        try:
            fd = self._root.open(BALLAST)
            try:
                is_whole = self._io.size(fd) >= BALLAST_BYTES
            finally:
                self._io.close(fd)
        except FileNotFoundError:
            is_whole = False
        except OSError as error:
            logger.warning("the ballast cannot be looked at: %s", reason(error))
            return
        if is_whole:
            return
        self.give_up()
        if self._take(BALLAST, BALLAST_BYTES) is None:
            return
        self._remove(BALLAST)
        n_bytes = self._free()
        n_bytes = max(n_bytes // 2, min(n_bytes, _LAST_BYTES))
        while n_bytes >= _BLOCK and self._take(BALLAST, n_bytes) is not None:
            self._remove(BALLAST)
            n_bytes //= 2
        if n_bytes < _LAST_BYTES:
            logger.warning("there is room for %d KiB of ballast", n_bytes // 1024)

    def give_up(self) -> bool:
        """Give its room back. False if there was none."""
        return self._remove(BALLAST)

    def has_room(self) -> bool:
        """Whether the disk, and who may write how much to it, leave some room.

        True where the disk fails otherwise.
        """
        self._remove(PROBE)
        error = self._take(PROBE, _PROBE_BYTES)
        self._remove(PROBE)
        return error is None or error.errno not in FULL

    def _free(self) -> int:
        try:
            return min(self._root.space().free, BALLAST_BYTES)
        except OSError:
            return 0

    def _take(self, name: str, n_bytes: int) -> OSError | None:
        try:
            fd = self._root.create(name)
            try:
                self._io.reserve(fd, n_bytes)
            finally:
                self._io.close(fd)
        except OSError as error:
            return error
        return None

    def _remove(self, name: str) -> bool:
        try:
            self._root.unlink(name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                logger.warning("%s could not be removed: %s", name, reason(error))
            return False
        return True
