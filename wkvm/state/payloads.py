"""The files that hold states' bytes: written so that they outlive a crash, verified when read.

Which state a file belongs to, and whether anybody needs it, is the catalogue's to know. A file's
name is made here and says nothing; it is never used for other bytes.
"""

import errno
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import torch
from torch import Tensor

from wkvm.core.errors import BadStateFileError, StoreFailedError, StoreFullError
from wkvm.state.ballast import FULL
from wkvm.state.condition import Refusal, Tried
from wkvm.state.format import (
    CHUNK_BYTES,
    TOKEN_BYTES,
    Header,
    chunk_digest,
    chunks_of,
    decode_header,
    encode_header,
    header_bytes,
    root_digest,
)
from wkvm.state.image import EncodedImage, StateImage, clear_padding, image_of, record_slices
from wkvm.state.io import IO, Entry, Folder, Kind, reason, write_all
from wkvm.state.memory import host_memory

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
TEMPORARY = ".tmp"
ID_CHARS = 32
_OURS = re.compile(r"[0-9a-f]{32}\.(safetensors|tmp)", re.ASCII)

_N_ATTEMPTS = 2
"""After a failed write the bytes are written once more, to another file."""

PINNED_BYTES = 2**28
"""Larger records are read into ordinary memory. Torch takes the next power of two of pinned memory
and gives nothing back, and to pin some GiB takes longer than to copy them once more."""

THREADED_BYTES = 2 * 2**20
"""Files smaller than this are read by the caller's thread alone."""


