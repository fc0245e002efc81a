"""Watch: a lane that stays open, and on which changes are told."""

import pytest
from wkvm_protocol.connection import ClientConnection, ServerConnection, failure
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    WATCH_FEATURE,
    Cancel,
    ClientMessage,
    Credit,
    ServerMessage,
    StateChanges,
    StateLineage,
    StateLineagePage,
    Stats,
    StatsChanges,
    Watch,
)

from tests.protocol.helpers import SERVED
from tests.protocol.vectors import examples

CHANGES = StateChanges(3, False, True, (), b"", ("gone",))
GATED = [
    one
    for one in (*examples(ClientMessage), *examples(ServerMessage))
    if FEATURES.get(type(one)) == WATCH_FEATURE
]


def pair(
    features: tuple[str, ...] = (WATCH_FEATURE,),
) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection(features=features)
    server.receive_data(client.send_hello(features=features))
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def test_any_number_of_changes_leaves_the_lane_open_and_failed_closes_it() -> None:
    client, server = pair()
    assert server.receive_data(client.send(Watch(3))) == [Watch(3)]
    told: list[StateChanges | StatsChanges] = [
        CHANGES,
        StatsChanges(3, 1, {"n_slots": 2}),
        CHANGES,
    ]
    for message in told:
        assert client.receive_data(server.send(message)) == [message]
    assert server.receive_data(client.send(Credit(3, 2))) == [Credit(3, 2)]
    assert server.receive_data(client.send(Cancel(3))) == [Cancel(3)]
    client.receive_data(server.send(failure(3, ErrorCode.CANCELLED, "it was cancelled")))
    assert 3 not in client.lanes
    assert 3 not in server.lanes


@pytest.mark.parametrize("message", [CHANGES, StatsChanges(3, 1, {})], ids=["states", "stats"])
def test_changes_are_told_on_no_other_lane(message: StateChanges | StatsChanges) -> None:
    client, server = pair()
    server.receive_data(client.send(Stats(3)))
    with pytest.raises(LocalProtocolError, match="no open watch"):
        server.send(message)
    _, sender = pair()
    sender.receive_data(client.send(Watch(4)))
    sender._lanes.open(Watch(3))
    with pytest.raises(RemoteProtocolError, match="no open watch"):
        client.receive_data(sender.send(message))


def test_a_watch_is_answered_by_no_reply() -> None:
    client, server = pair()
    server.receive_data(client.send(Watch(3)))
    with pytest.raises(LocalProtocolError, match="no open query"):
        server.send(StateLineagePage(3, (), ""))


def test_a_page_closes_the_lane_of_a_lineage() -> None:
    client, server = pair()
    server.receive_data(client.send(StateLineage(5)))
    client.receive_data(server.send(StateLineagePage(5, (), "")))
    assert len(client.lanes) == len(server.lanes) == 0


def test_there_is_a_time_of_use_for_each_state() -> None:
    client, server = pair()
    server.receive_data(client.send(Watch(3)))
    for used_s, why in ((b"\0" * 3, "multiple of 4"), (b"\0" * 4, "1 for 0 states")):
        payload = b"\x97\x43\x03\xc2\xc2\x90\xc4" + bytes([len(used_s)]) + used_s + b"\x90"
        receiver, sender = pair()
        sender.receive_data(receiver.send(Watch(3)))
        with pytest.raises(RemoteProtocolError, match=why):
            receiver.receive_data(encode_frame(payload, 1 << 20))


@pytest.mark.parametrize("message", GATED, ids=lambda one: type(one).__name__)
def test_without_agreement_nothing_of_it_passes(message: ClientMessage | ServerMessage) -> None:
    client, server = pair(())
    sender = client if isinstance(message, Watch | StateLineage) else server
    with pytest.raises(LocalProtocolError):
        sender.send(message)  # type: ignore[arg-type]
