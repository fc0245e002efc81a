"""Requests that start from states and end in them.

A turn works on a copy of the version that it starts from, and is committed when it ends: all of
it or nothing. Its end is told after the commit. What is wrong with its start, or with its commit,
ends it as an error.
"""

import asyncio
from array import array
from collections import Counter
from dataclasses import replace

from wkvm.core.errors import (
    DrainingError,
    EmptyPromptError,
    InvalidParameterError,
    QueueFullError,
    StateNotFoundError,
    StoreFailedError,
    WkvmError,
)
from wkvm.core.limits import check_given, check_key
from wkvm.core.request import EndEvent, RequestSpec, Status
from wkvm.core.sampling import check_ids
from wkvm.core.states import OnDisconnect, StateUse
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.before import end_before
from wkvm.engine.states.books import logger
from wkvm.engine.states.endings import n_kept
from wkvm.engine.states.flow import Flow
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.origins import is_at_hand, is_fork, load_origin, start_of, untouched
from wkvm.engine.states.sizes import check_returned, place_of
from wkvm.engine.states.tellings import end_event, failure, parked_end
from wkvm.engine.states.turns import Phase, Turn

MAX_LOADING = 1024
"""Turns of a tenant whose starts are being loaded."""

INTERRUPT_S = 1.0
"""How long turns that are to be kept have to stop, once the time for a drain is over."""


