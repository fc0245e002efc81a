"""One choice of a lane: the ids that came, who reads them, and who is told. No I/O.

An id that arrives costs an append and a look at whether somebody waits for it; everything else
happens when ids are taken.
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from wkvm_client.errors import ClientError
from wkvm_client.packed import PackedLogprobs
from wkvm_client.results import Completion

if TYPE_CHECKING:
    from wkvm_client.lanes import Lane


class Home(Protocol):
    """The connection that a lane is on. A lane may move to another one: see ``Lane.move``."""

    def grant(self, lane: "Lane", n_ids: int) -> None:
        """Let the server send more ids."""
        ...

    def cancel(self, lane: "Lane") -> None:
        """Ask the server to end a lane."""
        ...

    def interrupt(self, lane: "Lane", keep: int | None) -> None:
        """Ask the server to end a lane now, and to save what it has."""
        ...

    def give_up(self, lane: "Lane", error: ClientError) -> None:
        """Cancel a lane, and fail it without waiting for its end."""
        ...

    def when_received(self, callback: Callable[[], None]) -> None:
        """Call back when all that has come with what comes now is taken in."""
        ...

    def hook(self, callback: Callable[[], None]) -> Callable[[], None]:
        """What to call for each id that comes, so that ``callback`` is called as above."""
        ...


class Track:
    """One choice of a lane.

    Attributes:
        ids: all that arrived. Only ever appended to.
        n_read: how many of them the consumer has taken.
        logprobs: theirs, if they were asked for.
        hook: called after an id arrived, if set.
        completion: set when the choice has ended well.
        is_alone: whether the lane has no other; then nobody but its own reader has to be told.
        abandoned: whether its consumer left before the end.
        n_reused: how many tokens of the prompt were not computed for it.
    """

    __slots__ = (
        "abandoned",
        "completion",
        "hook",
        "ids",
        "index",
        "is_alone",
        "lane",
        "logprobs",
        "n_read",
        "n_reused",
        "on_end",
        "on_ids",
        "watcher",
    )

    def __init__(self, lane: "Lane", index: int, *, is_alone: bool) -> None:
        self.lane = lane
        self.index = index
        self.is_alone = is_alone
        self.ids: array[int] = array("I")
        self.n_read = 0
        self.n_reused = 0
        self.hook: Callable[[], None] | None = None
        self.on_ids: Callable[[], None] | None = None
        self.watcher: Callable[[], None] | None = None
        self.on_end: list[Callable[[], None]] = []
        self.logprobs = None if lane.draft.logprobs is None else PackedLogprobs()
        self.completion: Completion | None = None
        self.abandoned = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.completion is not None or self.lane.error is not None

    def take(self) -> list[int]:
        """All ids that have arrived and were not taken yet."""
        n_read, n_ids = self.n_read, len(self.ids)
        ids = [self.ids[n_read]] if n_ids == n_read + 1 else self.ids[n_read:].tolist()
        self.n_read = n_ids
        self.lane.consumed(n_ids - n_read)
        return ids

    def abandon(self) -> bool:
        """Note that the consumer left. Returns whether nobody is left who may want an id."""
        self.abandoned = True
        return all(track.abandoned or track.is_over for track in self.lane.tracks)

    def result(self) -> Completion:
        """What became of the choice, once it is over.

        Raises:
            ClientError: it failed.
        """
        if self.completion is None:
            assert self.lane.error is not None, "the choice is not over"
            raise self.lane.error.again()
        return self.completion

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once, when an id arrives or the choice is over; to be called with none left.

        Raises:
            RuntimeError: somebody waits already.
        """
        if self.on_ids is not None:
            raise RuntimeError("a choice has one reader at a time")
        self.on_ids = callback
        if self.is_alone:
            self.hook = self.wake
        else:
            self.lane.starve()
            self.lane.set_hooks()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever ids or the end have come, until ``stop_waiting``.

        Raises:
            RuntimeError: somebody waits already.
            ValueError: the lane has other choices, whose credit this would be.
        """
        if not self.is_alone:
            raise ValueError("only the one choice of a lane can be watched")
        self.wait(lambda: self.lane.home.when_received(callback))
        self.watcher = callback
        self.hook = self.lane.home.hook(callback)

    def stop_waiting(self) -> None:
        """Forget the callback of ``wait`` or ``watch``."""
        self.on_ids = None
        self.watcher = None
        if self.is_alone:
            self.hook = None
        else:
            self.lane.set_hooks()

    def wake(self) -> None:
        """Tell the reader, if there is one, that it should look again."""
        callback = self.on_ids
        if callback is not None:
            if self.watcher is None:
                self.stop_waiting()
            callback()
