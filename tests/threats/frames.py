"""Messages of the binary protocol with anything in the place of any of their parts."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec import inspect
from wkvm_protocol import messages as wire
from wkvm_protocol.framing import FrameReader
from wkvm_protocol.messages import FROM_CLIENT, MAX_FRAME_BYTES, Message, pack_ids

from tests.server.harness import TIMEOUT_S, frame
from tests.threats.walk import Place, Samples, places
from tests.threats.world import FEATURES, NUMBERS, World

LANE = 7
PROBE = 2**62 + 1
"""Of the Ping that shows that a connection is still of use."""
IMPATIENCE_S = 5.0
"""After this what waits for its client is cancelled."""
NOT_IDS = frozenset({"bias_values", "borders", "data"})
"""Fields of bytes that hold something else. What is not here is taken for ids."""

_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(wire.ServerMessage)
_OPENING = get_args(wire.Opening)

SAMPLES = Samples(
    by_name={
        "data": b"x",
        "grammar": "a*",
        "grammar_kind": "regex",
        "max_tokens": 1,
        "max_version": 1,
        "magic": wire.MAGIC,
        "min_version": 1,
        "n_bytes": 4096,
        "operation": "scale",
        "other": "beta",
        "parameters": '{"factor":0.5}',
        "path": "chunked",
        "prompt": pack_ids([1, 2]),
        "request_id": LANE,
        "state": "alpha",
        "states": ["alpha"],
        "target": "tcp://h:1",
        "temperature": 0.0,
        "timeout_ms": 200,
    },
    inside={},
)
NEEDED: dict[type[Message], dict[str, Any]] = {
    wire.Hello: {"features": list(FEATURES)},
    wire.GenerateOn: {"grammar_kind": "", "grammar": "", "state": ""},
    wire.StateCreate: {"state": ""},
    wire.StateEdit: {"tags": {"a": "b"}},
    wire.StateList: {"limit": 2},
    wire.StateRollback: {"version": 1},
    wire.StateCredit: {"n_bytes": 1},
    wire.MigrateEnd: {"committed": False, "target": "", "target_version": 0},
}
"""What a message needs, where that is not what others need."""
EXCLUDED: dict[tuple[type[Message], str], dict[str, Any]] = {
    (wire.StateEdit, "rename"): {"tags": None},
    (wire.StateEdit, "expires_in_ms"): {"tags": None},
    (wire.StateRollback, "position"): {"version": None},
    (wire.MigrateEnd, "target"): {"committed": True, "target_version": 1, "target_name": "made"},
}
"""What is otherwise where a field is tried that excludes it."""

OF_CLIENTS: tuple[type[Message], ...] = (wire.Hello, *FROM_CLIENT)


def places_of(kind: type[Message]) -> Iterator[Place]:
    """All places of a message."""
    return places(kind, SAMPLES)


def payload_of(kind: type[Message], /, **but: Any) -> bytes:
    """A message that a server takes, but for what is put into it."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    values = dict(NEEDED.get(kind, {}))
    names = {one.name for one in info.fields}
    for name in ("name", "save_as"):
        if name in names and kind is not wire.GenerateOn and kind is not wire.StateSnapshot:
            values[name] = f"made{next(NUMBERS)}"
    if "names" in names:
        values["names"] = [f"made{next(NUMBERS)}"]
    for name in but:
        values |= EXCLUDED.get((kind, name), {})
    return msgspec.msgpack.encode(SAMPLES.of_struct(info, **(values | but)))


@dataclass
class Outcome:
    """What the server said to one message.

    Attributes:
        closing: what closed the lane; None if the message opened none.
        error: with which the server closed the connection.
    """

    closing: Any = None
    error: wire.Error | None = None

    @property
    def field(self) -> str | None:
        """The field of a refusal on the lane."""
        return self.closing.field if isinstance(self.closing, wire.Failed) else None


class Line:
    """A connection on which anything may be sent. It is opened anew where the server closed it."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.at_end.append(self.close)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._frames = FrameReader(limit=MAX_FRAME_BYTES)

    async def open(self, *, greets: bool = True) -> None:
        """Connect, unless that is so already, and greet."""
        if self._streams is not None:
            return
        sock = await self._world.running.server.connect_local(is_trusted=False)
        self._streams = await asyncio.open_unix_connection(sock=sock)
        self._frames = FrameReader(limit=MAX_FRAME_BYTES)
        if greets:
            self.write(payload_of(wire.Hello))
            assert isinstance(await self.next(), wire.HelloOk)

    def write(self, payload: bytes) -> None:
        """Send a frame."""
        assert self._streams is not None
        self._streams[1].write(frame(payload))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def next(self) -> Any:
        """The next message; None at the end of the connection."""
        assert self._streams is not None
        async with asyncio.timeout(TIMEOUT_S):
            while (payload := self._frames.next_payload()) is None:
                try:
                    data = await self._streams[0].read(2**18)
                except ConnectionError:
                    data = b""
                if not data:
                    self.close()
                    return None
                self._frames.feed(data)
        return _DECODER.decode(payload)

    async def outcome(self, kind: type[Message], payload: bytes, n_choices: int = 1) -> Outcome:
        """Send a message, and see what becomes of it and of the connection.

        A message that no lane is opened by is followed by a Ping, which must be answered.
        """
        if kind is wire.Hello:
            self.close()
        await self.open(greets=kind is not wire.Hello)
        self.write(payload)
        outcome = Outcome()
        opens = issubclass(kind, _OPENING)
        if not opens and kind is not wire.Hello:
            self.write(msgspec.msgpack.encode(wire.Ping(PROBE)))
        lane = msgspec.msgpack.decode(payload)[1] if opens else None
        cancel = msgspec.msgpack.encode([wire.Cancel.__struct_config__.tag, lane])
        n_ends = 0
        while True:
            try:
                async with asyncio.timeout(IMPATIENCE_S):
                    message = await self.next()
            except TimeoutError:
                self.write(cancel)
                continue
            match message:
                case None if kind is wire.GoAway:
                    return outcome
                case None:
                    raise AssertionError("the connection ended without an Error")
                case wire.Error():
                    assert await self.next() is None
                    outcome.error = message
                    return outcome
                case wire.HelloOk() if kind is wire.Hello:
                    self.close()
                    return outcome
                case wire.Pong(nonce=nonce) if nonce == PROBE and kind is not wire.GoAway:
                    return outcome
                case wire.StateCredit() | wire.StateExportBegin() if opens:
                    # It waits for bytes, or for a grant.
                    self.write(cancel)
                case wire.StateChanges() | wire.StatsChanges() if kind is wire.Watch:
                    self.write(cancel)  # It has no end else.
                case wire.End() | wire.EndOn():
                    n_ends += 1
                    outcome.closing = message
                    if n_ends == n_choices:
                        return outcome
                case wire.Ping(nonce=nonce):
                    self.write(msgspec.msgpack.encode(wire.Pong(nonce)))
                case wire.Failed() | wire.StatsReply() | wire.StateMoved() | wire.StateBytesEnd():
                    outcome.closing = message
                    return outcome
                case (
                    wire.StateVersions()
                    | wire.StatePage()
                    | wire.StateText()
                    | wire.StateLineagePage()
                ):
                    outcome.closing = message
                    return outcome
                case _:
                    pass
