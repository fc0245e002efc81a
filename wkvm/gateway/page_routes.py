"""The console, a page for browsers.

It is open to all, as it holds nothing but the program: what it shows it asks for with its user's
key. Files whose names have a digest of what they hold never change, and are kept by browsers.
"""

from aiohttp import web

from wkvm.gateway.calls import Call
from wkvm.gateway.failures import HttpError
from wkvm.gateway.pages import ASSETS, ICON, INDEX, Page

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        # Other servers are asked where a state is moved there.
        "connect-src 'self' ws: wss:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
ABSENT = (
    "This wkvm was packaged without its console, which is the page that belongs here. In a "
    "checkout, `npm ci` and `npm run build` in clients/console make it. All that it does is "
    "also in `wkvm states`, `wkvm chat` and `wkvm top`, and /openapi.json names the routes."
)


def at(path: str) -> str | None:
    """The name of the file that is at a path; None where there is none to be."""
    if path == "/":
        return INDEX
    name = path.removeprefix("/")
    return name if name == ICON or name.startswith(ASSETS) else None


def headers_of(page: Page) -> dict[str, str]:
    """What is told with a file, whoever sends it."""
    lasts = "public, max-age=31536000, immutable" if page.is_final else "no-cache"
    return {**HEADERS, "Cache-Control": lasts}


async def console(call: Call) -> web.StreamResponse:
    """``GET /``: the console, a page for browsers."""
    return _answer(call, INDEX)


async def icon(call: Call) -> web.StreamResponse:
    """``GET /icon.svg``: of the console."""
    return _answer(call, ICON)


async def asset(call: Call) -> web.StreamResponse:
    """``GET /assets/{file}``: a file of the console, which never changes."""
    return _answer(call, ASSETS + call.request.match_info["file"])


def _answer(call: Call, name: str) -> web.Response:
    page = call.gateway.pages.get(name)
    if page is None:
        why = ABSENT if name == INDEX else f"there is no {call.request.path}"
        raise HttpError(404, why, code="not_found")
    is_packed = bool(page.packed) and "gzip" in call.request.headers.get("Accept-Encoding", "")
    tag = f'"{page.digest}{"-gzip" if is_packed else ""}"'
    headers = {**headers_of(page), "ETag": tag, "Vary": "Accept-Encoding"}
    if tag in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(
        body=page.packed if is_packed else page.body,
        content_type=page.media,
        charset="utf-8" if page.media.startswith("text/") else None,
        headers=headers,
    )
