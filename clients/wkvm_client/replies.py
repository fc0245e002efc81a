"""Answers that are waited for: to pings, questions and operations on states. No I/O."""

from collections import deque
from collections.abc import Callable

from wkvm_protocol.errors import RemoteProtocolError
from wkvm_protocol.messages import Message, StateChanges, StateExportBegin, StatsChanges

from wkvm_client.errors import ClientError


class Reply:
    """The answer to a ping, a question or an operation, once it is there.

    Attributes:
        request_id: the lane that it comes on; 0 for a ping.
        answer: what came, where something did.
        error: why nothing did.
        on_change: called when the answer is there or can no longer come, and meanwhile when the
            server takes more bytes.
    """

    __slots__ = ("answer", "error", "is_over", "on_change", "request_id")

    def __init__(self, request_id: int = 0) -> None:
        self.request_id = request_id
        self.is_over = False
        self.answer: Message | None = None
        self.error: ClientError | None = None
        self.on_change: Callable[[], None] | None = None

    def settle(self, answer: Message | None, error: ClientError | None = None) -> None:
        """Answer, or fail."""
        self.is_over = True
        self.answer = answer
        self.error = error
        self.changed()

    def changed(self) -> None:
        """Tell who waits that there is something to look at."""
        if self.on_change is not None:
            self.on_change()


class Download(Reply):
    """The bytes of a state as they come. ``answer`` is the StateBytesEnd.

    Attributes:
        begin: how many there are, and what of, once that is known.
        chunks: what came and was not taken.
        is_abandoned: whether nobody wants the rest.
    """

    __slots__ = ("_n_taken", "begin", "chunks", "is_abandoned")

    def __init__(self, request_id: int) -> None:
        super().__init__(request_id)
        self.begin: StateExportBegin | None = None
        self.chunks: deque[bytes] = deque()
        self.is_abandoned = False
        self._n_taken = 0

    def add(self, data: bytes) -> None:
        """Keep what came."""
        if not self.is_abandoned:
            self.chunks.append(data)
            self.changed()

    def take(self) -> tuple[bytes, int]:
        """The next chunk, and how many bytes more may be sent for it: none while few were taken."""
        data = self.chunks.popleft()
        self._n_taken += len(data)
        if self._n_taken < GRANT_BYTES or self.is_over:
            return data, 0
        n_bytes, self._n_taken = self._n_taken, 0
        return data, n_bytes

    def abandon(self) -> None:
        """Drop what came and what will come."""
        self.is_abandoned = True
        self.chunks.clear()


class Told(Reply):
    """What a watch has told and nobody has taken: never more than was granted.

    Attributes:
        messages: what came and was not taken.
        n_room: how many more may come.
    """

    __slots__ = ("messages", "n_room")

    def __init__(self, request_id: int) -> None:
        super().__init__(request_id)
        self.messages: deque[StateChanges | StatsChanges] = deque()
        self.n_room = MESSAGE_WINDOW

    def add(self, message: StateChanges | StatsChanges) -> None:
        """Keep what came.

        Raises:
            RemoteProtocolError: it is more than was granted.
        """
        if not self.n_room:
            raise RemoteProtocolError(f"{type(message).__name__}: more than was granted")
        self.n_room -= 1
        self.messages.append(message)
        self.changed()


MESSAGE_WINDOW = 4
"""Messages of a watch that may be on their way or wait for whoever takes them."""
WINDOW_BYTES = 2**21
"""Bytes of an export that may be on their way or wait for whoever takes them."""
GRANT_BYTES = 2**19
"""So many are granted at a time."""
