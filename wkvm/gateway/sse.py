"""Server-sent events: one HTTP response that goes on while something is generated.

An event is handed to the transport at once, framed here: there is neither a task nor a copy for
it beyond that. Who does not read is the connection's business, which ends with its deadline; here
nothing more is written while the transport is full.
"""

from types import TracebackType
from typing import Self

from aiohttp import HttpVersion11, web

from wkvm.gateway.calls import REQUEST_ID_HEADER, Call
from wkvm.gateway.failures import HttpError, error_body

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Proxies that would collect events for a while are asked not to.
    "X-Accel-Buffering": "no",
}
_START = b"data: "
_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
"""The event that tells OpenAI's clients that no more come."""


class EventStream:
    """The events that answer one call. To be entered with ``async with``.

    The response begins with the first event, so what fails before that is an ordinary error
    response: the exception leaves the block. What fails later becomes the last event, and the
    exception ends there; so does one that says that the client is gone. Cancellation passes
    through: aiohttp cancels the handler when the connection ends.

    ::

        async with EventStream(call) as events:
            await events.send(b'{"x":1}')
            await events.done()
        return events.response
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._request = call.request
        self._transport = call.request.transport
        self._is_chunked = call.request.version >= HttpVersion11
        self.response = web.StreamResponse(headers={**_HEADERS, REQUEST_ID_HEADER: call.request_id})

    @property
    def is_open(self) -> bool:
        """Whether the response has begun."""
        return self.response.prepared

    async def open(self) -> None:
        """Begin the response now, before there is an event. Nothing happens the second time."""
        if not self.response.prepared:
            await self.response.prepare(self._request)

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
        if not self.response.prepared:
            await self.open()
        protocol, transport = self._request.protocol, self._transport
        if protocol.writing_paused:
            await self._request.writer.drain()
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        # Not response.write(): it comes to the same, at several times the cost.
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(data)

    async def done(self) -> None:
        """Send ``DONE``."""
        await self.send_raw(DONE)

    async def fail(self, error: HttpError) -> None:
        """Send an event that says what went wrong. It should be the last."""
        await self.send(error_body(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(exc, Exception) or not self.response.prepared:
            return False
        try:
            if not isinstance(exc, ConnectionError):
                await self.fail(self._call.failure(exc))
        except ConnectionError:
            pass
        return True
