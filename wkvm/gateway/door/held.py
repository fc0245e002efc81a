"""How many bytes the bodies of a tenant's open requests have together."""

from collections import Counter

from wkvm.gateway.failures import DEFAULT_RETRY_AFTER_S, HttpError


class Held:
    """Counts, and refuses what goes beyond a limit for each tenant.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._n_bytes = Counter[bytes]()

    def __len__(self) -> int:
        """How many bytes there are, of all tenants."""
        return self._n_bytes.total()

    def take(self, tenant: bytes, n_bytes: int) -> None:
        """Count more.

        Raises:
            HttpError: 429; that would be too many.
        """
        if self._n_bytes[tenant] + n_bytes > self._limit:
            raise HttpError(
                429,
                f"the bodies of your open requests have {self._limit} bytes already",
                "rate_limit_error",
                code="overloaded",
                retry_after_s=DEFAULT_RETRY_AFTER_S,
            )
        self._n_bytes[tenant] += n_bytes

    def give_back(self, tenant: bytes, n_bytes: int) -> None:
        """Count fewer."""
        self._n_bytes[tenant] -= n_bytes
        if not self._n_bytes[tenant]:
            del self._n_bytes[tenant]
