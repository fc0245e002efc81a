"""Which handles have changed, for who asks what is new: collected while anybody does, else dropped.

What changed is said by those who change it, after it has: the catalogue's transactions, the tier in
host memory, and who uses a state. It is told once, however often it changed.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_NOTICES = 65_536
"""Handles, and payloads; where there are more, all of them may have changed."""


@dataclass(frozen=True, slots=True)
class News:
    """What has changed since it was asked for last.

    Attributes:
        handles: tenants and names.
        payloads: the uids of payloads that are in another tier.
        is_all: more has changed than is known: all of it may have.
    """

    handles: frozenset[tuple[str, str]]
    payloads: frozenset[str]
    is_all: bool


class Notices:
    """Threads may call any method at the same time. Each costs a lock at most, and no I/O."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None
        self._handles = set[tuple[str, str]]()
        self._payloads = set[str]()
        self._is_all = False

    def want(self, wake: Callable[[], object]) -> None:
        """Collect from now on.

        Args:
            wake: called, by any thread and under a lock, when there is something to ``take``,
                once until it is taken.
        """
        with self._lock:
            self._wake = wake

    def unwant(self) -> None:
        """Nobody asks any more."""
        with self._lock:
            self._wake = None
            self._clear()

    def note(self, tenant: str, name: str) -> None:
        """A handle is new, another, or gone. About 0.1 us where nobody asks."""
        if self._wake is not None:
            self._add(self._handles, (tenant, name))

    def note_payload(self, uid: str) -> None:
        """A payload has come to a tier, or has left one. Likewise."""
        if self._wake is not None:
            self._add(self._payloads, uid)

    def take(self) -> News:
        """What has changed since the last time."""
        with self._lock:
            news = News(frozenset(self._handles), frozenset(self._payloads), self._is_all)
            self._clear()
        return news

    def _add(self, to: set[Any], what: Any) -> None:
        with self._lock:
            wake = self._wake
            if wake is None:
                return
            is_first = not (self._handles or self._payloads or self._is_all)
            if len(to) < MAX_NOTICES:
                to.add(what)
            elif what not in to:
                self._is_all = True
            if is_first:
                wake()

    def _clear(self) -> None:
        self._handles.clear()
        self._payloads.clear()
        self._is_all = False
