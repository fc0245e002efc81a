"""The client's side of a connection, without I/O: see ``wkvm_protocol.connection``."""

from collections.abc import Sequence

from wkvm_protocol.codec import Codec
from wkvm_protocol.endpoint import MIN_FRAME_BYTES, Connection, ConnectionState
from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    FROM_CLIENT,
    FROM_SERVER,
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    MAX_REQUEST_ID,
    PREFIX_FEATURE,
    PROTOCOL_VERSION,
    Cancel,
    ClientMessage,
    Credit,
    Error,
    GoAway,
    Hello,
    HelloOk,
    Interrupt,
    Opening,
    Ping,
    Pong,
    PromptHint,
    ServerMessage,
    StateBytesEnd,
    StateChunk,
    StateCredit,
)

_FIRST: Codec[HelloOk | Error] = Codec(HelloOk, Error)
_LATER: Codec[ServerMessage] = Codec(*FROM_SERVER)
_SENT_FIRST = Codec(Hello)
_SENT: Codec[ClientMessage] = Codec(*FROM_CLIENT)


class ClientConnection(Connection[ServerMessage]):
    """The client's side of one connection.

    Args:
        max_frame_bytes: the longest payload to take or send after the handshake; the
            smaller of this and the server's limit holds.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes)
        self._hello: Hello | None = None
        self._hello_ok: HelloOk | None = None
        self._error: Error | None = None
        self._last_request_id = 0

    @property
    def hello_ok(self) -> HelloOk | None:
        """What was agreed and what is served, once the connection is open."""
        return self._hello_ok

    @property
    def error(self) -> Error | None:
        """Why the server closed the connection, if it said so."""
        return self._error

    # --- receiving

    def _receive(self, payload: bytes) -> ServerMessage:
        if self._state is not ConnectionState.OPEN:
            return self._receive_first(payload)
        message = _LATER.decode(payload)
        if isinstance(message, Error):
            self._receive_error(message)
            return message
        if isinstance(message, GoAway):
            self._peer_going_away = True
        problem = self._lanes.apply(message)
        if problem is not None:
            raise RemoteProtocolError(f"{type(message).__name__}: {problem}")
        return message

    def _receive_first(self, payload: bytes) -> HelloOk | Error:
        message = _FIRST.decode(payload)
        if isinstance(message, Error):
            self._receive_error(message)
            return message
        hello = self._hello
        if hello is None:
            raise RemoteProtocolError("HelloOk before Hello")
        if not hello.min_version <= message.version <= hello.max_version:
            raise RemoteProtocolError(f"HelloOk.version: {message.version} was not offered")
        if not MIN_FRAME_BYTES <= message.max_frame_bytes <= hello.max_frame_bytes:
            raise RemoteProtocolError(
                f"HelloOk.max_frame_bytes: {message.max_frame_bytes} is not in "
                f"[{MIN_FRAME_BYTES}, {hello.max_frame_bytes}]"
            )
        if not frozenset(message.features) <= frozenset(hello.features):
            raise RemoteProtocolError("HelloOk.features: one was not offered")
        self._hello_ok = message
        self._agree(message.max_frame_bytes, message.features)
        return message

    def _receive_error(self, message: Error) -> None:
        self._error = message
        self.close()

    # --- sending

    def send_hello(
        self, *, api_key: str = "", client: str = "", features: Sequence[str] = ()
    ) -> bytes:
        """Start the handshake. Nothing else may be sent until HelloOk has come."""
        self._must_be(ConnectionState.NEW, "Hello")
        hello = Hello(
            magic=MAGIC,
            min_version=PROTOCOL_VERSION,
            max_version=PROTOCOL_VERSION,
            features=tuple(features),
            max_frame_bytes=self._offered_frame_bytes,
            api_key=api_key,
            client=client,
        )
        frame = encode_frame(_SENT_FIRST.encode(hello), MAX_HELLO_FRAME_BYTES)
        self._hello = hello
        self._state = ConnectionState.HANDSHAKE
        return frame

    def new_request_id(self) -> int:
        """A request id that is not open: 1, 2, 3 and so on, round again after 2^32 - 1."""
        while True:
            self._last_request_id = self._last_request_id % MAX_REQUEST_ID + 1
            if self._last_request_id not in self._lanes:
                return self._last_request_id

    def room(self, request_id: int) -> int:
        """How many bytes of a state may be sent on a lane now; 0 where it takes none."""
        return self._lanes.room_up(request_id)

    def send(self, message: ClientMessage) -> bytes:
        """Send any message but Hello.

        Returns:
            One frame; nothing for what is said within a lane that has closed meanwhile.

        Raises:
            LocalProtocolError: the message is not legal now (a new lane after GoAway from
                either side, a request id that is open, a feature that was not agreed), too
                long, or a field is not allowed. Nothing has changed.
        """
        self._must_be(ConnectionState.OPEN, type(message).__name__)
        payload = _SENT.encode(message)
        frame = encode_frame(payload, self._send_limit)
        problem: str | None = None
        match message:
            case Cancel() | Credit():
                if message.request_id not in self._lanes:
                    return b""
            case Interrupt() | StateChunk() | StateBytesEnd() | StateCredit():
                if message.request_id not in self._lanes:
                    return b""
                problem = self._lanes.apply_from_client(message)
            case GoAway():
                self._going_away = True
            case Hello() | Ping() | Pong():
                pass
            case PromptHint():
                if PREFIX_FEATURE not in self._features:
                    raise LocalProtocolError(f"the feature {PREFIX_FEATURE} was not agreed")
            case _:
                problem = self._open(message)
        if problem is not None:
            raise LocalProtocolError(f"{type(message).__name__}: {problem}")
        return frame

    def _open(self, message: Opening) -> str | None:
        """Note a new lane, or say what is wrong with its number."""
        if self._going_away or self._peer_going_away:
            raise LocalProtocolError("no new lane after GoAway")
        feature = FEATURES.get(type(message))
        if feature is not None and feature not in self._features:
            raise LocalProtocolError(f"the feature {feature} was not agreed")
        return self._lanes.open(message)
