"""What a lane has received and what it may receive: buffers, ends, credit. No I/O.

Both clients keep their lanes here. An id that arrives costs an append and a look at
whether somebody waits for it; everything else happens when ids are taken.
"""

import sys
from array import array
from collections.abc import Callable
from typing import Protocol

from wkvm_protocol.errors import RemoteProtocolError
from wkvm_protocol.messages import End, EndReason, Logprobs, Score, unpack_floats, unpack_ids

from wkvm_client.drafts import MAX_CREDIT, Draft
from wkvm_client.errors import ClientError
from wkvm_client.results import Completion, Timings, TokenLogprobs, TopLogprob

ID_BYTES = 4
_NEVER = sys.maxsize

CUT_SHORT = frozenset({EndReason.CANCELLED, EndReason.TIMED_OUT})
"""Ends after which not all that was asked for has come."""


class Home(Protocol):
    """The connection that a lane is on. A lane may move to another one: see ``Lane.move``."""

    def grant(self, lane: "Lane", n_ids: int) -> None:
        """Let the server send more ids."""
        ...

    def cancel(self, lane: "Lane") -> None:
        """Ask the server to end a lane."""
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
        hook: called after an id arrived, if set.
        completion: set when the choice has ended well.
        is_alone: whether the lane has no other; then nobody but its own reader has to be told.
        abandoned: whether its consumer left before the end.
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
        self.hook: Callable[[], None] | None = None
        self.on_ids: Callable[[], None] | None = None
        self.watcher: Callable[[], None] | None = None
        self.on_end: list[Callable[[], None]] = []
        self.logprobs: list[TokenLogprobs] = []
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


