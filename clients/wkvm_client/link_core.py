"""One connection from HELLO to its end, without I/O: what both clients share.

A driver feeds what it reads into ``receive``, hands ``send`` a function that writes, and looks at
``error`` afterwards: once set, it is over, and so is every lane, ping and operation on it.
"""

from collections.abc import Callable
from functools import partial

import msgspec
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.messages import (
    FEATURES,
    PREFIX_FEATURE,
    TENANT_FEATURE,
    Cancel,
    Credit,
    Embedding,
    End,
    EndOn,
    Error,
    Failed,
    GenerateOn,
    GoAway,
    HelloOk,
    Interrupt,
    Logprobs,
    Ping,
    Pong,
    PromptHint,
    Reused,
    ServerMessage,
    StateBytesEnd,
    StateChanges,
    StateChunk,
    StateCredit,
    StateExportBegin,
    StateLineagePage,
    StateMoved,
    StateOperation,
    StatePage,
    StateText,
    StateVersions,
    Stats,
    StatsChanges,
    StatsReply,
    Tokens,
    Watch,
)

from wkvm_client.drafts import Draft, Sent, check_features, refusal
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    ConnectFailedError,
    ConnectionLostError,
    GoingAwayError,
    InvalidParameterError,
    StateMovedError,
    TooManyLanesError,
    error_of,
)
from wkvm_client.lanes import Lane
from wkvm_client.open_lanes import OpenLanes
from wkvm_client.operations import Operations
from wkvm_client.pings import MAX_MISSES, Pings
from wkvm_client.replies import Reply, Told

CLIENT_NAME = "wkvm_client"
OFFERED = (*dict.fromkeys(FEATURES.values()), TENANT_FEATURE)


