"""GenerateConstrained: a message that both sides have to have agreed to."""

import pytest
from wkvm_protocol.connection import ClientConnection, Refused, ServerConnection
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    GRAMMAR_FEATURE,
    End,
    EndReason,
    GenerateConstrained,
    GoAway,
    Sampling,
    pack_ids,
)

from tests.protocol.helpers import SERVED

REQUEST = GenerateConstrained(3, pack_ids([5, 6]), "regex", "[0-9]+", Sampling(n=2))


def pair(
    offered: tuple[str, ...], known: tuple[str, ...]
) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection(features=known, max_lanes=2)
    server.receive_data(client.send_hello(features=offered))
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def test_it_opens_a_lane_of_its_choices_on_both_sides() -> None:
    client, server = pair(("x", GRAMMAR_FEATURE), (GRAMMAR_FEATURE, "y"))
    assert client.features == server.features == {GRAMMAR_FEATURE}
    assert server.receive_data(client.send(REQUEST)) == [REQUEST]
    for choice in (1, 0):
        assert 3 in client.lanes
        assert 3 in server.lanes
        end = End(3, choice, EndReason.STOP, None, 2, 1, 0, 0, 0)
        assert client.receive_data(server.send(end)) == [end]
    assert 3 not in client.lanes
    assert 3 not in server.lanes


@pytest.mark.parametrize(
    ("offered", "known"),
    [((), ()), ((), (GRAMMAR_FEATURE,)), ((GRAMMAR_FEATURE,), ()), (("x",), ("x",))],
)
def test_without_agreement_neither_side_lets_it_pass(
    offered: tuple[str, ...], known: tuple[str, ...]
) -> None:
    client, server = pair(offered, known)
    with pytest.raises(LocalProtocolError, match="feature grammar"):
        client.send(REQUEST)
    assert len(client.lanes) == 0
    willing, _ = pair((GRAMMAR_FEATURE,), (GRAMMAR_FEATURE,))
    with pytest.raises(RemoteProtocolError, match="feature grammar") as raised:
        server.receive_data(willing.send(REQUEST))
    assert raised.value.code is ErrorCode.PROTOCOL_VIOLATION


def test_nothing_is_agreed_before_the_handshake_is_done() -> None:
    server = ServerConnection(features=[GRAMMAR_FEATURE])
    assert server.features == frozenset()
    server.receive_data(ClientConnection().send_hello(features=[GRAMMAR_FEATURE]))
    assert server.features == frozenset()


def test_the_rules_of_lanes_hold_for_it() -> None:
    features = (GRAMMAR_FEATURE,)
    client, server = pair(features, features)
    server.receive_data(client.send(REQUEST))
    with pytest.raises(LocalProtocolError, match="open already"):
        client.send(REQUEST)
    later = [GenerateConstrained(lane, b"", "regex", "a") for lane in (4, 5)]
    _, refused = server.receive_data(b"".join(client.send(one) for one in later))
    assert isinstance(refused, Refused)
    assert refused.answer.code == ErrorCode.TOO_MANY_LANES
    client.send(GoAway())
    with pytest.raises(LocalProtocolError, match="GoAway"):
        client.send(GenerateConstrained(6, b"", "regex", "a"))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x94\x13\x03\xc4\x00\xa1a", "GenerateConstrained: "),
        (b"\x95\x13\x03\xc4\x01\x00\xa1a\xa1b", "GenerateConstrained.prompt: 1 bytes"),
        (b"\x95\x13\x03\xc4\x00\xa1a\xc4\x01b", r"GenerateConstrained\.grammar: "),
        (b"\x95\x13\x03\xc4\x00\xda\x01\x01" + b"k" * 257 + b"\xa1b", "grammar_kind"),
        (b"\x96\x13\x03\xc4\x00\xa1a\xa1b\x92\xcb" + b"\0" * 8 + b"\xc2", "sampling.top_k"),
    ],
)
def test_what_its_table_does_not_allow_is_a_violation(payload: bytes, why: str) -> None:
    _, server = pair((GRAMMAR_FEATURE,), (GRAMMAR_FEATURE,))
    with pytest.raises(RemoteProtocolError, match=why):
        server.receive_data(encode_frame(payload, 1 << 20))


def test_a_grammar_may_be_as_long_as_a_frame() -> None:
    client, server = pair((GRAMMAR_FEATURE,), (GRAMMAR_FEATURE,))
    request = GenerateConstrained(3, b"", "lark", "x" * (2**20 - 200))
    assert server.receive_data(client.send(request)) == [request]
