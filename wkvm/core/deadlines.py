"""Which request is due next, where the times change far more often than they pass."""

import heapq
from collections.abc import Callable


class Deadlines:
    """A heap of times, cleaned when they surface.

    A request's time may move back at any moment without a word to this class: the entry is
    moved when it comes up. Only a time that moves forward must be told, with ``set``.
    """

    def __init__(self, due: Callable[[int], float]) -> None:
        """``due`` gives the present time of a request that was set and not forgotten."""
        self._due = due
        self._heap = list[tuple[float, int]]()
        self._earliest = dict[int, float]()
        """By request, its valid entry. Entries of the heap that differ from it are stale."""

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, request_id: int, at: float) -> None:
        """Note that a request is due at ``at``, unless an earlier time stands. O(log n)."""
        earliest = self._earliest.get(request_id)
        if earliest is None or at < earliest:
            self._push(request_id, at)

    def forget(self, request_id: int) -> None:
        """Drop a request. Unknown ones are ignored. Amortised O(1)."""
        self._earliest.pop(request_id, None)
        # Short requests with long deadlines would otherwise fill the memory.
        if len(self._heap) > 2 * len(self._earliest) + 64:
            self._heap = [(at, request_id) for request_id, at in self._earliest.items()]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The time at which the next request is due, or None. Amortised O(log n)."""
        while self._heap:
            at, request_id = self._heap[0]
            if self._earliest.get(request_id) == at:
                due = self._due(request_id)
                if due <= at:
                    return at
                self._push(request_id, due)
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> list[int]:
        """Forget and return the requests that are due at ``now``, the most overdue first."""
        due = list[int]()
        while (at := self.next()) is not None and at <= now:
            request_id = heapq.heappop(self._heap)[1]
            del self._earliest[request_id]
            due.append(request_id)
        return due

    def _push(self, request_id: int, at: float) -> None:
        self._earliest[request_id] = at
        heapq.heappush(self._heap, (at, request_id))