class LinkCore:
    """The state of one connection.

    Args:
        send: writes whole frames, or queues them.
        is_behind: whether the server has not taken all of that yet.

    Attributes:
        operations: the questions and operations that are open.
        hello: what the server said of itself, once it did.
        going_away: the server's GoAway, once it came.
        error: why the connection is over, once it is.
        was_of_use: whether the server has answered anything after HELLO.
    """

    def __init__(self, send: Callable[[bytes], None], is_behind: Callable[[], bool]) -> None:
        self._send = send
        self._is_behind = is_behind
        self._wire = ClientConnection()
        self._lanes = OpenLanes()
        self.operations = Operations(self._wire, self._write)
        self._pings = Pings()
        self._is_receiving = False
        self._due: list[Callable[[], None]] = []
        self.was_of_use = False
        self.hello: HelloOk | None = None
        self.going_away: GoAway | None = None
        self.error: ClientError | None = None

    @property
    def takes_lanes(self) -> bool:
        """Whether a new request may go here."""
        return self.hello is not None and self.going_away is None and self.error is None

    @property
    def is_drained(self) -> bool:
        """Whether the server is going away and nothing is left to wait for."""
        return self.going_away is not None and not self._wire.lanes and not self._pings.replies

    @property
    def ping_interval_s(self) -> float:
        """How long silence may last before a ping; 0 for ever."""
        return 0.0 if self.hello is None else self.hello.ping_interval_ms / 1000

    # --- asking ---------------------------------------------------------------------------

    def start(self, api_key: str) -> None:
        """Send HELLO.

        Raises:
            InvalidParameterError: the key is longer than the protocol allows.
        """
        try:
            frame = self._wire.send_hello(api_key=api_key, client=CLIENT_NAME, features=OFFERED)
        except LocalProtocolError:
            # the text of the cause could show the key
            raise InvalidParameterError("api_key: not allowed", field="api_key") from None
        self._send(frame)

    def open(self, draft: Draft) -> Lane:
        """Send a request.

        Raises:
            ClientError: the connection is over or going away, has all its lanes, or the
                request cannot be sent. Nothing was sent.
        """
        message = draft.numbered(self._new_request_id())
        frame = self._frame(message, draft.hint)
        lane = Lane(message.request_id, draft, self)
        self._lanes.add(lane)
        self._send(frame)
        return lane

    def cancel(self, lane: Lane) -> None:
        """Ask the server to end a lane. Its end still comes; nothing happens the second time."""
        if lane.cancelled or lane.is_over:
            return
        lane.cancelled = True
        if self.error is not None or lane.cut is not None:
            return
        self._write(self._wire.send(Cancel(lane.request_id)))

    def interrupt(self, lane: Lane, keep: int | None) -> None:
        """Ask the server to end a lane now and to save what it has."""
        if not lane.is_over and self.error is None and isinstance(lane.draft.message, GenerateOn):
            self._write(self._wire.send(Interrupt(lane.request_id, keep)))

    def reopen(self, lane: Lane) -> None:
        """Go on here with a lane that was cut off elsewhere.

        Raises:
            ClientError: as ``open``.
        """
        message = lane.next_leg(self._new_request_id())
        frame = self._frame(message, lane.draft.hint)
        lane.move(self, message)
        self._lanes.add(lane)
        self._send(frame)
        if lane.cancelled:
            self._write(self._wire.send(Cancel(lane.request_id)))

    def give_up(self, lane: Lane, error: ClientError) -> None:
        """Cancel a lane, and fail it without waiting for its end."""
        if lane.is_over:
            return
        self.cancel(lane)
        lane.fail(error)
        if not self._lanes.holds(lane):
            return
        # the request id stays taken until the server has ended the lane
        self._lanes.add(lane.heir())

    def watch(self, message: Watch) -> Told:
        """Send what opens a watch, whatever its number.

        Raises:
            ClientError: as ``open``.
        """
        told = self.ask(message)
        assert isinstance(told, Told)
        return told

    def ask(self, message: Stats | StateOperation | Watch) -> Reply:
        """Send a question, an operation or a watch, whatever its number.

        Raises:
            ClientError: as ``open``.
        """
        request_id = self._new_request_id()
        frame = self._frame(msgspec.structs.replace(message, request_id=request_id))
        reply = self.operations.open(request_id, message)
        self._send(frame)
        return reply

    def ping(self) -> Reply:
        """Send a ping.

        Raises:
            ClientError: the connection is over.
        """
        if self.error is not None:
            raise self.error.again()
        nonce, reply = self._pings.ask()
        self._send(self._wire.send(Ping(nonce)))
        return reply

    def forget(self, reply: Reply) -> None:
        """Stop waiting for a pong. A query, however, keeps its lane until it is answered."""
        self._pings.forget(reply)

    def tick(self) -> None:
        """To be called once per ``ping_interval_s`` by whoever cannot tell silence itself."""
        if self._pings.is_quiet():
            self.silence()

    def silence(self) -> None:
        """Note that nothing was heard for ``ping_interval_s``: ask, or give up asking."""
        if self.error is not None:
            return
        if self._pings.missed():
            self.close(
                ConnectionLostError(
                    f"{MAX_MISSES} pings {self.ping_interval_s:g} s apart were not answered"
                )
            )
            return
        self._send(self._wire.send(Ping(0)))

    def _frame(self, message: Sent, hint: PromptHint | None = None) -> bytes:
        """A message that opens a lane, as it is sent, and before it what is known of its prompt.

        Raises:
            ClientError: it cannot be sent.
        """
        check_features(message, self._wire.features)
        try:
            if hint is not None and PREFIX_FEATURE in self._wire.features:
                hint = msgspec.structs.replace(hint, request_id=message.request_id)
                return self._wire.send(hint) + self._wire.send(message)
            return self._wire.send(message)
        except LocalProtocolError as error:
            raise refusal(message, error, max_frame_bytes=self._wire.max_frame_bytes) from None

    def _new_request_id(self) -> int:
        if self.error is not None:
            raise self.error.again()
        if self.going_away is not None:
            raise self.gone()
        assert self.hello is not None, "a request before the handshake"
        if len(self._wire.lanes) >= self.hello.max_lanes:
            raise TooManyLanesError(f"{self.hello.max_lanes} lanes are open already")
        return self._wire.new_request_id()

    def grant(self, lane: Lane, n_ids: int) -> None:
        """Let the server send more ids."""
        if self.error is None:
            self._write(self._wire.send(Credit(lane.request_id, n_ids)))

    def _write(self, frame: bytes) -> None:
        # there is nothing to send to a lane that the server has closed
        if frame:
            self._send(frame)

    # --- being told -----------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the server. What is wrong with them ends up in ``error``."""
        self._pings.heard = True
        wire = self._wire
        self._is_receiving = True
        try:
            wire.feed(data)
            while self.error is None and (message := wire.next_message()) is not None:
                self._handle(message)
        except RemoteProtocolError as error:
            self.close(BadPeerError(f"the server broke the protocol: {error}"))
        finally:
            self._is_receiving = False
        if self._due:
            due = self._due.copy()
            self._due.clear()
            for callback in due:
                callback()

    def when_received(self, callback: Callable[[], None]) -> None:
        """Call back when all that has come with what comes now is taken in."""
        if self._is_receiving:
            self._due.append(callback)
        else:
            callback()

    def hook(self, callback: Callable[[], None]) -> Callable[[], None]:
        """What to call for each id that comes, so that ``callback`` is called as above."""
        # ids come in nothing but ``receive``, and there is no cheaper call than this one
        return partial(self._due.append, callback)

    def end_of_stream(self, cause: Exception | None = None) -> None:
        """Note that the transport has ended, whoever ended it."""
        if self.error is not None:
            return
        why = f": {cause}" if cause is not None else ""
        error: ClientError
        if self.hello is None:
            error = ConnectFailedError(f"the connection ended before HELLO was answered{why}")
        elif self.going_away is not None and not self._wire.lanes:
            error = self.gone()
        else:
            error = ConnectionLostError(f"the connection was lost{why}")
        error.__cause__ = cause
        self.close(error)

    def close(self, error: ClientError) -> None:
        """End the connection and everything on it. Only the first reason counts."""
        if self.error is not None:
            return
        self.error = error
        self._wire.close()
        lanes, pings = self._lanes.clear(), self._pings.replies
        self._pings.replies = {}
        for lane in lanes:
            lane.lose(error)
        self.operations.fail(error)
        for reply in pings.values():
            reply.settle(None, error)

    def gone(self) -> GoingAwayError:
        """What to tell somebody who wants a new lane after the server's GoAway."""
        message = self.going_away or GoAway()
        return GoingAwayError(
            message.message or "the server takes no new lanes on this connection",
            retry_after_ms=message.retry_after_ms,
        )

    def _handle(self, message: ServerMessage) -> None:
        match message:
            case Tokens():
                self.was_of_use = True
                self._lanes.take(message)
            case End() | EndOn():
                self.was_of_use = True
                lane = self._lanes[message.request_id]
                lane.end(message)
                if message.request_id not in self._wire.lanes:
                    self._lanes.drop(message.request_id)
            case Failed():
                self.was_of_use = True
                self._failed(message)
            case Logprobs() | Embedding():
                self._lanes[message.request_id].add_told(message)
            case Reused():
                self._lanes[message.request_id].tracks[message.choice].n_reused = message.n_tokens
            case Ping():
                self._answer(message)
            case Pong():
                self.was_of_use = True
                self._pings.answer(message.nonce)
            case StatsReply() | StateVersions() | StatePage() | StateText() | StateLineagePage():
                self.was_of_use = True
                self.operations.settle(message.request_id, message)
            case StateChanges() | StatsChanges():
                self.was_of_use = True
                self.operations.tell(message)
            case StateExportBegin() | StateChunk() | StateBytesEnd() | StateCredit():
                if not self.operations.move_bytes(message):
                    self._move_bytes(message)
            case StateMoved():
                self.was_of_use = True
                error = StateMovedError(message.message)
                error.target, error.state = message.target, message.state
                self._refuse(message.request_id, error)
            case GoAway():
                self.going_away = message
            case HelloOk():
                self.hello = message
            case Error():
                self.close(error_of(message.code, message.message, retryable=message.retryable))

    def _answer(self, ping: Ping) -> None:
        if not self._pings.may_answer(is_behind=self._is_behind()):
            self.close(BadPeerError("the server sends pings and takes no answers"))
            return
        self._send(self._wire.send(Pong(ping.nonce)))

    def _failed(self, message: Failed) -> None:
        error = error_of(
            message.code,
            message.message,
            retryable=message.retryable,
            field=message.field,
            retry_after_ms=message.retry_after_ms,
        )
        self._refuse(message.request_id, error)

    def _refuse(self, request_id: int, error: ClientError) -> None:
        if not self.operations.settle(request_id, None, error):
            self._lanes[request_id].refuse(error)
            self._lanes.drop(request_id)

    def _move_bytes(
        self, message: StateExportBegin | StateChunk | StateBytesEnd | StateCredit
    ) -> None:
        """Take bytes of a state that a request ends with, or send some that it begins with."""
        lane = self._lanes[message.request_id]
        if not isinstance(message, StateCredit):
            lane.add_state(message)
            return
        data = lane.unsent[: self.operations.room(lane.request_id)]
        lane.unsent = lane.unsent[len(data) :]
        if data:
            self.operations.upload(lane.request_id, data)
            if not lane.unsent:
                self.operations.end_upload(lane.request_id)
