"""The file of a state on its way into memory, in pieces of any length.

The bytes may be anybody's. Each is copied once, to where it stays.
"""

from collections.abc import Callable

from torch import Tensor

from wkvm.core.errors import BadStateFileError
from wkvm.state.format import (
    TOKEN_BYTES,
    Header,
    decode_header,
    digest_of,
    encode_header,
    header_bytes,
)
from wkvm.state.image import StateImage, clear_padding, image_of, record_slices
from wkvm.state.memory import host_memory

_PREFIX = 8


class Filling:
    """Takes a file of exactly so many bytes.

    It holds a header of at most 1 MiB, and the record with its pages and the token log. After an
    error it takes no more.

    Args:
        n_bytes: of the file.
        accept: called with the header before anything is kept of the data; it may raise.
        new_record: makes the memory, of so many bytes.

    Attributes:
        header: once it is there.
    """

    def __init__(
        self,
        n_bytes: int,
        accept: Callable[[Header], None],
        new_record: Callable[[int], Tensor] = host_memory,
    ) -> None:
        self.header: Header | None = None
        self._n_bytes = n_bytes
        self._accept = accept
        self._new_record = new_record
        self._n_received = 0
        self._failed = False
        self._raw_header = bytearray()
        self._record: Tensor | None = None
        self._token_ids = bytearray()
        self._places = list[memoryview]()

    @property
    def n_missing(self) -> int:
        """Bytes that are still to come."""
        return self._n_bytes - self._n_received

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the file. They are copied.

        Raises:
            BadStateFileError: the header is none, or there are more bytes than were announced.
            WkvmError: ``accept`` raised it.
        """
        if self._failed:
            raise BadStateFileError("what came before was refused")
        self._failed = True  # until all of this is taken
        data = memoryview(chunk).cast("B")
        if len(data) > self.n_missing:
            raise BadStateFileError("more bytes came than were announced")
        self._n_received += len(data)
        while len(data) and self.header is None:
            data = self._feed_header(data)
        while len(data):
            place = self._places[0]
            n = min(len(place), len(data))
            place[:n] = data[:n]
            data = data[n:]
            if n < len(place):
                self._places[0] = place[n:]
            else:
                del self._places[0]
        self._failed = False

    def image(self) -> StateImage:
        """The state, once all bytes have come. One pass over them, about 0.1 ms a MiB.

        Raises:
            BadStateFileError: bytes are missing, or are not those that the digest stands for.
        """
        header, record = self.header, self._record
        if self._failed or header is None or record is None or self.n_missing:
            raise BadStateFileError(f"{self.n_missing:,} bytes are missing")
        buffers = (*record_slices(header.layout, record), memoryview(self._token_ids))
        blank = encode_header(
            header.identity, header.layout, header.carried, history=header.history
        )
        if digest_of(blank, buffers) != header.digest:
            raise BadStateFileError("its digest is not that of its bytes")
        return image_of(header, record, bytes(self._token_ids))

    def _feed_header(self, data: memoryview) -> memoryview:
        """Take what belongs to the header; what is left of ``data``."""
        raw = self._raw_header
        wanted = _PREFIX if len(raw) < _PREFIX else header_bytes(bytes(raw[:_PREFIX]))
        taken = data[: wanted - len(raw)]
        raw += taken
        if len(raw) == wanted > _PREFIX:
            self._begin(decode_header(bytes(raw)))
            raw.clear()
        elif len(raw) == _PREFIX:
            header_bytes(bytes(raw))
        return data[len(taken) :]

    def _begin(self, header: Header) -> None:
        self._accept(header)
        if header.file_bytes != self._n_bytes:
            raise BadStateFileError(
                f"{self._n_bytes:,} bytes are announced, its header says {header.file_bytes:,}"
            )
        record = self._new_record(header.layout.image_bytes(header.carried.n_computed))
        clear_padding(header.layout, record)
        self._record = record
        self._token_ids = bytearray(TOKEN_BYTES * header.carried.n_computed)
        log = memoryview(self._token_ids)
        self._places = [*record_slices(header.layout, record), *([log] if log else [])]
        self.header = header
