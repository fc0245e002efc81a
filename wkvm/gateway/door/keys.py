"""The key that a request brings, in one of two headers or by a subprotocol."""

import base64
import binascii

from aiohttp import web

from wkvm.gateway.failures import HttpError

KEY_HEADER = "X-Api-Key"
"""Where Anthropic's clients put the key."""
KEY_PROTOCOL = "wkvm.key."
"""A WebSocket subprotocol of this name and a key, in base64url without padding. Browsers let pages
name subprotocols, but set no header."""


def request_key(request: web.Request) -> str:
    """The key that a request brings; empty if it brings none.

    Raises:
        HttpError: 401; one is there and cannot be read, or there are several.
    """
    # Where there are two, a proxy in front may have looked at the other one.
    given = request.headers.getall("Authorization", ())
    if len(given) > 1:
        raise _refused("Authorization is there more than once")
    named = {key.strip() for key in request.headers.getall(KEY_HEADER, ())}
    scheme, _, key = "".join(given).partition(" ")
    if scheme.lower() == "bearer":
        named.add(key.strip())
    if len(named) > 1:
        raise _refused(f"Authorization and {KEY_HEADER} bring different keys")
    if named:
        return named.pop()
    for protocol in offered_protocols(request):
        if protocol.startswith(KEY_PROTOCOL):
            return _decoded(protocol.removeprefix(KEY_PROTOCOL))
    return ""


def offered_protocols(request: web.Request) -> list[str]:
    """The WebSocket subprotocols that a request offers."""
    lines = request.headers.getall("Sec-WebSocket-Protocol", ())
    return [one.strip() for line in lines for one in line.split(",")]


def _decoded(text: str) -> str:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise _refused(f"what follows {KEY_PROTOCOL} is not a key in base64url") from error


def _refused(why: str) -> HttpError:
    return HttpError(401, why, "authentication_error", code="invalid_api_key")
