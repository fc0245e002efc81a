"""The protocol without I/O, both sides: bytes in, messages out; messages in, bytes out.

Whoever drives a connection reads from a transport into ``receive_data``, acts on the
messages, and writes what the ``send`` methods return. Clocks, keys and transports are
the driver's; the order of messages, what was agreed and which lanes are open are kept here.

A wrong *shape* is a violation, RemoteProtocolError, and ends the connection: another
type, too many fields, a request id that is open already. A wrong *value* in a request
(a top_p of NaN, an id that the vocabulary lacks) is a message like any other: the
server answers Failed on its lane.

On the server::

    try:
        messages = connection.receive_data(data)
    except RemoteProtocolError as error:
        transport.write(connection.send_error(error.code, str(error)))
        transport.close()
    for message in messages:
        match message:
            case Hello():
                transport.write(connection.send_hello_ok(...))
            case Refused():
                transport.write(connection.send(message.answer))
            case Ignored():
                pass
            ...
"""

from wkvm_protocol.client import ClientConnection
from wkvm_protocol.endpoint import MIN_FRAME_BYTES, ConnectionState
from wkvm_protocol.server import (
    Ignored,
    Refused,
    ServerConnection,
    ServerEvent,
    failure,
    packed_tokens,
)

__all__ = [
    "MIN_FRAME_BYTES",
    "ClientConnection",
    "ConnectionState",
    "Ignored",
    "Refused",
    "ServerConnection",
    "ServerEvent",
    "failure",
    "packed_tokens",
]
