"""A choice on its way to its client: events are written where ids arrive.

The engine's connection brings ids; what they say is written there and then. The handler that
answers sleeps meanwhile: to wake it for every id would cost more than the event does.
"""

import asyncio
from collections.abc import Callable

from wkvm.gateway.pieces import ChoiceText, Piece
from wkvm.gateway.sse import EventStream


async def pump(text: ChoiceText, events: EventStream, to_events: Callable[[Piece], bytes]) -> bytes:
    """Send the events of a choice as they come.

    Args:
        text: nobody else reads it.
        events: begun or not.
        to_events: what a piece becomes, framed; perhaps nothing.

    Returns:
        The events of the last piece. They are not sent: the end of the stream can go with them.

    Raises:
        ClientError, HttpError: as ``ChoiceText.read``.
        ConnectionError: the client is gone.
    """
    while not events.is_open:
        piece = await text.read()
        data = to_events(piece)
        if piece.finish is not None:
            return data
        await events.send_raw(data)
    return await _Pump(text, events, to_events).run()


class _Pump:
    def __init__(
        self, text: ChoiceText, events: EventStream, to_events: Callable[[Piece], bytes]
    ) -> None:
        self._text = text
        self._events = events
        self._to_events = to_events
        self._last: bytes | None = None
        self._error: Exception | None = None
        self._woken: asyncio.Future[None] | None = None

    async def run(self) -> bytes:
        """Sleep until the last piece is there; or the client has to read first."""
        loop = asyncio.get_running_loop()
        while self._last is None:
            await self._events.writable()
            self._woken = loop.create_future()
            self._text.watch(self._pass_on)
            try:
                await self._woken
            finally:
                self._text.unwatch()
            if self._error is not None:
                raise self._error
        return self._last

    def _pass_on(self) -> None:
        """Write what has arrived. Called by the engine's connection, so nothing is raised here."""
        woken = self._woken
        if woken is None or woken.done():
            return  # there is an end already, or the handler was cancelled
        try:
            piece = self._text.take()
            if piece is None:
                return
            data = self._to_events(piece)
            if piece.finish is not None:
                self._last = data
            elif self._events.send_now(data):
                return
        except Exception as error:  # noqa: BLE001  (the handler raises it)
            # Not as the future's: a handler that is cancelled just now would not look at it.
            self._error = error
        woken.set_result(None)
