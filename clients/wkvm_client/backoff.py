"""When to try again. Pure: the time and the random numbers come in."""

from collections.abc import Callable

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Backoff:
    """Pauses between attempts to connect: at once, then doubling, jittered, until time is up.

    Args:
        now_s: the time now.
        timeout_s: no attempt starts later than this after now.
        not_before_s: no attempt starts earlier; the server asked for that.
        random: numbers in [0, 1); each pause is between half and all of its length, so
            that many clients of one server do not come back together.
    """

    def __init__(
        self, *, now_s: float, timeout_s: float, not_before_s: float, random: Callable[[], float]
    ) -> None:
        self._deadline_s = now_s + timeout_s
        self._not_before_s = not_before_s
        self._random = random
        self._n_attempts = 0

    def next_pause_s(self, now_s: float) -> float | None:
        """How long to wait before the next attempt; None if there is none."""
        pause_s = 0.0
        if self._n_attempts:
            longest_s = min(FIRST_PAUSE_S * 2 ** (self._n_attempts - 1), LONGEST_PAUSE_S)
            pause_s = longest_s * (0.5 + 0.5 * self._random())
        self._n_attempts += 1
        pause_s = max(pause_s, self._not_before_s - now_s)
        return pause_s if now_s + pause_s <= self._deadline_s else None


class Pace:
    """Keeps connections apart that a server takes and drops before it has answered anything.

    Attributes:
        not_before_s: when the next connection may be made if the latest was in vain.
    """

    def __init__(self) -> None:
        self._n_in_vain = 0
        self.not_before_s = 0.0

    def connected(self, now_s: float, *, was_of_use: bool) -> None:
        """Note a new connection, and whether anything was answered on the one before."""
        self._n_in_vain = 0 if was_of_use else self._n_in_vain + 1
        # a single loss is no habit of the server's
        n_doublings = self._n_in_vain - 2
        pause_s = min(FIRST_PAUSE_S * 2**n_doublings, LONGEST_PAUSE_S) if n_doublings >= 0 else 0.0
        self.not_before_s = now_s + pause_s
