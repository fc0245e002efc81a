"""The books of the turns: what the engine tells of them, and what is told of their ends."""

import asyncio
import logging
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

from wkvm.core.errors import StateNotFoundError, StepFailedError, StoreFailedError, WkvmError
from wkvm.core.request import EndEvent, Event, SavedEvent, Status, TokensEvent
from wkvm.core.start import Saved
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.endings import Endings
from wkvm.engine.states.gate import Gate
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.memories import Past, Pasts
from wkvm.engine.states.pacing import Pacer
from wkvm.engine.states.runs import Runs
from wkvm.engine.states.sizes import max_start_bytes
from wkvm.engine.states.tellings import again, end_event, failure, start_end
from wkvm.engine.states.turns import Origin, Phase, Turn

T = TypeVar("T")

logger = logging.getLogger("wkvm.states")

EXTRA_STARTS = 32
"""States that may wait in host memory for slots, for each tenant, beyond as many as slots."""

MAX_CHECKPOINTS = 32
"""Of one turn; the newest are kept. Each holds a state in host memory until the turn ends."""

MAX_CHECKPOINT_BYTES = 2**30
"""Of all of them, where that is less: one at least is kept."""


class Books:
    """The turns of an engine, and what becomes of them. All methods belong to the loop's thread.

    Attributes:
        deliver: takes the events of requests, as of the loop; ends of turns come later.
        runs: requests of the service itself.
        max_starts: how many turns of a tenant may have loaded what they start from.
    """

    def __init__(self, loop: StepLoop, backing: Backing) -> None:
        self._loop = loop
        self._backing = backing
        self._turns = dict[int, Turn]()
        self._keyed = dict[tuple[str, str], Turn]()
        self._pasts = Pasts()
        self.runs = Runs(loop)
        self.max_starts = loop.info.n_slots + EXTRA_STARTS
        self._gate = Gate(self.max_starts, max_start_bytes(loop))
        self._endings = Endings(backing, self.runs)
        self._due = list[tuple[Turn, int, int]]()
        self._noted: Sequence[int] = ()
        self._places: list[tuple[int, array[int]]] = []
        self._tasks = set[asyncio.Task[Any]]()
        self._engine_ids, self._aliases = dict[int, int](), dict[int, int]()
        self._n_failed = 0
        self.deliver: Callable[[list[Event]], None] = _ignore
        self._pacer = Pacer(lambda events: self.deliver(events))
        loop.deliver = self._take

    def _take(self, events: list[Event]) -> None:
        """The events of a step: what is of turns goes its own way."""
        if not self._turns and not self.runs.n_waiting:
            self.deliver(events)
            return
        self._tell_again()
        if self._aliases:
            events = [self._renamed(event) for event in events]
        passed = list[Event]()
        for event in events:
            match event:
                case TokensEvent():
                    self._note_outputs(event)
                    passed.append(event)
                case SavedEvent():
                    self._saved(event)
                case EndEvent() if not self.runs.take(event):
                    turn = self._turns.get(event.request_id)
                    if turn is None:
                        passed.append(event)
                    else:
                        passed += self._ended(turn, event)
                case EndEvent():
                    pass
                case _:
                    passed.append(event)
        if passed:
            self._pacer.pass_on(passed)

    def _engine_id(self, request_id: int) -> int:
        """What the engine knows a request as."""
        return self._engine_ids.get(request_id, request_id)

    def _alias(self, request_id: int, engine_id: int) -> None:
        """A request is another one to the engine from now on."""
        self._forget_alias(request_id)
        self._engine_ids[request_id] = engine_id
        self._aliases[engine_id] = request_id

    def _forget_alias(self, request_id: int) -> None:
        engine_id = self._engine_ids.pop(request_id, None)
        if engine_id is not None:
            del self._aliases[engine_id]

    def _renamed(self, event: Event) -> Event:
        """An event under the ids that clients know."""
        if not isinstance(event, TokensEvent):
            known = self._aliases.get(event.request_id)
            return event if known is None else replace(event, request_id=known)
        if self._aliases.keys().isdisjoint(event.request_ids):
            return event
        ids, indices = list(event.request_ids), list(event.indices)
        for at, engine_id in enumerate(ids):
            known = self._aliases.get(engine_id)
            if known is not None:
                ids[at] = known
                indices[at] += self._turns[known].n_told
        return replace(event, request_ids=ids, indices=indices)

    def _tell_again(self) -> None:
        """Tell those who came back what they have missed, before anything else."""
        due, self._due = self._due, []
        for turn, request_id, received in due:
            events = again(request_id, received, turn.outputs or ())
            if events:
                self.deliver(events)

    def _note_outputs(self, event: TokensEvent) -> None:
        """Keep the ids of turns that somebody may ask for again."""
        if not self._keyed:
            return
        if self._noted != event.request_ids:
            # In most steps the same requests have their ids at the same places.
            turns = ((at, self._turns.get(one)) for at, one in enumerate(event.request_ids))
            self._places = [
                (at, turn.outputs)
                for at, turn in turns
                if turn is not None and turn.outputs is not None
            ]
            self._noted = event.request_ids
        for at, outputs in self._places:
            outputs.append(event.token_ids[at])

    def _saved(self, event: SavedEvent) -> None:
        turn = self._turns.get(event.request_id)
        if turn is None:
            return
        if event.is_checkpoint:
            if event.saved is not None:
                turn.checkpoints.append((turn.origin, event.saved))
                _thin(turn.checkpoints)
            return
        waiting, turn.snapshots = turn.snapshots, []
        for one in waiting:
            if one.done():
                continue
            if event.saved is None:
                one.set_exception(event.error or StepFailedError())
            else:
                one.set_result((replace(turn), event.saved))

    def _ended(self, turn: Turn, event: EndEvent) -> list[Event]:
        """The end of a turn by the engine: what is told of it at once."""
        if self._is_parking(turn, event):
            turn.move(Phase.ENDING)
            turn.task = self._spawn(self._park(turn, event))
            return []
        is_kept = event.status in (Status.STOPPED, Status.LENGTH) or (
            event.status is Status.CANCELLED and turn.is_interrupted
        )
        if is_kept and turn.use.saves and event.saved is not None:
            turn.move(Phase.ENDING)
            turn.task = self._spawn(self._end(turn, event))
            return []
        return [self._finish(turn, replace(event, saved=None, state=start_end(turn)))]

    async def _end(self, turn: Turn, event: EndEvent) -> None:
        """Commit the end of a turn, and tell it."""
        try:
            event = await self._endings.committed(turn, event)
        except WkvmError as error:
            self._n_failed += 1
            event = failure(turn, event, error)
        except asyncio.CancelledError:
            self._over(turn, failure(turn, event, StoreFailedError("commit", "it was closed")))
            raise
        except Exception:
            logger.exception("the end of a turn could not be committed")
            self._n_failed += 1
            event = failure(turn, event, StoreFailedError("commit", "see the server's log"))
        self._over(turn, event)

    def _is_parking(self, turn: Turn, event: EndEvent) -> bool:
        """Whether the end of a turn is one that it was stopped for, to go on perhaps."""
        raise NotImplementedError

    async def _park(self, turn: Turn, event: EndEvent) -> None:
        """Commit what a turn has by now."""
        raise NotImplementedError

    def _fail(self, turn: Turn, error: WkvmError) -> None:
        """End a turn that the engine has not got."""
        for request_id in sorted(turn.ids):
            event = end_event(turn, request_id, Status.LENGTH, self._backing.clock())
            self._over(turn, failure(turn, event, error))

    def _over(self, turn: Turn, event: EndEvent) -> None:
        """Tell the end of a turn, soon."""
        self._soon([self._finish(turn, event)])

    def _finish(self, turn: Turn, event: EndEvent) -> EndEvent:
        """Take a choice off the books; what is told of its end."""
        self._turns.pop(event.request_id, None)
        self._forget_alias(event.request_id)
        turn.ids.discard(event.request_id)
        if turn.first_cached is not None:
            # To its client it was one request all the time.
            n_output = turn.n_told + event.n_output
            event = replace(event, n_prompt=len(turn.asked.prompt), n_output=n_output)
        if turn.parking is not None and not turn.parking.done():
            turn.parking.set_result(None)
        if turn.ids:
            return event
        turn.move(Phase.OVER)
        if turn.place is not None:
            self._gate.leave(turn.spec.tenant, turn.place)
        use = turn.use
        self._backing.touch(turn.spec.tenant, use.save_as, use.state and use.state.name)
        for copied in turn.snapshots:
            if not copied.done():
                copied.set_exception(StateNotFoundError("of a request that has ended"))
        if turn.use.idempotency_key is not None:
            key = (turn.spec.tenant, turn.use.idempotency_key)
            self._forget_key(turn)
            if event.state is not None and event.state.ref is not None and turn.outputs is not None:
                outputs = turn.outputs[: event.n_output]
                self._pasts.add(key, Past(turn.asked, turn.use, outputs, event))
        for one in turn.waiting:
            if not one.done():
                one.set_result(event)
        return event

    def _forget_key(self, turn: Turn) -> None:
        """Who asks again under the key of a turn does not get this one."""
        key = (turn.spec.tenant, turn.use.idempotency_key or "")
        if self._keyed.get(key) is turn:
            del self._keyed[key]

    def _soon(self, events: Sequence[Event]) -> None:
        """Tell events, and never from within a call."""
        asyncio.get_running_loop().call_soon(self._pacer.pass_on, events)

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, also if whoever waits for it is cancelled."""
        task = self._spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_drop_refusal)  # a shield that is gone reads no error
            raise

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _drop_refusal(task: "asyncio.Task[Any]") -> None:
    """What was refused to somebody who has left is no news; any other error is."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, WkvmError):
        logger.error("it failed after whoever waited for it had left", exc_info=error)


def _thin(checkpoints: list[tuple[Origin | None, Saved]]) -> None:
    """Let the oldest checkpoints go that are too many, or with which they take too much."""
    del checkpoints[:-MAX_CHECKPOINTS]
    sizes = [len(saved.record) for _, saved in reversed(checkpoints)]
    n_kept = sum(total <= MAX_CHECKPOINT_BYTES for total in accumulate(sizes))
    del checkpoints[: -max(n_kept, 1)]


def _ignore(events: list[Event]) -> None:
    del events
