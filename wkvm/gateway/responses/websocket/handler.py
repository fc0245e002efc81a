"""GET /v1/responses, as an upgrade to a WebSocket."""

from aiohttp import web

from wkvm.gateway.calls import Call
from wkvm.gateway.failures import invalid
from wkvm.gateway.origins import check_origin
from wkvm.gateway.responses.websocket.session import Session

PROTOCOL = "responses"
"""A subprotocol that may be offered, and is then chosen: pages in browsers, which put their key
into another one, need one that is."""
CLOSE_TIMEOUT_S = 1.0
"""How long a client may take to answer a close."""
PING_INTERVAL_S = 30.0
"""How often a client is asked for a pong; half of it later it is taken for lost."""


async def connect(call: Call) -> web.StreamResponse:
    """``GET /v1/responses``: make responses over a WebSocket, in lanes."""
    gateway, request = call.gateway, call.request
    check_origin(request, gateway.config, needs_key=gateway.engines.needs_key)
    socket = web.WebSocketResponse[bool](
        protocols=(PROTOCOL,),
        compress=False,
        # A message of this length is already too long.
        max_msg_size=gateway.config.max_body_bytes + 1,
        timeout=CLOSE_TIMEOUT_S,
        heartbeat=PING_INTERVAL_S,
        decode_text=False,
    )
    if request.method != "GET" or not socket.can_prepare(request).ok:
        why = "GET is for a WebSocket: POST makes a response, GET /v1/responses/ID reads one"
        raise invalid(None, why, code="upgrade_missing")
    await socket.prepare(request)
    await Session(call, socket).run()
    return socket
