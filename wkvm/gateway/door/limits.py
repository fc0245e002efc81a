"""How much each key may ask for: requests and tokens a minute, and requests at once.

What a key has left is a level that rises with time up to what it may have in a minute, and falls
with what it uses. A request needs one request's worth; tokens are known when they were spent, so
one is let in while any are left, and a key may owe some, which it then waits for.

The levels are in a table of fixed size, in memory that the processes of one port share: a key
has its limit once, however its requests are spread.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wkvm.gateway.config import Limits
from wkvm.gateway.failures import DEFAULT_RETRY_AFTER_S, HttpError

MINUTE_S = 60.0
N_ROWS = 4096
"""Keys with limits that are remembered. Of more, those that have asked for nothing for longest are
forgotten: their levels would be full again."""
N_PROBES = 64
MAX_PROCESSES = 64
_ROW = struct.Struct("=32sddd")
_COUNT = struct.Struct("=I")
_ROW_BYTES = _ROW.size + MAX_PROCESSES * _COUNT.size
TABLE_BYTES = N_ROWS * _ROW_BYTES
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class Left:
    """What a key has left.

    Attributes:
        requests, tokens: whole ones; None where they are not limited.
        requests_reset_s, tokens_reset_s: until there is as much as there can be.
    """

    requests: int | None
    requests_reset_s: float
    tokens: int | None
    tokens_reset_s: float

    def headers(self, limits: Limits) -> dict[str, str]:
        """As OpenAI's headers tell it."""
        told = dict[str, str]()
        for name, limit, left, reset_s in (
            ("Requests", limits.requests, self.requests, self.requests_reset_s),
            ("Tokens", limits.tokens, self.tokens, self.tokens_reset_s),
        ):
            if limit is not None:
                told[f"X-RateLimit-Limit-{name}"] = str(limit)
                told[f"X-RateLimit-Remaining-{name}"] = str(max(left or 0, 0))
                told[f"X-RateLimit-Reset-{name}"] = f"{reset_s:.3f}s"
        return told


class Ledger:
    """The table.

    Args:
        path: of the file, ``TABLE_BYTES`` long, that processes share; None for this one alone.
        index: which of them this one is. What it had open in an earlier life is forgotten.
        clock: in seconds; the same for all processes of the machine.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        index: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._index = index
        # Open for as long as the process lives: a lock of POSIX ends where any such file is closed.
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory: bytearray | mmap.mmap
        if self._file is None:
            self._memory = bytearray(TABLE_BYTES)
        else:
            self._memory = mmap.mmap(self._file, TABLE_BYTES)
        with self._alone():
            for row in range(N_ROWS):
                self._count(row, -self._open(row, index))

    def enter(self, key: bytes, limits: Limits) -> Left:
        """Let a request of a key in; it is open until ``leave``.

        Args:
            key: 32 bytes.

        Raises:
            HttpError: 429; the key has used up what it may have.
        """
        with self._alone():
            now = self._clock()
            row = self._row(key, now)
            requests, tokens = self._levels(row, limits, now)
            n_open = sum(self._open(row, index) for index in range(MAX_PROCESSES))
            left = _left(requests, tokens, limits)
            if limits.concurrent is not None and n_open >= limits.concurrent:
                why = f"{n_open} requests of this key are open, and it may have no more at once"
                raise _refused(why, DEFAULT_RETRY_AFTER_S)
            if limits.requests is not None and requests < 1:
                why = f"this key may send {limits.requests} requests a minute"
                raise _refused(why, (1 - requests) * MINUTE_S / limits.requests)
            if limits.tokens is not None and tokens <= 0:
                why = f"this key may use {limits.tokens} tokens a minute"
                raise _refused(why, (1 - tokens) * MINUTE_S / limits.tokens)
            self._write(row, key, requests - 1, tokens, now)
            self._count(row, 1)
        if left.requests is None:
            return left
        reset_s = left.requests_reset_s + MINUTE_S / (limits.requests or 1)
        return Left(left.requests - 1, reset_s, left.tokens, left.tokens_reset_s)

    def leave(self, key: bytes) -> None:
        """A request of a key is over."""
        with self._alone():
            row = self._row(key, self._clock())
            self._count(row, -min(1, self._open(row, self._index)))

    def spend(self, key: bytes, limits: Limits, n_tokens: int) -> None:
        """A key has used so many tokens."""
        if limits.tokens is None or not n_tokens:
            return
        with self._alone():
            now = self._clock()
            row = self._row(key, now)
            requests, tokens = self._levels(row, limits, now)
            self._write(row, key, requests, tokens - n_tokens, now)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep the other processes out: for microseconds."""
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _row(self, key: bytes, now: float) -> int:
        """The row of a key, which it is given if it has none.

        Raises:
            HttpError: 429; all that could be its own have open requests.
        """
        first, oldest, oldest_at = int.from_bytes(key[:4]), -1, now
        for step in range(N_PROBES):
            row = (first + step) % N_ROWS
            found, _, _, at = _ROW.unpack_from(self._memory, row * _ROW_BYTES)
            if found == key:
                return row
            if found == _NOBODY:
                oldest = row
                break
            if at <= oldest_at and not any(self._open(row, i) for i in range(MAX_PROCESSES)):
                oldest, oldest_at = row, at
        if oldest < 0:
            raise _refused("too many keys have open requests", DEFAULT_RETRY_AFTER_S)
        # At ``-inf`` everything has been full for ever.
        self._write(oldest, key, 0.0, 0.0, -float("inf"))
        return oldest

    def _levels(self, row: int, limits: Limits, now: float) -> tuple[float, float]:
        _, requests, tokens, at = _ROW.unpack_from(self._memory, row * _ROW_BYTES)
        passed = (now - at) / MINUTE_S
        return _risen(requests, limits.requests, passed), _risen(tokens, limits.tokens, passed)

    def _write(self, row: int, key: bytes, requests: float, tokens: float, now: float) -> None:
        _ROW.pack_into(self._memory, row * _ROW_BYTES, key, requests, tokens, now)

    def _open(self, row: int, index: int) -> int:
        at = row * _ROW_BYTES + _ROW.size + index * _COUNT.size
        return int(_COUNT.unpack_from(self._memory, at)[0])

    def _count(self, row: int, n: int) -> None:
        if n:
            at = row * _ROW_BYTES + _ROW.size + self._index * _COUNT.size
            _COUNT.pack_into(self._memory, at, self._open(row, self._index) + n)


