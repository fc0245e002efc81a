"""What the server asks of others.

``wkvm.engine.loop.EngineLoop`` is a Loop, ``wkvm.assembly.http.HttpDoor`` a Door, and
``wkvm.engine.states`` has States.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from wkvm.core.registry import Durability, Ref, VersionRecord
from wkvm.core.request import Event, RequestSpec
from wkvm.core.states import (
    LineagePage,
    Moved,
    Replayed,
    StateInfo,
    StateNews,
    StatePage,
    StateUse,
    Tier,
)
from wkvm.engine.interface import EngineInfo


class Loop(Protocol):
    """Turns an engine, and hands over what it produces. Used from one thread."""

    deliver: Callable[[list[Event]], None]
    """Called once a step with what happened in it; and when a call, such as cancel, made events."""

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        ...

    def submit(self, spec: RequestSpec) -> tuple[int, ...]:
        """Queue all choices of a spec or none; their ids. Raises RequestError or CapacityError."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
        ...

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit."""
        ...

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released."""
        ...

    def release(self, request_id: int) -> None:
        """End a hold."""
        ...

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; wait for the ends; cancel what is left after ``grace_s``."""
        ...


class Door(Protocol):
    """Another way to the engine, beside the binary protocol, in the same process."""

    @property
    def max_connections(self) -> int:
        """How many connections it may have open at once."""
        ...

    async def start(self) -> None:
        """Let clients in. The server serves already; if this raises, ``close`` follows."""
        ...

    def begin_drain(self) -> None:
        """Refuse what is new from now on; what is open may go on to its end."""
        ...

    async def drained(self, timeout_s: float) -> None:
        """Return when nothing is open any more, or after a time. After ``begin_drain``."""
        ...

    async def close(self) -> None:
        """End everything, in bounded time. The engine has ended already; its lanes have as well."""
        ...


class Findings(Protocol):
    """What an operation has found out."""

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        ...


class Sink(Protocol):
    """Where the bytes of a state go that a client sends."""

    async def write(self, data: bytes) -> None:
        """Take the next bytes. Raises RequestError where they cannot be those of a state."""
        ...

    async def finish(self) -> StateInfo:
        """All bytes have come: check them, and commit."""
        ...

    def abort(self) -> None:
        """Forget what came; nothing is kept. May be called at any time, and twice."""
        ...


class Source(Protocol):
    """The bytes of a state that a client fetches. They are in memory."""

    @property
    def info(self) -> StateInfo:
        """Which state."""
        ...

    @property
    def n_bytes(self) -> int:
        """How many there are."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """All of them, in order, in pieces of any length."""
        ...


class StateWatch(Protocol):
    """What one who watches a tenant's states has still to be told."""

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        ...

    @property
    def is_in_picture(self) -> bool:
        """Whether not everything has been told for the first time."""
        ...

    @property
    def expires_in_s(self) -> float | None:
        """How long until there is something to tell by itself; None for never."""
        ...

    async def next(self, limit: int) -> StateNews:
        """What is to be told next: up to ``limit`` handles, as they are now."""
        ...

    def close(self) -> None:
        """Nobody watches any more."""
        ...


