"""What a request does with durable states, and what is told of it: types alone.

What a state is called and how a version came to be is in ``wkvm.core.registry``; who carries it
out is ``wkvm.engine.states``.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from wkvm.core.errors import InvalidParameterError, StateMovedError
from wkvm.core.registry import AckClass, Durability, HandleRecord, Ref, VersionRecord, check_name


class OnDisconnect(enum.Enum):
    """What becomes of a request whose client is gone.

    CANCEL: it ends, and nothing of it is kept. FINISH: it goes on to its end, without credit, and
    is committed. HIBERNATE: it ends at once, and what it has absorbed is committed, to disk where
    there is one.
    """

    CANCEL = "cancel"
    FINISH = "finish"
    HIBERNATE = "hibernate"


class Tier(enum.Enum):
    """Where the bytes of a version are: the fastest place that has them.

    DEVICE: a request works on a copy, which will be the next version.
    """

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUse:
    """Which state a request goes on from, and what is kept of its end.

    Attributes:
        state: the version to start from; None to start from nothing.
        inline: the bytes of a state's file to start from instead. Nothing of them is kept.
        save_as: the handle that the end is committed to; None to keep nothing. With a request of
            several choices it is refused: each would be another state.
        expected_version: of ``save_as``'s head at the commit: 0 for no such handle. None is the
            version that was started from, where that is the same handle, and anything elsewhere.
        durability: of the commit; None is DISK where the engine has one.
        on_disconnect: what happens if the client goes.
        returns_state: whether the end carries the bytes of the state's file.
        checkpoint_every: keep a state wherever so many tokens more have been absorbed, counted
            from the start of the log, to roll back to; None for none. At least 64; in a prompt,
            where it may be cut next.
        keeps_key: draw the random numbers that the state would have drawn next. It is so anyhow
            where ``save_as`` is the handle started from; otherwise the request is a fork, and
            gets fresh ones unless it brings a seed.
        absorbs_only: the prompt is appended and nothing is sampled: ``max_tokens`` is 0 and the
            last id of the prompt stays pending. What comes next is sampled from after it.
        tags, expires_at: of a handle that the commit makes.
        idempotency_key: with one, the request is run and committed once, however often it is asked
            for: who asks again gets the ids of the one that runs, or ran, from ``received`` on.
        received: how many ids of the request with this key have arrived already.
        operation: what the provenance calls it.
    """

    state: Ref | None = None
    inline: bytes | None = None
    save_as: str | None = None
    expected_version: int | None = None
    durability: Durability | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    returns_state: bool = False
    checkpoint_every: int | None = None
    keeps_key: bool = False
    absorbs_only: bool = False
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    expires_at: float | None = None
    idempotency_key: str | None = None
    received: int = 0
    operation: str = "generate"

    def __post_init__(self) -> None:
        if self.state is not None:
            check_name(self.state.name, "state")
            if self.inline is not None:
                raise InvalidParameterError("inline", "state names one to start from already")
        if self.save_as is not None:
            check_name(self.save_as, "save_as")
        elif self.expected_version is not None:
            raise InvalidParameterError("expected_version", "there is no save_as")
        elif self.on_disconnect is not OnDisconnect.CANCEL:
            raise InvalidParameterError("on_disconnect", "without save_as nothing can be kept")
        elif self.checkpoint_every is not None:
            raise InvalidParameterError("checkpoint_every", "there is no save_as")
        if self.expected_version is not None and self.expected_version < 0:
            raise InvalidParameterError("expected_version", "below 0")
        every = self.checkpoint_every
        if every is not None and every < MIN_CHECKPOINT_EVERY:
            raise InvalidParameterError("checkpoint_every", f"at least {MIN_CHECKPOINT_EVERY}")

    @property
    def saves(self) -> bool:
        """Whether the state is wanted when the request ends."""
        return self.save_as is not None or self.returns_state


MIN_CHECKPOINT_EVERY = 64
"""Fewer tokens are computed again faster than a state is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A state, or a request on one, is at another engine now.

    Attributes:
        target: the address of that engine.
        ref: what the state is called there.
        n_left: how many ids a request had still to produce; 0 where none was running.
    """

    target: str
    ref: Ref
    n_left: int = 0


MOVED_TAG = "wkvm.moved"
"""The tag of a handle that is elsewhere now: as what, and where."""


def check_not_moved(name: str, tags: Mapping[str, str]) -> None:
    """Check that a handle with these tags is here.

    Raises:
        StateMovedError: it is at another engine.
    """
    if MOVED_TAG in tags:
        ref, _, target = tags[MOVED_TAG].partition(" ")
        raise StateMovedError(name, target, ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnd:
    """What came of the states of a request, told with its end.

    Attributes:
        start: the version that it started from; None where it was none that has a name.
        ref: the version that was committed; None if nothing was.
        ack: what is promised of it; None if nothing was committed.
        cached_tokens: how many tokens the start had absorbed, none of which was computed again.
        n_computed: how many tokens the end has absorbed.
        pending: the id that was sampled and not fed.
        prompt_left: ids at the end of the prompt that were not absorbed and are not pending: of a
            request that was interrupted before its first id.
        inline: the bytes of the state's file, if they were asked for.
        moved: where the request goes on, if it was moved.
    """

    start: Ref | None = None
    ref: Ref | None = None
    ack: AckClass | None = None
    cached_tokens: int = 0
    n_computed: int = 0
    pending: tuple[int, ...] = ()
    prompt_left: int = 0
    inline: bytes | None = None
    moved: Moved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInfo:
    """One version and the handle that it belongs to, as they are now."""

    handle: HandleRecord
    version: VersionRecord
    tier: Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """Some of a tenant's handles, each with its head, by name.

    Attributes:
        next_after: what to ask for next; None after the last page.
    """

    states: tuple[StateInfo, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNews:
    """What one who watches a tenant's states is told at once.

    Attributes:
        states: handles that are new or have changed, each with its head.
        used_at: when each of them was last used, in seconds since 1970; None if not known.
        gone: names that are no more.
        restarts: all that was told before is to be forgotten: a picture of everything begins.
        is_complete: nothing is left to be told.
    """

    states: tuple[StateInfo, ...]
    used_at: tuple[float | None, ...]
    gone: tuple[str, ...]
    restarts: bool
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """A version, and under which name it was made, which is what those made of it call it."""

    record: VersionRecord
    made_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePage:
    """Some of a tenant's versions, by name and number.

    Attributes:
        next_after: what to ask for next; None after the last page.
    """

    versions: tuple[Descent, ...]
    next_after: Ref | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of making a version again.

    Attributes:
        ref: the version.
        n_operations: how many were repeated, from the first state without parents on.
        equal: whether every byte is the same.
        content_id, replayed_content_id: of the version, and of what was made.
        first_difference: the name of a tensor that differs, ``carried`` or ``token_ids``;
            None if none does.
    """

    ref: Ref
    n_operations: int
    equal: bool
    content_id: str
    replayed_content_id: str
    first_difference: str | None
