"""From a request to a WebSocket, as all routes that have one do it."""

from aiohttp import web

from wkvm.gateway.failures import invalid

CLOSE_TIMEOUT_S = 1.0
"""How long a client may take to answer a close."""


def websocket_for(
    request: web.Request, protocol: str, *, max_bytes: int, ping_interval_s: float | None = None
) -> "web.WebSocketResponse[bool]":
    """What a request for an upgrade is answered with; not prepared yet.

    Args:
        protocol: chosen if the client offers it.
        max_bytes: of a message; a longer one closes it with 1009.
        ping_interval_s: how often the client is asked for a pong; half of it later it is taken for
            lost. None for never.

    Raises:
        HttpError: 400; it is no such request.
    """
    socket = web.WebSocketResponse[bool](
        protocols=(protocol,),
        compress=False,
        # A message of this length is already too long.
        max_msg_size=max_bytes + 1,
        timeout=CLOSE_TIMEOUT_S,
        heartbeat=ping_interval_s,
        decode_text=False,
    )
    if request.method != "GET" or not socket.can_prepare(request).ok:
        raise invalid(None, "this is no upgrade to a WebSocket", code="upgrade_missing")
    return socket