class Payloads:
    """The payload files of one store. Threads may call any method at the same time.

    Args:
        io, folder: where the files are.
        quarantine: where damaged and foreign files go.
        reserve: share of the disk that files leave free.
        threads: help to read large files.
        pinned: read into pinned memory, from which a GPU takes states at once.
    """

    def __init__(
        self,
        io: IO,
        folder: Folder,
        quarantine: Folder,
        *,
        reserve: float,
        threads: Executor,
        pinned: bool = False,
    ) -> None:
        self._io = io
        self._folder = folder
        self._quarantine = quarantine
        self._reserve = reserve
        self._threads = threads
        self._pinned = pinned
        self._is_failed = False
        self._lock = threading.Lock()
        self._unsettled = set[str]()
        self._tried = Tried(io, folder)

    @property
    def is_failed(self) -> bool:
        """A sync of the folder failed: nothing can be promised before the store is reopened."""
        return self._is_failed

    def refusal(self, n_bytes: int) -> Refusal:
        """Why no file of so many bytes would be taken now. As ``Lookup.refusal``."""
        if self._is_failed:
            return Refusal.FAILED
        return self._tried.refusal(lambda: self._check_room(n_bytes))

    def write(self, encoded: EncodedImage) -> str:
        """Write a file, and return its name when it is on the disk and was read back.

        It is to be followed by ``settle`` or ``remove``. An attempt that fails leaves no file,
        unless the disk does not let it be removed.

        Raises:
            StoreFullError: no room beside the reserve.
            StoreFailedError: the disk failed twice, or refused.
        """
        for attempt in range(_N_ATTEMPTS):
            self._check_promises()
            try:
                self._check_room(encoded.n_bytes)
                name = self._write_new(encoded)
                self._tried.is_refused = False
                return name
            except OSError as error:
                self._tried.is_refused = True
                if error.errno in FULL:
                    raise StoreFullError(encoded.n_bytes, self._free()) from error
                if error.errno != errno.EIO or attempt == _N_ATTEMPTS - 1:
                    raise StoreFailedError("write a state", reason(error)) from error
                logger.warning("a payload could not be written, trying another file", exc_info=True)
        raise AssertionError("unreachable")

    def read(self, name: str, digest: str, into: Tensor | None = None) -> StateImage:
        """Read a file and verify it. About 0.25 ms a MiB from the page cache, with 4 threads.

        Args:
            name: of the file.
            digest: what its bytes must have.
            into: ``[image_bytes]`` uint8 on the host, which the image's record will be. Its
                contents are undefined after an error. None takes new memory.

        Raises:
            BadStateFileError: it is gone, or not the file with that digest.
            ValueError: ``into`` does not fit.
            StoreFailedError: the disk refused; nothing is known of the file.
        """
        with self._reading(name) as fd:
            return self._read_open(fd, digest, into)

    def pieces(self, name: str, digest: str) -> Iterator[memoryview]:
        """The bytes of a file as they are, 1 MiB at a time, once all of it has been verified.

        Each piece is overwritten by the next.

        Raises:
            BadStateFileError, StoreFailedError: as for ``read``.
        """
        with self._reading(name) as fd:
            self._verify_open(fd, digest)
            n_bytes, piece = self._io.size(fd), memoryview(bytearray(CHUNK_BYTES))
            for at in range(0, n_bytes, CHUNK_BYTES):
                part = piece[: min(CHUNK_BYTES, n_bytes - at)]
                self._read_all(fd, [part], at)
                yield part

    def verify(self, name: str, digest: str) -> None:
        """Read a file for its digest alone, a little at a time.

        Raises:
            BadStateFileError, StoreFailedError: as for ``read``.
        """
        with self._reading(name) as fd:
            self._verify_open(fd, digest)

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        if not _is_ours(name):
            raise BadStateFileError("its file's name is none that wkvm gives")
        try:
            fd = self._folder.open(name)
        except FileNotFoundError as error:
            raise BadStateFileError("its file is gone") from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):
                raise BadStateFileError("its file is none") from error
            raise StoreFailedError("read a state", reason(error)) from error
        try:
            yield fd
        except OSError as error:
            raise StoreFailedError("read a state", reason(error)) from error
        finally:
            self._io.close(fd)

    def remove(self, name: str) -> None:
        """Remove a file. One that cannot be removed is left to ``sweep``."""
        if not _is_ours(name):
            return
        self.settle(name)
        try:
            self._folder.unlink(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("a payload could not be removed: %s", reason(error))

    def isolate(self, name: str) -> None:
        """Move a damaged file where nobody reads it. Nothing happens if it is gone.

        Raises:
            StoreFailedError: the disk refused.
        """
        if _is_ours(name):
            self._isolate(name)

    def _isolate(self, name: str) -> None:
        try:
            self._folder.rename(name, self._quarantine, f"{name}.{self._io.fresh_id()[:8]}")
            self._quarantine.sync()
            self._folder.sync()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreFailedError("isolate a file", reason(error)) from error

    def sweep(
        self, known: Callable[[], frozenset[str]], is_sound: Callable[[], bool]
    ) -> tuple[int, int]:
        """Remove what nobody knows, and isolate what wkvm did not make. 5 us for a known file.

        Args:
            known: looks up the names of files that belong to somebody.
            is_sound: whether what that says can be relied on. If not, or if files are missing that
                somebody has, a state's file that nobody knows is isolated: its row may have rotted.

        Returns:
            How many files were removed, and how many isolated.

        Raises:
            StoreFailedError: the disk refused.
        """
        try:
            names = self._folder.names()
            with self._lock:
                unsettled = frozenset(self._unsettled)
            # Only now: what is committed while we look, it knows.
            is_known = known()
            strays = {
                name
                for name, is_file in names.items()
                if name[:ID_CHARS] not in unsettled and not (is_file and name in is_known)
            }
            if not strays:
                return 0, 0
            is_exact = is_known <= names.keys() and is_sound()
            return self._sweep(self._folder.entries(strays), is_exact=is_exact)
        except OSError as error:
            raise StoreFailedError("sweep the store", reason(error)) from error

    def _sweep(self, strays: Iterable[Entry], *, is_exact: bool) -> tuple[int, int]:
        n_removed = n_isolated = 0
        for entry in strays:
            is_ours = entry.kind is Kind.FILE and entry.is_ours and _is_ours(entry.name)
            if is_ours and (is_exact or entry.name.endswith(TEMPORARY)):
                try:
                    self._folder.unlink(entry.name)
                except FileNotFoundError:
                    continue  # a temporary that has got its name since
                n_removed += 1
            else:
                self._isolate(entry.name)
                n_isolated += 1
        return n_removed, n_isolated

    def settle(self, name: str) -> None:
        """The catalogue has a file that ``write`` made."""
        with self._lock:
            self._unsettled.discard(name[:ID_CHARS])

    def _write_new(self, encoded: EncodedImage) -> str:
        new_id = self._io.fresh_id()
        temporary, name = new_id + TEMPORARY, new_id + SUFFIX
        with self._lock:
            self._unsettled.add(new_id)
        at = temporary
        try:
            fd = self._folder.create(temporary)
            try:
                self._io.reserve(fd, encoded.n_bytes)
                write_all(self._io, fd, (memoryview(encoded.header), *encoded.buffers))
                self._io.sync(fd)
                self._verify_open(fd, encoded.digest)
            finally:
                self._io.close(fd)
            self._folder.rename(temporary, self._folder, name)
            at = name
            self._sync_folder()
        except BadStateFileError as error:
            self.remove(at)
            raise OSError(errno.EIO, "read back differently than written") from error
        except OSError:
            self.remove(at)
            raise
        return name

    def _sync_folder(self) -> None:
        try:
            self._folder.sync()
        except OSError:
            # Which names are on the disk is not known any more, and asking again may be
            # answered with a lie.
            self._is_failed = True
            raise

    def _header(self, fd: int, digest: str) -> Header:
        n_bytes = self._io.size(fd)
        prefix = bytearray(8)
        self._read_all(fd, [memoryview(prefix)], 0)
        raw = bytearray(min(header_bytes(bytes(prefix)), n_bytes))
        self._read_all(fd, [memoryview(raw)], 0)
        header = decode_header(bytes(raw))
        if header.digest != digest:
            raise BadStateFileError("its digest is not the one that was committed")
        if n_bytes != header.file_bytes:
            raise BadStateFileError(f"it has {n_bytes} bytes, and not {header.file_bytes}")
        return header

    def _read_open(self, fd: int, digest: str, into: Tensor | None) -> StateImage:
        header = self._header(fd, digest)
        layout = header.layout
        n_bytes = layout.image_bytes(header.carried.n_computed)
        record = self.new_record(n_bytes) if into is None else into
        if record.dtype != torch.uint8 or record.shape != (n_bytes,):
            raise ValueError(f"a record of {n_bytes} bytes does not fit {record.shape}")
        token_ids = bytearray(TOKEN_BYTES * header.carried.n_computed)
        buffers = (*record_slices(layout, record), memoryview(token_ids))
        chunks = chunks_of(buffers)

        def fill(at: int) -> bytes:
            self._read_all(fd, chunks[at], header.n_bytes + at * CHUNK_BYTES)
            return chunk_digest(chunks[at])

        self._check_digest(header, fill)
        clear_padding(layout, record)
        return image_of(header, record, bytes(token_ids))

    def new_record(self, n_bytes: int) -> Tensor:
        """Memory for a record: ``[n_bytes]`` uint8, anything."""
        if not self._pinned or n_bytes > PINNED_BYTES:
            return host_memory(n_bytes)
        return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

    def _verify_open(self, fd: int, digest: str) -> None:
        header = self._header(fd, digest)

        def fill(at: int) -> bytes:
            start = at * CHUNK_BYTES
            chunk = [memoryview(bytearray(min(CHUNK_BYTES, header.data_bytes - start)))]
            self._read_all(fd, chunk, header.n_bytes + start)
            return chunk_digest(chunk)

        self._check_digest(header, fill)

    def _check_digest(self, header: Header, fill: Callable[[int], bytes]) -> None:
        n_chunks = -(-header.data_bytes // CHUNK_BYTES)
        # Side by side: reading and hashing let other threads run.
        run = map if header.data_bytes < THREADED_BYTES else self._threads.map
        blank = encode_header(header.identity, header.layout, header.carried)
        if root_digest(blank, run(fill, range(n_chunks))) != header.digest:
            raise BadStateFileError("its digest is not that of its bytes")

    def _read_all(self, fd: int, buffers: list[memoryview], at: int) -> None:
        wanted = sum(map(len, buffers))
        n = self._io.read(fd, buffers, at)
        if n == wanted:
            return
        left = list(buffers)
        while n:
            wanted, at = wanted - n, at + n
            while left and n >= len(left[0]):
                n -= len(left.pop(0))
            if n:
                left[0] = left[0][n:]
            if not wanted:
                return
            n = self._io.read(fd, left, at)
        raise BadStateFileError("it ends early")

    def _check_promises(self) -> None:
        if self._is_failed:
            raise StoreFailedError("write a state", "a sync failed before; reopen the store")

    def _check_room(self, n_bytes: int) -> None:
        space = self._folder.space()
        free = space.free - int(space.total * self._reserve)
        if n_bytes > free:
            raise StoreFullError(n_bytes, max(free, 0))

    def _free(self) -> int:
        try:
            space = self._folder.space()
        except OSError:
            return 0
        return max(space.free - int(space.total * self._reserve), 0)


def _is_ours(name: object) -> bool:
    """Whether it is a name that a file is given here. What a row says may have rotted."""
    return isinstance(name, str) and _OURS.fullmatch(name) is not None
