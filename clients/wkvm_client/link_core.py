"""One connection from HELLO to its end, without I/O: what both clients share.

A driver feeds what it reads into ``receive``, hands ``send`` a function that writes,
and looks at ``error`` afterwards: once set, the connection is over and every lane,
ping and query on it has ended with that error.
"""

from collections.abc import Callable
from functools import partial

from wkvm_protocol.codec import token_entries
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.messages import (
    GRAMMAR_FEATURE,
    SCORE_FEATURE,
    Cancel,
    Credit,
    End,
    Error,
    Failed,
    GenerateConstrained,
    GoAway,
    HelloOk,
    Logprobs,
    Ping,
    Pong,
    Score,
    ServerMessage,
    Stats,
    StatsReply,
    Tokens,
    unpack_ids,
)

from wkvm_client.drafts import Draft, refusal
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    ConnectFailedError,
    ConnectionLostError,
    GoingAwayError,
    InvalidParameterError,
    TooManyLanesError,
    UnsupportedOperationError,
    error_of,
)
from wkvm_client.lanes import Lane, Track

MAX_MISSES = 2
"""Pings in a row that may go without any word from the server."""
MAX_UNSENT_PONGS = 2**14
"""Answers to pings that may wait to be sent. More than the pings of one read."""
CLIENT_NAME = "wkvm_client"
FEATURES = (GRAMMAR_FEATURE, SCORE_FEATURE)


class Reply:
    """The answer to a ping or a query, once it is there.

    Attributes:
        values: what a query returned.
        on_over: called once when the answer came or can no longer come.
    """

    __slots__ = ("error", "is_over", "on_over", "values")

    def __init__(self) -> None:
        self.is_over = False
        self.values: dict[str, int] = {}
        self.error: ClientError | None = None
        self.on_over: Callable[[], None] | None = None

    def settle(self, values: dict[str, int], error: ClientError | None) -> None:
        """Answer, or fail."""
        self.is_over = True
        self.values = values
        self.error = error
        if self.on_over is not None:
            self.on_over()


