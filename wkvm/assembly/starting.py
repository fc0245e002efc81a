"""What answers at the HTTP door while the model is loaded: alive, and not ready yet.

A thread with an event loop of its own, which ends before the door itself is opened. It reads no
body and no key, and knows two routes and the console's files, so that who opens the console need
not do it again; all others are told to try again.
"""

import asyncio
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import msgspec

from wkvm.gateway import page_routes
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.listening import tls_context
from wkvm.gateway.failures import SERVER, HttpError, error_body
from wkvm.gateway.monitoring.health import Status
from wkvm.gateway.pages import Page, Pages
from wkvm.server.listen import Listening, bind

MAX_CONNECTIONS = 1024
"""Further ones are closed."""
MAX_HEAD_BYTES = 16 * 1024
"""Of a request, up to the end of its headers."""
RETRY_AFTER_S = 5

_REASONS = {200: "OK", 503: "Service Unavailable"}


@contextmanager
def told_to_start(config: GatewayConfig | None, *, has_keys: bool) -> Generator[None]:
    """Answer at the addresses of ``config`` while in the ``with`` block.

    Args:
        config: None, and a port that is chosen later, are answered at by nobody.
        has_keys: whether more than this machine may be served.

    Raises:
        ConfigError, SettingError: an address, or the certificate, cannot be had.
    """
    if config is None or config.port == 0:
        yield
        return
    tls = tls_context(config)
    listening = bind(
        config.host,
        config.port,
        config.uds,
        loopback_only=not has_keys,
        settings=("port", "uds"),
    )
    try:
        starting = _Starting(listening, config.header_timeout_s, tls)
        starting.start()
        try:
            yield
        finally:
            starting.stop()
    finally:
        listening.close()


class _Starting:
    """The thread."""

    def __init__(self, listening: Listening, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._listening = listening
        self._timeout_s = timeout_s
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._n = 0
        self._pages = Pages()
        self._thread = threading.Thread(target=self._run, name="wkvm-starting", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer nobody any more; connections are closed when this returns."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        # A copy of each: closing a server closes what it listens on.
        servers = [
            await asyncio.start_server(
                self._answer, sock=one.dup(), limit=MAX_HEAD_BYTES, ssl=self._tls
            )
            for one in self._listening.sockets
        ]
        await self._over.wait()
        for server in servers:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n += 1
        try:
            if self._n <= MAX_CONNECTIONS:
                async with asyncio.timeout(self._timeout_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # nobody is told anything who asks for nothing
        finally:
            self._n -= 1
            writer.close()

    def _response(self, head: bytes) -> bytes:
        """The answer to a request, by the first line of its head."""
        method, target, *_ = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), "", ""]
        path = target.partition("?")[0]
        if method in ("GET", "HEAD") and (name := page_routes.at(path)) is not None:
            page = self._pages.get(name)
            if page is not None:
                return _told(head, 200, page.body, _fields_of(page))
        media = {"Content-Type": "application/json", "Cache-Control": "no-store"}
        if path == "/health":
            return _told(head, 200, msgspec.json.encode(Status("ok")), media)
        later = {**media, "Retry-After": f"{RETRY_AFTER_S}"}
        if path == "/ready":
            return _told(head, 503, msgspec.json.encode(Status("not ready", "starting")), later)
        why = "the server is starting: the model is being loaded"
        return _told(head, 503, error_body(HttpError(503, why, SERVER, code="starting")), later)


def _fields_of(page: Page) -> dict[str, str]:
    charset = "; charset=utf-8" if page.media.startswith("text/") else ""
    return {"Content-Type": f"{page.media}{charset}", **page_routes.headers_of(page)}


def _told(head: bytes, status: int, body: bytes, fields: Mapping[str, str]) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "Server: wkvm",
        *(f"{name}: {value}" for name, value in fields.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + (b"" if head.startswith(b"HEAD ") else body)
