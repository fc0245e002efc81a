"""Files of states: how long one is, and one that is there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from wkvm_client.errors import InvalidParameterError

READ_BYTES = 2**18
"""How much of a file is read at a time."""


class NewFile:
    """Bytes on their way to a file, which takes the place of one that is there.

    Leaving the block without an exception makes the file visible, after everything is on the
    disk; with one, nothing has changed.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        # beside it, since a file cannot be renamed into another file system
        self._partial = self._path.with_name(f".{self._path.name[:100]}.{secrets.token_hex(6)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = open(os.open(self._partial, flags, 0o600), "wb", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        """Add all of these bytes."""
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def finish(self) -> None:
        """Make the file visible. Returns when a loss of power would not lose it."""
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._partial.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:
            self.drop()
            return
        try:
            self.finish()
        except BaseException:
            self.drop()
            raise


def length_of(
    source: str | os.PathLike[str] | bytes | Iterable[bytes] | AsyncIterable[bytes],
    n_bytes: int | None,
) -> int:
    """How many bytes will come of a path, of bytes, or of an iterator.

    Raises:
        InvalidParameterError: that cannot be known, and ``n_bytes`` does not say it.
        OSError: there is no such file.
    """
    if n_bytes is not None:
        return n_bytes
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).stat().st_size
    raise InvalidParameterError("n_bytes: of an iterator it has to be given", field="n_bytes")


def check_length(n_sent: int, n_bytes: int) -> None:
    """Check that no more is sent than was said.

    Raises:
        InvalidParameterError: it is.
    """
    if n_sent > n_bytes:
        raise InvalidParameterError(
            f"n_bytes: there are more than {n_bytes} bytes", field="n_bytes"
        )
