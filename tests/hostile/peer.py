"""A client that sends anything, and judges every answer.

What a frame deserves is known before it is sent, from the document: a message that opens a lane is
answered on that lane, once; what is not allowed is answered by Error and the end of the
connection; everything else is not answered, but a Ping by its Pong. Only where it hangs on how
fast the other side was, either may come, and then ``Sent.either`` says so.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from wkvm_protocol import messages as wire
from wkvm_protocol.codec import Codec
from wkvm_protocol.errors import ErrorCode, RemoteProtocolError
from wkvm_protocol.framing import FrameReader
from wkvm_protocol.messages import (
    FEATURES,
    FROM_CLIENT,
    FROM_SERVER,
    GRAMMAR_FEATURE,
    Error,
    Failed,
    GoAway,
    Hello,
    HelloOk,
    Ping,
    Pong,
    unpack_ids,
)

from tests.hostile.grammar import Draw, mutated

LIMIT = 2**20
USED = ("score", "embed", "prefix", "states", "watch")
"""All features but that of grammars, of which fakes have none."""
HELLO: Codec[Any] = Codec(Hello)
_CLIENT: Codec[Any] = Codec(*FROM_CLIENT)
_SERVER: Codec[Any] = Codec(HelloOk, *FROM_SERVER)
_GENERATIONS = (wire.Generate, wire.GenerateOn)
_ONE_END = (wire.Score, wire.Embed)
_WITHIN = (wire.Interrupt, wire.StateChunk, wire.StateBytesEnd, wire.StateCredit)
_SILENT = (wire.Cancel, wire.Credit, Pong, wire.PromptHint)
_OPENING = tuple(
    one
    for one in FROM_CLIENT
    if one not in (*_WITHIN, *_SILENT, Ping, GoAway, wire.GenerateConstrained)
)
_WHOLE = (
    wire.StateVersions,
    wire.StatePage,
    wire.StateText,
    wire.StateLineagePage,
    wire.StatsReply,
)
"""What closes a lane by itself."""


@dataclass
class Lane:
    """An open lane.

    Attributes:
        n_left: choices that have still to end; None where the answer is no end.
    """

    kind: type[Any]
    n_left: int | None
    ended: set[int] = field(default_factory=set[int])


@dataclass
class Peer(asyncio.Protocol):
    """One connection: what it has sent, and whether the answers are right.

    Attributes:
        n_frames: sent.
        faults: what was wrong with the server's answers.
        error: with which the server has closed.
    """

    chance: random.Random
    n_frames: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict[int, Lane])
    reused: set[int] = field(default_factory=set[int])
    """Lanes that were asked for while they were open: they may have one answer or two."""
    pings: list[int] = field(default_factory=list[int])
    faults: list[str] = field(default_factory=list[str])
    error: Error | None = None
    is_over: bool = False
    is_wrong: bool = False
    """Whether something was sent that ends the connection for certain."""
    why_wrong: str = ""
    """What that was."""
    may_be_wrong: bool = False
    """Whether something was sent that may have ended it."""
    is_leaving: bool = False
    is_cut: bool = False
    """Whether a frame was begun that nothing follows."""
    n_closed: int = 0
    greeted: bool = False

    def __post_init__(self) -> None:
        self.changed = asyncio.Event()
        self._reader = FrameReader(LIMIT)
        self.transport: asyncio.Transport | None = None

    # --- what comes -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self.is_over = True
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        """Judge what the server says."""
        self._reader.feed(data)
        while (payload := self._reader.next_payload()) is not None:
            self.judge(payload)
        self.changed.set()

    def judge(self, payload: bytes) -> None:
        """Judge one message of the server."""
        try:
            message = _SERVER.decode(payload)
        except RemoteProtocolError as error:
            self.faults.append(f"the server's own message is none: {error}")
            return
        if self.error is not None:
            self.faults.append(f"after an Error: {message}")
        match message:
            case Error():
                self.error = message
                if not (self.is_wrong or self.may_be_wrong):
                    self.faults.append(f"nothing was wrong: {message}")
                if message.code not in (
                    ErrorCode.PROTOCOL_VIOLATION,
                    ErrorCode.FRAME_TOO_LARGE,
                    ErrorCode.UNSUPPORTED_VERSION,
                ):
                    self.faults.append(f"no code for a violation: {message}")
            case HelloOk():
                if self.greeted:
                    self.faults.append("two HelloOk")
                self.greeted = True
            case Ping():
                self.say(Pong(message.nonce))
            case Pong():
                if not self.pings or self.pings.pop(0) != message.nonce:
                    self.faults.append(f"nobody has sent a Ping of {message.nonce}")
            case wire.Tokens():
                for lane in unpack_ids(message.lanes):
                    if lane not in self.lanes and lane not in self.reused:
                        self.faults.append(f"ids for lane {lane}, which is closed")
            case GoAway():
                self.faults.append(f"nobody drains: {message}")
            case _:
                self._judge_lane(message)

    def _judge_lane(self, message: Any) -> None:
        number = message.request_id
        lane = self.lanes.get(number)
        if lane is None:
            if number in self.reused:
                return
            self.faults.append(f"for lane {number}, which is closed: {type(message).__name__}")
            return
        if isinstance(message, Failed) and message.code == ErrorCode.INTERNAL:
            self.faults.append(f"internal: {lane.kind.__name__}: {message.message}")
        if isinstance(message, (Failed, wire.StateMoved, *_WHOLE)):
            self._closes(number)
        elif isinstance(message, (wire.End, wire.EndOn)):
            if lane.n_left is None or message.choice in lane.ended:
                self.faults.append(f"a second end of choice {message.choice}: {lane.kind}")
                return
            lane.ended.add(message.choice)
            lane.n_left -= 1
            if lane.n_left == 0:
                self._closes(number)
        elif isinstance(message, wire.StateBytesEnd) and lane.kind is wire.StateExport:
            self._closes(number)

    def _closes(self, number: int) -> None:
        del self.lanes[number]
        self.n_closed += 1

    # --- what goes ------------------------------------------------------------------------

    def frame(self, payload: bytes) -> bytes:
        """A payload as it is sent."""
        return len(payload).to_bytes(4, "little") + payload

    def payload(self, message: Any) -> bytes:
        """A message, encoded."""
        return (HELLO if isinstance(message, Hello) else _CLIENT).encode(message)

    def say(self, message: Any) -> None:
        """Send a message that is none of those that are counted."""
        if self.transport is not None and not self.is_over:
            self.transport.write(self.frame(self.payload(message)))

    def expects(self, payload: bytes) -> None:
        """Say what a payload deserves, before it is sent."""
        self.n_frames += 1
        if self.is_wrong:
            return
        if not 0 < len(payload) <= LIMIT:
            self._is_wrong(f"{len(payload)} bytes")
            return
        try:
            message = _CLIENT.decode(payload)
        except RemoteProtocolError as error:
            self._is_wrong(f"{error}: {payload[:200].hex()}")
            return
        if FEATURES.get(type(message)) == GRAMMAR_FEATURE:
            self._is_wrong("grammar")
            return
        match message:
            case Ping():
                self.pings.append(message.nonce)
            case GoAway():
                self.is_leaving = True
            case _ if isinstance(message, _SILENT):
                if isinstance(message, wire.PromptHint) and message.request_id in self.lanes:
                    self.may_be_wrong = True
            case _ if isinstance(message, _WITHIN):
                if message.request_id in self.lanes:
                    self.may_be_wrong = True
            case _:
                self._opens(message)

    def _is_wrong(self, why: str) -> None:
        self.is_wrong = True
        self.why_wrong = why

    def _opens(self, message: Any) -> None:
        number = message.request_id
        if self.is_leaving:
            self._is_wrong(f"{type(message).__name__} after GoAway")
        elif number in self.reused:
            self.may_be_wrong = True
        elif number in self.lanes:
            # It may be closed by the time that this arrives; then its answers are for this one.
            self.may_be_wrong = True
            self.reused.add(number)
            del self.lanes[number]
        elif isinstance(message, _GENERATIONS):
            self.lanes[number] = Lane(type(message), message.sampling.n)
        else:
            n_left = 1 if isinstance(message, _ONE_END) else None
            self.lanes[number] = Lane(type(message), n_left)


@dataclass
class WebPeer(Peer):
    """The same over WebSocket: a message is a payload without its length.

    Attributes:
        code: with which the server has closed the WebSocket.
    """

    code: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._data = bytearray()
        self.is_upgraded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.write(_UPGRADE)

    def data_received(self, data: bytes) -> None:
        """Take WebSocket frames apart: the server does not mask, and sends each message whole."""
        self._data += data
        if not self.is_upgraded:
            head, end, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                self.faults.append(f"no upgrade: {head!r}")
            self._data[:] = rest
            self.is_upgraded = True
        while (found := self._next()) is not None:
            code, payload = found
            if code == 0x82:
                self.judge(payload)
            elif code == 0x88:
                self.code = int.from_bytes(payload[:2], "big")
            else:
                self.faults.append(f"an opcode of {code:#x}")
        self.changed.set()

    def _next(self) -> tuple[int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        n, at = data[1], 2
        if n >= 126:
            at = 4 if n == 126 else 10
            n = int.from_bytes(data[2:at], "big")
        if len(data) < at + n:
            return None
        found = data[0], bytes(data[at : at + n])
        del data[: at + n]
        return found

    def frame(self, payload: bytes) -> bytes:
        """A message, in one WebSocket frame or in several."""
        if len(payload) < 2 or self.chance.random() < 0.9:
            return _masked(0x82, payload)
        at = self.chance.randrange(len(payload))
        return _masked(0x02, payload[:at]) + _masked(0x80, payload[at:])


_UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: wkvm.v1\r\n\r\n"
)


def _masked(code: int, payload: bytes) -> bytes:
    """A WebSocket frame whose mask changes nothing."""
    n = len(payload)
    if n < 126:
        head = bytes((code, 0x80 | n))
    elif n < 2**16:
        head = bytes((code, 0x80 | 126)) + n.to_bytes(2, "big")
    else:
        head = bytes((code, 0x80 | 127)) + n.to_bytes(8, "big")
    return head + bytes(4) + payload


def script(draw: Draw, peer: Peer, n_frames: int, lied: float = 0.01) -> Iterable[bytes]:
    """Frames of one connection after its Hello, with what they deserve told to the peer.

    Args:
        lied: how often the length of a frame is another than it has; then the rest is judged as
            what that makes of it.
    """
    chance, last = draw.chance, b"\x91\x11"
    number = 0
    for _ in range(n_frames):
        kind = chance.choice(_KINDS)
        if kind in _OPENING:
            number += 1
            to = number
        elif chance.random() < 0.9:
            to = number + 1 + chance.randrange(2**31)  # of no lane
        else:
            to = number
        payload = draw.payload(kind, to)
        if chance.random() < MUTATED:
            payload, last = mutated(chance, payload, last), payload
        if chance.random() < lied:
            yield from _lie(chance, peer, payload)
            return
        peer.expects(payload)
        yield peer.frame(payload)
        if peer.is_wrong:
            return


def _lie(chance: random.Random, peer: Peer, payload: bytes) -> Iterable[bytes]:
    length = chance.choice((0, len(payload) - 1, LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1))
    data = max(length, 0).to_bytes(4, "little") + payload
    reader = FrameReader(LIMIT)
    reader.feed(data)
    try:
        while (found := reader.next_payload()) is not None:
            peer.expects(found)
    except RemoteProtocolError:
        peer.n_frames += 1
        peer.why_wrong = "a length"
        peer.is_wrong = True
    peer.is_cut = reader.mid_frame
    yield data


MUTATED = 0.04
"""How many frames are changed after they were written."""
_KINDS = (
    *_OPENING,
    *[wire.Generate] * 12,
    *[wire.GenerateOn] * 3,
    *[wire.Stats] * 6,
    *[wire.StateGet] * 6,
    *[Ping] * 12,
    *[wire.Cancel] * 10,
    *[wire.Credit] * 8,
    *_WITHIN,
    Pong,
    wire.PromptHint,
)
