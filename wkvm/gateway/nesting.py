"""JSON that clients send, read with a limit on how deep it is nested.

Without one of our own, Python's stack is the limit: what could just be read at one place is an
internal error where it is written again a few calls deeper, or is kept and can be read no more.
"""

from itertools import accumulate
from typing import TypeVar

import msgspec

MAX_NESTING = 128
"""Objects and arrays within each other, in a body and in JSON that is a text in it."""

_STEPS = bytes(0x01 if byte in b"[{" else 0xFF for byte in range(256))
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")

T = TypeVar("T")


class NestingError(msgspec.DecodeError):
    """It is nested too deeply."""


def read_json(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON.

    Cost: that of decoding, and for what has many objects and arrays some 5 ms for each MiB.

    Raises:
        msgspec.ValidationError: it is not of this type.
        msgspec.DecodeError: it is no JSON, or a ``NestingError``.
        UnicodeError: it is not UTF-8.
    """
    written = data.encode() if isinstance(data, str) else bytes(data)
    if _is_deep(written):
        raise NestingError(f"nested too deeply: the limit is {MAX_NESTING} levels")
    return msgspec.json.decode(written, type=kind)


def _is_deep(data: bytes) -> bool:
    if data.count(b"{") + data.count(b"[") <= MAX_NESTING:
        return False
    # Every other piece between quotes is a text, once there are no quotes in texts.
    pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(pieces[::2]).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0) > MAX_NESTING
