import struct
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import ErrorCode, RemoteProtocolError
from wkvm_protocol.framing import FrameReader
from wkvm_protocol.messages import LineageEntry, Message, Sampling, StateInfo

from tests.protocol.helpers import SERVED, generate
from tests.protocol.vectors import (
    IllegalVector,
    Vector,
    fields_of,
    fields_sent,
    message_of,
    problem,
    read_all,
    sender_of,
)

ALL = read_all()
LEGAL = [v for v in ALL if isinstance(v, Vector)]
ILLEGAL = [v for v in ALL if isinstance(v, IllegalVector)]


def name_of(vector: Vector | IllegalVector) -> str:
    return vector.name


def pack(value: Any) -> bytes:
    """MessagePack by hand, as docs/protocol.md asks for it: an oracle without msgspec."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        if value < 0:
            widths = [(0xD0, ">b", 7), (0xD1, ">h", 15), (0xD2, ">i", 31), (0xD3, ">q", 63)]
            if value >= -32:
                return struct.pack(">b", value)
            return next(
                bytes([c]) + struct.pack(f, value) for c, f, bits in widths if value >= -(1 << bits)
            )
        widths = [(0xCC, ">B", 8), (0xCD, ">H", 16), (0xCE, ">I", 32), (0xCF, ">Q", 64)]
        if value < 128:
            return bytes([value])
        return next(
            bytes([c]) + struct.pack(f, value) for c, f, bits in widths if value < 1 << bits
        )
    if isinstance(value, bytes):
        return head(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, str):
        text = value.encode()
        return head(len(text), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + text
    if isinstance(value, dict):
        pairs = b"".join(pack(k) + pack(v) for k, v in value.items())
        return head(len(value), 0x80, 16, (None, 0xDE, 0xDF)) + pairs
    return head(len(value), 0x90, 16, (None, 0xDC, 0xDD)) + b"".join(map(pack, value))


def head(n: int, fix: int | None, below: int, wide: tuple[int | None, int, int]) -> bytes:
    if fix is not None and n < below:
        return bytes([fix | n])
    for code, form, limit in zip(wide, (">B", ">H", ">I"), (2**8, 2**16, 2**32), strict=True):
        if code is not None and n < limit:
            return bytes([code]) + struct.pack(form, n)
    raise AssertionError(n)


def array_of(message: Message) -> list[Any]:
    tag = message.__struct_config__.tag
    values = [getattr(message, name) for name in fields_sent(message)]
    return ([] if tag is None else [tag]) + [
        array_of(v)
        if isinstance(v, Message)
        else [array_of(one) if isinstance(one, Message) else one for one in v]
        if isinstance(v, tuple)
        else v
        for v in values
    ]


@pytest.mark.parametrize("vector", LEGAL, ids=name_of)
def test_a_vector_reads_and_writes_by_field_name(vector: Vector) -> None:
    assert problem(vector) is None


@pytest.mark.parametrize("vector", [v for v in LEGAL if not v.decode_only], ids=name_of)
def test_a_vector_names_every_field(vector: Vector) -> None:
    message = message_of(vector.type, vector.fields)
    assert vector.fields == fields_of(message)
    assert vector.sender == sender_of(type(message))


@pytest.mark.parametrize("vector", [v for v in LEGAL if not v.decode_only], ids=name_of)
def test_a_vector_is_what_an_encoder_written_by_hand_makes(vector: Vector) -> None:
    assert pack(array_of(message_of(vector.type, vector.fields))) == vector.payload


@pytest.mark.parametrize("vector", LEGAL, ids=name_of)
def test_the_fields_are_in_the_payload_in_order(vector: Vector) -> None:
    """A swap of two fields of one type shows here, whatever the classes say."""
    plain = msgspec.msgpack.decode(vector.payload)
    reader = FrameReader(1 << 20)
    reader.feed(vector.frame)
    assert reader.next_payload() == vector.payload
    assert plain[0] == message_of(vector.type, vector.fields).__struct_config__.tag
    names = getattr(messages, vector.type).__struct_fields__
    for name, value in zip(names, plain[1:], strict=False):
        if isinstance(value, (int, str, bool)) and name in vector.fields:
            assert vector.fields[name] == value


def test_every_message_has_two_vectors() -> None:
    for message_type in message_types():
        own = [v for v in LEGAL if v.type == message_type.__name__ and not v.decode_only]
        assert len(own) >= 2, message_type.__name__


def test_every_field_differs_between_two_vectors_or_has_one_value() -> None:
    """With one value alone, a vector would not show that the field is read from its place."""
    alike = {("Hello", "magic"), ("Hello", "min_version"), ("HelloOk", "version")}
    for message_type in message_types():
        own = [v for v in LEGAL if v.type == message_type.__name__ and not v.decode_only]
        for name in message_type.__struct_fields__:
            values = {repr(v.fields.get(name, "")) for v in own}
            assert len(values) > 1 or (message_type.__name__, name) in alike, (message_type, name)


def message_types() -> list[type[Message]]:
    return [t for t in Message.__subclasses__() if t not in {Sampling, StateInfo, LineageEntry}]


@pytest.mark.parametrize("vector", ILLEGAL, ids=name_of)
def test_an_illegal_frame_is_refused_with_its_code(vector: IllegalVector) -> None:
    client, server = ClientConnection(), ServerConnection()
    hello = client.send_hello()
    if vector.state == "open":
        server.receive_data(hello)
        client.receive_data(server.send_hello_ok(**SERVED))
        server.receive_data(client.send(generate(1, n=2)))
    receiver = server if vector.sender == "client" else client
    assert receiver.state.value == vector.state
    with pytest.raises(RemoteProtocolError) as raised:
        receiver.receive_data(vector.frame)
    assert raised.value.code == ErrorCode(vector.code)