class Requests(Flow):
    """The turns of an engine. All methods belong to the loop's thread."""

    def __init__(self, loop: StepLoop, backing: Backing) -> None:
        super().__init__(loop, backing)
        self._accepts = True
        self._moving = dict[tuple[str, str], asyncio.Future[None]]()
        self._n_loading = Counter[str]()
        self._n_starts = self._n_cached = 0

    # --- in -------------------------------------------------------------------------------

    def submit(self, spec: RequestSpec, use: StateUse) -> tuple[int, ...]:
        """Begin a turn. What cannot be known without its start, its EndEvent tells.

        Returns:
            The ids of its choices; those of an earlier turn with its idempotency key.

        Raises:
            RequestError: it cannot be.
            CapacityError: too much waits, or nothing new is taken.
        """
        tenant = spec.tenant
        for name in {use.save_as, None if use.state is None else use.state.name} - {None}:
            self._backing.check_here(tenant, name or "")
        if use.save_as is not None:
            self._backing.durability(use.durability)
        if use.saves and spec.params.n != 1:
            raise InvalidParameterError("n", "one choice alone can end in a state; fork, n times")
        if use.idempotency_key is not None:
            check_key(use.idempotency_key)
            if spec.params.n != 1:
                raise InvalidParameterError("n", "of one choice alone, with an idempotency key")
        elif use.received:
            raise InvalidParameterError("received", "of a request with an idempotency key")
        if use.absorbs_only and spec.params.max_tokens:
            raise InvalidParameterError("max_tokens", "0 where nothing is to be sampled")
        if not spec.prompt and use.state is None and use.inline is None:
            raise EmptyPromptError
        check_ids("prompt", spec.prompt, self._backing.vocab_size)
        check_given(self._backing.store.limits, use.tags)
        known = self._known(spec, use)
        if known is not None:
            return known
        if not self._accepts:
            raise DrainingError
        if self._n_loading[tenant] >= MAX_LOADING:
            raise QueueFullError(MAX_LOADING, "requests of a tenant that wait for their states")
        return self._begin(spec, use)

    def _begin(self, spec: RequestSpec, use: StateUse) -> tuple[int, ...]:
        ids = self._loop.reserve(spec.params.n)
        turn = Turn(ids=set(ids), asked=spec, spec=spec, use=use, began_at=self._backing.clock())
        for request_id in ids:
            self._turns[request_id] = turn
        if use.idempotency_key is not None:
            turn.outputs = array("i")
            self._keyed[spec.tenant, use.idempotency_key] = turn
        turn.task = self._spawn(self._start(turn, ids))
        self._n_loading[spec.tenant] += 1
        turn.task.add_done_callback(lambda _: self._loaded(spec.tenant))
        return ids

    def _loaded(self, tenant: str) -> None:
        self._n_loading[tenant] -= 1
        if not self._n_loading[tenant]:
            del self._n_loading[tenant]

    async def _start(self, turn: Turn, ids: tuple[int, ...]) -> None:
        """Load what a turn starts from, and hand it to the engine.

        What will be committed to a handle that is being moved waits for what becomes of that.
        """
        use = turn.use
        try:
            key = (turn.spec.tenant, use.save_as or "")
            if use.idempotency_key is not None and use.save_as is not None:
                done = await self._backing.threads.read(
                    lambda: end_before(self._backing, turn, self._loop.info.eos_ids)
                )
                if done is not None:
                    self._tell_done(turn, *done)
                    return
            if use.received:
                # from its beginning it would tell again what has been received
                raise StateNotFoundError("of a request under this key: run it anew")
            await self._enter(turn)
            is_loaded = False
            while not is_loaded:
                while (moving := self._moving.get(key)) is not None:
                    await asyncio.shield(moving)
                self._backing.check_here(*key)
                if not is_at_hand(self._backing, turn):
                    await self._backing.threads.read(lambda: load_origin(self._backing, turn))
                is_loaded = key not in self._moving
            # All of a move may have passed while it was loaded.
            self._backing.check_here(*key)
            self._run(turn, ids)
        except TimeoutError:
            for request_id in sorted(turn.ids):
                event = end_event(turn, request_id, Status.TIMED_OUT, self._backing.clock())
                self._over(turn, event)
        except WkvmError as error:
            self._fail(turn, error)
        except Exception:  # noqa: BLE001  (the task ends here)
            logger.exception("a state could not be loaded")
            self._fail(turn, StoreFailedError("load a state", "see the server's log"))

    async def _enter(self, turn: Turn) -> None:
        """Wait until there may be one more state in host memory.

        Raises:
            TimeoutError: the turn's time was over before.
        """
        if turn.use.state is None and turn.use.inline is None:
            return
        async with asyncio.timeout(turn.spec.timeout_s):
            place = await place_of(self._backing, turn)
            await self._gate.enter(turn.spec.tenant, place)
        turn.place = place

    def _tell_done(self, turn: Turn, outputs: "array[int]", end: EndEvent) -> None:
        """Tell a turn that was run and committed before this process began."""
        turn.outputs = outputs
        end = self._finish(turn, end)
        self._tell_past(outputs, end, turn.spec.credit, turn.use.received)

    def _run(self, turn: Turn, ids: tuple[int, ...]) -> None:
        spec, use = turn.spec, turn.use
        fed = (*turn.pending, *spec.prompt)
        if not fed:
            raise InvalidParameterError(
                "prompt", "nothing is pending in the state, so an id is needed to go on from"
            )
        if use.absorbs_only and not spec.prompt:
            raise InvalidParameterError("prompt", "there is nothing to append")
        if use.absorbs_only and len(fed) == 1:
            # Nothing is to be absorbed: the state is the one that it starts from.
            turn.move(Phase.ENDING)
            saved = untouched(self._backing, turn.origin, fed)
            event = end_event(turn, ids[0], Status.LENGTH, self._backing.clock(), saved=saved)
            turn.task = self._spawn(self._end(turn, event))
            return
        check_returned(turn, len(fed), self._backing.layout, self._loop.info.max_model_len)
        self._submit(turn, ids)

    def _submit(self, turn: Turn, ids: tuple[int, ...]) -> None:
        """Hand a turn, or what is left of it, to the engine."""
        spec, use = turn.spec, turn.use
        elapsed = self._backing.clock() - turn.began_at
        started = replace(
            spec,
            start=None if turn.origin is None else start_of(turn.origin),
            save=use.saves,
            hold_back_last=use.absorbs_only,
            fresh_key=turn.first_cached is None and is_fork(use, spec.params.n),
            checkpoint_every=use.checkpoint_every,
            credit=None if spec.credit is None else spec.credit + turn.credit - turn.n_told,
            timeout_s=None if spec.timeout_s is None else max(spec.timeout_s - elapsed, 0.001),
        )
        if turn.is_detached or turn.is_unlimited:
            started = replace(started, credit=None)
        self._loop.submit(started, ids)
        turn.move(Phase.RUNNING)
        if use.save_as is not None:
            self._backing.store.notices.note(spec.tenant, use.save_as)  # it is on the device
        if turn.origin is not None:
            self._n_starts += 1
            self._n_cached += turn.n_start
        if turn.held and not turn.is_detached:
            for request_id in ids:
                self._loop.hold(request_id)

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; nothing of it is kept, unless it has ended."""
        if self._pacer.cancel(request_id):
            self._tell_soon(request_id)
        turn = self._turns.get(request_id)
        if turn is not None:
            turn.is_cancelled = True
            if turn.phase is not Phase.ENDING:
                self._forget_key(turn)
        if turn is None or turn.phase is Phase.RUNNING:
            self._loop.cancel(self._engine_id(request_id))
        elif turn.phase in (Phase.LOADING, Phase.PARKED):
            if turn.task is not None:
                turn.task.cancel()
            for each in sorted(turn.ids):
                self._over(turn, end_event(turn, each, Status.CANCELLED, self._backing.clock()))

    def interrupt(self, request_id: int, keep: int | None = None) -> None:
        """End a request where it is and commit it; one that saves nothing is cancelled.

        Args:
            keep: how many of its ids stay: the last one of them is pending at the end. Too late
                where the commit has begun: then all of them do.
        """
        turn = self._turns.get(request_id)
        if turn is None or not turn.use.saves or turn.phase is Phase.LOADING:
            self.cancel(request_id)
        elif turn.phase is not Phase.OVER and not turn.is_interrupted:
            turn.is_interrupted, turn.keep = True, keep
            if turn.phase is Phase.RUNNING:
                self._loop.interrupt(self._engine_id(request_id))
            elif turn.phase is Phase.PARKED:
                self._end_parked(turn, request_id)

    def _end_parked(self, turn: Turn, request_id: int) -> None:
        """End a turn where it is parked."""
        event = end_event(turn, request_id, Status.CANCELLED, self._backing.clock())
        try:
            n_kept(turn, 0)
        except InvalidParameterError as error:
            self._over(turn, failure(turn, event, error))
        else:
            self._over(turn, replace(event, state=parked_end(self._backing, turn)))

    def disconnected(self, request_id: int) -> None:
        """Nobody listens to a request any more: do with it what its use says."""
        self._pacer.drop(request_id)
        turn = self._turns.get(request_id)
        policy = OnDisconnect.CANCEL if turn is None else turn.use.on_disconnect
        if turn is None or policy is OnDisconnect.CANCEL:
            self.cancel(request_id)
            return
        turn.is_detached = True
        if policy is OnDisconnect.HIBERNATE:
            self.interrupt(request_id)
            return
        self._lift_limit(turn, request_id)
        if turn.phase is Phase.RUNNING:
            self._loop.release(self._engine_id(request_id))

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; wait for the ends and their commits.

        What has not ended after ``grace_s`` is cancelled, or, where its client wants that if it
        goes itself, interrupted and committed.
        """
        self._accepts = False
        until = self._backing.clock() + grace_s
        loading = [
            turn.task
            for turn in self._turns.values()
            if turn.phase is Phase.LOADING and turn.task is not None
        ]
        if loading:
            await asyncio.wait(loading, timeout=grace_s)
        timer = asyncio.get_running_loop().call_later(
            max(until - self._backing.clock(), 0.0), self._interrupt_all
        )
        try:
            await self._loop.drain(max(until - self._backing.clock(), 0.0) + INTERRUPT_S)
        finally:
            timer.cancel()
        for request_id, turn in list(self._turns.items()):
            if turn.phase in (Phase.LOADING, Phase.PARKED):
                self.interrupt(request_id)  # what waits for a move, or is moved
        await self.settle()

    def _interrupt_all(self) -> None:
        """The time for a drain is over: what nobody keeps ends now."""
        kept = set(self.runs.ids)
        for request_id, turn in list(self._turns.items()):
            if turn.use.on_disconnect is OnDisconnect.CANCEL:
                self.cancel(request_id)
            else:
                self.interrupt(request_id)
                kept.add(self._engine_id(request_id))
        self._loop.cancel_all(kept)

    async def settle(self) -> None:
        """Wait until what has ended is committed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name."""
        phases = [turn.phase for turn in self._turns.values()]
        return {
            "n_states_loading": phases.count(Phase.LOADING),
            "n_states_running": phases.count(Phase.RUNNING),
            "n_states_committing": phases.count(Phase.ENDING),
            "n_states_parked": phases.count(Phase.PARKED),
            "state_starts_total": self._n_starts,
            "cached_tokens_total": self._n_cached,
            "state_commits_total": self._endings.n_commits,
            "state_commits_failed_total": self._n_failed,
        }
