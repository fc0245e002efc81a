"""What has changed of states, for those who watch: how things are now, never a queue of changes."""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from wkvm.core.errors import WkvmError
from wkvm.core.states import StateInfo, StateNews, StatePage
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.books import logger
from wkvm.engine.states.operations import MAX_PAGE

MAX_CHANGED = 4096
"""Handles that a watch remembers to have changed; where there are more, it tells all anew."""
PAYLOADS_AT_ONCE = 64
"""Those whose handles are looked for in one go, for which all other looks have to wait."""


class Looks(Protocol):
    """How states are looked at: ``Operations`` is one."""

    async def handles(self, tenant: str, *, prefix: str, after: str, limit: int) -> StatePage:
        """Handles by name, a page at a time."""
        ...

    async def some(self, tenant: str, names: Sequence[str]) -> list[StateInfo]:
        """Those of some handles that there are."""
        ...


class Watch:
    """What one who watches has still to be told. All methods belong to the loop's thread.

    At first that is a picture of everything, a page at a time, and then what has changed since.
    Memory: a name for each handle that has changed and was not told yet, ``MAX_CHANGED`` at most,
    and one for each that expires. Made by ``Watching.open``.
    """

    def __init__(self, hub: "Watching", tenant: str, prefix: str, wake: Callable[[], None]) -> None:
        self._hub = hub
        self.tenant = tenant
        self._prefix = prefix
        self._wake = wake
        self._changed = dict[str, None]()
        self._after: str | None = ""
        self._restarts = True
        self._is_all = False
        self._expiries = dict[str, float]()
        self._next_expiries: list[tuple[float, str]] = []

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._changed) or not self._is_quiet or self.expires_in_s == 0

    @property
    def is_in_picture(self) -> bool:
        """Whether the picture of everything is not complete."""
        return self._after is not None

    @property
    def expires_in_s(self) -> float | None:
        """How long until one of those that were told expires; None if none does."""
        if not self._next_expiries:
            return None
        return max(0.0, self._next_expiries[0][0] - self._hub.now)

    @property
    def _is_quiet(self) -> bool:
        return self._after is None and not self._is_all

    async def next(self, limit: int) -> StateNews:
        """What is to be told next: up to ``limit`` handles, as they are now.

        Raises:
            WkvmError: they cannot be looked at. What was to be told is lost: open another watch.
        """
        if self._is_all and self._after is None:
            self._begin()
        gone: Sequence[str] = ()
        restarts = self._restarts
        if self._after is not None:
            page = await self._hub.looks.handles(
                self.tenant, prefix=self._prefix, after=self._after, limit=min(limit, MAX_PAGE)
            )
            self._restarts = False
            self._after = page.next_after
            states: Sequence[StateInfo] = page.states
        else:
            self._expire()
            names = list(islice(self._changed, limit))
            for name in names:
                del self._changed[name]
            states = await self._hub.looks.some(self.tenant, names)
            there = {one.handle.name for one in states}
            gone = [name for name in names if name not in there]
        for name in gone:
            self._expiries.pop(name, None)
        self._note_expiries(states)
        return StateNews(
            states=tuple(states),
            used_at=tuple(self._hub.used_at(self.tenant, one.handle.name) for one in states),
            gone=tuple(gone),
            restarts=restarts,
            is_complete=self._is_quiet and not self._changed,
        )

    def mark(self, names: Iterable[str]) -> None:
        """Handles have changed. About 0.1 us each."""
        if self._is_all:
            return
        if self._prefix:
            names = [name for name in names if name.startswith(self._prefix)]
            if not names:
                return
        self._changed.update(dict.fromkeys(names))
        if len(self._changed) > MAX_CHANGED:
            self._is_all = True
            self._changed.clear()
        self._wake()

    def mark_all(self) -> None:
        """All of them may have changed."""
        self._is_all = True
        self._wake()

    def close(self) -> None:
        """Nobody watches any more."""
        self._hub.forget(self)

    def _begin(self) -> None:
        """Begin with a picture of everything."""
        self._changed.clear()
        self._expiries.clear()
        self._next_expiries.clear()
        self._is_all = False
        self._after, self._restarts = "", True

    def _note_expiries(self, states: Iterable[StateInfo]) -> None:
        """Remember when those expire that were told: nobody else says that it has happened."""
        for one in states:
            name, at = one.handle.name, one.handle.expires_at
            if at is None:
                self._expiries.pop(name, None)
            elif self._expiries.get(name) != at:
                self._expiries[name] = at
                heapq.heappush(self._next_expiries, (at, name))
        if len(self._next_expiries) > 2 * len(self._expiries) + 64:
            self._next_expiries = [(at, name) for name, at in self._expiries.items()]
            heapq.heapify(self._next_expiries)

    def _expire(self) -> None:
        now = self._hub.now
        while self._next_expiries and self._next_expiries[0][0] <= now:
            at, name = heapq.heappop(self._next_expiries)
            if self._expiries.get(name) == at:
                del self._expiries[name]
                self._changed[name] = None


