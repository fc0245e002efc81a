"""How many turns of a tenant may have their states in host memory, to wait for slots there.

A state that waits takes memory that nothing else bounds. Each tenant has a gate of its own, so that
turns that do not go on, for want of credit, keep nobody else out.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Line:
    """Of one tenant: how many are inside, and who waits."""

    n_inside: int = 0
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque["asyncio.Future[None]"])


class Gate:
    """Lets so many of each tenant in at a time, in their order. Belongs to one event loop.

    Args:
        limit: how many of a tenant may be inside.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines = dict[str, _Line]()

    def n_inside(self, tenant: str) -> int:
        """How many of a tenant are inside."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.n_inside

    async def enter(self, tenant: str) -> None:
        """Wait for a place, and take it. If cancelled, none is taken."""
        line = self._lines.setdefault(tenant, _Line())
        if line.n_inside < self._limit:
            line.n_inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.leave(tenant)  # it was let in just then
            raise

    def leave(self, tenant: str) -> None:
        """Give a place back, to whoever is next."""
        line = self._lines[tenant]
        while line.waiting:
            place = line.waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        line.n_inside -= 1
        if not line.n_inside:
            del self._lines[tenant]
