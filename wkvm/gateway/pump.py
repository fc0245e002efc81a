"""Choices on their way to their client: the events of a single one are written where ids arrive.

The engine's connection brings ids; what they say is written there and then. The handler that
answers sleeps meanwhile: to wake it for every id would cost more than the event does.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from wkvm.gateway.choices import Arrivals
from wkvm.gateway.pieces import ChoiceText, Piece
from wkvm.gateway.sse import EventStream


async def send_all(
    texts: Sequence[ChoiceText], events: EventStream, to_events: Callable[[int, Piece], bytes]
) -> bytes:
    """Send what arrives, until all choices have ended.

    Args:
        texts: nobody else reads them.
        events: begun or not.
        to_events: what a piece of a choice, by its index, becomes, framed; perhaps nothing.

    Returns:
        Events that were not sent: the end of the stream can go with them.

    Raises:
        ClientError, HttpError: as ``ChoiceText.read``; after the events that came before.
        ConnectionError: the client is gone.
    """
    if len(texts) == 1:
        return await pump(texts[0], events, partial(to_events, 0))
    arrivals = Arrivals(texts)
    while pieces := await arrivals.read():
        await events.send_raw(b"".join([to_events(index, piece) for index, piece in pieces]))
    return b""


async def pump(text: ChoiceText, events: EventStream, to_events: Callable[[Piece], bytes]) -> bytes:
    """``send_all`` for one choice; what it returns are the events of the last piece."""
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
