"""Standard error as a server writes to it: nothing that becomes of it holds up or breaks anything.

A disk may be full, a collector of logs gone, or it reads no more, and the pipe to it is full. Lines
are lost then, which is counted and told once lines can be written again.
"""

import contextlib
import io
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable

PATIENCE_S = 0.05
"""How long a line waits for a reader, in all of a second: it may be an event loop that waits."""
PAUSE_S = 1.0
"""From then on for so long nothing waits, and what cannot be written at once is lost."""


class LogFile(io.TextIOBase):
    """Writes text to a file that is open, in one piece. May be used from any thread.

    It never raises, and blocks for ``PATIENCE_S`` at most, but for regular files on a disk that
    does not answer. The file stays open, and blocking for those who share it.

    Args:
        fd: of the file.
        lost: the line that tells how many were lost, with its end.
        clock: seconds, monotonic.

    Attributes:
        n_lost: pieces that could not be written whole and of which nothing was told yet.
    """

    def __init__(
        self,
        fd: int,
        *,
        lost: Callable[[int], str] = lambda n: f"{n} lines of the log were lost\n",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._fd = fd
        self._lost = lost
        self._clock = clock
        self._lock = threading.Lock()
        self._opened, self._put = _ways_to_write(fd)
        self._impatient_until = 0.0
        self._is_cut = False
        self.n_lost = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of what is written."""
        return "utf-8"

    def fileno(self) -> int:
        """Of the file itself."""
        return self._fd

    def isatty(self) -> bool:
        """Whether somebody may be looking."""
        return os.isatty(self._fd)

    def writable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Write no more. The file itself stays open."""
        with self._lock:
            if not self.closed and self._opened is not None:
                os.close(self._opened)
            super().close()

    def write(self, text: str) -> int:
        """Write it, or lose it. The number of its characters in any case."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self.closed:
                return len(text)
            if self.n_lost:
                told = self._lost(self.n_lost).encode()
                if self._pass(b"\n" + told if self._is_cut else told):
                    self.n_lost, self._is_cut = 0, False
            if self.n_lost or not self._pass(data):
                self.n_lost += 1
        return len(text)

    def _pass(self, data: bytes) -> bool:
        """Whether all of it was written."""
        left = memoryview(data)
        until = self._clock() + PATIENCE_S
        while left:
            try:
                left = left[self._put(left) :]
            except BlockingIOError:
                now = self._clock()
                if now < self._impatient_until or now >= until:
                    self._impatient_until = max(self._impatient_until, now + PAUSE_S)
                    break
                self._wait(until - now)
            except OSError:
                break
        if left and len(left) < len(data):
            self._is_cut = True
        return not left

    def _wait(self, seconds: float) -> None:
        waits = select.poll()
        waits.register(self._fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            waits.poll(max(1, round(seconds * 1000)))


def _ways_to_write(fd: int) -> tuple[int | None, Callable[[memoryview], int]]:
    """What was opened for it, which is to be closed, and how to write without waiting.

    ``O_NONBLOCK`` belongs to what all who share a file have open, so it is opened once more.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return None, lambda data: _send(fd, data)
    if not (stat.S_ISFIFO(mode) or os.isatty(fd)):
        return None, lambda data: os.write(fd, data)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        again = os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:  # another user's, or nobody reads it
        return None, lambda data: _write_if_polled(fd, data)
    return again, lambda data: os.write(again, data)


def _write_if_polled(fd: int, data: memoryview) -> int:
    """Write as much as a pipe takes for certain that is not full.

    Raises:
        BlockingIOError: it is full.
    """
    waits = select.poll()
    waits.register(fd, select.POLLOUT)
    if not waits.poll(0):
        raise BlockingIOError
    return os.write(fd, data[: select.PIPE_BUF])


def _send(fd: int, data: memoryview) -> int:
    """Send what a socket takes at once.

    Raises:
        BlockingIOError: it takes nothing.
    """
    peer = socket.socket(fileno=fd)
    try:
        return peer.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        peer.detach()
