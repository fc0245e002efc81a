"""Who takes an engine's events in the process of a benchmark, and notes when they came."""

import asyncio
import time
from typing import NamedTuple

from wkvm.core.errors import WkvmError
from wkvm.core.request import EndEvent, Event, TokensEvent
from wkvm_bench.harness import BenchError


class Step(NamedTuple):
    """When a step's ids came, and how many."""

    at: float
    n_ids: int


class Consumer:
    """Notes each step's ids as they come.

    Attributes:
        steps: in order.
        first_at: by request, when its first id came.
    """

    def __init__(self) -> None:
        self.steps = list[Step]()
        self.first_at = dict[int, float]()
        self._n_ended = 0
        self._error: WkvmError | None = None
        self._change = asyncio.Event()

    def clear(self) -> None:
        """Forget all that came."""
        self.steps.clear()
        self.first_at.clear()
        self._n_ended = 0

    def take(self, events: list[Event]) -> None:
        """Note events: what ``EngineLoop.deliver`` is set to."""
        now, n_ids = time.perf_counter(), 0
        for event in events:
            if isinstance(event, TokensEvent):
                n_ids += len(event.token_ids)
                for request_id in event.request_ids:
                    self.first_at.setdefault(request_id, now)
            elif isinstance(event, EndEvent):
                self._n_ended += 1
                self._error = self._error or event.error
        if n_ids:
            self.steps.append(Step(now, n_ids))
        self._change.set()

    async def ended(self, n: int) -> None:
        """Wait until so many requests have ended since ``clear``.

        Raises:
            BenchError: one failed.
        """
        while self._n_ended < n:
            await self._changed()

    async def all_have_ids(self, n: int) -> None:
        """Wait until so many requests have ids."""
        while len(self.first_at) < n:
            await self._changed()

    async def more_steps(self, n: int) -> None:
        """Wait for so many steps with ids."""
        until = len(self.steps) + n
        while len(self.steps) < until:
            await self._changed()

    async def _changed(self) -> None:
        if self._error is not None:
            raise BenchError(f"a request failed: {self._error}")
        self._change.clear()
        await self._change.wait()
