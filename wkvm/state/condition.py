"""Whether a store would take another durable version, asked without making one.

What fails once is tried again, with a file of one byte: nobody commits to a server that is not
ready, so nobody else would find out that the disk is well again.
"""

from collections.abc import Callable
from enum import IntEnum

from wkvm.core.errors import StoreFullError
from wkvm.state.ballast import FULL
from wkvm.state.io import IO, Folder


class Refusal(IntEnum):
    """Why a store takes no durable version now."""

    NONE = 0
    """It takes one."""
    FULL = 1
    """The disk has no room but its reserve."""
    FAILED = 2
    """The disk fails, or failed in a way after which the store has to be opened anew."""


class Tried:
    """What became of the last file that was written.

    Attributes:
        is_refused: whether it could not be.
    """

    def __init__(self, io: IO, folder: Folder) -> None:
        self._io = io
        self._folder = folder
        self.is_refused = False

    def refusal(self, check_room: Callable[[], None]) -> Refusal:
        """Why no file would be taken now. Waits for the disk if the last one was refused.

        Args:
            check_room: raises StoreFullError if there is none.
        """
        try:
            check_room()
            if self.is_refused:
                self.again()
        except StoreFullError:
            return Refusal.FULL
        except OSError as error:
            return Refusal.FULL if error.errno in FULL else Refusal.FAILED
        return Refusal.NONE

    def again(self) -> None:
        """Write a file of one byte to the disk and remove it. Waits for the disk.

        Raises:
            OSError: it cannot be.
        """
        name = f"{self._io.fresh_id()}.tmp"
        fd = self._folder.create(name)
        try:
            try:
                self._io.reserve(fd, 1)
                self._io.write(fd, [memoryview(b"\0")])
                self._io.sync(fd)
            finally:
                self._io.close(fd)
        finally:
            self._folder.unlink(name)
        self.is_refused = False
