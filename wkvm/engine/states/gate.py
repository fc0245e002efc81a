"""How many turns of a tenant may have their states in host memory, to wait for slots there.

A state that waits takes memory that nothing else bounds. Each tenant has a gate of its own, so that
turns that do not go on, for want of credit, keep nobody else out.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """What a turn takes in host memory.

    Attributes:
        content: the bytes that it starts from; turns with the same ones share them.
        n_bytes: of them.
    """

    content: str = ""
    n_bytes: int = 0


NO_PLACE = Place()
"""Of a state whose size is not looked at: their number alone is bounded."""


@dataclass(slots=True)
class _Line:
    """Of one tenant: what is inside, and who waits."""

    contents: Counter[str] = field(default_factory=Counter[str])
    n_bytes: int = 0
    waiting: deque[tuple[Place, "asyncio.Future[None]"]] = field(
        default_factory=deque[tuple[Place, "asyncio.Future[None]"]]
    )

    @property
    def n_inside(self) -> int:
        return self.contents.total()

    def take(self, place: Place) -> None:
        if place.content not in self.contents:
            self.n_bytes += place.n_bytes
        self.contents[place.content] += 1

    def give_back(self, place: Place) -> None:
        self.contents[place.content] -= 1
        if not self.contents[place.content]:
            del self.contents[place.content]
            self.n_bytes -= place.n_bytes


class Gate:
    """Lets so many of each tenant in at a time, in their order. Belongs to one event loop.

    Args:
        limit: how many of a tenant may be inside.
        limit_bytes: how many bytes their states may take. One that alone takes more comes in when
            nobody else is inside. None for no limit.
    """

    def __init__(self, limit: int, limit_bytes: int | None = None) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._lines = dict[str, _Line]()

    def n_inside(self, tenant: str) -> int:
        """How many of a tenant are inside."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.n_inside

    async def enter(self, tenant: str, place: Place = NO_PLACE) -> None:
        """Wait for a place, and take it. If cancelled, none is taken."""
        line = self._lines.setdefault(tenant, _Line())
        if not line.waiting and self._has_room(line, place):
            line.take(place)
            return
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append((place, let_in))
        try:
            await let_in
        except asyncio.CancelledError:
            if not let_in.cancelled():
                self.leave(tenant, place)  # it was let in just then
            else:
                self._let_in(tenant)  # who waits behind it may be smaller
            raise

    def leave(self, tenant: str, place: Place = NO_PLACE) -> None:
        """Give a place back, to whoever is next."""
        self._lines[tenant].give_back(place)
        self._let_in(tenant)

    def _let_in(self, tenant: str) -> None:
        line = self._lines.get(tenant)
        if line is None:
            return
        while line.waiting:
            place, let_in = line.waiting[0]
            if not let_in.done():
                if not self._has_room(line, place):
                    return
                line.take(place)
                let_in.set_result(None)
            line.waiting.popleft()
        if not line.n_inside:
            del self._lines[tenant]

    def _has_room(self, line: _Line, place: Place) -> bool:
        n_inside = line.n_inside
        if n_inside >= self._limit:
            return False
        if self._limit_bytes is None or not n_inside or place.content in line.contents:
            return True
        return line.n_bytes + place.n_bytes <= self._limit_bytes
