"""Operations on versions and handles that need no step of the engine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TypeVar

from wkvm.core.errors import (
    InvalidParameterError,
    StateDamagedError,
    StateExistsError,
    StateNotFoundError,
    WkvmError,
)
from wkvm.core.limits import check_given
from wkvm.core.registry import Ref, VersionRecord
from wkvm.core.states import LineagePage, StateInfo, StatePage, Tier
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.within import Within
from wkvm.state.difference import Difference, difference

T = TypeVar("T")

logger = logging.getLogger("wkvm.states")

MAX_PAGE = 256
MAX_LINEAGE = 1024
"""Versions in one page of a lineage."""


class Operations:
    """Operations on versions and handles. Each is a coroutine, for one tenant.

    What another tenant has is not found, as what never was. What is at another engine now raises
    StateMovedError. A disk that refuses raises StoreFailedError or StoreFullError. Whatever is
    raised, nothing was changed; if the caller is cancelled, it was done in whole or not at all.
    """

    def __init__(self, backing: Backing, requests: Within) -> None:
        self._backing = backing
        self._requests = requests

    # --- looking --------------------------------------------------------------------------

    async def get(self, tenant: str, ref: Ref) -> StateInfo:
        """A version, by default the head of a handle.

        Raises:
            StateNotFoundError: there is none such.
        """
        self._backing.check_here(tenant, ref.name)
        info = await self._read(
            lambda: self._backing.info(tenant, self._backing.store.get(tenant, ref))
        )
        return self._live(tenant, [info])[0]

    async def handles(
        self,
        tenant: str,
        *,
        prefix: str = "",
        tags: Mapping[str, str] | None = None,
        after: str = "",
        limit: int = 100,
    ) -> StatePage:
        """Handles by name, a page at a time.

        Args:
            prefix: of their names.
            tags: that they must have, with these values.
            after: ``next_after`` of the page before.
            limit: how many, 1 to 256.
        """
        _check_limit(limit)

        def look() -> StatePage:
            handles = self._backing.store.handles(
                tenant, prefix=prefix, tags=tags, after=after, limit=limit + 1
            )
            infos = list[StateInfo]()
            for handle in handles[:limit]:
                with suppress(StateNotFoundError):  # deleted meanwhile
                    infos.append(self._backing.head_info(tenant, handle))
            next_after = handles[limit - 1].name if len(handles) > limit else None
            return StatePage(states=tuple(infos), next_after=next_after)

        page = await self._read(look)
        return replace(page, states=tuple(self._live(tenant, page.states)))

    async def some(self, tenant: str, names: Sequence[str]) -> list[StateInfo]:
        """Those of some handles that there are, each with its head; damaged ones are left out."""

        def look() -> list[StateInfo]:
            infos = list[StateInfo]()
            for name in names:
                with suppress(StateNotFoundError, StateDamagedError):
                    handle = self._backing.store.handle(tenant, name)
                    infos.append(self._backing.head_info(tenant, handle))
            return infos

        return self._live(tenant, await self._read(look))

    async def versions(
        self, tenant: str, name: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[StateInfo]:
        """Versions of a handle, the newest first.

        Args:
            before: only versions below this one.
        """
        records = await self.log(tenant, name, before=before, limit=limit)
        infos = await self._read(lambda: [self._backing.info(tenant, one) for one in records])
        return self._live(tenant, infos)

    async def log(
        self, tenant: str, name: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[VersionRecord]:
        """Versions of a handle with their provenance, the newest first.

        Args:
            before: only versions below this one.

        Raises:
            StateNotFoundError: there is no such handle.
        """
        ref = Ref(name)
        _check_limit(limit)
        self._backing.check_here(tenant, ref.name)
        store = self._backing.store
        found = await self._read(lambda: store.log(tenant, ref, before=before, limit=limit))
        return [self._backing.told(one) for one in found]

    async def lineage(
        self,
        tenant: str,
        *,
        prefix: str = "",
        name: str | None = None,
        newest: int | None = None,
        after: Ref | None = None,
        limit: int = MAX_LINEAGE,
    ) -> LineagePage:
        """What all versions were made from, a page at a time, by name and number.

        Args:
            prefix: of names.
            name: of the one handle that is meant; None for all.
            newest: only numbers among so many up to each head's; None for all.
            after: ``next_after`` of the page before.
            limit: how many, 1 to 1,024.

        Raises:
            StateNotFoundError: there is no handle ``name``.
        """
        if not 0 < limit <= MAX_LINEAGE:
            raise InvalidParameterError("limit", f"1 to {MAX_LINEAGE}")
        store = self._backing.store
        return await self._read(
            lambda: store.lineage(
                tenant, prefix=prefix, name=name, newest=newest, after=after, limit=limit
            )
        )

    async def difference(self, tenant: str, ref: Ref, other: Ref) -> Difference:
        """How far two states are apart, layer by layer.

        Raises:
            StateMismatchError: they are of different models.
        """
        backing = self._backing

        def compare() -> Difference:
            first = backing.store.load(tenant, ref).image
            second = backing.store.load(tenant, other).image
            return difference(first, second, fold=backing.fold)

        for one in (ref, other):
            backing.check_here(tenant, one.name)
        return await self._read(compare)

    # --- handles --------------------------------------------------------------------------

    async def rename(
        self, tenant: str, name: str, new_name: str, *, expected_version: int | None = None
    ) -> StateInfo:
        """Give a handle another name.

        Args:
            expected_version: of its head; None for any. So for the operations below.

        Raises:
            StaleVersionError: the head is elsewhere.
            StateNotFoundError: there is no such handle.
            StateExistsError: the name is taken, or a request will be committed to one of the two.
        """
        self._check_idle(tenant, name, new_name)
        store = self._backing.store
        return await self._make_one(
            tenant,
            lambda: store.rename(tenant, name, new_name, expected_version=expected_version).head,
        )

    async def set_tags(
        self,
        tenant: str,
        name: str,
        tags: Mapping[str, str],
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Replace the tags of a handle."""
        check_given(self._backing.store.limits, tags)
        self._requests.check_stays(tenant, name)
        store = self._backing.store
        return await self._make_one(
            tenant,
            lambda: store.set_tags(tenant, name, tags, expected_version=expected_version).head,
        )

    async def set_expiry(
        self,
        tenant: str,
        name: str,
        expires_at: float | None,
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Say when a handle is over, in seconds since 1970; None for never."""
        self._requests.check_stays(tenant, name)
        store = self._backing.store
        return await self._make_one(
            tenant,
            lambda: (
                store.set_expiry(tenant, name, expires_at, expected_version=expected_version).head
            ),
        )

    async def delete(self, tenant: str, ref: Ref, *, expected_version: int | None = None) -> None:
        """Remove a handle, or one version of it; with the last version the handle goes.

        A request that started from it goes on; to be committed there it needs no handle.

        Raises:
            StateNotFoundError: there is none such.
            StaleVersionError: the head is not the version that was expected.
        """
        backing = self._backing
        try:
            await backing.threads.write(
                lambda: backing.store.delete(tenant, ref, expected_version=expected_version)
            )
        except StateNotFoundError:
            if ref.version is not None or backing.moved.pop((tenant, ref.name), None) is None:
                raise
            # what is elsewhere had expired here
        if ref.version is None:
            backing.moved.pop((tenant, ref.name), None)
            backing.used.pop((tenant, ref.name), None)

    # --- tiers ----------------------------------------------------------------------------

    async def hibernate(self, tenant: str, ref: Ref, tier: Tier = Tier.DISK) -> StateInfo:
        """Move a version down and free what it held above.

        Requests that will be committed to the handle are interrupted and committed first.

        Raises:
            StateNotFoundError: there is none such.
            InvalidParameterError: the engine has no such tier.
        """
        backing = self._backing
        backing.check_here(tenant, ref.name)
        if tier is Tier.DEVICE:
            raise InvalidParameterError("tier", "host, disk or cold")
        if tier is not Tier.HOST and not backing.has_disk:
            raise InvalidParameterError(
                "tier", "this engine keeps states in memory alone; start it with --state-dir"
            )
        if tier is Tier.COLD and not backing.has_cold:
            raise InvalidParameterError(
                "tier", "this engine has no object store; start it with --state-cold"
            )
        await self._interrupt(tenant, ref.name)
        store = backing.store

        def move() -> VersionRecord:
            if tier is Tier.HOST:
                return store.load(tenant, ref).record
            return (store.demote if tier is Tier.COLD else store.cool)(tenant, ref)

        return await self._make_one(tenant, move)

    async def resume(self, tenant: str, ref: Ref) -> StateInfo:
        """Bring a version up into host memory, verified.

        Raises:
            StateNotFoundError, StateDamagedError: it is not there, or not what was written.
        """
        backing = self._backing
        backing.check_here(tenant, ref.name)
        return await self._read(
            lambda: backing.info(tenant, backing.store.load(tenant, ref).record)
        )

    async def sweep(self, idle_s: float) -> int:
        """Move what nobody has used for ``idle_s`` from host memory to the disk. How many handles.

        It wakes by itself when it is used.
        """
        backing, n_moved = self._backing, 0
        until = backing.clock() - idle_s
        # In the order of their last use. Others are used, or deleted, while a thread works.
        idle = list(takewhile(lambda one: one[1] <= until, backing.used.items()))
        for (tenant, name), used_at in idle:
            is_still_idle = backing.used.get((tenant, name)) == used_at
            if not is_still_idle or self._requests.saving_to(tenant, name):
                continue
            del backing.used[tenant, name]
            try:
                await backing.threads.write(partial(backing.store.cool, tenant, Ref(name)))
            except StateNotFoundError:
                continue
            except WkvmError as error:
                logger.warning(
                    "a state that is idle stays in host memory: %s", type(error).__name__
                )
                continue
            n_moved += 1
        return n_moved

    # --- within ---------------------------------------------------------------------------

    async def _interrupt(self, tenant: str, name: str) -> None:
        """Have all requests that are committed to a handle end, and wait for that."""
        for request_id in self._requests.saving_to(tenant, name):
            await self._requests.stopped(request_id)

    def _check_idle(self, tenant: str, *names: str) -> None:
        for name in names:
            self._requests.check_stays(tenant, name)
            if self._requests.saving_to(tenant, name):
                raise StateExistsError(name, "a request is about to be committed to it")

    def _live(self, tenant: str, infos: Sequence[StateInfo]) -> list[StateInfo]:
        """Those whose handles a request works on are on the device."""
        names = self._requests.names_on_device(tenant)
        return [
            replace(info, tier=Tier.DEVICE) if info.handle.name in names else info for info in infos
        ]

    async def _read(self, look: Callable[[], T]) -> T:
        return await self._backing.threads.read(look)

    async def _make(
        self, tenant: str, work: Callable[[], Sequence[VersionRecord]]
    ) -> list[StateInfo]:
        """Make versions, in a thread; what is told of them."""
        backing = self._backing
        infos = await backing.threads.write(
            lambda: [backing.info(tenant, record) for record in work()]
        )
        backing.touch(tenant, *(info.handle.name for info in infos))
        return infos

    async def _make_one(self, tenant: str, work: Callable[[], VersionRecord]) -> StateInfo:
        """The same of one version."""
        return (await self._make(tenant, lambda: [work()]))[0]


def _check_limit(limit: int) -> None:
    if not 0 < limit <= MAX_PAGE:
        raise InvalidParameterError("limit", f"1 to {MAX_PAGE}")
