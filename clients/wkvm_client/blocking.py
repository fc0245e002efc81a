"""The blocking client: plain sockets, no event loop, no threads; the lowest latency.

::

    with wkvm_client.connect("tcp://127.0.0.1:8001") as client:
        for token_id in client.generate([1, 2, 3], max_tokens=32):
            print(token_id)

Several requests may be open at once: each has its stream, and whichever is read
receives for all. Nothing is received, no ping answered and no deadline noticed while
nothing is read; a server that has dropped an idle client is connected to again by the
next request. A client and its streams belong to one thread at a time.
"""

import socket

from wkvm_client.addresses import Reachable, resolve
from wkvm_client.blocking_client import Client
from wkvm_client.blocking_migration import migrate
from wkvm_client.blocking_session import Session
from wkvm_client.blocking_streams import Choice, Stream

__all__ = ["Choice", "Client", "Session", "Stream", "connect", "from_socket", "migrate"]


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
) -> Client:
    """Connect to a server.

    Args:
        address: ``tcp://HOST:PORT`` or ``unix:///PATH``; over WebSocket, for the HTTP door of a
            server, ``ws://HOST:PORT``. For ``wss`` there is the asyncio client.
        api_key: goes to the server in HELLO.
        connect_timeout_s: for one attempt, HELLO included.
        reconnect: whether a request that finds the connection lost, or the server going
            away, makes a new one. Requests that were open are never sent again: they fail
            with ConnectionLostError, since ids may have been produced for them.
        reconnect_timeout_s: how long such a request keeps trying, with growing and
            jittered pauses. The first connection is tried once.
        grace_s: how long after a request's own ``timeout_s`` the server may take to say so.
        allow_plaintext_key: send the key over TCP beyond loopback.
        follow: whether a stream on a state goes on by itself where the state has moved to, with
            the same key, and after a connection was lost (see ``on_disconnect`` of
            ``generate``). Otherwise it ends with reason MOVED, or fails.

    Raises:
        InvalidParameterError: ``address`` is none.
        PlaintextKeyError: see ``allow_plaintext_key``.
        ConnectFailedError, ConnectTimeoutError: nobody answers, or too late.
        HandshakeRefusedError: the server does not want this client.
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
) -> Client:
    """Take over a socket that is connected to a server, such as one end of a pair.

    The client owns the socket from then on. It never reconnects. Raises as ``connect``.
    """
    return Client(
        sock,
        api_key=api_key or "",
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=None,
        grace_s=grace_s,
    )
