"""Answers over HTTP, and when each part of them came.

While an answer comes, nothing is looked at but its end: a read costs an append. What is in it, and
which read brought it, is worked out when it is over.
"""

import asyncio
import re
import ssl
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import SplitResult, urlsplit

from wkvm_bench.harness import BenchError

_HEAD_END = b"\r\n\r\n"
_BODY_END = b"\n0\r\n\r\n"
"""Of a body in chunks: the end of the last chunk, and an empty one."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})(?!\d)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}[ \t]*")
_EVENT = b"data:"
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 256 * 2**20
"""A server that says more, and whoever never ends, is left: an id takes a few hundred bytes."""
_NO_ADDRESS = "{} is neither http://HOST:PORT nor unix:///PATH"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class TooLongError(OSError):
    """An answer is longer than any that is meant well."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is over.

    Attributes:
        head: the status line and the headers.
        raw: all bytes after them, chunks' sizes and all.
        ends: for each read, the number of bytes of ``raw`` that had come with it.
        times: of the reads.
    """

    head: bytes
    raw: bytes
    ends: "array[int]"
    times: "array[float]"

    @property
    def status(self) -> str:
        """As the server wrote it."""
        return self.head[9:12].decode("ascii", "replace")

    @property
    def body(self) -> bytes:
        """Without what cuts it into chunks.

        Raises:
            ValueError: the chunks are none.
        """
        return b"".join(part for _, part in self._parts())

    def events(self) -> Iterator[tuple[float, bytes]]:
        """The data of each event of a stream, and when its last byte had come.

        Raises:
            ValueError: the body is in chunks that are none.
        """
        begun = list[bytes]()
        for end, part in self._parts():
            first, *others = part.split(b"\n")
            begun.append(first)
            if not others:
                continue
            # Where a chunk has several events, or several reads brought it, its end is theirs.
            at = self.times[bisect_left(self.ends, end)]
            for line in (b"".join(begun), *others[:-1]):
                if line.startswith(_EVENT):
                    yield at, line[len(_EVENT) :].strip()
            begun = [others[-1]]
        rest = b"".join(begun)
        if rest.startswith(_EVENT):
            yield self.times[-1], rest[len(_EVENT) :].strip()

    def _parts(self) -> Iterator[tuple[int, bytes]]:
        """The pieces of the body, and where in ``raw`` each ends."""
        if not _CHUNKED.search(self.head):
            # Each read is a piece: there is nothing else that tells when something came.
            start = 0
            for end in self.ends:
                if end > start:
                    yield end, self.raw[start:end]
                    start = end
            return
        raw, at = self.raw, 0
        while True:
            line_end = raw.index(b"\r\n", at)
            digits = raw[at:line_end].partition(b";")[0]
            if not _SIZE.fullmatch(digits):
                raise ValueError("the size of a chunk is none")
            size, at = int(digits, 16), line_end + 2
            if not size:
                return
            if at + size > len(raw):
                raise ValueError("a chunk is shorter than its size")
            yield at + size, raw[at : at + size]
            at += size + 2


class HttpConnection(asyncio.Protocol):
    """Sends one request after the other, and notes when their answers come."""

    def __init__(self) -> None:
        self._parts = list[bytes]()
        self._ends, self._times = array("q"), array("d")
        self._n_read = 0
        self._head: bytes | None = None
        self._n_expected: int | None = None
        self._is_chunked = False
        self._tail = b""
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    @classmethod
    async def connect(cls, url: str) -> Self:
        """A connection to ``http://HOST:PORT``, ``https://`` as well, or ``unix:///PATH``.

        Raises:
            BenchError: it is neither, or nobody answers there.
        """
        loop, parts = asyncio.get_running_loop(), split(url)
        try:
            if parts.scheme == "unix":
                _, one = await loop.create_unix_connection(cls, parts.path)
            elif parts.scheme in _DEFAULT_PORTS and parts.hostname:
                port = parts.port or _DEFAULT_PORTS[parts.scheme]
                secure = ssl.create_default_context() if parts.scheme == "https" else None
                _, one = await loop.create_connection(cls, parts.hostname, port, ssl=secure)
            else:
                raise BenchError(_NO_ADDRESS.format(url))
        except OSError as error:
            raise BenchError(f"{url}: {error.strerror or error}") from error
        return one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not an isinstance: uvloop's unix transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Keep what came, and see whether the response is over."""
        now = time.perf_counter()
        if self._head is None:
            data = self._read_head(data)
            if self._head is None:
                return
        self._parts.append(data)
        self._n_read += len(data)
        if self._n_read > MAX_ANSWER_BYTES:
            self._fail(TooLongError())
            return
        self._ends.append(self._n_read)
        self._times.append(now)
        if self._is_chunked:
            self._tail = (self._tail + data)[-len(_BODY_END) :]
            is_over = self._tail == _BODY_END
        else:
            is_over = self._n_expected is not None and self._n_read >= self._n_expected
        if is_over:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response that is under way: well, if nothing else was to tell its end."""
        self.is_open = False
        is_end = exc is None and self._head is not None
        if is_end and not self._is_chunked and self._n_expected is None:
            self._finish()
        elif self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError())

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> Answer:
        """Send a request, and return all that came in answer.

        Raises:
            TooLongError: there was no end of it.
            OSError: the server closed the connection.
        """
        self._parts, self._ends, self._times = [], array("q"), array("d")
        self._head, self._n_read = None, 0
        self._done = done = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.is_open:
            raise ConnectionResetError
        self._transport.write(request)
        await done
        return Answer(self._head or b"", b"".join(self._parts), self._ends, self._times)

    def _read_head(self, data: bytes) -> bytes:
        """Take the headers, once they are whole, and return what follows them."""
        self._parts.append(data)
        head, end, rest = b"".join(self._parts).partition(_HEAD_END)
        if not end:
            if len(head) > MAX_HEAD_BYTES:
                self._fail(TooLongError())
            return b""
        # A body of no chunks has the headers' end before its last one.
        self._parts, self._head, self._tail = [], head, b"\n"
        self._is_chunked = _CHUNKED.search(head) is not None
        length = _LENGTH.search(head)
        self._n_expected = None if length is None else int(length[1])
        return rest

    def _fail(self, error: OSError) -> None:
        """Give the response up, and with it the connection."""
        self._parts.clear()
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def split(url: str) -> SplitResult:
    """The parts of an address.

    Raises:
        BenchError: it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise BenchError(_NO_ADDRESS.format(url)) from error
    return parts
