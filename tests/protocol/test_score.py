"""Score: one more message that both sides have to have agreed to."""

import pytest
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import SCORE_FEATURE, End, EndReason, Score, pack_ids

from tests.protocol.helpers import SERVED

REQUEST = Score(3, pack_ids([5, 6]), "chunked")


def pair(features: tuple[str, ...]) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection(features=features)
    server.receive_data(client.send_hello(features=features))
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def test_it_opens_a_lane_of_one_choice_on_both_sides() -> None:
    client, server = pair((SCORE_FEATURE,))
    assert server.receive_data(client.send(REQUEST)) == [REQUEST]
    with pytest.raises(LocalProtocolError, match="open already"):
        client.send(REQUEST)
    with pytest.raises(LocalProtocolError, match="1 choices"):
        server.send(End(3, 1, EndReason.LENGTH, None, 2, 0, 0, 0, 0))
    end = End(3, 0, EndReason.LENGTH, None, 2, 0, 0, 0, 0)
    assert client.receive_data(server.send(end)) == [end]
    assert 3 not in client.lanes
    assert 3 not in server.lanes


def test_without_agreement_neither_side_lets_it_pass() -> None:
    client, server = pair(())
    with pytest.raises(LocalProtocolError, match="feature score"):
        client.send(REQUEST)
    willing, _ = pair((SCORE_FEATURE,))
    with pytest.raises(RemoteProtocolError, match="feature score") as raised:
        server.receive_data(willing.send(REQUEST))
    assert raised.value.code is ErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x93\x14\x03\xc4\x00", "Score: "),
        (b"\x94\x14\x03\xc4\x01\x00\xa1a", "Score.prompt: 1 bytes"),
        (b"\x94\x14\x03\xc4\x00\xda\x01\x01" + b"k" * 257, "Score.path"),
        (b"\x95\x14\x03\xc4\x00\xa1a\xc2", "Score.n_top"),
    ],
)
def test_what_its_table_does_not_allow_is_a_violation(payload: bytes, why: str) -> None:
    _, server = pair((SCORE_FEATURE,))
    with pytest.raises(RemoteProtocolError, match=why):
        server.receive_data(encode_frame(payload, 1 << 20))
