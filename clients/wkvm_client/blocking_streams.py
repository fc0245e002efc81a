"""What a blocking consumer holds of a request: a stream, and its choices."""

import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self, TypeAlias

from wkvm_client.blocking_link import Link
from wkvm_client.errors import ClientError, RequestTimeoutError
from wkvm_client.lanes import Lane
from wkvm_client.results import Completion
from wkvm_client.tracks import Track
from wkvm_client.views import ChoiceView, LaneView


class Held:
    """The connection that a stream is on now.

    Args:
        follow: takes a lane that was cut off to where it goes on, and says what it is on then.
    """

    def __init__(self, link: Link, follow: "Follow") -> None:
        self.link = link
        self._follow = follow

    def go_on(self, lane: Lane, deadline_s: float | None) -> None:
        """Let a lane that was cut off go on, or fail.

        Raises:
            TimeoutError: it is ``deadline_s``.
        """
        try:
            there = self._follow(lane, deadline_s)
        except ClientError as error:
            lane.fail(error)
        else:
            self.link, self._follow = there.link, there._follow


Follow: TypeAlias = Callable[[Lane, float | None], Held]


def followed_by_its_reader(lane: Lane) -> None:
    """What is called when a lane was cut off: it goes on when it is read."""


class Choice(ChoiceView):
    """One completion as it arrives.

    ``for token_id in choice`` yields ids one by one. Leaving that loop early, by
    ``break`` or an exception, abandons the choice; the lane is cancelled once no choice is
    left that somebody may want. ``read`` takes ids without that obligation.
    """

    def __init__(self, held: Held, track: Track, timeout_s: float | None) -> None:
        super().__init__(track)
        self._held = held
        self._timeout_s = timeout_s
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def __iter__(self) -> Generator[int, None, None]:
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
                        self._held.link.push()
                    yield token_id
                if not self._more():
                    return
        finally:
            self._abandon()

    def read(self) -> list[int]:
        """Take all ids that have arrived; wait for one if there is none.

        Returns:
            At least one id, or none at the end.

        Raises:
            ClientError: the lane failed; after the ids that came before.
        """
        self._more()
        ids = self._track.take()
        self._held.link.push()
        return ids

    def completion(self) -> Completion:
        """Wait for the end. All ids are in it, also those that were read before.

        Grants the lane all the credit that it can use.

        Raises:
            ClientError: the lane failed.
        """
        track = self._track
        track.lane.grant_all()
        self._held.link.push()
        while not track.is_over:
            self._receive()
        return track.result()

    def _more(self) -> bool:
        """Wait for an id that was not taken. False at the end."""
        track = self._track
        while track.n_read == len(track.ids):
            if track.is_over:
                track.result()
                return False
            track.lane.starve()
            self._held.link.push()
            self._receive()
        return True

    def _receive(self) -> None:
        lane = self._track.lane
        try:
            if lane.cut is not None:
                self._held.go_on(lane, self._deadline_s)
                return
            link = self._held.link
            if link.receive(self._deadline_s):
                return
            # the consumer may have been away: what arrived meanwhile is not late
            link.receive_pending()
        except TimeoutError:
            pass
        lane.home.give_up(lane, RequestTimeoutError(self._timeout_s or 0.0))
        self._held.link.push()

    def _abandon(self) -> None:
        if self._track.abandon():
            self._track.lane.home.cancel(self._track.lane)
            self._held.link.push()


class Stream(LaneView[Choice]):
    """One request: a lane of the connection, with one or more choices.

    With one choice, the usual case, a stream reads like its choice. With more, read
    ``choices`` or wait for all ``completions``. ``with stream`` cancels what is not
    complete when the block is left.
    """

    def __init__(self, held: Held, lane: Lane, timeout_s: float | None) -> None:
        super().__init__(lane, tuple(Choice(held, track, timeout_s) for track in lane.tracks))
        self._held = held

    def __iter__(self) -> Iterator[int]:
        """As of the only choice."""
        return self._only.__iter__()

    def read(self) -> list[int]:
        """As of the only choice."""
        return self._only.read()

    def completion(self) -> Completion:
        """As of the only choice."""
        return self._only.completion()

    def completions(self) -> list[Completion]:
        """Wait for the ends of all choices.

        Raises:
            ClientError: the lane failed.
        """
        return [choice.completion() for choice in self.choices]

    def interrupt(self, keep: int | None = None) -> None:
        """Ask the server to end a request that saves its state, now, and to save what there is.

        Args:
            keep: how many ids of the output the state is to have; None for all.
        """
        self._lane.home.interrupt(self._lane, keep)
        self._held.link.push()

    def cancel(self) -> None:
        """Ask the server to end the request. Its choices then end with reason CANCELLED."""
        self._lane.home.cancel(self._lane)
        self._held.link.push()

    def close(self) -> None:
        """Cancel, without waiting for the end."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
