"""From where on a server that is short of memory, or of disk, takes less, and then nothing new."""

from dataclasses import dataclass

from wkvm.core.config import MAX_COUNT
from wkvm.core.errors import ConfigError

SHED_SHARE = 0.9
"""Of ``max_rss_bytes``, where ``shed_rss_bytes`` is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureConfig:
    """When a server sheds load.

    Attributes:
        max_rss_bytes: of memory that the process has in use: from here on it takes nothing new.
            0 for no limit.
        shed_rss_bytes: from here on, nothing that would wait, and no new states. 0 for nine tenths
            of ``max_rss_bytes``.
        shed_disk: share of the disk: while less is free, no new states. 0 for none: then that is
            so at the reserve alone.
    """

    max_rss_bytes: int = 0
    shed_rss_bytes: int = 0
    shed_disk: float = 0.0

    def __post_init__(self) -> None:
        for flag, value in (
            ("max-rss-bytes", self.max_rss_bytes),
            ("shed-rss-bytes", self.shed_rss_bytes),
        ):
            if not 0 <= value <= MAX_COUNT:
                raise ConfigError(flag, f"{value} is no number of bytes")
        if self.shed_rss_bytes > self.max_rss_bytes:
            raise ConfigError("shed-rss-bytes", "it is above --max-rss-bytes")
        if not 0 <= self.shed_disk < 1:
            raise ConfigError("shed-disk", f"{self.shed_disk} is no share below 1")

    @property
    def sheds_at_bytes(self) -> int:
        """``shed_rss_bytes``, or what stands for it."""
        return self.shed_rss_bytes or int(self.max_rss_bytes * SHED_SHARE)

    def __bool__(self) -> bool:
        """Whether there is anything to be looked at."""
        return self.max_rss_bytes > 0 or self.shed_disk > 0
