"""Messages about states field by field: what they may hold, and what becomes of changed bytes."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wkvm_protocol import messages
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    MAX_CHUNK_BYTES,
    ClientMessage,
    Message,
    ServerMessage,
    StateChunk,
    StateExport,
    StateExportBegin,
    StateGet,
    StateImport,
    StatePage,
    StateVersions,
)

from tests.protocol.state_pairs import (
    GATED,
    OPENINGS,
    granted,
    name_of,
    opened,
    pair,
    violation,
)

# --- shapes -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [1, MAX_CHUNK_BYTES])
def test_a_chunk_has_a_length_that_is_allowed(n_bytes: int) -> None:
    client, server = opened(StateImport(1, "a", 10**9))
    granted(client, server, 10**6)
    chunk = StateChunk(1, bytes(n_bytes))
    assert server.receive_data(client.send(chunk)) == [chunk]


@pytest.mark.parametrize("n_bytes", [0, MAX_CHUNK_BYTES + 1])
def test_a_chunk_of_another_length_is_a_violation(n_bytes: int) -> None:
    client, server = opened(StateImport(1, "a", 10**9))
    granted(client, server, 10**6)
    with pytest.raises(LocalProtocolError):
        client.send(StateChunk(1, bytes(n_bytes)))
    assert "StateChunk.data" in violation(server, StateChunk(1, bytes(n_bytes)))


def bad_values(message: Message) -> list[tuple[str, object]]:
    """For each field, values that its type does not allow: one by one."""
    values: list[tuple[str, object]] = []
    for field in msgspec.structs.fields(type(message)):
        good = getattr(message, field.name)
        bad: list[object] = [{1: 2}, 1.5]
        if isinstance(good, bool):
            bad += [1, None]
        elif isinstance(good, int):
            bad += [2**64, "1", True]
            bad += [] if field.name == "priority" else [-1]
        elif isinstance(good, str):
            bad += [b"a", 1, None]
            bad += [] if field.name in ("grammar", "text") else ["x" * 65_537]
        elif isinstance(good, bytes):
            bad += ["text", None, 1]
            bad += [] if field.name == "data" else [b"abc"]
        elif isinstance(good, tuple):
            bad += [None, ["x"] * 300, [7], "x"]
        values += [(field.name, value) for value in bad]
    return values


CASES = [(one, *case) for one in GATED for case in bad_values(one)]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    CASES,
    ids=[f"{name_of(one)}-{field}-{str(value)[:12]}" for one, field, value in CASES],
)
def test_what_a_field_may_not_hold_is_a_violation(message: Any, field: str, value: object) -> None:
    names = message.__struct_fields__
    values = [value if name == field else getattr(message, name) for name in names]
    plain = [message.__struct_config__.tag, *values]
    receivers: list[ClientConnection | ServerConnection] = []
    client, server = pair()
    if type(message) in get_args(ClientMessage):
        receivers.append(server)
    if type(message) in get_args(ServerMessage):
        receivers.append(client)
    for receiver in receivers:
        try:
            payload = msgspec.msgpack.encode(plain)
        except OverflowError:
            return  # no integer of MessagePack
        with pytest.raises(RemoteProtocolError):
            receiver.receive_data(encode_frame(payload, 1 << 20))


@pytest.mark.parametrize("message", GATED, ids=name_of)
def test_a_field_too_many_is_a_violation(message: Any) -> None:
    client, server = pair()
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    frame = encode_frame(msgspec.msgpack.encode([*plain, 0]), 1 << 20)
    receiver = server if type(message) in get_args(ClientMessage) else client
    with pytest.raises(RemoteProtocolError):
        receiver.receive_data(frame)


@pytest.mark.parametrize("limit", [65, 200])
def test_lists_and_maps_have_bounds(limit: int) -> None:
    _, server = pair()
    names = tuple(map(str, range(limit)))
    violation(server, messages.StateFork(1, "a", names))
    violation(server, messages.StateMutate(1, "blend", names, "a"))
    violation(server, messages.StateCreate(1, "a", b"", tags=dict.fromkeys(names, "x")))
    client, _ = opened(messages.StateGet(1, "a"))
    violation(client, StateVersions(1, tuple(INFO for _ in names)))


INFO = next(one.states[0] for one in GATED if isinstance(one, StatePage))


@pytest.mark.parametrize("message", [StateVersions(1, (INFO,)), StateExportBegin(1, 1, INFO)])
def test_the_tail_of_a_state_holds_whole_ids(message: Any) -> None:
    broken = msgspec.structs.replace(INFO, tail=b"abc")
    if isinstance(message, StateVersions):
        client, _ = opened(StateGet(1, "a"))
        message = StateVersions(1, (broken,))
    else:
        client, _ = opened(StateExport(1, "a"))
        message = StateExportBegin(1, 1, broken)
    assert "state.tail: 3 bytes" in violation(client, message)


# --- fuzz ---------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    index=st.integers(0, len(GATED) - 1),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 400),
)
def test_changed_bytes_are_a_message_or_a_violation(
    index: int, edits: list[tuple[int, int]], cut: int
) -> None:
    message: Any = GATED[index]
    payload = bytearray(msgspec.msgpack.encode(message))
    for place, value in edits:
        payload[place % len(payload)] = value
    del payload[max(1, len(payload) - cut % 8) :]
    client, server = pair()
    for receiver in (client, server):
        try:
            receiver.receive_data(encode_frame(bytes(payload), 1 << 20))
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                receiver.receive_data(b"")


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(0, 2000), max_size=8).map(sorted))
def test_torn_frames_are_the_same_messages(cuts: list[int]) -> None:
    sender, _ = pair()
    sent: list[Any] = []
    stream = b""
    for lane, opening in enumerate(OPENINGS, 1):
        message: Any = msgspec.structs.replace(opening, request_id=lane)
        sent.append(message)
        stream += sender.send(message)
    _, server = pair()
    got: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += server.receive_data(stream[start:end])
    assert got == sent
