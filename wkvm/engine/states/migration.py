"""A state, and the request that runs on it, go to another engine: the side that they leave.

It stops at the border of a step and is committed; the bytes go out as an export. Nothing is given
up here before the other side has verified and committed them, and if it never says so, all goes
on here as if nothing had been.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from wkvm.core.errors import (
    InvalidParameterError,
    StateExistsError,
    StateNotFoundError,
)
from wkvm.core.registry import Ref, VersionRecord
from wkvm.core.states import Moved, StateInfo
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.parking import Parking
from wkvm.engine.states.replay import Replay

DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 600.0


@dataclass(slots=True)
class _Move:
    """A migration that has begun.

    Attributes:
        info: the version that goes.
        parked: the requests that wait.
        timer: gives it up.
    """

    info: StateInfo
    parked: tuple[int, ...]
    timer: asyncio.TimerHandle


class Migration(Replay):
    """Operations that move states to other engines."""

    def __init__(self, backing: Backing, requests: Parking) -> None:
        super().__init__(backing, requests)
        self._parking = requests
        self._moves = dict[tuple[str, str], _Move | None]()

    async def migrate_begin(
        self, tenant: str, name: str, *, timeout_s: float | None = None
    ) -> StateInfo:
        """Stop a state where it is, and make sure that it is committed, to be moved.

        Requests that will be committed to it wait until ``migrate_end``, or for ``timeout_s``,
        those that come meanwhile too; other operations that would change it are refused.

        Returns:
            The version to export.

        Raises:
            StateNotFoundError: there is no such handle.
            StateExistsError: it is being moved already.
        """
        backing, key = self._backing, (tenant, name)
        backing.check_here(tenant, name)
        limit = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        if not 0 < limit <= MAX_TIMEOUT_S:
            raise InvalidParameterError("timeout_s", f"above 0, and at most {MAX_TIMEOUT_S:g}")
        if key in self._moves:
            raise StateExistsError(name, "it is being moved already")
        self._moves[key] = None
        self._parking.hold_back(tenant, name)
        parked = list[int]()
        try:
            for request_id in self._parking.begun(tenant, name):
                parked.append(request_id)
                await self._parking.park(request_id)
            info = await self._settled(tenant, name)
        except BaseException:
            self._stay(key, parked)
            raise
        timer = asyncio.get_running_loop().call_later(limit, self._give_up, key)
        self._moves[key] = _Move(info, tuple(parked), timer)
        return info

    async def migrate_end(self, tenant: str, name: str, *, moved: Moved | None) -> StateInfo | None:
        """Say what came of a migration.

        Args:
            moved: where the state is now, verified and committed; None if it stays.

        Returns:
            The head, if it stays; None if it has moved. Then what is here of it stays too, as it
            was, and is told from what is alive by the tag ``wkvm.moved``; deleting it is its
            owner's affair. Requests on it are refused with StateMovedError.

        Raises:
            StateNotFoundError: no migration of it is under way: it was given up.
            StaleVersionError: it moved on here meanwhile; all goes on here.
        """
        key = (tenant, name)
        move = self._moves.get(key)
        if move is None:
            raise StateNotFoundError(f"{name} that is being moved")
        move.timer.cancel()
        if moved is None:
            self._stay(key, move.parked)
            return await self.get(tenant, Ref(name))
        self._moves[key] = None
        # Halfway, it would be here and there.
        await self._requests.whole(self._leave(key, move, moved))
        return None

    async def _leave(self, key: tuple[str, str], move: _Move, moved: Moved) -> None:
        """Give up a handle that is elsewhere now, and what waits for it; or let all go on."""
        backing = self._backing
        try:
            await backing.threads.write(
                lambda: backing.store.mark_moved(key[0], move.info.handle, moved)
            )
        except BaseException:
            self._stay(key, move.parked)
            raise
        backing.note_moved(*key, moved)
        for request_id in move.parked:
            self._parking.leave(request_id, moved)
        self._stay(key, ())

    async def _settled(self, tenant: str, name: str) -> StateInfo:
        """The head, on disk where there is one."""
        backing = self._backing

        def settle() -> VersionRecord:
            if backing.has_disk:
                return backing.store.persist(tenant, Ref(name))
            return backing.store.get(tenant, Ref(name))

        return await self._make_one(tenant, settle)

    def _stay(self, key: tuple[str, str], parked: Sequence[int]) -> None:
        """A migration is over; requests that are parked go on here."""
        del self._moves[key]
        self._parking.let_go(*key)
        for request_id in parked:
            self._parking.unpark(request_id)

    def _give_up(self, key: tuple[str, str]) -> None:
        move = self._moves.get(key)
        if move is not None:
            self._stay(key, move.parked)
