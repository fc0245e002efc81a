"""Turns that stop at the border of a step, are committed, and may go on as if nothing had been.

To the engine what goes on is another request; to its client it is the same one. So its events are
told under the id that the client knows.
"""

import asyncio
from dataclasses import replace

from wkvm.core.errors import StoreFailedError, WkvmError
from wkvm.core.registry import Durability, VersionRecord
from wkvm.core.request import EndEvent, Status
from wkvm.core.start import Saved
from wkvm.core.states import Moved
from wkvm.engine.states.books import logger
from wkvm.engine.states.commits import commit_on_the_way, expected_of, image_of
from wkvm.engine.states.tellings import end_event, failure, parked_end
from wkvm.engine.states.turns import Origin, Phase, Turn
from wkvm.engine.states.within import Within
from wkvm.state.image import StateImage


class Parking(Within):
    """The turns of an engine, which can be parked. All methods belong to the loop's thread."""

    async def park(self, request_id: int) -> bool:
        """Stop a turn that will be committed to a handle, and make it a version there.

        Returns:
            Whether it is parked. Otherwise it has ended, as it would have anyhow, or had not begun.

        Raises:
            WkvmError: it could not be committed, and goes on.
        """
        turn = self._turns.get(request_id)
        while turn is not None and turn.parking is not None:
            await asyncio.wait([turn.parking])  # for somebody who has given up
            turn = self._turns.get(request_id)
        if turn is not None and turn.phase is Phase.ENDING:
            await self.end_of(request_id)
            return False
        if turn is None or turn.phase is not Phase.RUNNING:
            return False
        turn.parking, turn.goes_on = asyncio.get_running_loop().create_future(), False
        self._loop.interrupt(self._engine_id(request_id))
        await asyncio.shield(turn.parking)
        return self._is_parked(request_id)

    def _is_parked(self, request_id: int) -> bool:
        turn = self._turns.get(request_id)
        return turn is not None and turn.phase is Phase.PARKED

    def unpark(self, request_id: int) -> None:
        """Let a turn go on from where it is parked, or once it is. Others are left alone."""
        turn = self._turns.get(request_id)
        if turn is None or turn.phase is not Phase.PARKED:
            if turn is not None:
                turn.goes_on = True
            return
        (engine_id,) = self._loop.reserve(1)
        self._alias(request_id, engine_id)
        try:
            self._submit(turn, (engine_id,))
        except WkvmError as error:
            self._fail(turn, error)

    def leave(self, request_id: int, moved: Moved) -> None:
        """End a turn that is parked: it goes on elsewhere."""
        turn = self._turns.get(request_id)
        if turn is None or turn.phase is not Phase.PARKED:
            return
        left = replace(moved, n_left=turn.spec.params.max_tokens)
        event = end_event(turn, request_id, Status.CANCELLED, self._backing.clock())
        state = replace(parked_end(self._backing, turn), ref=None, ack=None, moved=left)
        self._over(turn, replace(event, state=state))

    def _is_parking(self, turn: Turn, event: EndEvent) -> bool:
        is_on_the_way = event.status is Status.CANCELLED and event.saved is not None
        return turn.parking is not None and is_on_the_way and not turn.is_interrupted

    async def _park(self, turn: Turn, event: EndEvent) -> None:
        """Commit what a turn has by now."""
        saved, name = event.saved, turn.use.save_as
        if saved is None or name is None:
            raise ValueError("a turn without a state is to be parked")
        record, error = None, None
        image = image_of(self._backing, turn.origin, saved)
        try:
            record = await self._commit_so_far(turn, saved, name)
        except WkvmError as refused:
            error = refused
        except Exception:  # noqa: BLE001  (whoever waits is told)
            logger.exception("a turn could not be parked")
            error = StoreFailedError("commit", "see the server's log")
        _shorten(turn, saved, event.n_output, record, image)
        turn.move(Phase.PARKED)
        if turn.is_cancelled:
            self.cancel(event.request_id)
        elif turn.is_interrupted and error is not None:
            self._over(turn, failure(turn, event, error))
        elif turn.is_interrupted:
            self._end_parked(turn, event.request_id)
        elif error is not None or turn.goes_on:
            # As if it had not been tried: it goes on from what it has.
            self.unpark(event.request_id)
        parking, turn.parking = turn.parking, None
        if parking is None or parking.done():
            return
        if error is None:
            parking.set_result(None)
        else:
            parking.set_exception(error)
            parking.exception()  # whoever waited may have been cancelled

    async def _commit_so_far(self, turn: Turn, saved: Saved, name: str) -> VersionRecord:
        backing = self._backing
        durability = Durability.DISK if backing.has_disk else Durability.MEMORY
        async with turn.commits:
            expected = expected_of(turn)
            record = await backing.threads.write(
                lambda: commit_on_the_way(
                    backing,
                    name,
                    turn,
                    saved,
                    expected_version=expected,
                    durability=durability,
                    idempotency_key=None,
                    checkpoints=turn.checkpoints,
                )
            )
            turn.expected = record.version
            turn.checkpoints.clear()
        return record


def _shorten(
    turn: Turn, saved: Saved, n_output: int, record: VersionRecord | None, image: StateImage
) -> None:
    """Make of a turn what is left of it."""
    if turn.first_cached is None:
        turn.first_start, turn.first_cached = turn.start, turn.cached_tokens
    n_fed = len(turn.pending) + len(turn.spec.prompt)
    n_left = max(n_fed - len(saved.absorbed) - len(saved.pending), 0)
    params = turn.spec.params
    prompt = turn.spec.prompt
    turn.spec = replace(
        turn.spec,
        prompt=prompt[len(prompt) - n_left :],
        params=replace(
            params,
            max_tokens=params.max_tokens - n_output,
            min_tokens=max(params.min_tokens - n_output, 0),
            prompt_logprobs=None,
        ),
    )
    turn.n_told += n_output
    turn.origin = Origin(image, record, saved.pending)