class Watching:
    """All watches of a service, and what they are told. All methods belong to the loop's thread."""

    def __init__(self, backing: Backing, looks: Looks) -> None:
        self.looks = looks
        self._backing = backing
        self._notices = backing.store.notices
        self._watches = dict[str, dict[Watch, None]]()
        self._payloads = set[str]()
        self._resolving: asyncio.Task[None] | None = None

    @property
    def now(self) -> float:
        """Seconds since 1970, by the clock that handles expire by."""
        return self._backing.store.now

    @property
    def n_open(self) -> int:
        """How many watches there are."""
        return sum(map(len, self._watches.values()))

    def used_at(self, tenant: str, name: str) -> float | None:
        """When a handle was last used, in seconds since 1970; None if that is not known."""
        return self._backing.used_at(tenant, name)

    def open(self, tenant: str, prefix: str, wake: Callable[[], None]) -> Watch:
        """Begin a watch. ``close`` ends it.

        Args:
            wake: called when there may be something to tell, never from within a call.
        """
        if not self._watches:
            loop = asyncio.get_running_loop()
            self._notices.want(partial(loop.call_soon_threadsafe, self._collect))
        watch = Watch(self, tenant, prefix, wake)
        self._watches.setdefault(tenant, {})[watch] = None
        return watch

    def forget(self, watch: Watch) -> None:
        """A watch is over."""
        of_tenant = self._watches.get(watch.tenant, {})
        of_tenant.pop(watch, None)
        if not of_tenant:
            self._watches.pop(watch.tenant, None)
        if not self._watches:
            self._notices.unwant()

    async def close(self) -> None:
        """Tell nobody anything any more."""
        self._watches.clear()
        self._notices.unwant()
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait([self._resolving])

    def _collect(self) -> None:
        """Take what has changed, and mark it for those who watch it."""
        news = self._notices.take()
        if news.is_all:
            self._mark_all()
            return
        self._mark(news.handles)
        if not news.payloads:
            return
        self._payloads |= news.payloads
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(self._resolve())

    async def _resolve(self) -> None:
        """Find the handles whose states are in another tier, which takes a look at the disk."""
        while self._payloads:
            uids = set(islice(self._payloads, PAYLOADS_AT_ONCE))
            self._payloads -= uids
            try:
                found = await self._backing.threads.read(
                    partial(self._backing.store.headed_by, uids)
                )
            except WkvmError as error:
                logger.warning("what has changed its tier is not known: %s", type(error).__name__)
                self._mark_all()
                return
            self._mark(found)

    def _mark(self, handles: Iterable[tuple[str, str]]) -> None:
        names = dict[str, list[str]]()
        for tenant, name in handles:
            if tenant in self._watches:
                names.setdefault(tenant, []).append(name)
        for tenant, of_tenant in names.items():
            for watch in self._watches[tenant]:
                watch.mark(of_tenant)

    def _mark_all(self) -> None:
        for of_tenant in self._watches.values():
            for watch in of_tenant:
                watch.mark_all()
