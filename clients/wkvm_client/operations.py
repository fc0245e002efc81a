"""Questions and operations that are open on one connection, and bytes of states. No I/O."""

from collections.abc import Callable

from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.messages import (
    MAX_CHUNK_BYTES,
    Cancel,
    Credit,
    Message,
    StateBytesEnd,
    StateChanges,
    StateChunk,
    StateCredit,
    StateExport,
    StateExportBegin,
    StatsChanges,
    Watch,
)

from wkvm_client.errors import ClientError
from wkvm_client.replies import Download, Reply, Told


class Operations:
    """What was asked on lanes that one reply closes.

    Args:
        wire: the connection.
        write: sends a frame, if it is one.
    """

    def __init__(self, wire: ClientConnection, write: Callable[[bytes], None]) -> None:
        self._wire = wire
        self._write = write
        self._replies: dict[int, Reply] = {}

    def open(self, request_id: int, message: Message) -> Reply:
        """Note one that is being sent."""
        match message:
            case StateExport():
                reply: Reply = Download(request_id)
            case Watch():
                reply = Told(request_id)
            case _:
                reply = Reply(request_id)
        self._replies[request_id] = reply
        return reply

    def settle(
        self, request_id: int, answer: Message | None, error: ClientError | None = None
    ) -> bool:
        """Answer one, or fail it. False if it is none of these."""
        reply = self._replies.pop(request_id, None)
        if reply is not None:
            reply.settle(answer, error)
        return reply is not None

    def fail(self, error: ClientError) -> None:
        """Fail all of them."""
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.settle(None, error)

    def abandon(self, reply: Reply) -> None:
        """Ask the server to end one of which nobody wants to hear any more."""
        if isinstance(reply, Download):
            reply.abandon()
        if not reply.is_over and self._wire.is_open:
            self._write(self._wire.send(Cancel(reply.request_id)))

    # --- watches ---------------------------------------------------------------------------

    def tell(self, message: StateChanges | StatsChanges) -> None:
        """Note what a watch has told. The connection has checked its lane."""
        told = self._replies[message.request_id]
        assert isinstance(told, Told)
        told.add(message)

    def take_told(self, told: Told) -> StateChanges | StatsChanges:
        """The next of what a watch has told, of which there must be some; one more may come."""
        message = told.messages.popleft()
        if not told.is_over and self._wire.is_open:
            told.n_room += 1
            self._write(self._wire.send(Credit(told.request_id, 1)))
        return message

    # --- bytes of states ------------------------------------------------------------------

    def room(self, request_id: int) -> int:
        """How many bytes of a state the server takes now on a lane."""
        return self._wire.room(request_id)

    def upload(self, request_id: int, data: bytes | memoryview) -> None:
        """Send bytes of a state on a lane that has room for them."""
        for start in range(0, len(data), MAX_CHUNK_BYTES):
            chunk = bytes(data[start : start + MAX_CHUNK_BYTES])
            self._write(self._wire.send(StateChunk(request_id, chunk)))

    def end_upload(self, request_id: int, digest: str = "") -> None:
        """Say that all was sent, if the lane is open still."""
        if self._wire.is_open:
            self._write(self._wire.send(StateBytesEnd(request_id, digest)))

    def take(self, download: Download) -> bytes:
        """The next bytes that have come, of which there must be some; more may come for them."""
        data, n_bytes = download.take()
        if n_bytes and self._wire.is_open:
            self._write(self._wire.send(StateCredit(download.request_id, n_bytes)))
        return data

    def move_bytes(
        self, message: StateExportBegin | StateChunk | StateBytesEnd | StateCredit
    ) -> bool:
        """Take note of bytes, or of room for some. False if they are on no lane of these."""
        reply = self._replies.get(message.request_id)
        if reply is None:
            return False
        match message:
            case StateExportBegin() if isinstance(reply, Download):
                reply.begin = message
                reply.changed()
            case StateChunk() if isinstance(reply, Download):
                reply.add(message.data)
            case StateBytesEnd():
                self.settle(message.request_id, message)
            case _:
                reply.changed()
        return True
