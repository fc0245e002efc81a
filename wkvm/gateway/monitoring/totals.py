"""What a gateway process counts, as one flat table that can be added up over processes.

A name is words with spaces between them, the first of which says of what kind the number is. Those
of ``COUNTERS`` only ever rise, also when a process is started anew in place of another; the others
are of this moment.
"""

from collections import Counter
from collections.abc import Mapping

from wkvm.gateway.calls import Gateway

ANSWERED, OPEN, STREAMS, TURNS, LEFT = "answered", "open", "streams", "turns", "left"
REFUSED_KEYS, IGNORED, WORKERS = "refused_keys", "ignored", "workers"
RESPONSES = "responses"
LAG, HELD = "lag_s", "held"
COUNTERS = frozenset({ANSWERED, HELD, REFUSED_KEYS, IGNORED})


def numbers_of(gateway: Gateway) -> dict[str, float]:
    """The numbers of this process, with those of the ones in whose place it was started."""
    counts = gateway.counts
    found = Counter[str]()
    for route in counts.routes:
        name = f"{route.method} {route.template}"
        found[f"{OPEN} {name}"] += route.n_open
        for outcome, n in route.by_outcome.items():
            found[f"{ANSWERED} {name} {outcome}"] += n
    for (template, name), n in counts.ignored.items():
        found[f"{IGNORED} {template} {name}"] += n
    found[STREAMS] = counts.n_streams
    found[TURNS] = len(gateway.turns)
    found[RESPONSES] = len(gateway.responses)
    found[LEFT] = len(gateway.unwatched)
    found[REFUSED_KEYS] = counts.n_refused_keys
    found[HELD] = gateway.pace.n_held
    found[WORKERS] = 1
    return added_up(found, {LAG: gateway.pace.lag_s}, gateway.inherited)


def added_up(*tables: Mapping[str, float]) -> dict[str, float]:
    """The sum of several tables, number by number; of lags the longest."""
    total = dict[str, float]()
    for table in tables:
        for name, n in table.items():
            before = total.get(name, 0)
            total[name] = max(before, n) if name == LAG else before + n
    return total


def left_behind(numbers: Mapping[str, float]) -> dict[str, float]:
    """What of a table is still so when its process has ended: what only ever rises."""
    return {name: n for name, n in numbers.items() if name.partition(" ")[0] in COUNTERS}
