"""Who connects: keys to tenants, and how many connections each tenant has."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Sequence

from wkvm.core.api_keys import LOCAL_TENANT, ApiKey


class Keyring:
    """Decides whose a key is, in a time that does not depend on the key."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def tenant_of(self, key: str) -> str | None:
        """Whose key this is; None for nobody's. Without any keys, everybody is the local tenant.

        The key's digest is compared with every entry, found or not, and each comparison
        takes the same time wherever the digests differ.
        """
        if not self._keys:
            return LOCAL_TENANT
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        tenant = None
        for known in self._keys:
            if hmac.compare_digest(digest, known.digest):
                tenant = known.tenant
        return tenant


class ConnectionCounts:
    """How many connections there are, of each tenant and altogether, against the limits.

    Args:
        is_full: whether there is no room for another one whatever the limits say.
    """

    def __init__(
        self, limit: int, limit_per_tenant: int, *, is_full: Callable[[], bool] = lambda: False
    ) -> None:
        self._is_full = is_full
        self.limit = limit
        self.limit_per_tenant = limit_per_tenant
        self.total = 0
        self._per_tenant = Counter[str]()

    def open(self) -> bool:
        """Count a connection whose tenant is not known yet; False if there is no room for it."""
        if self.total >= self.limit or self._is_full():
            return False
        self.total += 1
        return True

    def assign(self, tenant: str) -> bool:
        """Count an open connection for its tenant; False if the tenant has no room for it."""
        if self._per_tenant[tenant] >= self.limit_per_tenant:
            return False
        self._per_tenant[tenant] += 1
        return True

    def close(self, tenant: str | None) -> None:
        """Forget an open connection, and its tenant's share if it was assigned one."""
        self.total -= 1
        if tenant is not None:
            self._per_tenant[tenant] -= 1
            if not self._per_tenant[tenant]:
                del self._per_tenant[tenant]
