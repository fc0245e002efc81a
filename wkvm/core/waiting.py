"""The order in which requests get slots: tenants in turn, then priority, then arrival."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from wkvm.core.table import Request


class _TenantLine:
    """What one tenant has waiting: lower priorities first, then arrival."""

    def __init__(self) -> None:
        self.n_requests = 0
        self.n_ids = 0
        self._lines = dict[int, OrderedDict[int, Request]]()
        self._priorities = list[int]()

    def push(self, request: Request, *, first: bool) -> None:
        line = self._lines.get(request.priority)
        if line is None:
            line = self._lines[request.priority] = OrderedDict()
            insort(self._priorities, request.priority)
        line[request.request_id] = request
        if first:
            line.move_to_end(request.request_id, last=False)
        self.n_requests += 1
        if not request.shared.n_waiting:
            self.n_ids += request.shared.n_ids
        request.shared.n_waiting += 1

    def first(self) -> Request:
        return next(iter(self._lines[self._priorities[0]].values()))

    def remove(self, request: Request) -> None:
        line = self._lines[request.priority]
        del line[request.request_id]
        self.n_requests -= 1
        request.shared.n_waiting -= 1
        if not request.shared.n_waiting:
            self.n_ids -= request.shared.n_ids
        if not line:
            del self._lines[request.priority]
            self._priorities.remove(request.priority)


class WaitingLine:
    """Requests without a slot.

    Each tenant has a line of its own, and the tenants stand in a ring: the first request of
    the first one goes next, and then that tenant stands last. A tenant with a thousand
    requests and one with a single request so wait for each other once, whatever priorities
    they give their requests. All operations take constant time, but for a new or emptied
    priority: linear in the tenant's distinct priorities.
    """

    def __init__(self) -> None:
        self._ring = OrderedDict[str, _TenantLine]()
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def n_requests(self, tenant: str) -> int:
        """How many requests of a tenant wait."""
        line = self._ring.get(tenant)
        return 0 if line is None else line.n_requests

    def n_ids(self, tenant: str) -> int:
        """How many ids a tenant's waiting requests brought, those that they share once."""
        line = self._ring.get(tenant)
        return 0 if line is None else line.n_ids

    def push(self, request: Request, *, first: bool = False) -> None:
        """Put a request in its tenant's line: after those of its priority, or before them."""
        line = self._ring.get(request.tenant)
        if line is None:
            line = self._ring[request.tenant] = _TenantLine()
        line.push(request, first=first)
        request.in_line = True
        self._n += 1

    def pop(self, may_go: Callable[[Request], bool]) -> Request | None:
        """Take the request whose turn it is, passing over tenants whose first may not go now.

        Returns:
            None if nobody waits who may go. Linear in the tenants that are passed over.
        """
        for tenant, line in self._ring.items():
            request = line.first()
            if may_go(request):
                self._ring.move_to_end(tenant)
                self.remove(request)
                return request
        return None

    def firsts(self) -> list[Request]:
        """The first request of each tenant, in the order of their turns."""
        return [line.first() for line in self._ring.values()]

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands.

        Raises:
            KeyError: it does not wait.
        """
        line = self._ring[request.tenant]
        line.remove(request)
        request.in_line = False
        self._n -= 1
        if not line.n_requests:
            del self._ring[request.tenant]
