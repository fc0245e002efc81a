"""Server-sent events: one HTTP response that goes on while something is generated.

An event is handed to the transport at once, framed here: there is neither a task nor a copy for
it beyond that. Who does not read is the connection's business, which ends with its deadline; here
nothing more is written while the transport is full.
"""

from types import TracebackType
from typing import Self

from aiohttp import HttpVersion11, web

from wkvm.gateway.calls import Call
from wkvm.gateway.failures import HttpError

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Proxies that would collect events for a while are asked not to.
    "X-Accel-Buffering": "no",
}
_START = b"data: "
_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
"""The event that tells OpenAI's clients that no more come."""


class _Response(web.StreamResponse):
    """A response whose headers leave with the first event."""

    # As aiohttp's own Response, whose headers leave with its body.
    _send_headers_immediately = False


class EventStream:
    """The events that answer one call. To be entered with ``async with``.

    The response begins with the first event, so what fails before that is an ordinary error
    response: the exception leaves the block. What fails later becomes the last event, and the
    exception ends there; so does one that says that the client is gone. Cancellation passes
    through: aiohttp cancels the handler when the connection ends.

    ::

        async with EventStream(call) as events:
            await events.send(b'{"x":1}')
            await events.finish(DONE)
        return events.response

    Args:
        interval: how many ids an event should have; None for the server's setting.

    Attributes:
        interval: likewise.
        pace: of the event loop.
    """

    def __init__(self, call: Call, *, interval: int | None = None) -> None:
        self.interval = call.gateway.config.stream_interval if interval is None else interval
        self.pace = call.gateway.pace
        self._call = call
        self._request = call.request
        self._protocol = call.request.protocol
        self._transport = call.request.transport
        self._is_chunked = call.request.version >= HttpVersion11
        self._has_begun = False
        ids = dict.fromkeys(call.dialect.id_headers, call.request_id)
        self.response = _Response(headers={**STREAM_HEADERS, **ids})

    @property
    def is_open(self) -> bool:
        """Whether the response has begun."""
        return self._has_begun

    async def send(self, *events: bytes) -> None:
        """Send events, each one JSON text. Cost: a microsecond and a write for all of them.

        Waits while the client has not read what was sent before.

        Raises:
            ConnectionError: the client is gone.
        """
        await self.send_raw(b"".join([b"".join((_START, event, _END)) for event in events]))

    async def send_raw(self, data: bytes) -> None:
        """Send events that are framed already: ``data: ``, the JSON text, two line ends; each.

        Waits as ``send``. Without data nothing happens.

        Raises:
            ConnectionError: the client is gone.
        """
        if not data:
            return
        if not self._has_begun:
            await self._begin()
            await self.response.write(data)
            return
        await self.writable()
        self.send_now(data)

    def send_now(self, data: bytes) -> bool:
        """Send framed events after the first, without waiting.

        Returns:
            Whether more may be sent; if not, ``writable`` says when.

        Raises:
            ConnectionError: the client is gone.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if data:
            # Not response.write(): it comes to the same, at several times the cost.
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        return not self._protocol.writing_paused

    async def writable(self) -> None:
        """Wait until the client has read enough of what was sent."""
        if self._protocol.writing_paused:
            await self._request.writer.drain()

    async def finish(self, data: bytes) -> None:
        """Send the last events, framed, and with them the end of the response.

        Raises:
            ConnectionError: the client is gone.
        """
        if not self._has_begun:
            await self._begin()
        await self.writable()
        await self.response.write_eof(data)

    async def _begin(self) -> None:
        """Make the headers. They leave with what is written next, or by themselves."""
        await self.response.prepare(self._request)
        self._has_begun = True

    async def fail(self, error: HttpError) -> None:
        """Send an event that says what went wrong. It should be the last."""
        await self.send_raw(self._call.dialect.event(error, self._call.request_id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(exc, Exception) or not self._has_begun:
            return False
        try:
            if not isinstance(exc, ConnectionError):
                await self.fail(self._call.failure(exc))
        except ConnectionError:
            pass
        return True
