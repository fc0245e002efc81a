"""What ``wkvm top`` shows as text: gauges from readings of counters, and rows of states."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wkvm_client.states import StateInfo
from wkvm_client.watching import StateTable, StatsNews

from wkvm.cli.terminal import on_one_line

WINDOW_S = 10.0
"""Rates and quantiles are of this time."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
COLUMNS = ("STATE", "VERSION", "TIER", "TOKENS", "SIZE", "USED", "MADE BY", "TAGS")
TIERS = ("device", "host", "disk", "cold")
TO_THE_RIGHT = frozenset({"VERSION", "TOKENS", "SIZE", "USED"})


class Readings:
    """Counters as they were read, for as long as they count."""

    def __init__(self) -> None:
        self._read = deque[tuple[float, Mapping[str, int]]]()

    @property
    def values(self) -> Mapping[str, int]:
        """As they are now."""
        return self._read[-1][1] if self._read else {}

    def add(self, news: StatsNews) -> None:
        """Take one more reading, of which those are named that have changed."""
        self._read.append((news.at_s, {**self.values, **news.values}))
        while len(self._read) > 2 and news.at_s - self._read[1][0] >= WINDOW_S:
            self._read.popleft()

    def clear(self) -> None:
        """Begin anew: the server may be another one."""
        self._read.clear()

    def rate(self, name: str) -> float:
        """By how much a counter rises in a second."""
        if len(self._read) < 2:
            return 0.0
        (before, old), (after, new) = self._read[0], self._read[-1]
        return (new.get(name, 0) - old.get(name, 0)) / max(after - before, 1e-6)

    def quantile(self, name: str, share: float) -> int | None:
        """The bound of a histogram below which a share of the latest values is; None of none."""
        if not self._read:
            return None
        new = self._read[-1][1]
        old: Mapping[str, int] = self._read[0][1] if len(self._read) > 1 else {}
        prefix = f"{name}_le_"
        bounds = sorted(int(key[len(prefix) :]) for key in new if key.startswith(prefix))
        n = new.get(f"{name}_count", 0) - old.get(f"{name}_count", 0)
        if n <= 0:
            return None
        for bound in bounds:
            key = f"{prefix}{bound}"
            if new[key] - old.get(key, 0) >= share * n:
                return bound
        return bounds[-1] if bounds else None


def gauges(readings: Readings, table: StateTable) -> list[str]:
    """Two lines: what the server does, and what of states is where."""
    values = readings.values
    n_slots, n_free = values.get("n_slots", 0), values.get("n_free_slots", 0)
    between = readings.quantile("inter_token_us", 0.5), readings.quantile("inter_token_us", 0.99)
    first = [
        f"slots {n_slots - n_free}/{n_slots}",
        f"queued {values.get('n_queued', 0)}",
        f"out {readings.rate('output_tokens_total'):,.0f} tok/s",
        f"in {readings.rate('prompt_tokens_total'):,.0f} tok/s",
        f"between tokens p50 {_at_most(between[0])} p99 {_at_most(between[1])}",
        f"step p50 {_at_most(readings.quantile('step_us', 0.5))}",
        f"loop lag {duration(values.get('loop_lag_us', 0))}",
        f"connections {values.get('n_connections', 0)}",
    ]
    tiers, sizes = Counter[str](), Counter[str]()
    for one in table.states.values():
        tiers[one.tier] += 1
        sizes[one.tier] += one.n_bytes
    second = [f"states {len(table.states):,}{'' if table.is_complete else ' ...'}"]
    second += [f"{tier} {tiers[tier]:,} ({size(sizes[tier])})" for tier in TIERS if tiers[tier]]
    if limit := values.get("state_host_limit_bytes"):
        second.append(f"host memory {size(values.get('state_host_bytes', 0))} of {size(limit)}")
    return ["   ".join(first), "   ".join(second)]


class Row(NamedTuple):
    """One state, as its line shows it."""

    name: str
    cells: tuple[str, ...]


SORTS: dict[str, Callable[[StateInfo, float], Any]] = {
    "used": lambda info, used: (-used, info.name),
    "name": lambda info, used: info.name,
    "tokens": lambda info, used: (-info.n_tokens, info.name),
    "size": lambda info, used: (-info.n_bytes, info.name),
    "tier": lambda info, used: (TIERS.index(info.tier) if info.tier in TIERS else 9, info.name),
}
"""Orders of the table, the first being that of the beginning."""


def rows(
    table: StateTable, *, order: str, wanted: str, most: int, now: float
) -> tuple[list[Row], int]:
    """The first of the states, in an order.

    Args:
        order: one of ``SORTS``.
        wanted: what is in the name, a tag or the tier of those that are shown; empty for all.
        most: how many.

    Returns:
        The rows, and how many states there are of that kind.
    """
    key = SORTS[order]
    found = [one for one in table.states.values() if _fits(one, wanted)]
    used = table.used_at
    found.sort(key=lambda one: key(one, used.get(one.name, one.updated_at)))
    return [_row(one, now - used.get(one.name, one.updated_at)) for one in found[:most]], len(found)


def _fits(info: StateInfo, wanted: str) -> bool:
    texts: Iterable[str] = (info.name, info.tier, *(f"{k}:{v}" for k, v in info.tags.items()))
    return not wanted or any(wanted in text for text in texts)


def _row(info: StateInfo, idle_s: float) -> Row:
    tags = " ".join(f"{key}:{value}" for key, value in sorted(info.tags.items()))
    cells = (
        info.name,
        f"{info.version}",
        info.tier if info.ack == "durable" or info.tier == "device" else f"{info.tier}*",
        f"{info.n_tokens:,}",
        size(info.n_bytes),
        ago(idle_s),
        info.operation,
        tags[:60],
    )
    return Row(info.name, cells)


def details(info: StateInfo, history: Sequence[tuple[str, str, str]]) -> str:
    """What is shown of one state: facts, then how its newest versions came to be."""
    lines = [
        f"{info.ref}, {info.n_versions} versions, {info.ack}, {info.tier}",
        f"{info.n_tokens:,} tokens ({info.n_pending} pending), {info.n_bytes:,} bytes",
        f"content {info.content_id}",
        "",
        *(f"{ref:<24} {made:<18} {parents}" for ref, made, parents in history),
    ]
    return "\n".join(map(on_one_line, lines))


def size(n_bytes: float) -> str:
    """Bytes as people read them."""
    for unit in UNITS[:-1]:
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} {UNITS[-1]}"


def duration(us: float) -> str:
    """Microseconds as people read them."""
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def ago(seconds: float) -> str:
    """How long ago something was."""
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _at_most(us: int | None) -> str:
    return "-" if us is None else f"<{duration(us)}"
