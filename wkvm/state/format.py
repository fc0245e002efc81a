"""The file of one state: a safetensors file whose header has exactly one possible text.

The data are the tensors of the layout in order, without padding, then the pages of its guest, if
it has one, and then the token log. The metadata hold the format, a digest, the identity and what
is carried. A header that differs in one byte from what its own contents make is refused, so
nothing of it needs to be trusted.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import prod
from typing import Any

import xxhash

from wkvm.core.errors import BadStateFileError
from wkvm.core.layout import (
    GUEST_PAGES,
    ITEM_BYTES,
    PAGE_TOKENS,
    GuestSpec,
    StateLayout,
    TensorSpec,
)
from wkvm.core.registry import Carried, Identity, canonical_json

FORMAT = "1"
MAX_HEADER_BYTES = 2**20
TOKEN_IDS = "wkvm.token_ids"
TOKEN_BYTES = 4
"""An id of the token log is an int32, little-endian."""

CHUNK_BYTES = 2**20
"""The unit in which data is hashed and read. It is part of the format: the digest depends on it."""

DIGEST_CHARS = 32
NO_DIGEST = "0" * DIGEST_CHARS
HEADER_MULTIPLE = 256
"""Data starts at a multiple of this."""

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
_NAMES = {short: name for name, short in _DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the first bytes of a file say.

    Attributes:
        digest: hex, of the whole file; see ``digest_of``.
        n_bytes: of the file up to its data.
        history: how the state came to be, as text; empty in files of the store, whose catalogue
            has it.
    """

    identity: Identity
    layout: StateLayout
    carried: Carried
    digest: str
    n_bytes: int
    history: str = ""

    @property
    def data_bytes(self) -> int:
        """Bytes of the file after the header."""
        return data_bytes(self.layout, self.carried.n_computed)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.n_bytes + self.data_bytes


def data_bytes(layout: StateLayout, n_tokens: int) -> int:
    """Bytes of a file after its header: tensors without padding, pages, and the token log."""
    n_page_bytes = layout.image_bytes(n_tokens) - layout.record_bytes
    return layout.payload_bytes + n_page_bytes + TOKEN_BYTES * n_tokens


