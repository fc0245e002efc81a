"""Requests of the service itself, which no client sees: tokens of a log are absorbed once more.

A turn is done again by the path that it took: its prompt as a prompt, and its ids one by one.
So the state comes out to the bit, where the engine promises that.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wkvm.core.errors import StepFailedError
from wkvm.core.registry import SamplerMemory
from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Saved, Start
from wkvm.engine.states.interface import StepLoop


class Runs:
    """The service's own requests. All methods belong to the loop's thread."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._waiting = dict[int, asyncio.Future[EndEvent]]()

    @property
    def n_waiting(self) -> int:
        """How many have not ended."""
        return len(self._waiting)

    @property
    def ids(self) -> Iterable[int]:
        """Of those that have not ended."""
        return self._waiting.keys()

    def take(self, event: EndEvent) -> bool:
        """Take the end of a request, if it is one of these."""
        waiting = self._waiting.pop(event.request_id, None)
        if waiting is None:
            return False
        if not waiting.done():
            waiting.set_result(event)
        return True

    async def run(self, spec: RequestSpec) -> Saved:
        """Run a request that saves, and wait for its state. If cancelled, it is cancelled.

        Raises:
            WkvmError: it failed.
        """
        (request_id,) = self._loop.reserve(1)
        done: asyncio.Future[EndEvent] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = done
        try:
            self._loop.submit(spec, (request_id,))
            event = await done
        except asyncio.CancelledError:
            self._loop.cancel(request_id)
            raise
        finally:
            self._waiting.pop(request_id, None)
        if event.saved is None:
            raise event.error or StepFailedError()
        return event.saved


def again_spec(
    start: Start | None,
    prompt: Sequence[int],
    outputs: Sequence[int],
    *,
    like: RequestSpec,
    checkpoint_every: int | None = None,
    leaves_pending: bool = True,
) -> RequestSpec:
    """A request that absorbs ids as a turn did, and ends with the last of them pending.

    Args:
        leaves_pending: False for a turn of a prompt alone that has absorbed all of it.
        prompt: what comes after the pending ids of ``start``, as a prompt.
        outputs: what comes after that, id by id.
        like: whose tenant, priority and penalties it has.
    """
    given = like.params
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        penalty_decay=given.penalty_decay,
        ignore_eos=True,
        max_tokens=len(outputs),
        seed=given.seed,
    )
    return RequestSpec(
        prompt=prompt,
        params=params,
        tenant=like.tenant,
        priority=like.priority,
        forced=outputs,
        start=start,
        save=True,
        hold_back_last=leaves_pending and not outputs,
        checkpoint_every=checkpoint_every,
        reuses=False,  # it is computed to be compared, or to be what it was
    )


def with_key_of(saved: Saved, original: SamplerMemory | None) -> Saved:
    """The same state, drawing from the random numbers that the original draws from.

    Where it ends within the output that the original's grammar was told, it is within that
    grammar too.

    Args:
        original: of a sequence that begins as this one.
    """
    if saved.memory is None or original is None:
        return replace(saved, memory=original)
    memory = replace(saved.memory, seed=original.seed, branch=original.branch)
    n_left = len(original.grammar_ids) - (original.position - memory.position)
    if original.grammar is not None and 0 < n_left <= len(original.grammar_ids):
        memory = replace(
            memory, grammar=original.grammar, grammar_ids=original.grammar_ids[:n_left]
        )
    return replace(saved, memory=memory)
