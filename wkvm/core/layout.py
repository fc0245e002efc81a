"""What one state consists of: names, shapes, dtypes, byte offsets, and a hash of these.

A state is one contiguous record. Bytes fit a model iff the fingerprints match.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import prod

ALIGNMENT = 256
"""Bytes. Each tensor of a record, and the record itself, starts at a multiple of this."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
"""The dtypes that a state may hold, and the size of one element."""


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How a state is kept, where that can be chosen.

    Attributes:
        dtype: of the recurrence's matrices: ``float32``, ``float16`` or ``bfloat16``. They are
            rounded to it whenever they are written; the arithmetic is float32.
        deferred: the last inputs of a state wait in a ring beside it, and go into it together.
    """

    dtype: str = "float32"
    deferred: bool = False


DEFAULT_STATE = StateOptions()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a state, without the slot axis.

    Attributes:
        name: unique within a layout, such as ``rwkv7.wkv``. The part before the
            first dot is the family.
        shape: of one state; for the usual families ``(L, ...)``.
        dtype: a key of ``ITEM_BYTES``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r} is not one of {list(ITEM_BYTES)}")
        if not self.shape or any(n < 1 for n in self.shape):
            raise ValueError(f"{self.name}: shape {self.shape} has an axis below 1")

    @property
    def family(self) -> str:
        """The kind of recurrence that this tensor belongs to."""
        return self.name.partition(".")[0]

    @property
    def nbytes(self) -> int:
        """Bytes of this tensor in one state, without padding."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class StateLayout:
    """The record of one state: its tensors in order, each at an aligned offset."""

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.tensors]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"tensor names must be present and distinct, got {names}")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each tensor within the record, in the order of ``tensors``."""
        offsets, at = list[int](), 0
        for spec in self.tensors:
            offsets.append(at)
            at += _aligned(spec.nbytes)
        return tuple(offsets)

    @cached_property
    def record_bytes(self) -> int:
        """Bytes of one slot of the arena: all tensors with their padding."""
        return sum(_aligned(spec.nbytes) for spec in self.tensors)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one state without padding."""
        return sum(spec.nbytes for spec in self.tensors)

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of names, shapes and dtypes in order. Padding does not enter it."""
        canonical = json.dumps(
            [[spec.name, list(spec.shape), spec.dtype] for spec in self.tensors],
            separators=(",", ":"),
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