class Lane:
    """One request on a connection, from its Generate to its last End or Failed.

    Attributes:
        home: the connection that it is on.
        draft: what was asked for.
        tracks: one for each choice.
        error: why the lane failed, if it did.
        grant_at: when this many ids were consumed, more credit is due.
        granted: ids that may arrive, from the start; None for no limit.
        n_room: ids that may still arrive; more are a violation.
        cancelled: whether a Cancel was sent.
        on_over: called once when nothing more can arrive for any choice.
    """

    __slots__ = (
        "_max_ids",
        "_window",
        "cancelled",
        "draft",
        "error",
        "grant_at",
        "granted",
        "home",
        "n_consumed",
        "n_open",
        "n_room",
        "on_over",
        "prompt_logprobs",
        "request_id",
        "tracks",
    )

    def __init__(self, request_id: int, draft: Draft, home: Home) -> None:
        self.request_id = request_id
        self.home = home
        self.draft = draft
        self._max_ids = draft.max_ids
        self._window = draft.window or 0
        is_alone = draft.n == 1
        self.tracks = [Track(self, index, is_alone=is_alone) for index in range(draft.n)]
        self.n_open = draft.n
        self.n_consumed = 0
        self.granted = draft.window
        self.n_room = min(draft.window or self._max_ids, self._max_ids)
        self.grant_at = _NEVER
        self._set_grant_at()
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.error: ClientError | None = None
        self.cancelled = False
        self.on_over: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive for any choice."""
        return self.n_open == 0 or self.error is not None

    # --- credit ---------------------------------------------------------------------------

    def consumed(self, n_ids: int) -> None:
        """Count ids as taken, and grant more where that is due.

        Grants come in halves of the window, so that most ids cost no frame. With one
        choice, no more than the window is ever granted beyond what was consumed.
        """
        self.n_consumed += n_ids
        if self.n_consumed >= self.grant_at:
            self._grant_up_to(self.n_consumed + self._window)

    def starve(self) -> None:
        """Grant more if a reader waits and the credit went into choices that nobody reads."""
        if self.granted is None or len(self.tracks) == 1 or self.granted >= self._max_ids:
            return
        n_received = sum(len(track.ids) for track in self.tracks)
        if n_received >= self.granted:
            self._grant_up_to(n_received + self._window)

    def grant_all(self) -> None:
        """Grant whatever can still come: its consumer waits for the end and takes everything."""
        self._grant_up_to(self._max_ids)

    def _grant_up_to(self, total: int) -> None:
        if self.granted is None or self.is_over or self.cancelled:
            return
        total = min(total, self._max_ids)
        while self.granted < total:
            n_ids = min(total - self.granted, MAX_CREDIT)
            self.granted += n_ids
            self.n_room += n_ids
            self.home.grant(self, n_ids)
        self._set_grant_at()

    def _set_grant_at(self) -> None:
        if self.granted is None or self.granted >= self._max_ids:
            self.grant_at = _NEVER
        else:
            self.grant_at = self.granted - self._window + max(1, self._window // 2)

    # --- what arrives ---------------------------------------------------------------------

    def set_hooks(self) -> None:
        """Decide which of several tracks have to call when an id arrives for them."""
        someone_waits = any(track.on_ids is not None for track in self.tracks)
        for track in self.tracks:
            if track.on_ids is not None:
                track.hook = track.wake
            else:
                track.hook = self.starve if someone_waits else None

    def add_logprobs(self, message: Logprobs) -> None:
        """Keep log probabilities. Those of the prompt count once, whichever choice brings them.

        Raises:
            RemoteProtocolError: they are more than were asked for, or some before them are missing.
        """
        draft = self.draft
        n_asked = draft.prompt_logprobs if message.of_prompt else draft.logprobs
        if n_asked is None or message.n_top > n_asked:
            raise RemoteProtocolError(f"Logprobs: not asked for on request id {self.request_id}")
        n_new = len(message.ids) // ID_BYTES
        if not message.of_prompt:
            track = self.tracks[message.choice]
            if len(track.logprobs) + n_new > len(track.ids) + self.n_room:
                raise self.overrun("Logprobs")
            track.logprobs += unpack_logprobs(message)
            return
        if message.first + n_new > len(draft.message.prompt) // ID_BYTES:
            raise self.overrun("Logprobs")
        # the first id of a prompt has none, so positions start at 1
        n_known = len(self.prompt_logprobs) + 1
        if message.first > n_known:
            raise self._lacking("Logprobs", n_known)
        self.prompt_logprobs += unpack_logprobs(message)[n_known - message.first :]

    def overrun(self, name: str) -> RemoteProtocolError:
        """What is wrong with a message that brings more than may come."""
        return RemoteProtocolError(f"{name}: more than request id {self.request_id} may get")

    def _lacking(self, name: str, position: int) -> RemoteProtocolError:
        what = f"log probabilities from position {position} on"
        return RemoteProtocolError(f"{name}: request id {self.request_id} lacks {what}")

    def end(self, message: End) -> None:
        """Complete one choice.

        Raises:
            RemoteProtocolError: it is a text that is scored, and not all of it was.
        """
        draft = self.draft
        if isinstance(draft.message, Score) and message.reason not in CUT_SHORT:
            n_known = len(self.prompt_logprobs) + 1
            if n_known < len(draft.message.prompt) // ID_BYTES:
                raise self._lacking("End", n_known)
        self.n_open -= 1
        track = self.tracks[message.choice]
        track.completion = Completion(
            choice=message.choice,
            ids=track.ids.tolist(),
            reason=EndReason(message.reason),
            stop_id=message.stop_id,
            n_prompt=message.n_prompt,
            n_output=message.n_output,
            logprobs=track.logprobs if draft.logprobs is not None else None,
            prompt_logprobs=self.prompt_logprobs if draft.prompt_logprobs is not None else None,
            timings=Timings(
                message.queue_us / 1e6, message.first_token_us / 1e6, message.total_us / 1e6
            ),
        )
        self._over(track)
        if self.n_open == 0 and self.on_over is not None:
            self.on_over()

    def fail(self, error: ClientError) -> None:
        """End every choice that has not ended. Only the first failure counts."""
        if self.is_over:
            return
        self.error = error
        for track in self.tracks:
            if track.completion is None:
                self._over(track)
        if self.on_over is not None:
            self.on_over()

    def heir(self) -> "Lane":
        """A lane for what still arrives after this one was given up: nobody holds it."""
        heir = Lane(self.request_id, self.draft, self.home)
        heir.n_room = self.n_room
        return heir

    def _over(self, track: Track) -> None:
        track.wake()
        callbacks, track.on_end = track.on_end, []
        for callback in callbacks:
            callback()


def unpack_logprobs(message: Logprobs) -> list[TokenLogprobs]:
    """One entry for each position of a message. The codec has checked the lengths."""
    top_ids = unpack_ids(message.top_ids)
    top_logprobs = unpack_floats(message.top_logprobs)
    tops = [TopLogprob(*pair) for pair in zip(top_ids, top_logprobs, strict=True)]
    n_top = message.n_top
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(tops[i * n_top : (i + 1) * n_top]))
        for i, (token_id, logprob, rank) in enumerate(
            zip(
                unpack_ids(message.ids),
                unpack_floats(message.logprobs),
                unpack_ids(message.ranks),
                strict=True,
            )
        )
    ]
