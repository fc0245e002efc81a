"""What a lane has received and what it may receive: buffers, ends, credit. No I/O.

Both clients keep their lanes here. An id that arrives costs an append and a look at
whether somebody waits for it; everything else happens when ids are taken.
"""

import sys
from collections.abc import Callable

from wkvm_protocol.errors import RemoteProtocolError
from wkvm_protocol.messages import (
    Embed,
    Embedding,
    End,
    EndOn,
    EndReason,
    GenerateOn,
    Logprobs,
    Score,
    StateBytesEnd,
    StateChunk,
    StateExportBegin,
    unpack_floats,
)

from wkvm_client.completing import Before, completion_of, unpack_logprobs
from wkvm_client.drafts import MAX_CREDIT, Draft
from wkvm_client.errors import (
    ClientError,
    ConnectionLostError,
    StateMovedError,
    StateNotFoundError,
)
from wkvm_client.legs import Cut, can_be_repeated, can_be_sent_elsewhere, can_go_on, next_leg
from wkvm_client.results import TokenLogprobs
from wkvm_client.tracks import Home, Track

ID_BYTES = 4
_NEVER = sys.maxsize

CUT_SHORT = frozenset({EndReason.CANCELLED, EndReason.TIMED_OUT})
"""Ends after which not all that was asked for has come."""


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
        leg: what was sent last, if it is about states.
        before: what was sent and answered before that.
        cut: why it is on no connection, if it is on none and goes on.
        on_cut: called when it was cut off; who sets it moves the lane, or fails it. Without it a
            lane fails.
        moved_to: the address of the server that it moved to; empty where it began.
        n_tokens: how many tokens the state has that it starts from, if that is known.
        unsent: the rest of a state to start from.
    """

    __slots__ = (
        "_data",
        "_max_ids",
        "_window",
        "before",
        "cancelled",
        "cut",
        "draft",
        "embedding",
        "error",
        "grant_at",
        "granted",
        "home",
        "leg",
        "moved_to",
        "n_consumed",
        "n_open",
        "n_room",
        "n_tokens",
        "on_cut",
        "on_over",
        "prompt_logprobs",
        "request_id",
        "tracks",
        "unsent",
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
        self.embedding: list[float] | None = None
        self.error: ClientError | None = None
        self.cancelled = False
        self.on_over: Callable[[], None] | None = None
        self.leg = draft.message if isinstance(draft.message, GenerateOn) else None
        self.before = Before()
        self.cut: Cut | None = None
        self.on_cut: Callable[[Lane], None] | None = None
        self.moved_to = ""
        self.n_tokens: int | None = None
        self.unsent = memoryview(draft.data)
        self._data: bytearray | None = None

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

    def add_told(self, message: Logprobs | Embedding) -> None:
        """Keep an embedding, which comes once, or log probabilities.

        Those of the prompt count once, whichever choice brings them.

        Raises:
            RemoteProtocolError: they are more than were asked for, or some before them are missing.
        """
        if isinstance(message, Embedding):
            self.embedding = list(unpack_floats(message.vector))
            return
        draft = self.draft
        n_asked = draft.prompt_logprobs if message.of_prompt else draft.logprobs
        if n_asked is None or message.n_top > n_asked:
            raise RemoteProtocolError(f"Logprobs: not asked for on request id {self.request_id}")
        n_new = len(message.ids) // ID_BYTES
        if not message.of_prompt:
            track = self.tracks[message.choice]
            assert track.logprobs is not None, "they were asked for"
            if len(track.logprobs) + n_new > len(track.ids) + self.n_room:
                raise self.overrun("Logprobs")
            track.logprobs.add(message)
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

    def end(self, message: End | EndOn) -> None:
        """Complete one choice, unless the lane goes on elsewhere.

        Raises:
            RemoteProtocolError: it is a text that is scored, and not all of it was, or an
                embedding that has not come; or not all ids came, or too many, of a stream that is
                to go on.
        """
        draft = self.draft
        if isinstance(draft.message, Score) and message.reason not in CUT_SHORT:
            n_known = len(self.prompt_logprobs) + 1
            if n_known < len(draft.message.prompt) // ID_BYTES:
                raise self._lacking("End", n_known)
        is_whole = message.reason not in CUT_SHORT
        if isinstance(draft.message, Embed) and is_whole and self.embedding is None:
            raise RemoteProtocolError(f"End: request id {self.request_id} lacks its embedding")
        if isinstance(message, EndOn) and self._goes_on_after(message):
            return
        self.n_open -= 1
        track = self.tracks[message.choice]
        track.completion = completion_of(
            message,
            track.ids.tolist(),
            track.logprobs,
            self.prompt_logprobs if draft.prompt_logprobs is not None else None,
            embedding=self.embedding,
            before=self.before,
            data=None if self._data is None else bytes(self._data),
            n_reused=track.n_reused,
        )
        self._over(track)
        if self.n_open == 0 and self.on_over is not None:
            self.on_over()

    def add_state(self, message: StateExportBegin | StateChunk | StateBytesEnd) -> None:
        """Keep the bytes of the state at the end. The connection has checked their number."""
        match message:
            case StateExportBegin():
                self._data = bytearray()
            case StateChunk():
                assert self._data is not None
                self._data += message.data
            case StateBytesEnd():
                pass

    # --- being cut off --------------------------------------------------------------------

    def lose(self, error: ClientError) -> None:
        """Note that its connection has ended."""
        if (
            isinstance(error, ConnectionLostError)
            and self.leg is not None
            and not self.unsent
            and can_be_repeated(self.leg)
        ):
            self._cut_off(Cut(error))
        else:
            self.fail(error)

    def refuse(self, error: ClientError) -> None:
        """Note that the server does not carry it out, or not any further."""
        if self.leg is not None and self.leg.received and isinstance(error, StateNotFoundError):
            # nobody would expect this of a request that was under way
            lost = ConnectionLostError(f"the server does not know the request any more: {error}")
            lost.__cause__ = error
            self.fail(lost)
        elif (
            isinstance(error, StateMovedError)
            and error.target
            and self.leg is not None
            and can_be_sent_elsewhere(self.leg, self.n_tokens)
        ):
            name = error.state.partition("@")[0]
            self._cut_off(Cut(error, error.target, name=name, n_tokens=self.n_tokens))
        else:
            self.fail(error)

    def next_leg(self, request_id: int) -> GenerateOn:
        """What to send where it goes on."""
        assert self.leg is not None
        assert self.cut is not None
        n_ids = len(self.tracks[0].ids)
        credit = 0
        if self.granted is not None:
            # at least one: none would be no limit
            self.granted = max(self.granted, n_ids + 1)
            credit = self.granted - n_ids
        return next_leg(
            self.leg,
            self.cut,
            request_id,
            n_received=self._n_received(),
            credit=credit,
            n_legs=self.before.n_legs + 1,
        )

    def move(self, home: Home, message: GenerateOn) -> None:
        """Go on with a connection to which ``next_leg`` was sent."""
        assert self.cut is not None
        if self.cut.left_at is not None:
            self.before.add(self.cut.left_at)
        self.moved_to = self.cut.target or self.moved_to
        self.cut = None
        self.home, self.request_id, self.leg = home, message.request_id, message
        n_left = self._max_ids - len(self.tracks[0].ids)
        self.n_room = min(message.credit or n_left, n_left)
        track = self.tracks[0]
        if track.watcher is not None:
            track.hook = home.hook(track.watcher)

    def _goes_on_after(self, message: EndOn) -> bool:
        """Whether an end is none, since the stream goes on from there."""
        leg = self.leg
        was_put_aside = (
            message.reason == EndReason.CANCELLED
            and leg is not None
            and leg.received > 0
            and not self.cancelled
        )
        has_moved = message.reason == EndReason.MOVED and bool(message.target)
        if leg is None or not (was_put_aside or has_moved) or not message.name:
            return False
        if self.on_cut is None or not can_go_on(leg):
            return False
        n_received = self._n_received()
        if message.n_output != n_received:
            raise RemoteProtocolError(
                f"EndOn: {message.n_output} ids, where {n_received} came on request id "
                f"{self.request_id}"
            )
        error = ConnectionLostError(f"the stream stopped at {message.name}@{message.version}")
        self._cut_off(Cut(error, message.target if has_moved else "", message))
        return True

    def _n_received(self) -> int:
        """Ids of this leg that have come, also those that somebody else had before."""
        message = self.draft.message
        n_had = message.received if isinstance(message, GenerateOn) else 0
        return n_had + len(self.tracks[0].ids) - self.before.n_ids

    def _cut_off(self, cut: Cut) -> None:
        if self.on_cut is None or self.is_over:
            self.fail(cut.error)
            return
        self.cut = cut
        self.on_cut(self)

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
