"""Lanes: what is asked for in one comes in its order, whatever the others do.

A lane is there while something is asked for in it, and forgotten then.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from wkvm.gateway.failures import HttpError

MAX_LANES = 64
"""Of one connection, in which something is asked for."""
MAX_WAITING = 64
"""In one lane, besides what is being made."""

WorkT = TypeVar("WorkT")


@dataclass(slots=True)
class _Lane(Generic[WorkT]):
    waiting: deque[WorkT] = field(default_factory=deque[WorkT])
    task: asyncio.Task[None] | None = None


class Lanes(Generic[WorkT]):
    """The lanes of one connection. Belongs to one event loop.

    Args:
        do: does one thing after another of each lane; raises nothing but by cancellation.
        on_idle: called when nothing is asked for any more.
    """

    def __init__(self, do: Callable[[WorkT], Awaitable[None]], on_idle: Callable[[], None]) -> None:
        self._do = do
        self._on_idle = on_idle
        self._lanes: dict[str | None, _Lane[WorkT]] = {}

    def __len__(self) -> int:
        """In how many lanes something is asked for."""
        return len(self._lanes)

    def add(self, name: str | None, work: WorkT) -> None:
        """Do this after what is asked for in a lane already.

        Raises:
            HttpError: 429; there are too many lanes, or it is too long.
        """
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                raise _full(f"{MAX_LANES} lanes are busy already", "too_many_lanes")
            lane = self._lanes[name] = _Lane[WorkT]()
        elif len(lane.waiting) >= MAX_WAITING:
            raise _full(f"{MAX_WAITING} responses wait in this lane already", "lane_full")
        lane.waiting.append(work)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(name, lane))

    def add_next(self, name: str | None, work: WorkT) -> None:
        """Do this before whatever else waits in a lane that does something now."""
        self._lanes[name].waiting.appendleft(work)

    async def aclose(self) -> list[WorkT]:
        """End everything.

        Returns:
            What was waiting.
        """
        lanes = list(self._lanes.values())
        tasks = [lane.task for lane in lanes if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return [work for lane in lanes for work in lane.waiting]

    async def _run(self, name: str | None, lane: _Lane[WorkT]) -> None:
        while lane.waiting:
            await self._do(lane.waiting.popleft())
        del self._lanes[name]
        if not self._lanes:
            self._on_idle()


def _full(why: str, code: str) -> HttpError:
    return HttpError(429, why, "rate_limit_error", code=code, retry_after_s=1.0)
