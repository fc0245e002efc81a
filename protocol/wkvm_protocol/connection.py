"""The protocol without I/O, both sides: bytes in, messages out; messages in, bytes out.

Whoever drives a connection reads from a transport into ``receive_data``, acts on the
messages, and writes what the ``send`` methods return. Clocks, keys and transports are
the driver's; the order of messages, what was agreed and which lanes are open are kept here.

A wrong *shape* is a violation, RemoteProtocolError, and ends the connection: another
type, too many fields, a request id that is open already. A wrong *value* in a request
(a top_p of NaN, an id that the vocabulary lacks) is a message like any other: the
server answers Failed on its lane.

On the server::

    try:
        messages = connection.receive_data(data)
    except RemoteProtocolError as error:
        transport.write(connection.send_error(error.code, str(error)))
        transport.close()
    for message in messages:
        match message:
            case Hello():
                transport.write(connection.send_hello_ok(...))
            case Refused():
                transport.write(connection.send(message.answer))
            ...
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from wkvm_protocol.codec import Codec
from wkvm_protocol.endpoint import MIN_FRAME_BYTES, Connection, ConnectionState
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.lanes import Lanes
from wkvm_protocol.messages import (
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    MAX_LANES,
    MAX_REQUEST_ID,
    PROTOCOL_VERSION,
    Cancel,
    ClientMessage,
    Credit,
    End,
    Error,
    Failed,
    Generate,
    GoAway,
    Hello,
    HelloOk,
    Logprobs,
    Ping,
    Pong,
    ServerMessage,
    Stats,
    StatsReply,
    Tokens,
    pack_ids,
    unpack_ids,
)
from wkvm_protocol.splitting import split_logprobs, split_tokens

_FROM_CLIENT = Codec(Ping, Pong, GoAway, Generate, Cancel, Credit, Stats)
_FROM_CLIENT_FIRST = Codec(Hello)
_FROM_SERVER = Codec(Ping, Pong, GoAway, Error, Tokens, Logprobs, End, Failed, StatsReply)
_FROM_SERVER_FIRST = Codec(HelloOk, Error)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request whose lane the rules of the connection refuse: send ``answer``, and that is all.

    Stands in the place of the Generate or Stats among the messages of a server.
    """

    answer: Failed


ServerEvent: TypeAlias = ClientMessage | Refused