class States(Protocol):
    """Carries out what clients ask about states. Used from the loop's thread.

    A coroutine that is cancelled leaves nothing half done. All check what they are given, and raise
    WkvmErrors: another tenant's state is not told from one that never was.
    """

    @property
    def max_inline_bytes(self) -> int:
        """Length of the longest file of a state that comes in with a request."""
        ...

    def submit(self, spec: RequestSpec, use: StateUse | None = None) -> tuple[int, ...]:
        """As a Loop's. One with an idempotency key may have the ids of an earlier one."""
        ...

    def watch(self, tenant: str, prefix: str, wake: Callable[[], None]) -> StateWatch:
        """Begin to tell what states there are, and what changes.

        Args:
            wake: called when there may be something to tell, never from within a call.
        """
        ...

    def interrupt(self, request_id: int, keep: int | None = None) -> None:
        """End a request where it is and commit it. Its EndEvent follows."""
        ...

    def disconnected(self, request_id: int) -> None:
        """Nobody listens to a request any more. Its EndEvent may follow."""
        ...

    async def create(
        self,
        tenant: str,
        name: str,
        prompt: Sequence[int],
        *,
        state: Ref | None,
        expected_version: int | None,
        tags: Mapping[str, str] | None,
        expires_at: float | None,
        durability: Durability | None,
        checkpoint_every: int | None,
        timeout_s: float | None,
        priority: int,
        idempotency_key: str | None,
    ) -> StateInfo:
        """Absorb exactly these ids, after those of ``state``."""
        ...

    async def get(self, tenant: str, ref: Ref) -> StateInfo:
        """One version."""
        ...

    async def handles(
        self,
        tenant: str,
        *,
        prefix: str,
        tags: Mapping[str, str] | None,
        after: str,
        limit: int,
    ) -> StatePage:
        """Handles, by name."""
        ...

    async def versions(
        self, tenant: str, name: str, *, before: int | None, limit: int
    ) -> Sequence[StateInfo]:
        """Versions of a handle, newest first."""
        ...

    async def log(
        self, tenant: str, name: str, *, before: int | None, limit: int
    ) -> Sequence[VersionRecord]:
        """How versions of a handle came to be, newest first."""
        ...

    async def lineage(
        self,
        tenant: str,
        *,
        prefix: str,
        name: str | None,
        newest: int | None,
        after: Ref | None,
        limit: int,
    ) -> LineagePage:
        """What versions were made from, by name and number."""
        ...

    async def fork(
        self,
        tenant: str,
        ref: Ref,
        names: Sequence[str],
        *,
        keeps_key: bool,
        tags: Mapping[str, str] | None,
        expires_at: float | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> Sequence[StateInfo]:
        """New handles on the bytes of one version: all or none."""
        ...

    async def snapshot(
        self,
        tenant: str,
        ref: Ref,
        *,
        save_as: str | None,
        expected_version: int | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> StateInfo:
        """A new version that equals one, or what a request has made of it by now."""
        ...

    async def snapshot_running(
        self,
        tenant: str,
        request_id: int,
        *,
        save_as: str | None,
        expected_version: int | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> StateInfo:
        """A version of the state of a request as it is now."""
        ...

    async def hibernate(self, tenant: str, ref: Ref, tier: Tier) -> StateInfo:
        """Move bytes down to a tier."""
        ...

    async def resume(self, tenant: str, ref: Ref) -> StateInfo:
        """Bring bytes up, verified."""
        ...

    async def rollback(
        self,
        tenant: str,
        name: str,
        *,
        version: int | None,
        position: int | None,
        expected_version: int | None,
        idempotency_key: str | None,
    ) -> StateInfo:
        """A new head that equals a version, or the state after so many tokens."""
        ...

    async def rename(
        self, tenant: str, name: str, new_name: str, *, expected_version: int | None
    ) -> StateInfo:
        """Another name for a handle."""
        ...

    async def set_tags(
        self, tenant: str, name: str, tags: Mapping[str, str], *, expected_version: int | None
    ) -> StateInfo:
        """Other tags for a handle."""
        ...

    async def set_expiry(
        self, tenant: str, name: str, expires_at: float | None, *, expected_version: int | None
    ) -> StateInfo:
        """Another time to expire, or none."""
        ...

    async def delete(self, tenant: str, ref: Ref, *, expected_version: int | None) -> None:
        """Delete a handle or one version."""
        ...

    async def mutate(
        self,
        tenant: str,
        operation: str,
        parameters: Mapping[str, Any],
        states: Sequence[Ref],
        *,
        save_as: str,
        expected_version: int | None,
        tags: Mapping[str, str] | None,
        expires_at: float | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> StateInfo:
        """Change states other than by tokens."""
        ...

    async def difference(self, tenant: str, ref: Ref, other: Ref) -> Findings:
        """How far two states are apart."""
        ...

    async def replay(self, tenant: str, ref: Ref, *, timeout_s: float | None) -> Replayed:
        """Make a version again, and compare."""
        ...

    async def export(self, tenant: str, ref: Ref, form: str) -> Source:
        """The bytes of a version: ``state``, or a time_state: ``blinkdl`` or ``fla``."""
        ...

    async def importing(
        self,
        tenant: str,
        name: str,
        *,
        n_bytes: int,
        form: str,
        tags: Mapping[str, str] | None,
        expires_at: float | None,
        expected_version: int | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> Sink:
        """Where to put the bytes of a state. A length that no state has is refused here."""
        ...

    async def migrate_begin(self, tenant: str, name: str, *, timeout_s: float | None) -> StateInfo:
        """Stop a state where it is; the version to move."""
        ...

    async def migrate_end(self, tenant: str, name: str, *, moved: Moved | None) -> StateInfo | None:
        """It has moved, and None; or it stays, and its head."""
        ...


class StatesLoop(Loop, States, Protocol):
    """A loop whose requests may use states."""

    def submit(self, spec: RequestSpec, use: StateUse | None = None) -> tuple[int, ...]:
        """As a Loop's, and as ``States``'."""
        ...

    async def close(self) -> None:
        """Wait for what is being committed, and close the store. The loop has ended before."""
        ...
