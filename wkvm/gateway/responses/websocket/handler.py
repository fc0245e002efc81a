"""GET /v1/responses, as an upgrade to a WebSocket."""

from aiohttp import web

from wkvm.gateway.calls import Call
from wkvm.gateway.door.origins import check_origin
from wkvm.gateway.door.upgrades import websocket_for
from wkvm.gateway.responses.websocket.session import Session

PROTOCOL = "responses"
"""A subprotocol that may be offered, and is then chosen: pages in browsers, which put their key
into another one, need one that is."""
PING_INTERVAL_S = 30.0
"""How often a client is asked for a pong; half of it later it is taken for lost."""


async def connect(call: Call) -> web.StreamResponse:
    """``GET /v1/responses``: make responses over a WebSocket, in lanes."""
    gateway, request = call.gateway, call.request
    check_origin(request, gateway.config, needs_key=gateway.engines.needs_key)
    socket = websocket_for(
        request,
        PROTOCOL,
        max_bytes=gateway.config.max_body_bytes,
        ping_interval_s=PING_INTERVAL_S,
    )
    await socket.prepare(request)
    await Session(call, socket).run()
    return socket
