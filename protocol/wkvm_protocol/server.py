"""The server's side of a connection, without I/O: see ``wkvm_protocol.connection``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from wkvm_protocol.codec import Codec
from wkvm_protocol.endpoint import MIN_FRAME_BYTES, Connection, ConnectionState
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    FROM_CLIENT,
    FROM_SERVER,
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    MAX_LANES,
    MAX_LONG_TEXT,
    MAX_SHORT_TEXT,
    PROTOCOL_VERSION,
    TENANT_FEATURE,
    Cancel,
    ClientMessage,
    Credit,
    Error,
    Failed,
    GoAway,
    Hello,
    HelloOk,
    Interrupt,
    Logprobs,
    Opening,
    Ping,
    Pong,
    PromptHint,
    ServerMessage,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateMoved,
    StateTransfer,
    Tokens,
    pack_ids,
)
from wkvm_protocol.splitting import split_logprobs, split_tokens

_FIRST = Codec(Hello)
_LATER: Codec[ClientMessage] = Codec(*FROM_CLIENT)
_SENT_FIRST = Codec(HelloOk)
_SENT: Codec[ServerMessage] = Codec(*FROM_SERVER)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request whose lane the rules of the connection refuse: send ``answer``, and that is all.

    Stands in the place of what would have opened the lane, among the messages of a server.
    """

    answer: Failed


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that came too late to mean anything: for instance a Cancel for a closed lane.

    Stands in its place, so that whoever takes a few messages at a time counts it too.
    """


IGNORED = Ignored()


ServerEvent: TypeAlias = ClientMessage | Refused | Ignored


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
        self._offered_features = frozenset(features)
        self._hello: Hello | None = None
        self._error_sent = False
        self._retry_after_ms = 0
        self._refused: set[int] = set()

    @property
    def hello(self) -> Hello | None:
        """What the client offered, once it came."""
        return self._hello

    # --- receiving

    def _receive(self, payload: bytes) -> ServerEvent:
        if self._state is ConnectionState.NEW:
            return self._receive_hello(payload)
        if self._state is ConnectionState.HANDSHAKE:
            raise RemoteProtocolError("a message before HelloOk was awaited")
        message = _LATER.decode(payload)
        feature = FEATURES.get(type(message))
        if feature is not None and feature not in self._features:
            raise RemoteProtocolError(
                f"{type(message).__name__}: the feature {feature} was not agreed"
            )
        match message:
            case Cancel() | Credit():
                return message if self._is_at_work(message.request_id) else IGNORED
            case Interrupt() | StateChunk() | StateBytesEnd() | StateCredit():
                return self._receive_within(message)
            case GoAway():
                self._peer_going_away = True
                return message
            case Ping() | Pong():
                return message
            case PromptHint():
                if message.request_id in self._lanes:
                    why = f"request id {message.request_id} is open already"
                    raise RemoteProtocolError(f"PromptHint.request_id: {why}")
                return message
            case Hello():
                raise AssertionError("the codec takes no second Hello")
            case _:
                return self._open(message, self._lanes.open(message))

    def _receive_within(self, message: Interrupt | StateTransfer) -> ServerEvent:
        if not self._is_at_work(message.request_id):
            return IGNORED
        problem = self._lanes.apply_from_client(message)
        if problem is not None:
            raise RemoteProtocolError(f"{type(message).__name__}: {problem}")
        return message

    def _receive_hello(self, payload: bytes) -> Hello:
        hello = _FIRST.decode(payload)
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

    def _open(self, message: Opening, problem: str | None) -> ServerEvent:
        if problem is not None:
            raise RemoteProtocolError(f"{type(message).__name__}.request_id: {problem}")
        if self._peer_going_away:
            raise RemoteProtocolError("a new lane after GoAway")
        if self._going_away:
            return self._refuse(message, ErrorCode.DRAINING, "the server is draining")
        if len(self._lanes) > self._max_lanes:
            why = f"{self._max_lanes} lanes are open already"
            return self._refuse(message, ErrorCode.TOO_MANY_LANES, why)
        return message

    def _refuse(self, message: Opening, code: ErrorCode, why: str) -> Refused:
        self._refused.add(message.request_id)
        return Refused(failure(message.request_id, code, why, retry_after_ms=self._retry_after_ms))

    def _is_at_work(self, request_id: int) -> bool:
        return request_id in self._lanes and request_id not in self._refused

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
        tenant: str = "",
    ) -> bytes:
        """Accept the client. Version, features and limits are filled in from its Hello.

        Args:
            tenant: whose the key is; told to a client that has agreed to hear it.

        Raises:
            LocalProtocolError: no Hello is waiting, or a field is not allowed.
        """
        self._must_be(ConnectionState.HANDSHAKE, "HelloOk")
        assert self._hello is not None
        agreed_frame_bytes = min(self._offered_frame_bytes, self._hello.max_frame_bytes)
        features = tuple(
            f for f in dict.fromkeys(self._hello.features) if f in self._offered_features
        )
        message = HelloOk(
            version=PROTOCOL_VERSION,
            features=features,
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
            tenant=tenant if TENANT_FEATURE in features else "",
        )
        frame = encode_frame(_SENT_FIRST.encode(message), MAX_HELLO_FRAME_BYTES)
        self._agree(agreed_frame_bytes, message.features)
        return frame

    def room(self, request_id: int) -> int:
        """How many bytes of a state may be sent on a lane now; 0 where it takes none."""
        return self._lanes.room_down(request_id)

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
        error = Error(code=code, retryable=code.retryable, message=_cut(message, MAX_LONG_TEXT))
        return encode_frame(_SENT.encode(error), MAX_HELLO_FRAME_BYTES)

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
        payload = _SENT.encode(message)
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
        if isinstance(message, GoAway):
            self._going_away = True
            self._retry_after_ms = message.retry_after_ms
            return
        problem = self._lanes.apply(message)
        if problem is not None:
            raise LocalProtocolError(f"{type(message).__name__}: {problem}")
        if isinstance(message, Failed | StateMoved):
            self._refused.discard(message.request_id)


def _cut(text: str, n: int) -> str:
    """Make any text one that can be sent."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= n else text[: n - 1] + "…"


def packed_tokens(
    lanes: Sequence[int],
    ids: Sequence[int],
    choices: Sequence[int] = (),
    counts: Sequence[int] = (),
) -> Tokens:
    """The ids of one step for all lanes, packed: see Tokens.

    No ``choices`` means all 0, no ``counts`` all 1. Choices that are all 0 are left out: written
    out they cost more.
    """
    return Tokens(
        pack_ids(lanes),
        pack_ids(ids),
        pack_ids(choices) if any(choices) else b"",
        pack_ids(counts),
    )


def failure(
    request_id: int, code: ErrorCode, message: str, *, field: str = "", retry_after_ms: int = 0
) -> Failed:
    """A Failed whose ``retryable`` follows from the code, and whose texts are cut to what fits."""
    return Failed(
        request_id=request_id,
        code=code,
        retryable=code.retryable,
        message=_cut(message, MAX_LONG_TEXT),
        field=_cut(field, MAX_SHORT_TEXT),
        retry_after_ms=retry_after_ms,
    )
