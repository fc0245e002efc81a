"""Frames of the binary protocol that were drawn from its types, well formed or just not.

A value is drawn from what the type of its field says: mostly what is allowed, often at the edge of
it, and now and then just beyond. Numbers and texts are written in any of the forms that
MessagePack has for them, not only in the shortest.
"""

import random
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from wkvm_protocol.messages import FROM_CLIENT, Sampling

ClientType = type[msgspec.Struct]
T = TypeVar("T")

NAMES = ("a", "b", "a@1", "b@2", "none", "none@3", "../x", "", "\x00", "a" * 256)
"""Of states: few of them are there."""
TEXTS = (
    "",
    "x",
    "disk",
    "memory",
    "regex",
    "state",
    "host",
    "cancel",
    "k1",
    "{}",
    "\u00e9\U0001f98a",
)
N_STREAMS = 1 << 32


class Draw:
    """What is drawn, and how far from what is allowed.

    Args:
        chance: all that is random.
        wrong: how often a value is one that its type refuses.
    """

    def __init__(self, chance: random.Random, wrong: float = 0.0) -> None:
        self.chance = chance
        self.wrong = wrong
        self._fields: dict[Any, tuple[tuple[str, inspect.Type, bool], ...]] = {
            one: tuple(_fields(one)) for one in (*FROM_CLIENT, Sampling)
        }

    def pick(self, *choices: T) -> T:
        return choices[int(self.chance.random() * len(choices))]

    def payload(self, kind: ClientType, request_id: int) -> bytes:
        """One message of a type."""
        return self._struct(kind, request_id=request_id)

    def _struct(self, kind: ClientType, request_id: int | None = None) -> bytes:
        chance = self.chance.random
        fields = self._fields[kind]
        n_needed = sum(1 for _, _, is_needed in fields if is_needed)
        # Those at the end that have a default may be left out.
        n = n_needed
        while n < len(fields) and chance() < 0.75:
            n += 1
        if chance() < self.wrong:
            n = self.pick(n_needed - 1, len(fields) + 1)
        parts = list[bytes]()
        tag = kind.__struct_config__.tag
        if tag is not None:
            parts.append(self.integer(int(tag)))
        for at in range(n):
            name, wanted, _ = fields[min(at, len(fields) - 1)]
            if name == "request_id" and request_id is not None:
                parts.append(self.integer(request_id))
            else:
                parts.append(self._value(name, wanted))
        return self._head(0x90, 0xDC, len(parts)) + b"".join(parts)

    def _value(self, name: str, wanted: inspect.Type) -> bytes:
        chance = self.chance.random
        if chance() < self.wrong:
            return self.anything(3)
        match wanted:
            case inspect.UnionType(types=types):
                return self._value(name, self.pick(*types))
            case inspect.NoneType():
                return b"\xc0"
            case inspect.BoolType():
                return self.pick(b"\xc2", b"\xc3")
            case inspect.FloatType():
                return self.number()
            case inspect.IntType(ge=low, le=high):
                return self.integer(self._count(low, high))
            case inspect.StrType(max_length=most):
                return self.text(self._text(name, most))
            case inspect.BytesType(min_length=least):
                return self.binary(self._bytes(name, least or 0))
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                n = self.pick(0, 1, 2, 64, 65) if chance() < 0.1 else self.pick(0, 1, 2)
                return self._head(0x90, 0xDC, n) + b"".join(
                    self._value(name, item) for _ in range(n)
                )
            case inspect.DictType(key_type=key, value_type=value):
                n = self.pick(0, 1, 2)
                entries = [self._value(name, key) + self._value(name, value) for _ in range(n)]
                if entries and chance() < 0.1:
                    entries.append(entries[0])  # a key that comes twice
                return self._head(0x80, 0xDE, len(entries)) + b"".join(entries)
            case inspect.StructType(cls=cls):
                return self._struct(cls)
            case _:
                raise AssertionError(f"{name}: {wanted} is new: draw it too")

    def _count(self, low: float | None, high: float | None) -> int:
        chance = self.chance.random()
        least = -(2**63) if low is None else int(low)
        most = 2**64 - 1 if high is None else int(high)
        if chance < 0.7:
            return min(max(self.pick(0, 1, 2, 3, 5, 20, 100), least), most)
        if chance < 0.95:
            return self.pick(least, least + 1, most - 1, most)
        return min(max(self.pick(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -1), least), most)

    def _text(self, name: str, most: int | None) -> str:
        if name in ("state", "save_as", "name", "names", "states", "rename", "other"):
            return self.pick(*NAMES)
        if self.chance.random() < 0.03:
            return "\u00e9" * min(most or 300, 300)
        return self.pick(*TEXTS)

    def _bytes(self, name: str, least: int) -> bytes:
        if name == "data":
            return bytes(self.pick(least, 4, 100))
        n = self.pick(0, 1, 1, 2, 3, 8)
        ids = [self.pick(0, 1, 7, 255, 256, 2**31, 2**32 - 1) for _ in range(n)]
        if self.chance.random() < 0.7:
            ids = [one % 256 for one in ids]
        return struct.pack(f"<{n}I", *ids) + (b"\x00" if self.chance.random() < self.wrong else b"")

    # --- MessagePack ----------------------------------------------------------------------

    def integer(self, value: int) -> bytes:
        """A number in any form that holds it."""
        forms = [(code, form) for code, form, low, high in _INTEGERS if low <= value <= high]
        if 0 <= value < 128 and self.chance.random() < 0.8:
            return bytes((value,))
        if -32 <= value < 0 and self.chance.random() < 0.8:
            return bytes((value & 0xFF,))
        if not forms:
            return b"\xcb" + struct.pack(">d", float(value))
        code, form = self.pick(*forms)
        return bytes((code,)) + struct.pack(form, value)

    def number(self) -> bytes:
        """A floating point number, of any kind."""
        value = self.pick(0.0, 1.0, 0.5, -1.0, 2.0, 1e308, 5e-324, *_STRANGE)
        return self.pick(
            b"\xcb" + struct.pack(">d", value), _single(value), self.integer(self.pick(0, 1, 2))
        )

    def text(self, value: str) -> bytes:
        """A text, with a length of any size."""
        data = value.encode()
        if len(data) < 32 and self.chance.random() < 0.8:
            return bytes((0xA0 | len(data),)) + data
        return self._sized((0xD9, 0xDA, 0xDB), data)

    def binary(self, data: bytes) -> bytes:
        """Bytes, likewise."""
        return self._sized((0xC4, 0xC5, 0xC6), data)

    def anything(self, depth: int) -> bytes:
        """Any value of MessagePack, or what is none."""
        chance = self.chance
        match chance.randrange(12 if depth else 9):
            case 0:
                return self.pick(b"\xc0", b"\xc2", b"\xc3", b"\xc1")
            case 1 | 2:
                return self.integer(self.pick(-(2**63), -1, 0, 1, 2**32, 2**63, 2**64 - 1))
            case 3:
                return self.number()
            case 4:
                return self.text(self.pick(*TEXTS))
            case 5:
                return b"\xa2" + self.pick(b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80"[:2])
            case 6:
                return self.binary(chance.randbytes(self.pick(0, 3, 4, 64)))
            case 7:
                return b"\xc7\x04" + chance.randbytes(5)  # an extension
            case 8:
                # a length that lies
                return self.pick(b"\xdd", b"\xdb", b"\xc6", b"\xdf") + b"\xff\xff\xff\xff"
            case 9:
                return b"\x91" * self.pick(2, 100, 5000)
            case _:
                n = chance.randrange(3)
                return bytes((0x90 | n,)) + b"".join(self.anything(depth - 1) for _ in range(n))

    def _sized(self, codes: tuple[int, int, int], data: bytes) -> bytes:
        n = len(data)
        forms = [
            (code, form)
            for code, form, most in zip(codes, (">B", ">H", ">I"), _SIZES, strict=True)
            if n <= most
        ]
        code, form = self.pick(*forms)
        return bytes((code,)) + struct.pack(form, n) + data

    def _head(self, short: int, long: int, n: int) -> bytes:
        if n < 16 and self.chance.random() < 0.9:
            return bytes((short | n,))
        if self.chance.random() < 0.5:
            return bytes((long,)) + struct.pack(">H", n)
        return bytes((long + 1,)) + struct.pack(">I", n)


def _single(value: float) -> bytes:
    try:
        return b"\xca" + struct.pack(">f", value)
    except OverflowError:
        return b"\xca" + struct.pack(">f", float("inf"))


_STRANGE = (float("nan"), float("inf"), float("-inf"), -0.0)
_SIZES = (2**8 - 1, 2**16 - 1, 2**32 - 1)
_INTEGERS = (
    (0xCC, ">B", 0, 2**8 - 1),
    (0xCD, ">H", 0, 2**16 - 1),
    (0xCE, ">I", 0, 2**32 - 1),
    (0xCF, ">Q", 0, 2**64 - 1),
    (0xD0, ">b", -(2**7), 2**7 - 1),
    (0xD1, ">h", -(2**15), 2**15 - 1),
    (0xD2, ">i", -(2**31), 2**31 - 1),
    (0xD3, ">q", -(2**63), 2**63 - 1),
)


def _fields(kind: ClientType) -> list[tuple[str, inspect.Type, bool]]:
    """Name, type and whether it is needed, of the fields of a message."""
    told = inspect.type_info(kind)
    assert isinstance(told, inspect.StructType)
    return [(one.name, one.type, one.required) for one in told.fields]


def mutated(chance: random.Random, data: bytes, others: bytes) -> bytes:
    """Bytes that were changed in one to four places.

    Args:
        others: of which a piece may be put in.
    """
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(changed) + 1)
        change: Callable[[bytearray, int], None] = chance.choice(_CHANGES)
        change(changed, at)
        if chance.random() < 0.2 and others:
            piece = chance.randrange(len(others))
            changed[at:at] = others[piece : piece + chance.randrange(20)]
    return bytes(changed)


def _flip(data: bytearray, at: int) -> None:
    if at < len(data):
        data[at] ^= 1 << (at * 7 % 8)


def _set(data: bytearray, at: int) -> None:
    if at < len(data):
        data[at] = _BYTES[at * 31 % len(_BYTES)]


def _drop(data: bytearray, at: int) -> None:
    del data[at : at + 1 + at % 3]


def _repeat(data: bytearray, at: int) -> None:
    data[at:at] = data[max(0, at - 9) : at]


def _cut(data: bytearray, at: int) -> None:
    del data[max(1, at) :]


_BYTES = (0x00, 0x01, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xCB, 0xDC, 0xDD, 0xFF)
_CHANGES = (_flip, _set, _drop, _repeat, _cut)
