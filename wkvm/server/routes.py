"""Which ids of a step go where: worked out once, and good while the same requests produce."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from wkvm_protocol.messages import Tokens, pack_ids

from wkvm.server.lanes import Choice, Outbox


@dataclass(frozen=True, slots=True)
class Route:
    """The ids of a step that one connection gets.

    Attributes:
        box: of the connection.
        lanes, choices: whose they are, as Tokens has them.
        pick: takes them from a step's column.
    """

    box: Outbox
    lanes: bytes
    choices: bytes
    pick: Callable[[Sequence[int]], Any]

    def tokens(self, token_ids: Sequence[int]) -> Tokens:
        """What the connection is sent of a step's column."""
        return Tokens(self.lanes, pack_ids(self.pick(token_ids)), self.choices)


@dataclass(frozen=True, slots=True)
class Routes:
    """What becomes of the columns of a step that names these requests.

    Attributes:
        request_ids: the engine's, in the order of the columns.
        to_boxes: one for each connection that gets ids.
        specials: places of ids that need more than their place in Tokens, and whose they are.
    """

    request_ids: Sequence[int]
    to_boxes: Sequence[Route]
    specials: Sequence[tuple[int, Choice]]


def routes_of(request_ids: Sequence[int], choices: Mapping[int, Choice]) -> Routes:
    """Find the way of each id; those of requests that nobody waits for go nowhere."""
    places = dict[Outbox, list[int]]()
    owners = dict[int, Choice]()
    specials = list[tuple[int, Choice]]()
    for place, request_id in enumerate(request_ids):
        choice = choices.get(request_id)
        if choice is None:
            continue
        if not choice.is_plain:
            specials.append((place, choice))
            if choice.lane.n_scored is not None:
                continue  # the client knows the ids
        owners[place] = choice
        places.setdefault(choice.box, []).append(place)
    routes = [_route(box, [(at, owners[at]) for at in some]) for box, some in places.items()]
    return Routes(request_ids, routes, specials)


def _route(box: Outbox, entries: list[tuple[int, Choice]]) -> Route:
    indices = [choice.index for _, choice in entries]
    return Route(
        box,
        pack_ids(choice.lane_id for _, choice in entries),
        # choices that are all 0 are left out: written out they cost more
        pack_ids(indices) if any(indices) else b"",
        _picker([place for place, _ in entries]),
    )


def _picker(places: list[int]) -> Callable[[Sequence[int]], Any]:
    """What takes the ids at some places of a column."""
    if len(places) == 1:
        (only,) = places
        return lambda column: (column[only],)
    return itemgetter(*places)
