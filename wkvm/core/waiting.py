"""The order in which requests get slots: priority, then tenants in turn, then arrival."""

from bisect import insort
from collections import OrderedDict

from wkvm.core.table import Request


class WaitingLine:
    """Requests without a slot.

    Within a priority each tenant has a line of its own, and the tenants stand in a ring:
    the first one's oldest request goes next, and then that tenant stands last. A tenant
    with a thousand requests and one with a single request so wait for each other once.
    All operations take constant time, but for a new or emptied priority: linear in the
    number of distinct priorities.
    """

    def __init__(self) -> None:
        self._rings = dict[int, OrderedDict[str, OrderedDict[int, Request]]]()
        self._priorities = list[int]()
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def push(self, request: Request) -> None:
        """Put a request at the end of its tenant's line."""
        ring = self._rings.get(request.priority)
        if ring is None:
            ring = self._rings[request.priority] = OrderedDict()
            insort(self._priorities, request.priority)
        line = ring.get(request.tenant)
        if line is None:
            line = ring[request.tenant] = OrderedDict()
        line[request.request_id] = request
        self._n += 1

    def pop(self) -> Request:
        """Take the request whose turn it is.

        Raises:
            ValueError: nothing waits.
        """
        if not self._n:
            raise ValueError("the waiting line is empty")
        ring = self._rings[self._priorities[0]]
        tenant, line = next(iter(ring.items()))
        request = next(iter(line.values()))
        ring.move_to_end(tenant)
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands.

        Raises:
            KeyError: it does not wait.
        """
        ring = self._rings[request.priority]
        line = ring[request.tenant]
        del line[request.request_id]
        self._n -= 1
        if not line:
            del ring[request.tenant]
        if not ring:
            del self._rings[request.priority]
            self._priorities.remove(request.priority)
