"""Embed: a lane that gets one vector, and then its end."""

import pytest
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    EMBED_FEATURE,
    Embed,
    Embedding,
    End,
    EndReason,
    Generate,
    pack_floats,
    pack_ids,
)

from tests.protocol.helpers import SERVED

REQUEST = Embed(3, pack_ids([5, 6]))
VECTOR = Embedding(3, pack_floats([0.5, -1.0]))
END = End(3, 0, EndReason.LENGTH, None, 2, 0, 0, 0, 0)


def pair(features: tuple[str, ...]) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection(features=features)
    server.receive_data(client.send_hello(features=features))
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def test_a_vector_and_an_end_close_the_lane() -> None:
    client, server = pair((EMBED_FEATURE,))
    assert server.receive_data(client.send(REQUEST)) == [REQUEST]
    assert client.receive_data(server.send(VECTOR) + server.send(END)) == [VECTOR, END]
    assert 3 not in client.lanes
    assert 3 not in server.lanes


def test_there_is_one_vector_and_only_for_who_asked() -> None:
    client, server = pair((EMBED_FEATURE,))
    server.receive_data(client.send(REQUEST) + client.send(Generate(4, pack_ids([1]))))
    server.send(VECTOR)
    for message in (VECTOR, Embedding(4, b""), Embedding(9, b"")):
        with pytest.raises(LocalProtocolError, match="lacks no embedding"):
            server.send(message)


def test_without_agreement_neither_side_lets_it_pass() -> None:
    client, server = pair(())
    with pytest.raises(LocalProtocolError, match="feature embed"):
        client.send(REQUEST)
    willing, _ = pair((EMBED_FEATURE,))
    with pytest.raises(RemoteProtocolError, match="feature embed") as raised:
        server.receive_data(willing.send(REQUEST))
    assert raised.value.code is ErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x92\x16\x03", "Embed: "),
        (b"\x93\x16\x03\xc4\x01\x00", "Embed.prompt: 1 bytes"),
        (b"\x94\x16\x03\xc4\x00\xda\x01\x01" + b"k" * 257, "Embed.pooling"),
    ],
)
def test_what_its_table_does_not_allow_is_a_violation(payload: bytes, why: str) -> None:
    _, server = pair((EMBED_FEATURE,))
    with pytest.raises(RemoteProtocolError, match=why):
        server.receive_data(encode_frame(payload, 1 << 20))


def test_a_vector_that_is_no_numbers_is_a_violation() -> None:
    client, _ = pair((EMBED_FEATURE,))
    client.send(REQUEST)
    with pytest.raises(RemoteProtocolError, match=r"Embedding\.vector: 3 bytes"):
        client.receive_data(encode_frame(b"\x93\x1d\x03\xc4\x03abc", 1 << 20))
