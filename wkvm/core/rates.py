"""How often each tenant may do something: so many a second, and as many at once.

What a tenant has left is a level that rises with time up to one second's worth.
"""

from wkvm.core.errors import RateLimitedError

MAX_TENANTS = 4096
"""Tenants whose levels are remembered. Of more, those that were heard of longest ago are taken for
rested: by then their levels would most likely be full again."""


class Rate:
    """A limit on something.

    Args:
        per_s: how many a second; 0 for any number.
        of: what, in the plural.
    """

    def __init__(self, per_s: int, of: str) -> None:
        self._per_s = per_s
        self._of = of
        self._levels = dict[str, tuple[float, float]]()

    def take(self, tenant: str, n: int, now: float) -> None:
        """Let a tenant do it ``n`` times.

        More than a second's worth is let in when the level is full, and owed.

        Raises:
            RateLimitedError: it has to wait for that. Nothing was taken.
        """
        if not self._per_s:
            return
        level, at = self._levels.pop(tenant, (float(self._per_s), now))
        level = min(float(self._per_s), level + (now - at) * self._per_s)
        lacks = min(n, self._per_s) - level
        self._levels[tenant] = (level if lacks > 0 else level - n), now
        if len(self._levels) > MAX_TENANTS:
            del self._levels[next(iter(self._levels))]
        if lacks > 0:
            raise RateLimitedError(self._per_s, self._of, lacks / self._per_s)
