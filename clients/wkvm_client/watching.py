"""What a watch has told, as values, and a table that it keeps up to date. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from wkvm_protocol.messages import StateChanges, StatsChanges, Watch, unpack_ids

from wkvm_client.drafts import milliseconds
from wkvm_client.replies import MESSAGE_WINDOW
from wkvm_client.states import StateInfo, info_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNews:
    """How states are now.

    Attributes:
        states: the newest version of each handle that is new or has changed.
        used_at: when each of them was used last, in seconds since 1970; those of which the
            server does not know it are not here.
        gone: names that are no more.
        restarts: all that was told before is to be forgotten.
        is_complete: nothing was left to be told when this was made.
    """

    states: tuple[StateInfo, ...]
    used_at: Mapping[str, float]
    gone: tuple[str, ...]
    restarts: bool
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsNews:
    """Counters and gauges that have changed; at first all.

    Attributes:
        at_s: when they were read, by a clock of the server that never goes back.
    """

    at_s: float
    values: Mapping[str, int]


News: TypeAlias = StateNews | StatsNews


class StateTable:
    """The states that a watch tells of, by name.

    Attributes:
        states: the newest version of each handle.
        used_at: when each was used last, in seconds since 1970, where that is known.
        is_complete: whether they were all, and as they are, when the last news were made.
    """

    def __init__(self) -> None:
        self.states = dict[str, StateInfo]()
        self.used_at = dict[str, float]()
        self.is_complete = False

    def apply(self, news: StateNews) -> None:
        """Bring the table up to date."""
        if news.restarts:
            self.states.clear()
            self.used_at.clear()
        for name in news.gone:
            self.states.pop(name, None)
            self.used_at.pop(name, None)
        self.states.update((one.name, one) for one in news.states)
        self.used_at.update(news.used_at)
        self.is_complete = news.is_complete


def watch_message(
    *, states: bool, prefix: str, interval_s: float, stats_interval_s: float | None
) -> Watch:
    """What opens a watch, its number apart."""
    return Watch(
        request_id=0,
        wants_states=states,
        prefix=prefix,
        interval_ms=milliseconds("interval_s", interval_s),
        stats_ms=milliseconds("stats_interval_s", stats_interval_s),
        credit=MESSAGE_WINDOW,
    )


def news_of(message: StateChanges | StatsChanges) -> News:
    """What a message of a watch tells."""
    if isinstance(message, StatsChanges):
        return StatsNews(at_s=message.at_us / 1e6, values=message.values)
    used = zip(message.states, unpack_ids(message.used_s), strict=True)
    return StateNews(
        states=tuple(map(info_of, message.states)),
        used_at={one.name: float(at) for one, at in used if at},
        gone=message.gone,
        restarts=message.restarts,
        is_complete=message.is_complete,
    )
