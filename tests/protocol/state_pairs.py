"""Connections that have agreed on states, and one message of each kind."""

from typing import Any

import msgspec
import pytest
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import ErrorCode, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    REPLIES,
    STATES_FEATURE,
    ClientMessage,
    Message,
    ServerMessage,
    StateCredit,
)

from tests.protocol.helpers import SERVED
from tests.protocol.vectors import examples

FEATURES_IN_USE = (STATES_FEATURE,)
BOTH: list[Message] = [*examples(ClientMessage), *examples(ServerMessage)]
GATED = [one for one in BOTH if FEATURES.get(type(one)) == STATES_FEATURE]
OPENINGS = [one for one in GATED if type(one) in REPLIES]


def name_of(message: Message) -> str:
    return type(message).__name__


def pair(
    features: tuple[str, ...] = FEATURES_IN_USE, *, max_lanes: int = 1024
) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection(features=features, max_lanes=max_lanes)
    server.receive_data(client.send_hello(features=features))
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def violation(receiver: ClientConnection | ServerConnection, message: Message) -> str:
    """What is said of a message that the other side would not have sent."""
    with pytest.raises(RemoteProtocolError) as raised:
        receiver.receive_data(encode_frame(msgspec.msgpack.encode(message), 1 << 20))
    assert raised.value.code is ErrorCode.PROTOCOL_VIOLATION
    return str(raised.value)


def granted(client: ClientConnection, server: ServerConnection, n_bytes: int) -> None:
    client.receive_data(server.send(StateCredit(1, n_bytes)))


def opened(opening: Any) -> tuple[ClientConnection, ServerConnection]:
    client, server = pair()
    assert server.receive_data(client.send(opening)) == [opening]
    return client, server
