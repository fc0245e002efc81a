"""Bytes of states in and out, blocking. No more than a window of them is in memory."""

import os
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from wkvm_protocol.messages import StateBytesEnd, StateExport

from wkvm_client.blocking_connections import Connections, answer_of, changed, deadline
from wkvm_client.blocking_link import Link
from wkvm_client.errors import ReplyTimeoutError
from wkvm_client.files import READ_BYTES, check_length
from wkvm_client.replies import WINDOW_BYTES, Download, Reply
from wkvm_client.state_calls import Call
from wkvm_client.states import StateInfo, info_of

T = TypeVar("T")
Source: TypeAlias = str | os.PathLike[str] | bytes | Iterable[bytes]
"""A file by its path, bytes, or an iterator over parts of them."""


class Export:
    """A state on its way out: ``for data in export`` goes through its bytes, once.

    Leaving that loop early ends the export.

    Attributes:
        state: what it is; None where the server does not say.
        n_bytes: how many there are.
        digest: hex BLAKE3 of them, as the server states it, once all have come; may be empty.
    """

    def __init__(self, link: Link, reply: Download, timeout_s: float | None) -> None:
        assert reply.begin is not None
        told = reply.begin.state
        self.state: StateInfo | None = None if told is None else info_of(told)
        self.n_bytes = reply.begin.n_bytes
        self.digest = ""
        self._link = link
        self._reply = reply
        self._timeout_s = timeout_s

    def __iter__(self) -> Generator[bytes, None, None]:
        """Go through the bytes in the parts in which they come.

        Raises:
            ReplyTimeoutError: for too long nothing came.
            ClientError: the server, or the connection, failed; what came is not all.
        """
        reply, operations = self._reply, self._link.core.operations
        try:
            while True:
                until(self._link, lambda: bool(reply.chunks) or reply.is_over, self._timeout_s)
                while reply.chunks:
                    yield operations.take(reply)
                if reply.is_over:
                    break
            end = answer_of(self._link, reply, None)
            assert isinstance(end, StateBytesEnd)
            self.digest = end.digest
        finally:
            self.close()

    def close(self) -> None:
        """End it, if it is not over."""
        self._link.core.operations.abandon(self._reply)
        self._link.push()


def begin_export(
    connections: Connections, state: str, form: str, timeout_s: float | None
) -> Export:
    """Ask for the bytes of a state, and wait for word of how many there are.

    Raises:
        ReplyTimeoutError: it did not come in time.
        ClientError: there is nothing to export.
    """
    try:
        link = connections.ready(deadline(timeout_s))
    except TimeoutError as error:
        raise ReplyTimeoutError(timeout_s or 0.0) from error
    reply = link.core.ask(StateExport(0, state, form, WINDOW_BYTES))
    assert isinstance(reply, Download)
    try:
        until(link, lambda: reply.begin is not None or reply.is_over, timeout_s)
        if reply.begin is None:
            answer_of(link, reply, None)
        return Export(link, reply, timeout_s)
    except BaseException:
        link.core.operations.abandon(reply)
        link.push()
        raise


def send_state(
    connections: Connections,
    call: Call[T],
    source: Source,
    n_bytes: int,
    *,
    digest: str | Callable[[], str],
    timeout_s: float | None,
) -> T:
    """Carry out an import.

    Raises:
        ReplyTimeoutError: for too long the server took nothing.
        ClientError: it failed; nothing of it was kept.
        OSError: the file cannot be read.
    """
    try:
        link = connections.ready(deadline(timeout_s))
    except TimeoutError as error:
        raise ReplyTimeoutError(timeout_s or 0.0) from error
    reply = link.core.ask(call.message)
    n_sent = 0
    try:
        # what is to be sent may come from another connection: this one must not wait for it
        link.push()
        for data in _parts(source):
            n_sent += len(data)
            check_length(n_sent, n_bytes)
            _send(link, reply, data, timeout_s)
            if reply.is_over:
                break
        told = digest if isinstance(digest, str) else digest()
        link.core.operations.end_upload(reply.request_id, told)
        until(link, lambda: reply.is_over, timeout_s)
        return call.result(answer_of(link, reply, None))
    except BaseException:
        link.core.operations.abandon(reply)
        link.push()
        raise


def _send(link: Link, reply: Reply, data: bytes, timeout_s: float | None) -> None:
    operations = link.core.operations
    left = memoryview(data)
    while left:
        until(link, lambda: reply.is_over or operations.room(reply.request_id) > 0, timeout_s)
        if reply.is_over:
            return
        part = left[: operations.room(reply.request_id)]
        operations.upload(reply.request_id, part)
        left = left[len(part) :]


def until(link: Link, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
    """Wait until enough has come.

    Raises:
        ReplyTimeoutError: it did not come in time.
    """
    try:
        changed(link, is_enough, deadline(timeout_s))
    except TimeoutError as error:
        raise ReplyTimeoutError(timeout_s or 0.0) from error


def _parts(source: Source) -> Generator[bytes, None, None]:
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            while data := file.read(READ_BYTES):
                yield data
    else:
        yield from source
