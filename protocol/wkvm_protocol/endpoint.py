"""What both sides of a connection share: reading, states, who is going away."""

from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import FrameReader
from wkvm_protocol.lanes import Lanes
from wkvm_protocol.messages import MAX_HELLO_FRAME_BYTES

MIN_FRAME_BYTES = MAX_HELLO_FRAME_BYTES
"""The smallest ``max_frame_bytes`` that either side may offer."""

ReceivedT = TypeVar("ReceivedT")


class ConnectionState(Enum):
    """How far a connection is. It only ever moves down this list."""

    NEW = "new"
    """No Hello yet."""
    HANDSHAKE = "handshake"
    """Hello went over and was not answered yet."""
    OPEN = "open"
    """HelloOk went over."""
    CLOSED = "closed"
    """Error went over, or a violation was found, or ``close`` was called."""


class Connection(Generic[ReceivedT]):
    """What both sides share. ``ReceivedT`` is what a side receives."""

    def __init__(self, max_frame_bytes: int) -> None:
        if not MIN_FRAME_BYTES <= max_frame_bytes < 2**32:
            raise ValueError(
                f"max_frame_bytes is {max_frame_bytes}, not in [{MIN_FRAME_BYTES}, {2**32})"
            )
        self._offered_frame_bytes = max_frame_bytes
        self._state = ConnectionState.NEW
        self._reader = FrameReader(MAX_HELLO_FRAME_BYTES)
        self._send_limit = MAX_HELLO_FRAME_BYTES
        self._lanes = Lanes()
        self._features = frozenset[str]()
        self._violation: RemoteProtocolError | None = None
        self._going_away = False
        self._peer_going_away = False

    @property
    def state(self) -> ConnectionState:
        """How far the connection is."""
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection was not closed."""
        return self._state is ConnectionState.OPEN

    @property
    def max_frame_bytes(self) -> int:
        """Longest payload that either side may send now."""
        return self._send_limit

    @property
    def features(self) -> frozenset[str]:
        """The features that are in use; none before the handshake is done."""
        return self._features

    @property
    def mid_frame(self) -> bool:
        """Whether the peer has started a frame and not finished it."""
        return self._reader.mid_frame

    @property
    def buffered_bytes(self) -> int:
        """How much of an unfinished frame is stored."""
        return self._reader.buffered_bytes

    @property
    def lanes(self) -> Lanes:
        """The open lanes. To be read only: ``len()``, ``in`` and iteration."""
        return self._lanes

    @property
    def going_away(self) -> bool:
        """Whether this side has sent GoAway."""
        return self._going_away

    @property
    def peer_going_away(self) -> bool:
        """Whether the peer has sent GoAway."""
        return self._peer_going_away

    @property
    def is_drained(self) -> bool:
        """Whether one side went away and no lane is open: time to close."""
        return (self._going_away or self._peer_going_away) and not self._lanes

    def close(self) -> None:
        """Note that the transport is gone. Received bytes are dropped from now on."""
        self._state = ConnectionState.CLOSED
        self._reader = FrameReader(MAX_HELLO_FRAME_BYTES)

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[ReceivedT]:
        """Take received bytes, return the messages that they complete.

        Raises:
            RemoteProtocolError: the peer broke a rule. Messages ahead of the violation in
                ``data`` are lost (``feed`` and ``next_message`` give them one by one);
                every later call raises the same error.
        """
        self.feed(data)
        messages: list[ReceivedT] = []
        while (message := self.next_message()) is not None:
            messages.append(message)
        return messages

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Store received bytes; call ``next_message`` until it gives None."""
        if self._state is not ConnectionState.CLOSED:
            self._reader.feed(data)

    def next_message(self) -> ReceivedT | None:
        """Return the next message, or None until more bytes are fed. Cost: one message's.

        Raises:
            RemoteProtocolError: the peer broke a rule; so does every later call.
        """
        if self._violation is not None:
            raise self._violation
        if self._state is ConnectionState.CLOSED:
            return None
        try:
            payload = self._reader.next_payload()
            return None if payload is None else self._receive(payload)
        except RemoteProtocolError as error:
            self._violation = error
            self.close()
            raise

    def _receive(self, payload: bytes) -> ReceivedT:
        """Decode a payload and take note of it."""
        raise NotImplementedError

    def _agree(self, max_frame_bytes: int, features: Iterable[str]) -> None:
        self._features = frozenset(features)
        self._reader.limit = max_frame_bytes
        self._send_limit = max_frame_bytes
        self._state = ConnectionState.OPEN

    def _must_be(self, state: ConnectionState, message: str) -> None:
        if self._state is not state:
            raise LocalProtocolError(f"{message} cannot be sent: connection is {self._state.value}")
