"""The durable states of one engine: a loop whose requests may use them, and operations on them."""

import asyncio
from collections.abc import Callable, Mapping

from wkvm.core.errors import WkvmError
from wkvm.core.request import Event, RequestSpec
from wkvm.core.states import StateUse
from wkvm.engine.interface import EngineInfo
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.books import logger
from wkvm.engine.states.disk import DiskWatch
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.migration import Migration
from wkvm.engine.states.parking import Parking
from wkvm.engine.states.watching import Watch, Watching

SWEEPS_PER_IDLE_TIME = 4


class StateService(Migration):
    """A loop, as the server uses it, with states. All methods belong to the loop's thread.

    What concerns requests without states costs them nothing: it is passed on. Operations are
    coroutines; see ``Operations``.

    Two objects, each divided into classes that extend one another, a subject apiece. This one has
    the operations: ``Operations`` (looking, names, tiers), ``Making``, ``Rollback``, ``Exchange``,
    ``Replay``, ``Migration``. It holds one that has the turns: ``Books`` (what the engine tells of
    them), ``Requests`` (what clients ask), ``Within`` (what operations ask), ``Parking``.

    Attributes:
        deliver: takes the events of requests, as of the loop. Set by who serves them.
    """

    def __init__(
        self,
        loop: StepLoop,
        backing: Backing,
        *,
        idle_s: float = 0.0,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the loop's events, and the store.

        Args:
            idle_s: what nobody has used for so long leaves host memory; 0 for never.
            closed: called when the store is closed.
        """
        requests = Parking(loop, backing)
        super().__init__(backing, requests)
        self.deliver: Callable[[list[Event]], None] = _ignore
        requests.deliver = self._pass_on
        backing.note_kept_elsewhere()
        self._loop = loop
        self._closed = closed
        self._watching = Watching(backing, self)
        self._disk: DiskWatch | None = None
        if backing.has_disk:
            n_bytes = backing.layout.record_bytes
            self._disk = DiskWatch(lambda: backing.store.refusal(n_bytes))
        self._sweeping: asyncio.Task[None] | None = None
        if idle_s and backing.has_disk:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(idle_s))

    @property
    def max_starts(self) -> int:
        """How many requests of a tenant may have loaded what they start from; others wait."""
        return self._requests.max_starts

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        return self._loop.info

    def _pass_on(self, events: list[Event]) -> None:
        self.deliver(events)

    def submit(self, spec: RequestSpec, use: StateUse | None = None) -> tuple[int, ...]:
        """Queue all choices of a spec or none; their ids.

        Args:
            use: what it does with states. Then its end tells what came of them; and what is wrong
                with them, unless it is plain to see, ends it with FINISHED_ERROR.

        Raises:
            RequestError, CapacityError: it is refused.
        """
        if use is None:
            return self._loop.submit(spec)
        return self._requests.submit(spec, use)

    def cancel(self, request_id: int) -> None:
        """End a request, and keep nothing. Its EndEvent follows; unknown ones are ignored."""
        self._requests.cancel(request_id)

    def interrupt(self, request_id: int, keep: int | None = None) -> None:
        """End a request where it is and commit it. Unknown and ended ones are ignored.

        Its status is CANCELLED. One that saves nothing is cancelled.

        Args:
            keep: how many of its ids stay; None for all. The state is that of a request that had
                them as its limit: the last one is pending.
        """
        self._requests.interrupt(request_id, keep)

    def disconnected(self, request_id: int) -> None:
        """Its client is gone: cancel it, let it finish or interrupt it, as its use says."""
        self._requests.disconnected(request_id)

    def watch(self, tenant: str, prefix: str, wake: Callable[[], None]) -> Watch:
        """Begin to tell what states of a tenant there are, and what changes: see ``Watching``."""
        return self._watching.open(tenant, prefix, wake)

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit."""
        self._requests.grant(request_id, n_tokens)

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released."""
        self._requests.hold(request_id)

    def release(self, request_id: int) -> None:
        """End a hold."""
        self._requests.release(request_id)

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name: the engine's and those of states."""
        refuses = 0 if self._disk is None else int(self._disk.refusal)
        n_states, n_bytes, limit = self._backing.store.in_memory
        n_on_disk, bytes_on_disk = self._backing.store.on_disk
        of_tiers = {
            "slot_bytes": self._backing.layout.record_bytes,
            "n_states_host": n_states,
            "state_host_bytes": n_bytes,
            "state_host_limit_bytes": limit,
            "n_states_disk": n_on_disk,
            "state_disk_bytes": bytes_on_disk,
            "n_watches": self._watching.n_open,
        }
        counted = {**self._loop.stats(), **self._requests.stats(), **of_tiers}
        return {**counted, "store_refuses": refuses}

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; wait for the ends and their commits; see ``Requests.drain``."""
        await self._requests.drain(grace_s)

    async def close(self) -> None:
        """Wait for what is being committed, and close the store. The loop has ended before.

        What is in memory alone goes to the disk, where there is one.
        """
        await self._watching.close()
        if self._disk is not None:
            await self._disk.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._requests.settle()
        # On this thread: nothing else is left to do, and at the end of an interpreter there are
        # no threads to be had any more.
        self._backing.threads.close()
        if self._backing.has_disk:
            try:
                self._backing.store.flush()
            except WkvmError as error:
                logger.warning(
                    "states that were in memory alone are lost: %s", type(error).__name__
                )
        self._backing.store.close()
        self._closed()

    async def _sweep(self, idle_s: float) -> None:
        """Let what is idle leave host memory, for ever."""
        while True:
            await asyncio.sleep(idle_s / SWEEPS_PER_IDLE_TIME)
            await self.sweep(idle_s)


def _ignore(events: list[Event]) -> None:
    del events
