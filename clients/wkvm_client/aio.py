"""The asyncio client. It runs on any event loop; on uvloop it is fastest.

::

    async with wkvm_client.aio.connect("tcp://127.0.0.1:8001") as client:
        stream = await client.generate([1, 2, 3], max_tokens=32)
        async for token_id in stream:
            print(token_id)
        completion = await stream.completion()

Any number of requests may be open at once on one client; each is a lane of the same
connection. A client belongs to the event loop that connected it.
"""

import socket

from wkvm_client.addresses import Reachable, resolve
from wkvm_client.aio_client import Client
from wkvm_client.aio_link import Attach
from wkvm_client.aio_migration import migrate
from wkvm_client.aio_session import Session
from wkvm_client.aio_streams import Choice, Stream

__all__ = [
    "Attach",
    "Choice",
    "Client",
    "Session",
    "Stream",
    "connect",
    "from_socket",
    "migrate",
    "over",
]


def connect(
    address: str | Reachable,
    *,
    api_key: str | None = None,
    connect_timeout_s: float = 10.0,
    reconnect: bool = True,
    reconnect_timeout_s: float = 10.0,
    grace_s: float = 1.0,
    allow_plaintext_key: bool = False,
    follow: bool = True,
) -> "Client":
    """Make a client. To connect, await it or enter it with ``async with``.

    Args:
        address: ``tcp://HOST:PORT`` or ``unix:///PATH``; over WebSocket, for the HTTP door of a
            server, ``ws://HOST:PORT`` or ``wss://HOST:PORT``.
        api_key: goes to the server in HELLO.
        connect_timeout_s: for one attempt, HELLO included.
        reconnect: whether a request that finds the connection lost, or the server going
            away, makes a new one. Requests that were open are never sent again: they fail
            with ConnectionLostError, since ids may have been produced for them.
        reconnect_timeout_s: how long such a request keeps trying, with growing and
            jittered pauses. The first connection is tried once.
        grace_s: how long after a request's own ``timeout_s`` the server may take to say so.
        allow_plaintext_key: send the key over TCP, unencrypted, beyond loopback.
        follow: whether a stream on a state goes on by itself where the state has moved to, with
            the same key, and after a connection was lost (see ``on_disconnect`` of
            ``generate``). Otherwise it ends with reason MOVED, or fails.

    Raises:
        InvalidParameterError: ``address`` is none.
        PlaintextKeyError: see ``allow_plaintext_key``.
        ConnectFailedError, ConnectTimeoutError, HandshakeRefusedError: on awaiting.
    """
    where = resolve(address, api_key=api_key, allow_plaintext_key=allow_plaintext_key)
    return Client(
        where,
        api_key=api_key or "",
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=reconnect_timeout_s if reconnect else None,
        grace_s=grace_s,
        allow_plaintext_key=allow_plaintext_key,
        follow=follow,
    )


def from_socket(
    sock: socket.socket,
    *,
    api_key: str | None = None,
    connect_timeout_s: float = 10.0,
    grace_s: float = 1.0,
) -> "Client":
    """Take over a socket that is connected to a server, such as one end of a pair.

    To be used as ``connect``; the client owns the socket from then on. It never reconnects.
    """
    return Client(
        sock,
        api_key=api_key or "",
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=None,
        grace_s=grace_s,
    )


def over(
    attach: Attach,
    *,
    api_key: str | None = None,
    connect_timeout_s: float = 10.0,
    grace_s: float = 1.0,
    follow: bool = True,
) -> "Client":
    """Speak over a transport of whatever kind, such as a pipe within the event loop.

    To be used as ``connect``. It never reconnects.

    Args:
        attach: called once, with the client's side of the connection, for which it makes the
            transport and calls ``connection_made``.
        follow: as of ``connect``.
    """
    return Client(
        attach,
        api_key=api_key or "",
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=None,
        grace_s=grace_s,
        follow=follow,
    )
