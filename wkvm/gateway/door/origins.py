"""Which browser pages may use the server, and what CORS tells their browsers.

What is no browser sends no Origin and is let in.

A page that a user visits can send requests to a server on the user's own machine: across sites,
or, after its name was pointed at a loopback address (DNS rebinding), as if from the same site.
Where no key is needed, nothing else would stop it.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.failures import HttpError

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
_PREFLIGHT_IS_GOOD_FOR_S = "600"
_READABLE = ", ".join(
    (
        "Request-Id",
        "Retry-After",
        *(
            f"X-RateLimit-{what}-{of}"
            for of in ("Requests", "Tokens")
            for what in ("Limit", "Remaining", "Reset")
        ),
        "X-Request-Id",
        "X-State",
    )
)
"""Headers of answers that a page's script may read, besides those that it always may."""


def check_origin(request: web.Request, config: GatewayConfig, *, needs_key: bool) -> None:
    """Refuse pages from elsewhere.

    A page is from here if its origin is the Host that it asks for; without keys also only if that
    is an address or ``localhost``, which nobody can point elsewhere. Others have to be among the
    settings' ``allowed_origins``.

    Raises:
        HttpError: 403.
    """
    origin = request.headers.get("Origin")
    if origin is None or _is_named(origin, config):
        return
    if _is_same(origin, request.headers.get("Host", "")) and (needs_key or _is_fixed(origin)):
        return
    raise HttpError(
        403,
        "a page of this origin may not use this server; see --allowed-origins",
        "permission_error",
        code="origin_not_allowed",
    )


def let_pages_read(app: web.Application, config: GatewayConfig) -> None:
    """Tell browsers that pages of the settings' ``allowed_origins`` may read what is answered.

    A page may send any header, its key too; a browser asks for that before it sends the request
    itself, without a key.
    """

    @web.middleware
    async def answer_preflight(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        headers = request.headers
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in headers
        if not is_preflight or not _is_named(headers.get("Origin", ""), config):
            return await handler(request)
        allowed = {
            "Access-Control-Allow-Methods": _METHODS,
            # "*" would not include Authorization.
            "Access-Control-Allow-Headers": headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Max-Age": _PREFLIGHT_IS_GOOD_FOR_S,
        }
        if headers.get("Access-Control-Request-Private-Network") == "true":
            # Asked for where a page of the internet uses a server in the user's own network.
            allowed["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=allowed)

    async def name_origin(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and _is_named(origin, config):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _READABLE
        response.headers["Vary"] = "Origin"

    app.middlewares.append(answer_preflight)
    app.on_response_prepare.append(name_origin)


def _is_named(origin: str, config: GatewayConfig) -> bool:
    """Whether a setting lets a page in."""
    return "*" in config.allowed_origins or origin in config.allowed_origins


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin, such as ``http://localhost:8000``, is of a host: ``localhost:8000``."""
    try:
        page, asked = urlsplit(origin), urlsplit(f"//{host}")
        default = _PORTS.get(page.scheme)
        return (
            page.hostname is not None
            and page.hostname == asked.hostname
            and (page.port or default) == (asked.port or default)
        )
    except ValueError:
        return False


def _is_fixed(origin: str) -> bool:
    """Whether a page's host is no name that its owner could point elsewhere."""
    host = urlsplit(origin).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
