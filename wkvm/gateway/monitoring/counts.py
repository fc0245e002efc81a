"""What the gateway counts of its own: plain integers, changed once a request, never once an id.

Nothing here is named by a client: routes go by their templates, so there are as many numbers as
routes and classes of status, whatever is asked for.
"""

import re
from collections import Counter

GONE = "gone"
"""The outcome of a request whose client left before the answer was complete."""

_PATTERN = re.compile(r":[^{}]*}")


class RouteCounts:
    """The requests of one route.

    Attributes:
        method: of the route; ``*`` stands for all.
        template: the path, with the names of its variable parts.
        by_outcome: answered, by the class of the status (``2xx``) or ``GONE``.
        n_open: that are being answered.
    """

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.template = _PATTERN.sub("}", path)
        self.by_outcome = Counter[str]()
        self.n_open = 0

    def begin(self) -> None:
        """A request came."""
        self.n_open += 1

    def end(self, status: int | None) -> None:
        """A request that came is answered; with None its client is gone."""
        self.n_open -= 1
        self.by_outcome[GONE if status is None else f"{status // 100}xx"] += 1


class HttpCounts:
    """What all routes have in common.

    Attributes:
        routes: in the order in which they were made.
        n_streams: responses that are sent bit by bit, and WebSockets, which are open.
        ignored: fields of bodies that were unknown, by route and name; see ``policy``.
        n_refused_keys: requests with a key that is nobody's, or without one where one is needed.
    """

    def __init__(self) -> None:
        self.routes = list[RouteCounts]()
        self.n_streams = 0
        self.ignored = Counter[tuple[str, str]]()
        self.n_refused_keys = 0

    def route(self, method: str, path: str) -> RouteCounts:
        """The counts of a new route."""
        counts = RouteCounts(method, path)
        self.routes.append(counts)
        return counts
