"""What is told of states: the results of operations on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from wkvm_protocol import messages
from wkvm_protocol.messages import unpack_ids

Tier: TypeAlias = Literal["host", "disk", "cold"]
"""Where the bytes of a state can be sent: memory, disk, an object store."""
Durability: TypeAlias = Literal["disk", "memory"]
"""What an answer waits for: that a crash loses nothing, or only that the server knows of it.
Where none is named, the best that the server can."""
OnDisconnect: TypeAlias = Literal["cancel", "finish", "hibernate"]
"""What becomes of a request whose connection is lost: nothing of it is kept; it goes on to its
end; it stops, and what it has is kept."""
Format: TypeAlias = Literal["state", "blinkdl", "fla"]
"""Of a file: all of a state, or a ``time_state`` in one of two orientations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInfo:
    """One version of a state, and what is said of its handle now.

    Attributes:
        name, version: what it is called.
        head: the newest version of the handle.
        n_versions: how many the handle has.
        ack: ``visible`` (a crash of the server loses it) or ``durable``.
        tier: where its bytes are: ``device``, ``host``, ``disk`` or ``cold``.
        content_id: equal where the bytes are.
        n_bytes: of the state.
        n_computed: tokens that it has absorbed.
        n_pending: tokens that belong to it and are fed first by what goes on from it: 0 or 1.
        operation: how it came to be, such as ``create``, ``generate`` or ``fork``.
        parents: what it was made from, as ``NAME@VERSION``, the first being what it continues:
            empty text where that had no name, or where it continues nothing. None at all where
            nothing of it had a name, as of an import.
        tail: the last of its tokens, at most 32, with the pending one.
        tags: the client's own, of the handle.
        created_at: of the version, in seconds since 1970.
        updated_at, expires_at: of the handle; None where it does not expire.
        model_digest, layout_fingerprint, tokenizer_digest: the model that it belongs to.
    """

    name: str
    version: int
    head: int
    n_versions: int
    ack: str
    tier: str
    content_id: str
    n_bytes: int
    n_computed: int
    n_pending: int
    operation: str
    parents: tuple[str, ...]
    tail: tuple[int, ...]
    tags: Mapping[str, str]
    created_at: float
    updated_at: float
    expires_at: float | None
    model_digest: str
    layout_fingerprint: str
    tokenizer_digest: str

    @property
    def ref(self) -> str:
        """``NAME@VERSION``."""
        return f"{self.name}@{self.version}"

    @property
    def n_tokens(self) -> int:
        """All tokens that belong to it, absorbed or not."""
        return self.n_computed + self.n_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """Part of a list of states.

    Attributes:
        next: the ``cursor`` of the next part; empty after the last.
    """

    states: tuple[StateInfo, ...]
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEntry:
    """One version, and what it was made from.

    Attributes:
        name, version: what it is called.
        made_as: the name of its handle when it was made, which is what ``parents`` of others
            call it.
        operation: how it came to be.
        parents: as ``NAME@VERSION`` at the time; see ``StateInfo``.
        created_at: in seconds since 1970.
        n_computed, n_pending: tokens that it has absorbed, and that it has besides.
        n_bytes: of the state.
        content_id: equal where the bytes are.
    """

    name: str
    version: int
    made_as: str
    operation: str
    parents: tuple[str, ...]
    created_at: float
    n_computed: int
    n_pending: int
    n_bytes: int
    content_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePage:
    """Part of a lineage.

    Attributes:
        next: the ``cursor`` of the next part; empty after the last.
    """

    entries: tuple[LineageEntry, ...]
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnd:
    """What a request on states left behind.

    Attributes:
        name, version: what was saved; an empty name where nothing was.
        ack: ``visible`` or ``durable``, of what was saved; empty where nothing was.
        cached_tokens: tokens that came with the state, and were not computed again.
        n_computed: tokens that the state at the end has absorbed.
        pending: tokens that belong to it and were not absorbed: none or one.
        prompt_left: ids at the end of the prompt that were not absorbed and are not pending, of a
            request that ended before its first id.
        target: where the state is now, if it has moved.
        data: the bytes of the state, if they were asked for.
    """

    name: str
    version: int
    ack: str
    cached_tokens: int
    n_computed: int
    pending: tuple[int, ...]
    prompt_left: int = 0
    target: str = ""
    data: bytes | None = None

    @property
    def n_tokens(self) -> int:
        """All tokens that belong to the state at the end, absorbed or not."""
        return self.n_computed + len(self.pending)

    @property
    def ref(self) -> str:
        """``NAME@VERSION`` of what was saved; empty where nothing was."""
        return f"{self.name}@{self.version}" if self.name else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Between two arrays.

    Attributes:
        relative: the norm of the difference in units of the larger one of both norms, from 0
            (equal) to 2 (opposite).
        max_abs: the largest difference between two elements.
    """

    relative: float
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDistance:
    """Of one tensor in one layer: all of it, and of each head's matrix where there are heads."""

    layer: int
    whole: Distance
    heads: tuple[Distance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDistance:
    """Of one tensor: all of it, and layer by layer."""

    name: str
    whole: Distance
    layers: tuple[LayerDistance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two states are apart.

    Attributes:
        equal: whether all tensors are the same in every bit.
        n_common: how many ids their token logs have in common, from the start.
    """

    equal: bool
    n_common: int
    tensors: tuple[TensorDistance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How a version came to be.

    Attributes:
        operation, parameters: what was done.
        parents: pairs of ``NAME@VERSION`` as it was then, and of the content id of its bytes, the
            first being what it continues; both are empty where it continues nothing.
        n_before, n_after: tokens that the state had absorbed.
        seed: of the random numbers that were drawn; None if none were.
        engine: the version of wkvm that did it.
        cuts: where the prompt was cut, if that moves bits.
    """

    operation: str
    parameters: dict[str, Any]
    parents: tuple[tuple[str, str], ...]
    n_before: int
    n_after: int
    seed: int | None
    engine: str
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One version of a state's history: as of StateInfo, and how it came to be.

    Attributes:
        created_ms: milliseconds since 1970.
    """

    name: str
    version: int
    content_id: str
    ack: str
    created_ms: int
    n_computed: int
    n_pending: int
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Part of a state's history, newest first.

    Attributes:
        next: the ``before`` of the next part; 0 after the last.
    """

    entries: tuple[LogEntry, ...]
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of making a version again from its record.

    Attributes:
        state: the version.
        n_operations: how many were repeated.
        equal: whether every byte is the same.
        content_id, replayed_content_id: of the version, and of what was made.
        first_difference: what differs, where something does.
    """

    state: str
    n_operations: int
    equal: bool
    content_id: str
    replayed_content_id: str
    first_difference: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported.

    Attributes:
        state: what it is; None where the server does not say.
        n_bytes: how much was written.
        digest: hex BLAKE3 of the bytes, as the server states it; may be empty.
    """

    state: StateInfo | None
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """A state that moved to another server.

    Attributes:
        source: what it was called here, as ``NAME@VERSION``.
        target: the other server's address.
        state: what it is there.
        n_bytes: how much was moved.
        pause_s: for how long neither server went on with it.
    """

    source: str
    target: str
    state: StateInfo
    n_bytes: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a request does with states: the arguments of ``generate`` that concern them."""

    state: str = ""
    data: bytes = b""
    save_as: str = ""
    expected_version: int | None = None
    on_disconnect: str = "cancel"
    durability: str = ""
    return_state: bool = False
    checkpoint_every: int = 0
    replay: bool = False
    idempotency_key: str = ""
    received: int = 0
    tags: Mapping[str, str] | None = None
    expires_in_s: float | None = None


NOTHING_KEPT = Keep()
"""Of a request that has nothing to do with states."""


def info_of(told: messages.StateInfo) -> StateInfo:
    """What a server told of one state."""
    return StateInfo(
        name=told.name,
        version=told.version,
        head=told.head,
        n_versions=told.n_versions,
        ack=told.ack,
        tier=told.tier,
        content_id=told.content_id,
        n_bytes=told.n_bytes,
        n_computed=told.n_computed,
        n_pending=told.n_pending,
        operation=told.operation,
        parents=_named(told.parents),
        tail=tuple(unpack_ids(told.tail)),
        tags=dict(told.tags),
        created_at=told.created_ms / 1000,
        updated_at=told.updated_ms / 1000,
        expires_at=None if told.expires_ms is None else told.expires_ms / 1000,
        model_digest=told.model_digest,
        layout_fingerprint=told.layout_fingerprint,
        tokenizer_digest=told.tokenizer_digest,
    )


def _named(parents: tuple[str, ...]) -> tuple[str, ...]:
    """Parents, if any of them had a name."""
    return parents if any(parents) else ()


def lineage_entry_of(told: messages.LineageEntry) -> LineageEntry:
    """What a server told of where a version comes from."""
    return LineageEntry(
        name=told.name,
        version=told.version,
        made_as=told.made_as,
        operation=told.operation,
        parents=_named(told.parents),
        created_at=told.created_ms / 1000,
        n_computed=told.n_computed,
        n_pending=told.n_pending,
        n_bytes=told.n_bytes,
        content_id=told.content_id,
    )


def end_of(told: messages.EndOn, data: bytes | None, cached_tokens: int | None) -> StateEnd:
    """What a server told of the states of a request.

    Args:
        cached_tokens: what it told where the request began, if that was elsewhere.
    """
    return StateEnd(
        name=told.name,
        version=told.version,
        ack=told.ack,
        cached_tokens=told.cached_tokens if cached_tokens is None else cached_tokens,
        n_computed=told.n_computed,
        pending=tuple(unpack_ids(told.pending)),
        prompt_left=told.prompt_left,
        target=told.target,
        data=data,
    )
