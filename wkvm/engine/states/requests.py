"""Requests that start from states and end in them.

A turn works on a copy of the version that it starts from, and is committed when it ends: all of
it or nothing. Its end is told after the commit. What is wrong with its start, or with its commit,
ends it as an error.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wkvm.core.errors import (
    DrainingError,
    EmptyPromptError,
    InvalidParameterError,
    KeyReusedError,
    QueueFullError,
    StaleVersionError,
    StateNotFoundError,
    StoreFailedError,
    WkvmError,
)
from wkvm.core.registry import VersionRecord
from wkvm.core.request import EndEvent, Event, RequestSpec, Status, TokensEvent
from wkvm.core.start import Saved, SavedEvent, Start
from wkvm.core.states import OnDisconnect, StateEnd, StateUse
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.commits import commit_turn, expected_of, image_of
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.memories import Past, Pasts
from wkvm.engine.states.runs import Runs, kept_part
from wkvm.engine.states.turns import Origin, Phase, Turn
from wkvm.state.image import StateImage, decode_image, encode_image

logger = logging.getLogger("wkvm.states")

MAX_LOADING = 1024
"""Turns of a tenant whose starts are being loaded."""

UNLIMITED_CREDIT = 2**31 - 1


class Requests:
    """The turns of an engine. All methods belong to the loop's thread.

    Attributes:
        deliver: takes the events of requests, as of the loop; ends of turns come later.
    """

    def __init__(self, loop: StepLoop, backing: Backing) -> None:
        self._loop = loop
        self._backing = backing
        self._turns = dict[int, Turn]()
        self._keyed = dict[tuple[str, str], Turn]()
        self._pasts = Pasts()
        self._runs = Runs(loop)
        self._tasks = set[asyncio.Task[None]]()
        self._accepts = True
        self.deliver: Callable[[list[Event]], None] = _ignore
        self.n_commits = 0
        self.n_failed_commits = 0
        loop.deliver = self._take

    @property
    def runs(self) -> Runs:
        """Requests of the service itself."""
        return self._runs

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
        if use.absorbs_only and spec.params.max_tokens:
            raise InvalidParameterError("max_tokens", "0 where nothing is to be sampled")
        if not spec.prompt and use.state is None and use.inline is None:
            raise EmptyPromptError
        known = self._known(spec, use)
        if known is not None:
            return known
        if not self._accepts:
            raise DrainingError
        n_loading = sum(
            turn.phase is Phase.LOADING and turn.spec.tenant == tenant
            for turn in self._turns.values()
        )
        if n_loading >= MAX_LOADING:
            raise QueueFullError(MAX_LOADING, "requests that wait for their states")
        return self._begin(spec, use)

    def _begin(self, spec: RequestSpec, use: StateUse) -> tuple[int, ...]:
        ids = self._loop.reserve(spec.params.n)
        turn = Turn(ids=set(ids), spec=spec, use=use, began_at=self._backing.clock())
        for request_id in ids:
            self._turns[request_id] = turn
        if use.idempotency_key is not None:
            turn.outputs = array("i")
            self._keyed[spec.tenant, use.idempotency_key] = turn
        turn.task = self._spawn(self._start(turn, ids))
        return ids

    def _known(self, spec: RequestSpec, use: StateUse) -> tuple[int, ...] | None:
        """The ids of the turn that runs or ran under this key, of which the rest is told again."""
        if use.idempotency_key is None:
            return None
        key = (spec.tenant, use.idempotency_key)
        turn = self._keyed.get(key)
        past = self._pasts.get(key)
        if turn is not None:
            if not _is_same(turn.spec, turn.use, spec, use):
                raise KeyReusedError
            turn.is_detached = False
            ids = tuple(turn.ids)
            self._soon(_again(ids[0], use.received, turn.outputs or array("i")))
            return ids
        if past is None:
            return None
        if not _is_same(past.spec, past.use, spec, use):
            raise KeyReusedError
        (request_id,) = self._loop.reserve(1)
        end = replace(past.end, request_id=request_id)
        self._soon([*_again(request_id, use.received, past.outputs), end])
        return (request_id,)

    async def _start(self, turn: Turn, ids: tuple[int, ...]) -> None:
        """Load what a turn starts from, and hand it to the engine."""
        try:
            turn.origin = await self._backing.threads.read(lambda: _origin_of(self._backing, turn))
            self._run(turn, ids)
        except WkvmError as error:
            self._fail(turn, error)
        except Exception:
            logger.exception("a state could not be loaded")
            self._fail(turn, StoreFailedError("load a state", "see the server's log"))

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
            event = _end_event(turn, ids[0], Status.LENGTH, self._backing.clock(), saved=saved)
            turn.task = self._spawn(self._end(turn, event))
            return
        elapsed = self._backing.clock() - turn.began_at
        started = replace(
            spec,
            start=None if turn.origin is None else start_of(turn.origin),
            save=use.saves,
            hold_back_last=use.absorbs_only,
            fresh_key=is_fork(use, spec.params.n),
            checkpoint_every=use.checkpoint_every,
            credit=None if spec.credit is None else spec.credit + turn.credit,
            timeout_s=None if spec.timeout_s is None else max(spec.timeout_s - elapsed, 0.001),
        )
        if turn.is_detached:
            started = replace(started, credit=None)
        self._loop.submit(started, ids)
        turn.move(Phase.RUNNING)
        if turn.held:
            for request_id in ids:
                self._loop.hold(request_id)

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; nothing of it is kept, unless it has ended."""
        turn = self._turns.get(request_id)
        if turn is None or turn.phase is Phase.RUNNING:
            self._loop.cancel(request_id)
        elif turn.phase is Phase.LOADING:
            if turn.task is not None:
                turn.task.cancel()
            for each in sorted(turn.ids):
                self._over(turn, _end_event(turn, each, Status.CANCELLED, self._backing.clock()))

    def interrupt(self, request_id: int, keep: int | None = None) -> None:
        """End a request where it is and commit it; one that saves nothing is cancelled.

        Args:
            keep: how many of its ids stay: the last one of them is pending at the end. Too late
                where the commit has begun: then all of them do.
        """
        turn = self._turns.get(request_id)
        if turn is None or not turn.use.saves or turn.phase is Phase.LOADING:
            self.cancel(request_id)
        elif turn.phase is Phase.RUNNING:
            turn.is_interrupted, turn.keep = True, keep
            self._loop.interrupt(request_id)

    def disconnected(self, request_id: int) -> None:
        """Nobody listens to a request any more: do with it what its use says."""
        turn = self._turns.get(request_id)
        policy = OnDisconnect.CANCEL if turn is None else turn.use.on_disconnect
        if turn is None or policy is OnDisconnect.CANCEL:
            self.cancel(request_id)
            return
        turn.is_detached = True
        if policy is OnDisconnect.HIBERNATE:
            self.interrupt(request_id)
        elif turn.phase is Phase.RUNNING:
            self._loop.grant(request_id, UNLIMITED_CREDIT)
            self._loop.release(request_id)

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit."""
        turn = self._turns.get(request_id)
        if turn is not None and turn.phase is Phase.LOADING:
            turn.credit += n_tokens
        else:
            self._loop.grant(request_id, n_tokens)

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released."""
        self._set_held(request_id, held=True)

    def release(self, request_id: int) -> None:
        """End a hold."""
        self._set_held(request_id, held=False)

    def _set_held(self, request_id: int, *, held: bool) -> None:
        turn = self._turns.get(request_id)
        if turn is not None and turn.phase is Phase.LOADING:
            turn.held = held
        elif held:
            self._loop.hold(request_id)
        else:
            self._loop.release(request_id)
