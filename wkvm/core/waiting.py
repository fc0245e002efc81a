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
        self._aside = dict[int, Request]()
        self._lines = dict[int, OrderedDict[int, Request]]()
        self._priorities = list[int]()

    def push(self, request: Request, *, first: bool) -> None:
        self._enter(request, first=first)
        self.n_requests += 1
        if not request.shared.n_waiting:
            self.n_ids += request.shared.n_ids
        request.shared.n_waiting += 1
        if request.family is not None:
            request.family.n_to_begin += not request.n_computed

    def first(self) -> Request | None:
        """None if all were set aside."""
        if not self._priorities:
            return None
        return next(iter(self._lines[self._priorities[0]].values()))

    def set_aside(self, request: Request) -> None:
        self._leave(request)
        self._aside[request.request_id] = request

    def bring_back(self, request: Request) -> None:
        del self._aside[request.request_id]
        self._enter(request, first=True)

    def remove(self, request: Request) -> bool:
        """Whether it had been set aside."""
        is_aside = self._aside.pop(request.request_id, None) is not None
        if not is_aside:
            self._leave(request)
        self.n_requests -= 1
        request.shared.n_waiting -= 1
        if request.family is not None:
            request.family.n_to_begin -= not request.n_computed
        if not request.shared.n_waiting:
            self.n_ids -= request.shared.n_ids
        return is_aside

    def n_before(self, priority: int) -> int:
        """How many go before a new one of this priority; all that are set aside do."""
        n_after = sum(len(self._lines[other]) for other in self._priorities if other > priority)
        return self.n_requests - n_after

    def _enter(self, request: Request, *, first: bool) -> None:
        line = self._lines.get(request.priority)
        if line is None:
            line = self._lines[request.priority] = OrderedDict()
            insort(self._priorities, request.priority)
        line[request.request_id] = request
        if first:
            line.move_to_end(request.request_id, last=False)

    def _leave(self, request: Request) -> None:
        line = self._lines[request.priority]
        del line[request.request_id]
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
        self.n_aside = 0
        """How many of the requests were set aside."""

    def __len__(self) -> int:
        return self._n

    def n_requests(self, tenant: str) -> int:
        """How many requests of a tenant wait."""
        line = self._ring.get(tenant)
        return 0 if line is None else line.n_requests

    def n_tenants_with(self, tenant: str) -> int:
        """How many tenants have something waiting, and this one."""
        return len(self._ring) + (tenant not in self._ring)

    def n_ids(self, tenant: str) -> int:
        """How many ids a tenant's waiting requests brought, those that they share once."""
        line = self._ring.get(tenant)
        return 0 if line is None else line.n_ids

    def n_ahead(self, tenant: str, priority: int) -> tuple[int, int]:
        """How many would go before a new request, and how many of them are its tenant's.

        Linear in the tenants that wait, and in the tenant's distinct priorities.
        """
        own = self._ring.get(tenant)
        n_own = 0 if own is None else own.n_before(priority)
        n_others = sum(
            min(line.n_requests, n_own + 1) for other, line in self._ring.items() if other != tenant
        )
        return n_own + n_others, n_own

    def push(self, request: Request, *, first: bool = False) -> None:
        """Put a request in its tenant's line: after those of its priority, or before them."""
        line = self._ring.get(request.tenant)
        if line is None:
            line = self._ring[request.tenant] = _TenantLine()
        line.push(request, first=first)
        request.in_line = True
        self._n += 1

    def pop(self, may_go: Callable[[Request], bool | None]) -> Request | None:
        """Take the request whose turn it is, passing over tenants whose first may not go now.

        Args:
            may_go: None for one that is set aside: it waits, and nobody waits behind it.

        Returns:
            None if nobody waits who may go. Linear in the tenants that are passed over.
        """
        for tenant, line in self._ring.items():
            while (request := line.first()) is not None:
                verdict = may_go(request)
                if verdict is None:
                    line.set_aside(request)
                    self.n_aside += 1
                    continue
                if not verdict:
                    break
                self._ring.move_to_end(tenant)
                self.remove(request)
                return request
        return None

    def bring_back(self, request: Request) -> None:
        """Put one that was set aside before all others of its priority."""
        self._ring[request.tenant].bring_back(request)
        self.n_aside -= 1

    def firsts(self) -> list[Request]:
        """The first request of each tenant, in the order of their turns."""
        firsts = (line.first() for line in self._ring.values())
        return [request for request in firsts if request is not None]

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands.

        Raises:
            KeyError: it does not wait.
        """
        line = self._ring[request.tenant]
        self.n_aside -= line.remove(request)
        request.in_line = False
        self._n -= 1
        if not line.n_requests:
            del self._ring[request.tenant]
