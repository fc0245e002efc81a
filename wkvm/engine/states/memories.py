"""Turns that are over and had an idempotency key: who asks again is told what came of them."""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.states import StateUse

MAX_PASTS = 1024
MAX_PAST_BYTES = 64 * 2**20
"""Of all of them together: ids, and states that came or went with them."""
BYTES_PER_ID = 8


@dataclass(frozen=True, slots=True)
class Past:
    """A turn that is over: what was asked, its ids and its end."""

    spec: RequestSpec
    use: StateUse
    outputs: "array[int]"
    end: EndEvent


class Pasts:
    """The turns that ended last, by tenant and key. The oldest are forgotten first."""

    def __init__(self) -> None:
        self._pasts = OrderedDict[tuple[str, str], Past]()
        self._n_bytes = 0

    def get(self, key: tuple[str, str]) -> Past | None:
        """The turn with this key."""
        return self._pasts.get(key)

    def __getitem__(self, key: tuple[str, str]) -> Past:
        return self._pasts[key]

    def add(self, key: tuple[str, str], past: Past) -> None:
        """Remember a turn."""
        self._remove(key)
        self._pasts[key] = past
        self._n_bytes += _n_bytes(past)
        while len(self._pasts) > MAX_PASTS or self._n_bytes > MAX_PAST_BYTES:
            self._remove(next(iter(self._pasts)))

    def _remove(self, key: tuple[str, str]) -> None:
        past = self._pasts.pop(key, None)
        if past is not None:
            self._n_bytes -= _n_bytes(past)


def _n_bytes(past: Past) -> int:
    end = past.end.state
    states = (past.use.inline, None if end is None else end.inline)
    n_ids = len(past.outputs) + len(past.spec.prompt)
    return BYTES_PER_ID * n_ids + sum(len(one) for one in states if one is not None)
