"""How fast turns are told: credit, holds, and clients that come back for what they have missed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from wkvm.core.errors import KeyReusedError
from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.states import StateUse
from wkvm.engine.states.books import Books
from wkvm.engine.states.tellings import again, is_same
from wkvm.engine.states.turns import Phase, Turn

UNLIMITED_CREDIT = 2**31 - 1


class Flow(Books):
    """The turns of an engine, and their credit. All methods belong to the loop's thread."""

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit."""
        turn = self._turns.get(request_id)
        limit = self._pacer.grant(request_id, n_tokens)
        if limit is not None:
            if turn is not None:
                self._allow(turn, request_id, limit)
            self._tell_soon(request_id)
            return
        if turn is not None:
            turn.credit += n_tokens
        if turn is None or turn.phase is Phase.RUNNING:
            self._loop.grant(self._engine_id(request_id), n_tokens)

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released."""
        self._set_held(request_id, held=True)

    def release(self, request_id: int) -> None:
        """End a hold."""
        self._set_held(request_id, held=False)

    def _set_held(self, request_id: int, *, held: bool) -> None:
        if self._pacer.hold(request_id, is_held=held) and not held:
            self._tell_soon(request_id)
        turn = self._turns.get(request_id)
        if turn is not None:
            turn.held = held
        if turn is not None and turn.phase is not Phase.RUNNING:
            return
        if held:
            self._loop.hold(self._engine_id(request_id))
        else:
            self._loop.release(self._engine_id(request_id))

    # --- clients that come back -----------------------------------------------------------

    def _known(self, spec: RequestSpec, use: StateUse) -> tuple[int, ...] | None:
        """The ids of the turn that runs or ran under this key, of which the rest is told again."""
        if use.idempotency_key is None:
            return None
        key = (spec.tenant, use.idempotency_key)
        turn = self._keyed.get(key)
        past = self._pasts.get(key)
        if turn is not None:
            if not is_same(turn.asked, turn.use, spec, use):
                raise KeyReusedError
            (request_id,) = turn.ids
            self._comes_back(turn, request_id, spec.credit, use.received)
            return (request_id,)
        if past is None:
            return None
        if not is_same(past.spec, past.use, spec, use):
            raise KeyReusedError
        (request_id,) = self._loop.reserve(1)
        end = replace(past.end, request_id=request_id)
        self._tell_past(past.outputs, end, spec.credit, use.received)
        return (request_id,)

    def _comes_back(self, turn: Turn, request_id: int, credit: int | None, n_received: int) -> None:
        """Somebody else listens to a turn from now on, who has had some of its ids."""
        turn.is_detached = False
        if turn.held:
            self.release(request_id)  # for whoever listened before
        if credit is None or turn.outputs is None:
            self._pacer.drop(request_id)
            self._lift_limit(turn, request_id)
            self._due.append((turn, request_id, n_received))
            asyncio.get_running_loop().call_soon(self._tell_again)
            return
        self._pacer.begin(request_id, turn.outputs, n_told=n_received, credit=credit)
        self._allow(turn, request_id, n_received + credit)
        self._tell_soon(request_id)

    def _tell_past(
        self, outputs: Sequence[int], end: EndEvent, credit: int | None, n_received: int
    ) -> None:
        """Tell a turn that is over to who has had some of its ids."""
        if credit is None:
            self._soon([*again(end.request_id, n_received, outputs), end])
            return
        self._pacer.begin(end.request_id, outputs, n_told=n_received, credit=credit)
        self._soon([end])

    def _tell_soon(self, request_id: int) -> None:
        asyncio.get_running_loop().call_soon(self._pacer.tell, request_id)

    def _allow(self, turn: Turn, request_id: int, n_ids: int) -> None:
        """Let a turn produce so many ids in all."""
        if turn.is_unlimited or turn.asked.credit is None:
            return
        n_more = n_ids - turn.asked.credit - turn.credit
        if n_more > 0:
            turn.credit += n_more
            if turn.phase is Phase.RUNNING:
                self._loop.grant(self._engine_id(request_id), n_more)

    def _lift_limit(self, turn: Turn, request_id: int) -> None:
        """Let a turn go on to its end, whatever its credit."""
        turn.is_unlimited = True
        if turn.phase is Phase.RUNNING:
            self._loop.grant(self._engine_id(request_id), UNLIMITED_CREDIT)
