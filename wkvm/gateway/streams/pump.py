"""Choices on their way to their client: the events of a single one are written where ids arrive.

The engine's connection brings ids; what they say is written there and then. The handler that
answers sleeps meanwhile: to wake it for every id would cost more than the event does.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from wkvm.gateway.streams.choices import Arrivals
from wkvm.gateway.streams.pieces import ChoiceText, Piece
from wkvm.gateway.streams.sse import EventStream


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
    merging = [Merging(1) for _ in texts]  # the first of each as it comes
    try:
        while pieces := await arrivals.read():
            sent = list[bytes]()
            for index, piece in pieces:
                merged = merging[index].add(piece)
                if merged is not None:
                    sent.append(to_events(index, merged))
                    merging[index] = Merging(events.interval)
            await events.send_raw(b"".join(sent))
            if events.pace.is_behind:
                await asyncio.sleep(events.pace.lag_s)
    except Exception:
        rest = [(index, one.rest()) for index, one in enumerate(merging)]
        await events.send_raw(
            b"".join([to_events(index, piece) for index, piece in rest if piece is not None])
        )
        raise
    return b""


async def pump(text: ChoiceText, events: EventStream, to_events: Callable[[Piece], bytes]) -> bytes:
    """``send_all`` for one choice; what it returns are the events of the last piece."""
    has_begun = events.is_open
    while not events.is_open:
        piece = await text.read()
        data = to_events(piece)
        if piece.finish is not None:
            return data
        await events.send_raw(data)
    return await _Pump(text, events, to_events, has_sent=not has_begun).run()


class _Pump:
    def __init__(
        self,
        text: ChoiceText,
        events: EventStream,
        to_events: Callable[[Piece], bytes],
        *,
        has_sent: bool,
    ) -> None:
        self._text = text
        self._events = events
        self._pace = events.pace
        self._to_events = to_events
        self._has_sent = has_sent
        self._merging = Merging(events.interval)
        self._last: bytes | None = None
        self._error: Exception | None = None
        self._woken: asyncio.Future[None] | None = None

    async def run(self) -> bytes:
        """Sleep until the last piece is there; or the client has to read first."""
        loop = asyncio.get_running_loop()
        self._pace.enter()
        try:
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
        finally:
            self._pace.leave(self)
        return self._last

    def _pass_on(self) -> None:
        """Write what has arrived. Called by the engine's connection, so nothing is raised here."""
        if self._pace.is_behind and self._has_sent and not self._text.is_over:
            self._pace.hold(self, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        woken = self._woken
        if woken is None or woken.done():
            return  # there is an end already, or the handler was cancelled
        try:
            if self._write():
                return
        except Exception as error:  # noqa: BLE001  (the handler raises it)
            # Not as the future's: a handler that is cancelled just now would not look at it.
            self._error = error
        woken.set_result(None)

    def _write(self) -> bool:
        """Write what has arrived; False if the handler has to be woken."""
        try:
            piece = self._text.take()
        except Exception:
            if (held := self._merging.rest()) is not None:
                self._events.send_now(self._to_events(held))
            raise
        if piece is None:
            return True
        merged = self._merging.add(piece) if self._has_sent else piece
        if merged is None:
            return True
        data = self._to_events(merged)
        if merged.finish is not None:
            self._last = data
            return False
        self._has_sent |= bool(data)
        return self._events.send_now(data)


class Merging:
    """Pieces of one choice, put together until they have so many ids, or the last one is there."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: Piece | None = None

    def add(self, piece: Piece) -> Piece | None:
        """The pieces so far as one, once there are enough."""
        if self._held is not None:
            piece = self._held.then(piece)
        is_enough = piece.finish is not None or len(piece.ids) >= self._interval
        self._held = None if is_enough else piece
        return piece if is_enough else None

    def rest(self) -> Piece | None:
        """What is held."""
        held, self._held = self._held, None
        return held
