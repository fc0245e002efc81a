"""How far the event loop is behind, and what streams do about it: fewer events with more in each.

While the loop keeps up, every id is an event as soon as it arrives. An event costs several times
what its id does; so a loop that falls behind lets streams wait for its next turn, and each then
sends what has come for it as one. Nothing of the text changes, and nobody's first event waits.
"""

import asyncio
from collections.abc import Callable

TICK_S = 0.02
"""How often the loop is looked at while anything is streamed."""
LATE_S = 0.01
"""A turn that comes so much too late shows a loop that is behind."""
MAX_GAP_S = 0.25
"""The longest that a stream waits."""
EASE = 0.7
"""What is left of a lag a turn later, if nothing is late any more."""


class Pace:
    """Of one event loop.

    Attributes:
        lag_s: how late the loop was lately.
        is_behind: whether streams wait.
        n_held: how often one did.
    """

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.is_behind = False
        self.n_held = 0
        self._n_streams = 0
        self._held: dict[object, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def enter(self) -> None:
        """A stream has begun."""
        self._n_streams += 1
        if self._timer is None:
            self._wait(TICK_S)

    def leave(self, stream: object) -> None:
        """A stream is over; it is not called back any more."""
        self._held.pop(stream, None)
        self._n_streams -= 1
        if not self._n_streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.lag_s, self.is_behind = 0.0, False

    def hold(self, stream: object, go_on: Callable[[], None]) -> None:
        """Call back at the next turn, once however often this is called. It must not raise."""
        self.n_held += 1
        self._held[stream] = go_on

    def _wait(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + delay_s
        self._timer = loop.call_at(self._due, self._turn)

    def _turn(self) -> None:
        late_s = asyncio.get_running_loop().time() - self._due
        self.lag_s = max(late_s, self.lag_s * EASE)
        self.is_behind = self.lag_s > LATE_S
        held, self._held = self._held, {}
        for go_on in held.values():
            go_on()
        self._wait(min(max(TICK_S, self.lag_s), MAX_GAP_S))