class LinkCore:
    """The state of one connection.

    Args:
        send: writes bytes, or queues them; called with whole frames.
        is_behind: whether the server has not taken all of that yet.

    Attributes:
        hello: what the server said of itself, once it did.
        going_away: the server's GoAway, once it came.
        error: why the connection is over, once it is.
        was_of_use: whether the server has answered anything after HELLO.
    """

    def __init__(self, send: Callable[[bytes], None], is_behind: Callable[[], bool]) -> None:
        self._send = send
        self._is_behind = is_behind
        self._n_unsent_pongs = 0
        self._wire = ClientConnection()
        self._lanes: dict[int, Lane] = {}
        self._first_tracks: dict[int, Track] = {}
        self._queries: dict[int, Reply] = {}
        self._pings: dict[int, Reply] = {}
        self._n_pings = 0
        self._heard = True
        self._n_misses = 0
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
        return self.going_away is not None and not self._wire.lanes and not self._pings

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
            frame = self._wire.send_hello(api_key=api_key, client=CLIENT_NAME, features=FEATURES)
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
        if isinstance(message, GenerateConstrained) and GRAMMAR_FEATURE not in self._wire.features:
            raise UnsupportedOperationError("the server takes no grammars", field="grammar")
        if isinstance(message, Score) and SCORE_FEATURE not in self._wire.features:
            raise UnsupportedOperationError("the server does not score texts")
        try:
            frame = self._wire.send(message)
        except LocalProtocolError as error:
            raise refusal(message, error, max_frame_bytes=self._wire.max_frame_bytes) from None
        lane = Lane(message.request_id, draft, self)
        self._lanes[message.request_id] = lane
        self._first_tracks[message.request_id] = lane.tracks[0]
        self._send(frame)
        return lane

    def cancel(self, lane: Lane) -> None:
        """Ask the server to end a lane. Its end still comes; nothing happens the second time."""
        if lane.cancelled or lane.is_over or self.error is not None:
            return
        lane.cancelled = True
        self._write(self._wire.send(Cancel(lane.request_id)))

    def give_up(self, lane: Lane, error: ClientError) -> None:
        """Cancel a lane, and fail it without waiting for its end."""
        if lane.is_over:
            return
        self.cancel(lane)
        lane.fail(error)
        # the request id stays taken until the server has ended the lane
        heir = lane.heir()
        self._lanes[lane.request_id] = heir
        self._first_tracks[lane.request_id] = heir.tracks[0]

    def query_stats(self) -> Reply:
        """Ask for counters.

        Raises:
            ClientError: the connection is over or going away, or has all its lanes.
        """
        request_id = self._new_request_id()
        frame = self._wire.send(Stats(request_id))
        reply = self._queries[request_id] = Reply()
        self._send(frame)
        return reply

    def ping(self) -> Reply:
        """Send a ping.

        Raises:
            ClientError: the connection is over.
        """
        if self.error is not None:
            raise self.error.again()
        self._n_pings += 1
        reply = self._pings[self._n_pings] = Reply()
        self._send(self._wire.send(Ping(self._n_pings)))
        return reply

    def forget(self, reply: Reply) -> None:
        """Stop waiting for a pong. A query, however, keeps its lane until it is answered."""
        for nonce, pending in self._pings.items():
            if pending is reply:
                del self._pings[nonce]
                return

    def tick(self) -> None:
        """To be called once per ``ping_interval_s`` by whoever cannot tell silence itself."""
        if self._heard:
            self._heard = False
            self._n_misses = 0
        else:
            self.silence()

    def silence(self) -> None:
        """Note that nothing was heard for ``ping_interval_s``: ask, or give up asking."""
        if self.error is not None:
            return
        if self._heard:
            self._heard = False
            self._n_misses = 0
        if self._n_misses == MAX_MISSES:
            self.close(
                ConnectionLostError(
                    f"{MAX_MISSES} pings {self.ping_interval_s:g} s apart were not answered"
                )
            )
            return
        self._n_misses += 1
        self._send(self._wire.send(Ping(0)))

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
        self._heard = True
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
        lanes, queries, pings = self._lanes, self._queries, self._pings
        self._lanes, self._queries, self._pings = {}, {}, {}
        self._first_tracks = {}
        for lane in lanes.values():
            lane.fail(error)
        for reply in (*queries.values(), *pings.values()):
            reply.settle({}, error)

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
                self._tokens(message)
            case End():
                self.was_of_use = True
                lane = self._lanes[message.request_id]
                lane.end(message)
                if message.request_id not in self._wire.lanes:
                    self._drop(message.request_id)
            case Failed():
                self.was_of_use = True
                self._failed(message)
            case Logprobs():
                self._lanes[message.request_id].add_logprobs(message)
            case Ping():
                self._answer(message)
            case Pong():
                self.was_of_use = True
                reply = self._pings.pop(message.nonce, None)
                if reply is not None:
                    reply.settle({}, None)
            case StatsReply():
                self.was_of_use = True
                self._queries.pop(message.request_id).settle(message.values, None)
            case GoAway():
                self.going_away = message
            case HelloOk():
                self.hello = message
            case Error():
                self.close(error_of(message.code, message.message, retryable=message.retryable))

    def _answer(self, ping: Ping) -> None:
        self._n_unsent_pongs = self._n_unsent_pongs + 1 if self._is_behind() else 0
        if self._n_unsent_pongs > MAX_UNSENT_PONGS:
            self.close(BadPeerError("the server sends pings and takes no answers"))
            return
        self._send(self._wire.send(Pong(ping.nonce)))

    def _tokens(self, message: Tokens) -> None:
        """Append ids to their tracks: the hot path. The connection has checked lanes."""
        if not message.choices and not message.counts:
            lanes, ids = unpack_ids(message.lanes), unpack_ids(message.ids)
            first_tracks = self._first_tracks
            for request_id, token_id in zip(lanes, ids, strict=True):
                track = first_tracks[request_id]
                lane = track.lane
                if lane.n_room <= 0:
                    raise lane.overrun("Tokens")
                lane.n_room -= 1
                track.ids.append(token_id)
                if track.hook is not None:
                    track.hook()
            return
        for request_id, choice, entry in token_entries(message):
            lane = self._lanes[request_id]
            if lane.n_room < len(entry):
                raise lane.overrun("Tokens")
            lane.n_room -= len(entry)
            track = lane.tracks[choice]
            track.ids.extend(entry)
            if entry and track.hook is not None:
                track.hook()

    def _failed(self, message: Failed) -> None:
        error = error_of(
            message.code,
            message.message,
            retryable=message.retryable,
            field=message.field,
            retry_after_ms=message.retry_after_ms,
        )
        query = self._queries.pop(message.request_id, None)
        if query is not None:
            query.settle({}, error)
        else:
            self._lanes[message.request_id].fail(error)
            self._drop(message.request_id)

    def _drop(self, request_id: int) -> None:
        del self._lanes[request_id]
        del self._first_tracks[request_id]