class ServerConnection(Connection[ServerEvent]):
    """The server's side of one connection.

    Args:
        max_frame_bytes: the longest payload to take or send after the handshake; the
            smaller of this and the client's offer holds.
        max_lanes: how many lanes may be open; a request beyond becomes ``Refused``.
        features: names of features to agree to if offered.
    """

    def __init__(
        self,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_lanes: int = MAX_LANES,
        features: Iterable[str] = (),
    ) -> None:
        super().__init__(max_frame_bytes)
        self._max_lanes = max_lanes
        self._features = frozenset(features)
        self._hello: Hello | None = None
        self._error_sent = False

    @property
    def hello(self) -> Hello | None:
        """What the client offered, once it came."""
        return self._hello

    # --- receiving

    def _receive(self, payload: bytes) -> ServerEvent | None:
        if self._state is ConnectionState.NEW:
            return self._receive_hello(payload)
        if self._state is ConnectionState.HANDSHAKE:
            raise RemoteProtocolError("a message before HelloOk was awaited")
        message = _FROM_CLIENT.decode(payload)
        match message:
            case Generate():
                return self._open(message, self._lanes.open_generation(*_lane_of(message)))
            case Stats():
                return self._open(message, self._lanes.open_query(message.request_id))
            case Cancel() | Credit():
                return message if message.request_id in self._lanes else None
            case GoAway():
                self._peer_going_away = True
                return message
            case Ping() | Pong():
                return message
            case _:
                raise AssertionError(message)

    def _receive_hello(self, payload: bytes) -> Hello:
        hello = _FROM_CLIENT_FIRST.decode(payload)
        assert isinstance(hello, Hello)
        if hello.magic != MAGIC:
            raise RemoteProtocolError("Hello.magic: this is not the wkvm protocol")
        if hello.min_version > hello.max_version:
            raise RemoteProtocolError(
                f"Hello.min_version: {hello.min_version} exceeds max_version, {hello.max_version}"
            )
        if not hello.min_version <= PROTOCOL_VERSION <= hello.max_version:
            raise RemoteProtocolError(
                f"this server speaks version {PROTOCOL_VERSION}, "
                f"{hello.min_version} to {hello.max_version} was offered",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        if hello.max_frame_bytes < MIN_FRAME_BYTES:
            raise RemoteProtocolError(
                f"Hello.max_frame_bytes: {hello.max_frame_bytes} is below {MIN_FRAME_BYTES}"
            )
        self._hello = hello
        self._state = ConnectionState.HANDSHAKE
        return hello

    def _open(self, message: Generate | Stats, problem: str | None) -> ServerEvent:
        if problem is not None:
            raise RemoteProtocolError(f"{type(message).__name__}.request_id: {problem}")
        if self._peer_going_away:
            raise RemoteProtocolError("a new lane after GoAway")
        if self._going_away:
            return _refuse(message, ErrorCode.DRAINING, "the server is draining")
        if len(self._lanes) > self._max_lanes:
            return _refuse(
                message, ErrorCode.TOO_MANY_LANES, f"{self._max_lanes} lanes are open already"
            )
        return message

    # --- sending

    def send_hello_ok(
        self,
        *,
        ping_interval_ms: int,
        server: str,
        model: str,
        model_digest: str,
        layout_fingerprint: str,
        tokenizer_digest: str,
        vocab_size: int,
        eos_ids: Sequence[int],
        n_slots: int,
        max_model_len: int,
    ) -> bytes:
        """Accept the client. Version, features and limits are filled in from its Hello.

        Raises:
            LocalProtocolError: no Hello is waiting, or a field is not allowed.
        """
        self._must_be(ConnectionState.HANDSHAKE, "HelloOk")
        assert self._hello is not None
        agreed_frame_bytes = min(self._offered_frame_bytes, self._hello.max_frame_bytes)
        message = HelloOk(
            version=PROTOCOL_VERSION,
            features=tuple(f for f in dict.fromkeys(self._hello.features) if f in self._features),
            max_frame_bytes=agreed_frame_bytes,
            max_lanes=self._max_lanes,
            ping_interval_ms=ping_interval_ms,
            server=server,
            model=model,
            model_digest=model_digest,
            layout_fingerprint=layout_fingerprint,
            tokenizer_digest=tokenizer_digest,
            vocab_size=vocab_size,
            eos_ids=pack_ids(eos_ids),
            n_slots=n_slots,
            max_model_len=max_model_len,
        )
        frame = encode_frame(_FROM_SERVER_FIRST.encode(message), MAX_HELLO_FRAME_BYTES)
        self._agree(agreed_frame_bytes)
        return frame

    def send_error(self, code: ErrorCode, message: str) -> bytes:
        """Tell the client why the connection closes now; the transport is the driver's to close.

        Legal in every state, after a violation too. The text is cut to what fits.

        Returns:
            The frame, or nothing if the connection was closed without a violation.
        """
        closed = self._state is ConnectionState.CLOSED
        if closed and (self._violation is None or self._error_sent):
            return b""
        self._error_sent = True
        self.close()
        error = Error(code=code, retryable=code.retryable, message=_cut(message, MAX_TEXT))
        return encode_frame(_FROM_SERVER.encode(error), MAX_HELLO_FRAME_BYTES)

    def send_failed(
        self,
        request_id: int,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        retry_after_ms: int = 0,
    ) -> bytes:
        """Close a lane without success. ``retryable`` follows from the code; texts are cut."""
        return self.send(_failed(request_id, code, message, field, retry_after_ms))

    def send_tokens(
        self,
        lanes: Sequence[int],
        ids: Sequence[int],
        choices: Sequence[int] = (),
        counts: Sequence[int] = (),
    ) -> bytes:
        """Send the ids of one step for all lanes: see Tokens. No ``choices`` means all 0."""
        return self.send(
            Tokens(pack_ids(lanes), pack_ids(ids), pack_ids(choices), pack_ids(counts))
        )

    def send(self, message: ServerMessage) -> bytes:
        """Send any message but HelloOk.

        Returns:
            One frame; a Tokens or Logprobs too long for one becomes several.

        Raises:
            LocalProtocolError: the message is not legal now, names a lane or choice that is
                not open, or a field is not allowed. Nothing has changed.
        """
        if isinstance(message, Error):
            return self.send_error(ErrorCode(message.code), message.message)
        self._must_be(ConnectionState.OPEN, type(message).__name__)
        payload = _FROM_SERVER.encode(message)
        if len(payload) > self._send_limit:
            return self._send_in_parts(message, len(payload))
        frame = encode_frame(payload, self._send_limit)
        self._note_sent(message)
        return frame

    def _send_in_parts(self, message: ServerMessage, n_bytes: int) -> bytes:
        match message:
            case Tokens():
                parts: Sequence[ServerMessage] = split_tokens(message, self._send_limit)
            case Logprobs():
                parts = split_logprobs(message, self._send_limit)
            case _:
                raise LocalProtocolError(
                    f"{type(message).__name__} of {n_bytes} bytes; the limit is {self._send_limit}"
                )
        return b"".join(self.send(part) for part in parts)

    def _note_sent(self, message: ServerMessage) -> None:
        problem: str | None = None
        match message:
            case Tokens() | Logprobs():
                problem = _problem_with_output(self._lanes, message)
            case End():
                problem = self._lanes.end(message.request_id, message.choice)
            case Failed():
                problem = self._lanes.fail(message.request_id)
            case StatsReply():
                problem = self._lanes.reply(message.request_id)
            case GoAway():
                self._going_away = True
            case _:
                pass
        if problem is not None:
            raise LocalProtocolError(f"{type(message).__name__}: {problem}")


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

    def _closed_by_peer(self) -> bool:
        return self._error is not None

    def _receive(self, payload: bytes) -> ServerMessage:
        if self._state is not ConnectionState.OPEN:
            return self._receive_first(payload)
        message = _FROM_SERVER.decode(payload)
        problem: str | None = None
        match message:
            case Tokens() | Logprobs():
                problem = _problem_with_output(self._lanes, message)
            case End():
                problem = self._lanes.end(message.request_id, message.choice)
            case Failed():
                problem = self._lanes.fail(message.request_id)
            case StatsReply():
                problem = self._lanes.reply(message.request_id)
            case GoAway():
                self._peer_going_away = True
            case Error():
                self._receive_error(message)
            case Ping() | Pong():
                pass
            case _:
                raise AssertionError(message)
        if problem is not None:
            raise RemoteProtocolError(f"{type(message).__name__}: {problem}")
        return message

    def _receive_first(self, payload: bytes) -> HelloOk | Error:
        message = _FROM_SERVER_FIRST.decode(payload)
        if isinstance(message, Error):
            self._receive_error(message)
            return message
        assert isinstance(message, HelloOk)
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
        self._agree(message.max_frame_bytes)
        return message

    def _receive_error(self, message: Error) -> None:
        self._error = message
        n_bytes = self._reader.buffered_bytes
        self.close()
        if n_bytes:
            self._violation = RemoteProtocolError("bytes after Error")

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
        frame = encode_frame(_FROM_CLIENT_FIRST.encode(hello), MAX_HELLO_FRAME_BYTES)
        self._hello = hello
        self._state = ConnectionState.HANDSHAKE
        return frame

    def new_request_id(self) -> int:
        """A request id that is not open: 1, 2, 3 and so on, round again after 2^32 - 1."""
        while True:
            self._last_request_id = self._last_request_id % MAX_REQUEST_ID + 1
            if self._last_request_id not in self._lanes:
                return self._last_request_id

    def send(self, message: ClientMessage) -> bytes:
        """Send any message but Hello.

        Returns:
            One frame; nothing for a Cancel or Credit whose lane has closed meanwhile.

        Raises:
            LocalProtocolError: the message is not legal now (a new lane after GoAway from
                either side, a request id that is open), too long, or a field is not
                allowed. Nothing has changed.
        """
        self._must_be(ConnectionState.OPEN, type(message).__name__)
        payload = _FROM_CLIENT.encode(message)
        frame = encode_frame(payload, self._send_limit)
        problem: str | None = None
        match message:
            case Generate() | Stats():
                if self._going_away or self._peer_going_away:
                    raise LocalProtocolError("no new lane after GoAway")
                problem = (
                    self._lanes.open_generation(*_lane_of(message))
                    if isinstance(message, Generate)
                    else self._lanes.open_query(message.request_id)
                )
            case Cancel() | Credit():
                if message.request_id not in self._lanes:
                    return b""
            case GoAway():
                self._going_away = True
            case _:
                pass
        if problem is not None:
            raise LocalProtocolError(f"{type(message).__name__}: {problem}")
        return frame


MAX_TEXT = 4096
"""Characters in the text of an Error, a Failed or a GoAway."""


def _lane_of(message: Generate) -> tuple[int, int]:
    return message.request_id, message.sampling.n


def _problem_with_output(lanes: Lanes, message: Tokens | Logprobs) -> str | None:
    if isinstance(message, Logprobs):
        return lanes.problem_with_choice(message.request_id, message.choice)
    return lanes.problem_with_tokens(unpack_ids(message.lanes), unpack_ids(message.choices))


def _cut(text: str, n: int) -> str:
    return text if len(text) <= n else text[: n - 1] + "…"


def _failed(
    request_id: int, code: ErrorCode, message: str, field: str, retry_after_ms: int
) -> Failed:
    return Failed(
        request_id=request_id,
        code=code,
        retryable=code.retryable,
        message=_cut(message, MAX_TEXT),
        field=_cut(field, 256),
        retry_after_ms=retry_after_ms,
    )


def _refuse(message: Generate | Stats, code: ErrorCode, why: str) -> Refused:
    return Refused(_failed(message.request_id, code, why, "", 0))
