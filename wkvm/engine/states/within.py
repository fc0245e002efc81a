"""What the service itself does with turns: its own, and those of clients."""

import asyncio

from wkvm.core.errors import StateExistsError, StateNotFoundError
from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.start import Saved
from wkvm.core.states import StateUse
from wkvm.engine.states.requests import Requests
from wkvm.engine.states.turns import Phase, Turn


class Within(Requests):
    """The turns of an engine, for the rest of the service. All methods belong to its thread."""

    async def run(self, spec: RequestSpec, use: StateUse) -> EndEvent:
        """Run a turn that no client sees, and wait for its end. If cancelled, it is cancelled.

        Raises:
            WkvmError: it was refused or failed.
        """
        (request_id,) = self.submit(spec, use)
        if request_id not in self._turns:
            # It was run before under this key; only who submits it is told again.
            return self._pasts[spec.tenant, use.idempotency_key or ""].end
        try:
            event = await self.end_of(request_id)
        except asyncio.CancelledError:
            turn = self._turns.get(request_id)
            if turn is not None and not turn.is_wanted:
                self.cancel(request_id)
            raise
        if event.error is not None:
            raise event.error
        return event

    def end_of(self, request_id: int) -> "asyncio.Future[EndEvent]":
        """The end of a turn of one choice, once it is there. To be cancelled harms nothing."""
        ended: asyncio.Future[EndEvent] = asyncio.get_running_loop().create_future()
        self._turns[request_id].waiting.append(ended)
        return ended

    def hold_back(self, tenant: str, name: str) -> None:
        """Let what is not running yet, and will be committed to a handle, wait."""
        self._moving[tenant, name] = asyncio.get_running_loop().create_future()

    def let_go(self, tenant: str, name: str) -> None:
        """The reverse of ``hold_back``."""
        self._moving.pop((tenant, name)).set_result(None)

    def check_stays(self, tenant: str, name: str) -> None:
        """Check that a handle is here and may be changed.

        Raises:
            StateMovedError: it is at another engine.
            StateExistsError: it is being moved there.
        """
        self._backing.check_here(tenant, name)
        if (tenant, name) in self._moving:
            raise StateExistsError(name, "it is being moved")

    def saving_to(self, tenant: str, name: str) -> list[int]:
        """The turns that will be committed to a handle."""
        return [
            request_id
            for request_id, turn in self._turns.items()
            if turn.spec.tenant == tenant and turn.use.save_as == name
        ]

    def begun(self, tenant: str, name: str) -> list[int]:
        """Those of them that the engine has, or that are being committed."""
        return [
            request_id
            for request_id in self.saving_to(tenant, name)
            if self._turns[request_id].phase is not Phase.LOADING
        ]

    def running(self, tenant: str, name: str) -> int | None:
        """The turn that the engine has and that will be committed to a handle; one, if several."""
        for request_id in self.saving_to(tenant, name):
            if self._turns[request_id].phase is Phase.RUNNING:
                return request_id
        return None

    def names_on_device(self, tenant: str) -> set[str]:
        """The handles to which turns that run will be committed."""
        return {
            turn.use.save_as
            for turn in self._turns.values()
            if turn.spec.tenant == tenant
            and turn.use.save_as is not None
            and turn.phase is Phase.RUNNING
        }

    async def stopped(self, request_id: int) -> None:
        """Interrupt a turn that runs, and wait for its end.

        One that only absorbs is waited for: there is no half of what is put in. One that has not
        begun is left to begin.
        """
        turn = self._turns.get(request_id)
        if turn is None or turn.phase is Phase.LOADING:
            return
        ended = self.end_of(request_id)
        if not turn.use.absorbs_only:
            self.interrupt(request_id)
        await ended

    async def snapshot(self, tenant: str, request_id: int) -> tuple[Turn, Turn, Saved]:
        """A copy of the state of a turn that runs, which goes on.

        Returns:
            The turn, what it was when the copy was made, and the copy.

        Raises:
            StateNotFoundError: it does not run, or ended before the copy was made.
        """
        turn = self._turns.get(request_id)
        if turn is None or turn.phase is not Phase.RUNNING or turn.spec.tenant != tenant:
            raise StateNotFoundError("of a request that does not run")
        copied: asyncio.Future[tuple[Turn, Saved]] = asyncio.get_running_loop().create_future()
        turn.snapshots.append(copied)
        if not self._loop.snapshot(self._engine_id(request_id)):
            turn.snapshots.remove(copied)
            raise StateNotFoundError("of a request that has ended")
        return turn, *await copied
