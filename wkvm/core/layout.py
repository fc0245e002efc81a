"""What one state consists of: names, shapes, dtypes, byte offsets, and a hash of these.

A state is one contiguous record, of a size that its tokens do not change. Where a model has
attention layers besides, what these keep of each token is the state's *guest*: pages of
``PAGE_TOKENS`` tokens each, as many as there are tokens for. Bytes fit a model iff the
fingerprints match.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import prod

ALIGNMENT = 256
"""Bytes. Each tensor of a record, and the record itself, starts at a multiple of this."""

PAGE_TOKENS = 64
"""Tokens of a page. It is part of the fingerprints of layouts with a guest."""

MAX_SLOT_PAGES = 16_384
"""Pages of one state, at most: a million tokens. Each slot has so many places in the table."""

GUEST_TOKENS = "guest.n_tokens"
"""The tensor of a record that says how many tokens its pages hold: ``(1,)`` int32."""

GUEST_PAGES, GUEST_TABLE = "guest.pages", "guest.table"
"""What a model sees of the guest pool, beside the tensors of the records: see ``GuestSpec``."""

GUEST_DTYPES = ("float32", "float16", "bfloat16")

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


def pages_for(n_tokens: int) -> int:
    """How many pages hold ``n_tokens`` tokens."""
    return -(-n_tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """What the attention layers of a model keep of each token.

    A page is one contiguous block ``[n_layers, n_parts, PAGE_TOKENS, n_heads, head_dim]``.

    Attributes:
        n_layers: those that attend.
        n_parts: 2 for keys and values; 1 where one vector serves as both.
        n_heads: of keys and values.
        head_dim: elements of a head.
        dtype: one of ``GUEST_DTYPES``.
    """

    n_layers: int
    n_parts: int
    n_heads: int
    head_dim: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in GUEST_DTYPES:
            raise ValueError(f"a guest's dtype is one of {list(GUEST_DTYPES)}, not {self.dtype!r}")
        if min(self.page_shape) < 1 or self.n_parts > 2:
            raise ValueError(f"a page of shape {self.page_shape} is none")
        if self.page_bytes % ALIGNMENT:
            raise ValueError(
                f"a page of {self.page_bytes:,} bytes is no multiple of {ALIGNMENT}: with two "
                "bytes each, the elements of a token are an even number"
            )

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """Layers, parts, tokens, heads and elements of a page."""
        return self.n_layers, self.n_parts, PAGE_TOKENS, self.n_heads, self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers."""
        return self.page_bytes // PAGE_TOKENS

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: a multiple of ``ALIGNMENT``."""
        return prod(self.page_shape) * ITEM_BYTES[self.dtype]


def guest_tokens() -> TensorSpec:
    """The tensor that the record of a state with a guest has.

    How many tokens the slot's pages hold: zero at the start, copied with the record. A model reads
    it as the position of a row's first token, and adds the row's tokens at the end of its forward
    pass.
    """
    return TensorSpec(GUEST_TOKENS, (1,), "int32")


@dataclass(frozen=True)
class StateLayout:
    """One state: a record of tensors in order, each at an aligned offset, and pages of a guest.

    Attributes:
        tensors: of the record; with a guest, ``guest_tokens()`` is one of them.
        guest: None for models without attention layers.
    """

    tensors: tuple[TensorSpec, ...]
    guest: GuestSpec | None = None

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.tensors]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"tensor names must be present and distinct, got {names}")
        if GUEST_PAGES in names or GUEST_TABLE in names:
            raise ValueError(f"{GUEST_PAGES} and {GUEST_TABLE} are no tensors of a record")
        of_guest = [spec for spec in self.tensors if spec.name == GUEST_TOKENS]
        if of_guest != ([] if self.guest is None else [guest_tokens()]):
            raise ValueError(
                f"a record has {GUEST_TOKENS}, (1,) int32, if and only if there is a guest"
            )

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

    def n_pages(self, n_tokens: int) -> int:
        """How many pages a state of ``n_tokens`` tokens has; none without a guest."""
        return 0 if self.guest is None else pages_for(n_tokens)

    def image_bytes(self, n_tokens: int) -> int:
        """Bytes of a state of ``n_tokens`` tokens in host memory: its record, then its pages.

        What the last page holds behind the last token is zeros there.
        """
        if self.guest is None:
            return self.record_bytes
        return self.record_bytes + pages_for(n_tokens) * self.guest.page_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of one record without padding."""
        return sum(spec.nbytes for spec in self.tensors)

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of names, shapes and dtypes in order, and of the shape of the guest's pages.

        Padding does not enter it.
        """
        described = [[spec.name, list(spec.shape), spec.dtype] for spec in self.tensors]
        if self.guest is not None:
            described.append([GUEST_PAGES, list(self.guest.page_shape), self.guest.dtype])
        canonical = json.dumps(described, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
