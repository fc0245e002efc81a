"""Two stages of a server that is short of memory or of disk: it takes less, and then nothing new.

What is refused is refused before anything is done, typed, and what runs goes on. What makes room,
such as cancels and deletions, is always carried out.
"""

import os
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

from wkvm_protocol import messages as wire

from wkvm.core.errors import OverloadedError, StoreFullError, WkvmError
from wkvm.core.pressure_config import PressureConfig
from wkvm.server.errors import failed

LOOK_S = 0.1
"""For how long what was seen of memory and disk counts: looking takes ten microseconds."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

REQUESTS = wire.Generate | wire.GenerateConstrained | wire.GenerateOn | wire.Score | wire.Embed
NEW_STATES = wire.StateCreate | wire.StateFork | wire.StateImport | wire.StateMutate
MAKES_ROOM = wire.StateDelete | wire.StateHibernate | wire.StateGet | wire.StateList | wire.StateLog


class Stage(IntEnum):
    """How short a server is of something."""

    AT_EASE = 0
    SHEDS = 1
    REFUSES = 2


class Pressure:
    """Says what a server that is short of something does not take.

    Args:
        folder: of the states, on whose disk there is to be room; None for none.
        rss: bytes of memory that the process has in use.
        free_disk: the share of a folder's disk that is free.
        clock: seconds.
    """

    def __init__(
        self,
        config: PressureConfig,
        folder: str | None,
        *,
        rss: Callable[[], int] | None = None,
        free_disk: Callable[[str], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._folder = folder
        self._rss = rss_bytes if rss is None else rss
        self._free_disk = free_share if free_disk is None else free_disk
        self._clock = clock
        self._looked_at = -LOOK_S
        self._memory = Stage.AT_EASE
        self._is_disk_short = False

    def memory(self) -> Stage:
        """How short the process is of memory."""
        self._look()
        return self._memory

    def refusal(
        self, message: object, stats: Callable[[], Mapping[str, int]]
    ) -> wire.Failed | None:
        """What a message is answered that is not taken now; None for one that is.

        Args:
            stats: the engine's, looked at when memory is short.
        """
        if not isinstance(message, REQUESTS | wire.StateOperation):
            return None
        self._look()
        error = self._error(message, stats)
        return None if error is None else failed(message.request_id, error)

    def _error(self, message: object, stats: Callable[[], Mapping[str, int]]) -> WkvmError | None:
        if isinstance(message, MAKES_ROOM):
            return None
        if self._memory is Stage.REFUSES:
            return OverloadedError("the server is out of memory and takes nothing new")
        is_new = isinstance(message, NEW_STATES)
        if self._memory is Stage.SHEDS:
            if is_new:
                return OverloadedError("the server is short of memory and takes no new states")
            if isinstance(message, REQUESTS) and not stats().get("n_free_slots", 1):
                return OverloadedError("the server is short of memory, and requests would wait")
        if is_new and self._is_disk_short:
            return StoreFullError()
        return None

    def _look(self) -> None:
        now, config = self._clock(), self._config
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if config.max_rss_bytes:
            rss = self._rss()
            self._memory = (
                Stage.REFUSES
                if rss >= config.max_rss_bytes
                else Stage.SHEDS
                if rss >= config.sheds_at_bytes
                else Stage.AT_EASE
            )
        if config.shed_disk and self._folder is not None:
            self._is_disk_short = self._free_disk(self._folder) < config.shed_disk


def rss_bytes() -> int:
    """Bytes of memory that this process has in use. On Linux."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES


def free_share(folder: str) -> float:
    """The share of a folder's disk that is free for who writes there."""
    seen = os.statvfs(folder)
    return seen.f_bavail / max(1, seen.f_blocks)
