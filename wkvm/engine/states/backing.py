"""What all parts of the service have: the store, the model's identity, and threads."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from wkvm.core.errors import InvalidParameterError, StateMovedError, StateNotFoundError
from wkvm.core.layout import StateLayout
from wkvm.core.rates import Rate
from wkvm.core.registry import (
    AckClass,
    Durability,
    HandleRecord,
    Identity,
    VersionRecord,
    parse_ref,
)
from wkvm.core.states import MOVED_TAG, Moved, StateInfo, check_not_moved
from wkvm.engine.states.threads import Threads
from wkvm.state.exchange import Receiver
from wkvm.state.folding import Fold
from wkvm.state.mutations import Mutations
from wkvm.state.store import Store

MAX_USED = 100_000
"""Handles of which it is remembered when they were last used."""

MAX_MOVED = 10_000
"""Handles of which it is remembered that they are elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """What all parts of the service have.

    Attributes:
        store: where versions are. Its methods wait for the disk: only threads call them.
        identity, layout: of the model's states.
        vocab_size: ids are below it.
        max_tokens: of a state from elsewhere: one whose pages do not fit the guest pool could never
            run here.
        threads: in which the store is used.
        mutations: the operations on states.
        fold: takes the tokens of a ring into its matrices; None where states have no ring.
        clock: seconds, which never go back.
        engine: the version of wkvm, for provenance.
        has_disk: whether versions can be durable.
        has_cold: whether there is an object store below the disk.
        forks: how often tenants may fork.
        used: when handles were last used, by tenant and name, by ``clock``.
        moved: handles that are at other engines now, by tenant and name.
    """

    store: Store
    identity: Identity
    layout: StateLayout
    vocab_size: int
    max_tokens: int
    threads: Threads
    mutations: Mutations
    fold: Fold | None
    clock: Callable[[], float]
    engine: str
    has_disk: bool
    has_cold: bool
    forks: Rate
    used: dict[tuple[str, str], float]
    moved: dict[tuple[str, str], Moved]

    def durability(self, asked: Durability | None) -> Durability:
        """What a commit is to be; by default, the best there is.

        Raises:
            InvalidParameterError: there is no disk.
        """
        if asked is None:
            return Durability.DISK if self.has_disk else Durability.MEMORY
        if asked is Durability.DISK and not self.has_disk:
            raise InvalidParameterError(
                "durability", "this engine keeps states in memory alone; start it with --state-dir"
            )
        return asked

    def check_here(self, tenant: str, name: str) -> None:
        """Check that a handle was not moved.

        Raises:
            StateMovedError: it is at another engine.
        """
        moved = self.moved.get((tenant, name))
        if moved is not None:
            raise StateMovedError(name, moved.target, str(moved.ref))

    def receiver(self, n_bytes: int) -> Receiver:
        """What takes a state of this model, from a file of ``n_bytes``.

        Raises:
            BadStateFileError: no state of this model has so many bytes.
        """
        return Receiver(
            n_bytes, self.identity, self.layout, self.vocab_size, max_tokens=self.max_tokens
        )

    def note_moved(self, tenant: str, name: str, moved: Moved) -> None:
        """Remember that a handle is elsewhere. The oldest of too many are forgotten."""
        self.moved.pop((tenant, name), None)
        self.moved[tenant, name] = moved
        if len(self.moved) > MAX_MOVED:
            del self.moved[next(iter(self.moved))]

    def note_kept_elsewhere(self) -> None:
        """Remember what was moved before this process began."""
        for tenant, name, value in self.store.tagged(MOVED_TAG):
            ref, _, target = value.partition(" ")
            self.note_moved(tenant, name, Moved(target=target, ref=parse_ref(ref)))

    def check_kept_here(self, tenant: str, name: str) -> None:
        """The same for what has been forgotten. In a thread.

        Raises:
            StateMovedError: it is at another engine.
        """
        try:
            tags = self.store.handle(tenant, name).tags
        except StateNotFoundError:
            return
        check_not_moved(name, tags)

    def touch(self, tenant: str, *names: str | None) -> None:
        """Note that handles are in use now. The oldest of too many are forgotten."""
        for name in names:
            if name is not None:
                self.used.pop((tenant, name), None)
                self.used[tenant, name] = self.clock()
                self.store.notices.note(tenant, name)
        while len(self.used) > MAX_USED:
            del self.used[next(iter(self.used))]

    def used_at(self, tenant: str, name: str) -> float | None:
        """When a handle was last used, in seconds since 1970; None if that is not known."""
        used = self.used.get((tenant, name))
        return None if used is None else self.store.now - (self.clock() - used)

    def told(self, record: VersionRecord) -> VersionRecord:
        """A version as clients are told of it: without a disk nothing is durable."""
        return record if self.has_disk else replace(record, ack=AckClass.VISIBLE)

    def told_handle(self, handle: HandleRecord) -> HandleRecord:
        """A handle as clients are told of it."""
        return handle if self.has_disk else replace(handle, head=self.told(handle.head))

    def head_info(self, tenant: str, handle: HandleRecord) -> StateInfo:
        """What is told of a handle and its head. Called in a thread.

        Raises:
            StateNotFoundError: it was deleted meanwhile.
        """
        told = self.told_handle(handle)
        tier = self.store.tier(tenant, handle.head.ref)
        return StateInfo(handle=told, version=told.head, tier=tier)

    def info(self, tenant: str, record: VersionRecord) -> StateInfo:
        """What is told of a version. Called in a thread."""
        return StateInfo(
            handle=self.told_handle(self.store.handle(tenant, record.name)),
            version=self.told(record),
            tier=self.store.tier(tenant, record.ref),
        )
