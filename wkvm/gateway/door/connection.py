"""One HTTP connection: aiohttp's, with the deadlines that aiohttp does not have.

Of aiohttp's handler only public methods are overridden, and no private attribute is used.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import cast

from aiohttp import StreamReader, web

from wkvm.gateway.app import SERVER_NAME, error_response
from wkvm.gateway.calls import Gateway
from wkvm.gateway.failures import SERVER, HttpError, error_body

logger = logging.getLogger("wkvm.gateway")

LINGERING_S = 1.0
"""How long the rest of a body that nobody reads is taken, so that the client sees the answer."""
MAX_LINGERING = 256
"""Connections that are one too many and are heard out; those beyond are closed at once."""
MIN_READ_RATE = 1024
"""Bytes in a second; a client that reads less, with more than that waiting, has stalled."""


@dataclass(slots=True)
class Shared:
    """What all connections of a door share.

    Attributes:
        connections: those that are open.
        changed: set whenever a connection or a request has ended.
    """

    gateway: Gateway
    connections: "set[Connection]" = field(default_factory=lambda: set[Connection]())
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(web.RequestHandler):
    """A connection to an HTTP client.

    Two clocks run on it, beside aiohttp's own for idle connections:

    - From the start, or from the first bytes after a request, ``header_timeout_s`` run until the
      headers of a request are complete. A body has a clock of its own, where it is read.
    - While the transport holds more than its limit, or is to be closed and holds anything, the
      client has to read: ``MIN_READ_RATE`` over any ``write_timeout_s``. Otherwise the connection
      is aborted, and with it the handler that writes.

    Args:
        shared: with all connections of the door.
        server: aiohttp's part of the door.
    """

    __slots__ = (
        "_body",
        "_call_later",
        "_config",
        "_has_begun",
        "_header_clock",
        "_in_request",
        "_n_unsent",
        "_shared",
        "_wire",
        "_write_clock",
    )

    def __init__(self, shared: Shared, server: web.Server) -> None:
        config = shared.gateway.config
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=config.keepalive_timeout_s,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to have none
            lingering_time=LINGERING_S,
            auto_decompress=False,
        )
        self._shared = shared
        self._config = config
        self._call_later = loop.call_later
        self._wire: asyncio.Transport | None = None
        self._body: StreamReader | None = None
        self._in_request = False
        self._has_begun = False
        self._header_clock: asyncio.TimerHandle | None = None
        self._write_clock: asyncio.TimerHandle | None = None
        self._n_unsent = 0

    @property
    def in_request(self) -> bool:
        """Whether a request was taken whose answer is not written yet."""
        return self._in_request

    def abort(self) -> None:
        """Drop the connection, with whatever was not sent."""
        if self._wire is not None:
            self._wire.abort()

    # --- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._wire = cast(asyncio.Transport, transport)
        self._shared.connections.add(self)
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End: the handler that runs is cancelled."""
        self._wire = None
        self._in_request = False
        self._stop_header_clock()
        self._stop_write_clock()
        super().connection_lost(exc)
        self._shared.connections.discard(self)
        self._shared.changed.set()

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        is_body = self._body is not None and not self._body.is_eof()
        if data and not self._in_request and not is_body:
            self._has_begun = True
            self._expect_headers()
        super().data_received(data)

    def pause_writing(self) -> None:
        """The transport holds more than its limit."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_write_clock()
        super().resume_writing()

    # --- from aiohttp ------------------------------------------------------------------------

    def request_begun(self, body: StreamReader) -> None:
        """A request's headers are complete, and its handler runs."""
        self._body = body
        self._in_request = True
        self._stop_header_clock()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write what is left of an answer."""
        if self._shared.gateway.is_draining:
            resp.force_close()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._in_request = False
            self._has_begun = False
            self._shared.changed.set()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request, in the format of all others."""
        if status < 500:
            # Not the message: it quotes what was sent, and a key may be in that.
            logger.debug("a connection sent what is not HTTP: %s", type(exc).__name__)
            error = HttpError(status, "what was sent is not HTTP as it is taken here")
        else:
            logger.error("a request failed", exc_info=exc)
            error = HttpError(status, "internal error; the log has it", SERVER)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = error_response(error)
        response.headers["Server"] = SERVER_NAME  # aiohttp's own would tell versions
        response.force_close()
        return response

    def force_close(self) -> None:
        """Close once what was written is read, or its time is over."""
        super().force_close()
        self._expect_reading()

    async def start(self) -> None:
        """Answer requests until the connection is to be closed."""
        try:
            await super().start()
        finally:
            self._expect_reading()

    # --- clocks ------------------------------------------------------------------------------

    def _expect_headers(self) -> None:
        if self._header_clock is None:
            self._header_clock = self._call_later(
                self._config.header_timeout_s, self._headers_are_late
            )

    def _stop_header_clock(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _headers_are_late(self) -> None:
        self._header_clock = None
        if self._wire is None:
            return
        if self._has_begun:
            self._wire.write(
                raw_response(HttpError(408, "the headers came too slowly", code="header_timeout"))
            )
        self.force_close()

    def _expect_reading(self) -> None:
        if self._write_clock is None and self._wire is not None:
            self._n_unsent = self._wire.get_write_buffer_size()
            self._write_clock = self._call_later(self._config.write_timeout_s, self._check_reading)

    def _stop_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None

    def _check_reading(self) -> None:
        self._write_clock = None
        if self._wire is None:
            return
        n_read = self._n_unsent - self._wire.get_write_buffer_size()
        if n_read < MIN_READ_RATE * self._config.write_timeout_s:
            logger.debug("a client reads too slowly and loses its connection")
            self._wire.abort()
        else:
            self._expect_reading()


class Refusal(asyncio.Protocol):
    """A connection that is one too many: it is told so, and closed.

    What it sends is read and dropped for a moment: a connection that is closed before all that was
    sent is read is reset, and the client loses the answer.

    Args:
        lingering: of all of these connections; this one is in it while it waits.
    """

    def __init__(self, lingering: set["Refusal"]) -> None:
        self._lingering = lingering
        self._wire: asyncio.Transport | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer, and wait for what the client may be about to send."""
        self._wire = cast(asyncio.Transport, transport)
        error = HttpError(
            503, "too many connections", SERVER, code="too_many_connections", retry_after_s=1
        )
        self._wire.write(raw_response(error))
        if len(self._lingering) >= MAX_LINGERING:
            self._wire.close()
            return
        if self._wire.can_write_eof():
            self._wire.write_eof()
        self._lingering.add(self)
        self._clock = asyncio.get_running_loop().call_later(LINGERING_S, self._wire.close)

    def data_received(self, data: bytes) -> None:
        """Drop it. A request is in one piece, as a rule: whoever sends more may be reset."""
        if self._wire is not None:
            self._wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._lingering.discard(self)
        if self._clock is not None:
            self._clock.cancel()


def raw_response(error: HttpError) -> bytes:
    """An error outside any request, as bytes. The connection is closed after it."""
    response = error_response(error)
    response.headers["Content-Length"] = str(len(error_body(error)))
    response.headers["Connection"] = "close"
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + error_body(error)
