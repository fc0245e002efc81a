"""JSON that clients send, read with limits on how deep it is nested and on how much is in it.

Without a limit of our own on depth, Python's stack is the limit: what could just be read at one
place is an internal error where it is written again a few calls deeper, or is kept and can be read
no more. Without one on objects and arrays, four megabytes are a million of them, and to make a
million objects holds everything up for a second, in whatever thread it is done.
"""

from itertools import accumulate
from typing import TypeVar

import msgspec

MAX_NESTING = 128
"""Objects and arrays within each other, in a body and in JSON that is a text in it."""
MAX_CONTAINERS = 65_536
"""Objects and arrays in all, likewise."""

_STEPS = bytes(0x01 if byte in b"[{" else 0xFF for byte in range(256))
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")

T = TypeVar("T")


class NestingError(msgspec.DecodeError):
    """It is nested too deeply, or has too many objects and arrays."""


def read_json(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON.

    Cost: that of decoding, and for what has many objects and arrays some 5 ms for each MiB.

    Raises:
        msgspec.ValidationError: it is not of this type.
        msgspec.DecodeError: it is no JSON, or a ``NestingError``.
        UnicodeError: it is not UTF-8.
    """
    written = data.encode() if isinstance(data, str) else bytes(data)
    _check(written)
    return msgspec.json.decode(written, type=kind)


def _check(data: bytes) -> None:
    n_at_most = data.count(b"{") + data.count(b"[")
    if n_at_most <= MAX_NESTING:
        return
    # Every other piece between quotes is a text, once there are no quotes in texts.
    pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(pieces[::2]).translate(None, _OTHERS)
    if n_at_most > MAX_CONTAINERS:
        n = brackets.count(b"{") + brackets.count(b"[")
        if n > MAX_CONTAINERS:
            raise NestingError(f"{n:,} objects and arrays: the limit is {MAX_CONTAINERS:,}")
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    if max(accumulate(steps), default=0) > MAX_NESTING:
        raise NestingError(f"nested too deeply: the limit is {MAX_NESTING} levels")
