"""What an asyncio consumer holds of a request: a stream, and its choices."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Self

from wkvm_client.lanes import Lane
from wkvm_client.results import Completion
from wkvm_client.tracks import Track
from wkvm_client.views import ChoiceView, LaneView


class Choice(ChoiceView):
    """One completion as it arrives.

    ``async for token_id in choice`` yields ids one by one. Leaving that loop early, by
    ``break``, an exception or the task's cancellation, abandons the choice; the lane is
    cancelled once no choice is left that somebody may want. ``read`` takes ids without
    that obligation.
    """

    def __init__(self, track: Track) -> None:
        super().__init__(track)
        # another loop that awaits a future of this one is told so, and does not hang
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncGenerator[int, None]:
        """Go through the ids, from the first that was not taken yet.

        Raises:
            ClientError: the lane failed; after the ids that came before.
        """
        track = self._track
        lane, ids = track.lane, track.ids
        try:
            while True:
                while track.n_read < len(ids):
                    token_id = ids[track.n_read]
                    track.n_read += 1
                    lane.n_consumed += 1
                    if lane.n_consumed >= lane.grant_at:
                        lane.consumed(0)
                    yield token_id
                if not await self._more():
                    return
        finally:
            self.abandon()

    async def read(self) -> list[int]:
        """Take all ids that have arrived; wait for one if there is none.

        Cancelling this, as ``asyncio.wait_for`` does, loses nothing and cancels nothing.

        Returns:
            At least one id, or none at the end.

        Raises:
            ClientError: the lane failed; after the ids that came before.
        """
        await self._more()
        return self._track.take()

    def take(self) -> list[int]:
        """Take all ids that have arrived, without waiting.

        Returns:
            None of them if there are none yet, or at the end; ``is_over`` tells which.

        Raises:
            ClientError: the lane failed; after the ids that came before.
        """
        track = self._track
        if track.n_read == len(track.ids):
            if track.is_over:
                track.result()
            return []
        return track.take()

    def call_when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as ``read`` would not wait; at once if it would not now.

        For who reads many choices side by side: it costs neither a task nor a future. What came
        together is all there when it calls back, which must not raise.

        Raises:
            RuntimeError: somebody waits already.
        """
        track = self._track
        if track.n_read < len(track.ids) or track.is_over:
            callback()
        else:
            track.wait(lambda: track.lane.home.when_received(callback))

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever ids or the end have come, until ``unwatch``; as ``call_when_ready``.

        For who passes on each id as it comes: this is the cheapest way to learn of it. It may
        call back with nothing left to take.

        Raises:
            RuntimeError: somebody waits already.
            ValueError: the stream has several choices.
        """
        track = self._track
        track.watch(callback)
        if track.n_read < len(track.ids) or track.is_over:
            callback()

    def unwatch(self) -> None:
        """End ``watch``, perhaps after one more call."""
        self._track.stop_waiting()

    def call_when_over(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as ``completion`` would not wait; at once if it would not now.

        Grants the lane all the credit that it can use, as ``completion`` does.
        """
        track = self._track
        track.lane.grant_all()
        if track.is_over:
            callback()
        else:
            track.on_end.append(callback)

    def abandon(self) -> None:
        """Give the choice up. The lane is cancelled once none is left that somebody may want."""
        if self._track.abandon():
            self._track.lane.home.cancel(self._track.lane)

    async def completion(self) -> Completion:
        """Wait for the end. All ids are in it, also those that were read before.

        Grants the lane all the credit that it can use. Cancelling this abandons the choice.

        Raises:
            ClientError: the lane failed.
        """
        track = self._track
        track.lane.grant_all()
        while not track.is_over:
            future = self._loop.create_future()
            track.on_end.append(lambda f=future: f.done() or f.set_result(None))  # type: ignore[misc]
            try:
                await future
            except asyncio.CancelledError:
                self.abandon()
                raise
        return track.result()

    async def _more(self) -> bool:
        """Wait for an id that was not taken. False at the end."""
        track = self._track
        while track.n_read == len(track.ids):
            if track.is_over:
                track.result()
                return False
            future = self._loop.create_future()
            track.wait(lambda f=future: f.done() or f.set_result(None))  # type: ignore[misc]
            try:
                await future
            except asyncio.CancelledError:
                track.stop_waiting()
                raise
        return True


class Stream(LaneView[Choice]):
    """One request: a lane of the connection, with one or more choices.

    With one choice, the usual case, a stream reads like its choice. With more, read
    ``choices``, side by side or one after the other, or wait for all ``completions``.
    ``async with stream`` cancels what is not complete when the block is left.
    """

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane, tuple(Choice(track) for track in lane.tracks))

    def __aiter__(self) -> AsyncIterator[int]:
        """As of the only choice."""
        return self._only.__aiter__()

    async def read(self) -> list[int]:
        """As of the only choice."""
        return await self._only.read()

    async def completion(self) -> Completion:
        """As of the only choice."""
        return await self._only.completion()

    async def completions(self) -> list[Completion]:
        """Wait for the ends of all choices. Cancelling this cancels the lane.

        Raises:
            ClientError: the lane failed.
        """
        try:
            return [await choice.completion() for choice in self.choices]
        except asyncio.CancelledError:
            self.cancel()
            raise

    def interrupt(self, keep: int | None = None) -> None:
        """Ask the server to end a request that saves its state, now, and to save what there is.

        Args:
            keep: how many ids of the output the state is to have; None for all.
        """
        self._lane.home.interrupt(self._lane, keep)

    def cancel(self) -> None:
        """Ask the server to end the request. Its choices then end with reason CANCELLED."""
        self._lane.home.cancel(self._lane)

    async def aclose(self) -> None:
        """Cancel, without waiting for the end."""
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
