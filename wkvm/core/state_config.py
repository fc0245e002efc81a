"""Settings of durable states: where they are kept, and how much of them."""

from dataclasses import dataclass

from wkvm.core.config import MAX_SECONDS
from wkvm.core.errors import ConfigError
from wkvm.core.limits import StoreLimits

_LIMITS = StoreLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """Where an engine keeps states, and how much of them.

    Attributes:
        folder: of the store; None keeps states in memory, as long as the process lives.
        cold: URL of an object store below the disk; None for none.
        host_bytes: of states in host memory.
        idle_s: a state that nobody has used for so long leaves host memory for the disk; 0 for
            never.
        handles_per_tenant, bytes_per_tenant, versions_per_handle: how much one tenant may keep.
        host_bytes_per_tenant: of these bytes, in host memory alone; 0 for no limit of its own.
        disk_reserve: share of the disk that states leave free.
        forks_per_s: how many states one tenant may fork in a second; 0 for any number.
        drops_old_versions: of a state with so many versions the oldest go with each new one;
            otherwise a new one is refused.
    """

    folder: str | None = None
    cold: str | None = None
    host_bytes: int = _LIMITS.host_bytes
    idle_s: float = 300.0
    handles_per_tenant: int = _LIMITS.handles_per_tenant
    bytes_per_tenant: int = _LIMITS.bytes_per_tenant
    host_bytes_per_tenant: int = _LIMITS.host_bytes_per_tenant
    forks_per_s: int = _LIMITS.forks_per_s
    disk_reserve: float = _LIMITS.disk_reserve
    versions_per_handle: int = _LIMITS.versions_per_handle
    drops_old_versions: bool = _LIMITS.drops_old_versions

    def __post_init__(self) -> None:
        for name, flag in (
            ("handles_per_tenant", "max-states-per-tenant"),
            ("bytes_per_tenant", "max-state-bytes-per-tenant"),
            ("versions_per_handle", "max-versions-per-state"),
            ("host_bytes", "state-host-bytes"),
        ):
            if getattr(self, name) < 1:
                raise ConfigError(flag, f"{getattr(self, name)} is below 1")
        for name, flag in (
            ("host_bytes_per_tenant", "max-state-host-bytes-per-tenant"),
            ("forks_per_s", "max-forks-per-s"),
        ):
            if getattr(self, name) < 0:
                raise ConfigError(flag, f"{getattr(self, name)} is below 0")
        if not 0 <= self.idle_s <= MAX_SECONDS:
            raise ConfigError("state-idle-s", f"{self.idle_s} is no time in seconds")
        if not 0 <= self.disk_reserve < 1:
            raise ConfigError("state-disk-reserve", f"{self.disk_reserve} is no share below 1")
        if self.cold is not None and self.folder is None:
            raise ConfigError("state-cold", "an object store is below a disk; add --state-dir")

    @property
    def limits(self) -> StoreLimits:
        """The limits of the store."""
        return StoreLimits(
            handles_per_tenant=self.handles_per_tenant,
            bytes_per_tenant=self.bytes_per_tenant,
            host_bytes_per_tenant=self.host_bytes_per_tenant,
            forks_per_s=self.forks_per_s,
            disk_reserve=self.disk_reserve,
            versions_per_handle=self.versions_per_handle,
            drops_old_versions=self.drops_old_versions,
            host_bytes=self.host_bytes,
        )
