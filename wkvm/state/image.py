"""One state, whole, in host memory: what is committed, loaded, mutated and moved."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from wkvm.core.errors import BadStateFileError, StateMismatchError
from wkvm.core.layout import GUEST_PAGES, ITEM_BYTES, StateLayout
from wkvm.core.registry import Carried, Identity
from wkvm.state.arithmetic import not_finite
from wkvm.state.dtypes import DTYPES
from wkvm.state.format import (
    TOKEN_BYTES,
    Header,
    decode_header,
    digest_of,
    encode_header,
    header_bytes,
)
from wkvm.state.guest import pages_in, tail_of
from wkvm.state.memory import host_memory

THREADED_BYTES, HASH_THREADS = 2**26, 4
"""From so many bytes on, so many threads hash an image for its content id."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateImage:
    """A state with everything that a continuation needs. Never changed once it is made.

    Attributes:
        identity: which model it belongs to.
        layout: of ``record``.
        carried: counts, pending ids and the sampler's memory.
        token_ids: the token log: ``n_computed`` int32, little-endian.
        record: ``[layout.image_bytes(n_computed)]`` uint8 on the host: a slot of the arena,
            padding included, and then its pages in order, if the layout has a guest. What the last
            page has behind the last token is zeros, so that equal states have equal bytes. It
            belongs to the image: who made it must not write to it any more.
    """

    identity: Identity
    layout: StateLayout
    carried: Carried
    token_ids: bytes
    record: Tensor

    def __post_init__(self) -> None:
        record, n_bytes = self.record, self.layout.image_bytes(self.carried.n_computed)
        if record.dtype != torch.uint8 or record.shape != (n_bytes,):
            raise ValueError(f"a record has {n_bytes} bytes, got {record.shape}")
        if record.device.type != "cpu" or not record.is_contiguous():
            raise ValueError("a record is contiguous, and in host memory")
        if self.identity.fingerprint != self.layout.fingerprint:
            raise ValueError("the layout is not that of the identity")
        if len(self.token_ids) != TOKEN_BYTES * self.carried.n_computed:
            raise ValueError(
                f"{len(self.token_ids)} bytes of ids for {self.carried.n_computed} tokens"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it takes, but for small change."""
        return len(self.record) + len(self.token_ids)

    def ids(self) -> "array[int]":
        """The token log as integers. A copy."""
        return unpack_ids(self.token_ids)

    def view(self, name: str) -> Tensor:
        """One tensor of the layout: the memory of ``record``, typed. Not to be written."""
        return self.views()[name]

    def views(self) -> dict[str, Tensor]:
        """All tensors by name: the memory of ``record``. Not to be written. See ``views_of``."""
        return views_of(self.layout, self.record)

    def first_non_finite(self) -> str | None:
        """The name of a tensor that holds NaN or infinity; None if there is none."""
        return not_finite(self.views())

    def check_tail(self) -> None:
        """Check that behind the last token there are zeros. Looks at the last page alone.

        Raises:
            ValueError: it is not so.
        """
        tail = tail_of(self.layout, self.record, self.carried.n_computed)
        if tail is not None and bool(tail.view(torch.uint8).any()):
            raise ValueError(f"the last page holds more than {self.carried.n_computed} tokens")

    def check_fits(self, identity: Identity) -> None:
        """Check that the state is one of this model.

        Raises:
            StateMismatchError: it is not.
        """
        check_same(identity, self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """An image as a file: its header, and its data where they lie.

    Attributes:
        header: as the file begins.
        buffers: the data that follow, in order; they share the image's memory.
        digest: hex; what the header says of the file.
        content_id: hex BLAKE3 of the file.
        n_bytes: of the file.
    """

    header: bytes
    buffers: tuple[memoryview, ...]
    digest: str
    content_id: str
    n_bytes: int

    def tobytes(self) -> bytes:
        """The file. A copy."""
        return b"".join((self.header, *self.buffers))


def check_same(expected: Identity, given: Identity) -> None:
    """Check that two identities are the same.

    Raises:
        StateMismatchError: they are not.
    """
    found = given.to_json()
    for name, value in expected.to_json().items():
        if found[name] != value:
            raise StateMismatchError(name, value or "none", found[name] or "none")


def encode_image(image: StateImage) -> EncodedImage:
    """The file of an image. Hashes it twice: 0.4 ms a MiB; copies nothing, however large it is."""
    blank = encode_header(image.identity, image.layout, image.carried)
    buffers = (*record_slices(image.layout, image.record), memoryview(image.token_ids))
    digest = digest_of(blank, buffers)
    header = encode_header(image.identity, image.layout, image.carried, digest)
    is_large = len(image.record) >= THREADED_BYTES
    hasher = blake3(header, max_threads=HASH_THREADS if is_large else 1)
    for buffer in buffers:
        hasher.update(buffer)
    return EncodedImage(
        header=header,
        buffers=buffers,
        digest=digest,
        content_id=hasher.hexdigest(),
        n_bytes=len(header) + sum(map(len, buffers)),
    )


def decode_image(file: bytes | memoryview) -> StateImage:
    """Read a file that may be anybody's. Its digest is verified, its numbers are not looked at.

    Raises:
        BadStateFileError: it is not a whole state.
    """
    data = memoryview(file)
    n_header = header_bytes(bytes(data[:8]))
    header = decode_header(bytes(data[:n_header]))
    if len(data) != header.file_bytes:
        raise BadStateFileError(f"it has {len(data)} bytes, its header says {header.file_bytes}")
    blank = encode_header(header.identity, header.layout, header.carried, history=header.history)
    if digest_of(blank, [data[n_header:]]) != header.digest:
        raise BadStateFileError("its digest is not that of its bytes")
    n_bytes = header.layout.image_bytes(header.carried.n_computed)
    record = host_memory(n_bytes)
    at = n_header
    for piece in record_slices(header.layout, record):
        piece[:] = data[at : at + len(piece)]
        at += len(piece)
    return image_of(header, record, bytes(data[at:]))


def image_of(header: Header, record: Tensor, token_ids: bytes) -> StateImage:
    """The image that a header describes, over ``record``."""
    return StateImage(
        identity=header.identity,
        layout=header.layout,
        carried=header.carried,
        token_ids=token_ids,
        record=record,
    )


def bytes_of(layout: StateLayout, record: Tensor) -> dict[str, Tensor]:
    """The bytes of each tensor within a record, in order, and then of all pages, if there are some.

    That is the record without its padding; between pages there is none.
    """
    pieces = {
        spec.name: record[offset : offset + spec.nbytes]
        for spec, offset in zip(layout.tensors, layout.offsets, strict=True)
    }
    if len(record) > layout.record_bytes:
        pieces[GUEST_PAGES] = record[layout.record_bytes :]
    return pieces


def record_slices(layout: StateLayout, record: Tensor) -> list[memoryview]:
    """The same as they lie in a file."""
    pieces = bytes_of(layout, record).values()
    return [memoryview(piece.numpy()) for piece in pieces]  # type: ignore[arg-type]


def clear_padding(layout: StateLayout, record: Tensor) -> None:
    """Write zeros between the tensors of a record. Pages have nothing between them."""
    ends = (*layout.offsets[1:], layout.record_bytes)
    for spec, offset, end in zip(layout.tensors, layout.offsets, ends, strict=True):
        record[offset + spec.nbytes : end].zero_()


def views_of(layout: StateLayout, record: Tensor) -> dict[str, Tensor]:
    """The tensors of a record, by name: the same memory, typed.

    Args:
        record: with as many pages as it has. If there is one at least, ``guest.pages`` is among the
            tensors: ``[n_pages, n_layers, n_parts, PAGE_TOKENS, n_heads, head_dim]``.
    """
    views = dict[str, Tensor]()
    for spec, offset in zip(layout.tensors, layout.offsets, strict=True):
        n_items = spec.nbytes // ITEM_BYTES[spec.dtype]
        flat = record[offset : offset + spec.nbytes].view(DTYPES[spec.dtype])
        views[spec.name] = flat[:n_items].view(spec.shape)
    if layout.guest is not None and len(record) > layout.record_bytes:
        views[GUEST_PAGES] = pages_in(layout, record)
    return views


def pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as the token log has them.

    Raises:
        OverflowError: one does not fit an int32.
    """
    packed = array("i", ids)
    if not _LITTLE:
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> "array[int]":
    """The reverse of ``pack_ids``."""
    ids = array("i", packed)
    if not _LITTLE:
        ids.byteswap()
    return ids


_LITTLE = memoryview(b"\x01\x00\x00\x00").cast("i")[0] == 1