class KeyLimits:
    """The limits of all keys, and what they have left.

    Args:
        default: of a key that has none of its own.
        own: of others, by the SHA-256 of the key in hexadecimal digits.
    """

    def __init__(
        self, default: Limits, own: Mapping[str, Limits], ledger: Ledger | None = None
    ) -> None:
        self._default = default
        self._own = {bytes.fromhex(digest): limits for digest, limits in own.items()}
        self.ledger = ledger
        if ledger is None and (default or any(self._own.values())):
            self.ledger = Ledger()

    def of(self, key: bytes) -> Limits | None:
        """The limits of a key, by its name; None if it has none."""
        limits = self._own.get(key, self._default)
        return limits or None

    def enter(self, key: bytes) -> dict[str, str] | None:
        """Let a request of a key in.

        Returns:
            What its answer says of the limits; None if there are none. Otherwise the request is
            open until ``leave``.

        Raises:
            HttpError: as ``Ledger.enter``.
        """
        limits = self.of(key)
        if limits is None or self.ledger is None:
            return None
        return self.ledger.enter(key, limits).headers(limits)

    def leave(self, key: bytes) -> None:
        """A request of a key is over."""
        if self.ledger is not None:
            self.ledger.leave(key)

    def spend(self, key: bytes, n_tokens: int) -> None:
        """A key has used so many tokens."""
        limits = self.of(key)
        if limits is not None and self.ledger is not None:
            self.ledger.spend(key, limits, n_tokens)


def _risen(level: float, limit: int | None, minutes: float) -> float:
    return 0.0 if limit is None else min(float(limit), level + limit * minutes)


def _left(requests: float, tokens: float, limits: Limits) -> Left:
    def until_full(level: float, limit: int | None) -> float:
        return 0.0 if limit is None else (limit - level) * MINUTE_S / limit

    return Left(
        None if limits.requests is None else int(requests),
        until_full(requests, limits.requests),
        None if limits.tokens is None else int(tokens),
        until_full(tokens, limits.tokens),
    )


def _refused(why: str, retry_after_s: float) -> HttpError:
    return HttpError(
        429, why, "rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry_after_s
    )