def encode_header(
    identity: Identity,
    layout: StateLayout,
    carried: Carried,
    digest: str = NO_DIGEST,
    history: str = "",
) -> bytes:
    """The first bytes of the file, its length prefix included. The digest does not change how many.

    Raises:
        BadStateFileError: it would be longer than ``MAX_HEADER_BYTES``.
    """
    entries, at = dict[str, Any](), 0
    for spec in layout.tensors:
        entries[spec.name] = {
            "dtype": _DTYPES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.nbytes],
        }
        at += spec.nbytes
    if (guest := layout.guest) is not None:
        # Also where there are no pages yet: what a page is, nothing else in the file says.
        n_pages = layout.n_pages(carried.n_computed)
        entries[GUEST_PAGES] = {
            "dtype": _DTYPES[guest.dtype],
            "shape": [n_pages, *guest.page_shape],
            "data_offsets": [at, at + n_pages * guest.page_bytes],
        }
        at += n_pages * guest.page_bytes
    entries[TOKEN_IDS] = {
        "dtype": "I32",
        "shape": [carried.n_computed],
        "data_offsets": [at, at + TOKEN_BYTES * carried.n_computed],
    }
    entries["__metadata__"] = {
        "wkvm.carried": canonical_json(carried.to_json()),
        "wkvm.digest": digest,
        "wkvm.format": FORMAT,
        "wkvm.identity": canonical_json(identity.to_json()),
    }
    if history:
        entries["__metadata__"]["wkvm.history"] = history
    text = canonical_json(entries).encode("ascii")
    n_bytes = -(-(8 + len(text)) // HEADER_MULTIPLE) * HEADER_MULTIPLE - 8
    if n_bytes > MAX_HEADER_BYTES:
        raise BadStateFileError(f"its header would be longer than {MAX_HEADER_BYTES:,} bytes")
    return n_bytes.to_bytes(8, "little") + text.ljust(n_bytes)


def header_bytes(prefix: bytes) -> int:
    """How many bytes the header takes, from the first eight of the file.

    Raises:
        BadStateFileError: that many cannot be.
    """
    n_bytes = int.from_bytes(prefix[:8], "little")
    if len(prefix) < 8 or not 0 < n_bytes <= MAX_HEADER_BYTES:
        raise BadStateFileError("it does not begin with the length of a header")
    return 8 + n_bytes


def decode_header(raw: bytes) -> Header:
    """Read what ``encode_header`` made.

    Args:
        raw: as many bytes as ``header_bytes`` says.

    Raises:
        BadStateFileError: no state could have this header. The bytes may be anybody's.
    """
    try:
        entries = json.loads(raw[8:])
        metadata = entries.pop("__metadata__")
        if metadata["wkvm.format"] != FORMAT:
            raise BadStateFileError(f"format {metadata['wkvm.format']!s:.16}, not {FORMAT}")
        identity = Identity.from_json(json.loads(metadata["wkvm.identity"]))
        carried = Carried.from_json(json.loads(metadata["wkvm.carried"]))
        digest = metadata["wkvm.digest"]
        history = metadata.get("wkvm.history", "")
        if not isinstance(digest, str) or not isinstance(history, str):
            raise BadStateFileError("its metadata are not text")
        entries.pop(TOKEN_IDS)
        guest = _guest(entries.pop(GUEST_PAGES, None))
        specs = tuple(_spec(name, entries[name]) for name in _in_order(entries))
        layout = StateLayout(specs, guest)
        again = encode_header(identity, layout, carried, digest, history)
    except BadStateFileError:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        raise BadStateFileError(f"its header is none: {type(error).__name__}") from error
    if len(digest) != DIGEST_CHARS or again != raw:
        raise BadStateFileError("its header is not written as wkvm writes it")
    if layout.fingerprint != identity.fingerprint:
        raise BadStateFileError("its tensors are not those that its fingerprint stands for")
    return Header(
        identity=identity,
        layout=layout,
        carried=carried,
        digest=digest,
        n_bytes=len(raw),
        history=history,
    )


def chunks_of(buffers: Iterable[memoryview], n: int = CHUNK_BYTES) -> list[list[memoryview]]:
    """The bytes of ``buffers`` in pieces of ``n`` (the last may be shorter), without copying."""
    chunks, chunk, room = list[list[memoryview]](), list[memoryview](), n
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            piece = buffer[at : at + room]
            chunk.append(piece)
            at += len(piece)
            room -= len(piece)
            if room == 0:
                chunks.append(chunk)
                chunk, room = [], n
    if chunk:
        chunks.append(chunk)
    return chunks


def chunk_digest(chunk: Sequence[memoryview]) -> bytes:
    """XXH3-128 of one chunk. Lets other threads run meanwhile."""
    if len(chunk) == 1:
        return xxhash.xxh3_128_digest(chunk[0])
    hasher = xxhash.xxh3_128()
    for piece in chunk:
        hasher.update(piece)
    return hasher.digest()


def root_digest(blank_header: bytes, chunk_digests: Iterable[bytes]) -> str:
    """The digest of a file: XXH3-128 of the digests of its header and of each chunk of its data.

    Args:
        blank_header: with ``NO_DIGEST`` where the digest will be.
        chunk_digests: in order.
    """
    hasher = xxhash.xxh3_128(xxhash.xxh3_128_digest(blank_header))
    for one in chunk_digests:
        hasher.update(one)
    return hasher.hexdigest()


def digest_of(
    blank_header: bytes, buffers: Iterable[memoryview], threads: Executor | None = None
) -> str:
    """The digest of a file whose data lies in ``buffers``. About 0.1 ms a MiB and thread."""
    run = map if threads is None else threads.map
    return root_digest(blank_header, run(chunk_digest, chunks_of(buffers)))


def _in_order(entries: dict[str, Any]) -> list[str]:
    return sorted(entries, key=lambda name: int(entries[name]["data_offsets"][0]))


def _spec(name: str, entry: dict[str, Any]) -> TensorSpec:
    shape, dtype = _shape(entry["shape"]), _NAMES[entry["dtype"]]
    if prod(shape) * ITEM_BYTES[dtype] > 2**48:
        raise ValueError("too large")
    return TensorSpec(name, shape, dtype)


def _guest(entry: dict[str, Any] | None) -> GuestSpec | None:
    """What a page is. How many there are is left to the comparison of the whole header."""
    if entry is None:
        return None
    n_layers, n_parts, n_tokens, n_heads, head_dim = _shape(entry["shape"][1:])
    if n_tokens != PAGE_TOKENS:
        raise BadStateFileError(f"its pages are of {n_tokens} tokens; here they are {PAGE_TOKENS}")
    return GuestSpec(n_layers, n_parts, n_heads, head_dim, _NAMES[entry["dtype"]])


def _shape(given: list[int]) -> tuple[int, ...]:
    if not all(type(n) is int and 0 < n < 2**48 for n in given):
        raise ValueError("not a shape")
    return tuple(given)
