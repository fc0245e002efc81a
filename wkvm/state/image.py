"""One state, whole, in host memory: what is committed, loaded, mutated and moved."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from wkvm.core.errors import BadStateFileError, StateMismatchError
from wkvm.core.layout import ITEM_BYTES, StateLayout
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateImage:
    """A state with everything that a continuation needs. Never changed once it is made.

    Attributes:
        identity: which model it belongs to.
        layout: of ``record``.
        carried: counts, pending ids and the sampler's memory.
        token_ids: the token log: ``n_computed`` int32, little-endian.
        record: ``[record_bytes]`` uint8 on the host: a slot of the arena, padding included. It
            belongs to the image: who made it must not write to it any more.
    """

    identity: Identity
    layout: StateLayout
    carried: Carried
    token_ids: bytes
    record: Tensor

    def __post_init__(self) -> None:
        record = self.record
        if record.dtype != torch.uint8 or record.shape != (self.layout.record_bytes,):
            raise ValueError(f"a record has {self.layout.record_bytes} bytes, got {record.shape}")
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
        return self.layout.record_bytes + len(self.token_ids)

    def ids(self) -> "array[int]":
        """The token log as integers. A copy."""
        return unpack_ids(self.token_ids)

    def view(self, name: str) -> Tensor:
        """One tensor of the layout: the memory of ``record``, typed. Not to be written."""
        return self.views()[name]

    def views(self) -> dict[str, Tensor]:
        """All tensors of the layout, by name: the memory of ``record``. Not to be written."""
        return views_of(self.layout, self.record)

    def first_non_finite(self) -> str | None:
        """The name of a tensor that holds NaN or infinity; None if there is none."""
        return not_finite(self.views())

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
    """The file of an image. Hashes it twice: about 0.25 ms a MiB; copies nothing."""
    blank = encode_header(image.identity, image.layout, image.carried)
    buffers = (*record_slices(image.layout, image.record), memoryview(image.token_ids))
    digest = digest_of(blank, buffers)
    header = encode_header(image.identity, image.layout, image.carried, digest)
    hasher = blake3(header)
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
    record = torch.zeros(header.layout.record_bytes, dtype=torch.uint8)
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


def record_slices(layout: StateLayout, record: Tensor) -> list[memoryview]:
    """The bytes of each tensor within a record, in order: the record without its padding."""
    whole = memoryview(record.numpy())  # type: ignore[arg-type]
    return [
        whole[offset : offset + spec.nbytes]
        for spec, offset in zip(layout.tensors, layout.offsets, strict=True)
    ]


def clear_padding(layout: StateLayout, record: Tensor) -> None:
    """Write zeros between the tensors of a record."""
    ends = (*layout.offsets[1:], layout.record_bytes)
    for spec, offset, end in zip(layout.tensors, layout.offsets, ends, strict=True):
        record[offset + spec.nbytes : end].zero_()


def views_of(layout: StateLayout, record: Tensor) -> dict[str, Tensor]:
    """The tensors of a record, by name: the same memory, typed."""
    views = dict[str, Tensor]()
    for spec, offset in zip(layout.tensors, layout.offsets, strict=True):
        n_items = spec.nbytes // ITEM_BYTES[spec.dtype]
        flat = record[offset : offset + spec.nbytes].view(DTYPES[spec.dtype])
        views[spec.name] = flat[:n_items].view(spec.shape)
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
