"""States out of the engine and into it: one self-describing safetensors file, in chunks.

The file is that of the store, and its header also tells how the state came to be. What comes from
a peer is measured against the model at hand before any of its data is kept, and nothing of it is
used until all of it has been checked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wkvm.core.errors import BadStateFileError, PromptTooLongError, StateNotFiniteError
from wkvm.core.kinds import TensorKind, of_kind
from wkvm.core.layout import GUEST_PAGES, GUEST_TOKENS, StateLayout
from wkvm.core.registry import Carried, Identity, Provenance
from wkvm.state.arithmetic import not_finite
from wkvm.state.filling import Filling
from wkvm.state.format import (
    MAX_HEADER_BYTES,
    Header,
    data_bytes,
    digest_of,
    encode_header,
)
from wkvm.state.guest import tail_of
from wkvm.state.history import History, decode_history, encode_history
from wkvm.state.image import StateImage, check_same, record_slices

CHUNK_BYTES = 2**18
MAX_TOKENS = 2**24
"""Of a token log from elsewhere."""

MAX_INLINE_BYTES = 2**28
"""Of a state that comes in with a request or goes out with its end."""

_PREFIX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A state on its way out.

    Attributes:
        n_bytes: of the file.
        digest: hex, as the header has it; empty for a file that has none.
        buffers: the file, in order; but for the header they are the image's memory.
    """

    n_bytes: int
    digest: str
    buffers: tuple[memoryview, ...]

    def chunks(self, n_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        """The file in pieces of at most ``n_bytes``. Nothing is copied."""
        for buffer in self.buffers:
            for at in range(0, len(buffer), n_bytes):
                yield buffer[at : at + n_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A state from elsewhere, checked.

    Attributes:
        image: the state.
        history: what the file says of how it came to be. Nobody vouches for it.
    """

    image: StateImage
    history: History


def export_image(image: StateImage, records: Sequence[Provenance] = (), omitted: int = 0) -> Export:
    """The file of ``image``, with how it came to be. One pass over its bytes, about 0.1 ms a MiB.

    Args:
        image: the state.
        records: its provenance and that of its ancestors, the newest last. Of a long one the older
            part is left out.
        omitted: how many older records are left out already.

    Raises:
        StateNotFiniteError: it holds NaN or infinity, and no other engine would take it.
    """
    if (name := not_finite(image.views())) is not None:
        raise StateNotFiniteError(name)
    history = encode_history(records, omitted)
    buffers = (*record_slices(image.layout, image.record), memoryview(image.token_ids))
    blank = encode_header(image.identity, image.layout, image.carried, history=history)
    digest = digest_of(blank, buffers)
    header = encode_header(image.identity, image.layout, image.carried, digest, history)
    return Export(
        n_bytes=len(header) + sum(map(len, buffers)),
        digest=digest,
        buffers=(memoryview(header), *buffers),
    )


def max_file_bytes(layout: StateLayout, max_tokens: int = MAX_TOKENS) -> int:
    """How long the file of a state of this layout may be, of so many tokens at most."""
    return _PREFIX + MAX_HEADER_BYTES + data_bytes(layout, max_tokens)


class Receiver:
    """A state on its way in, from a peer that may send anything.

    Holds at most a header of 1 MiB, one record with its pages and the token log: as many bytes as
    were announced, in memory that is taken as they come. After an error it takes no more.
    """

    def __init__(
        self,
        n_bytes: int,
        identity: Identity,
        layout: StateLayout,
        vocab_size: int,
        *,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """Prepare for a file of exactly ``n_bytes``, as the peer announced it.

        Args:
            n_bytes: of the file.
            identity, layout: of the model at hand. Other states are refused.
            vocab_size: all ids are to be below.
            max_tokens: that a state may have absorbed to be of use here.

        Raises:
            BadStateFileError: no state of this layout has a file of that length.
        """
        # Of what is announced, the header tells how many tokens it is: none of its pages come.
        most = max_file_bytes(layout)
        if not layout.payload_bytes < n_bytes <= most:
            raise BadStateFileError(
                f"{n_bytes:,} bytes are announced, a state has {layout.payload_bytes:,} to {most:,}"
            )
        self._identity = identity
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._history = History()
        self._filling = Filling(n_bytes, self._accept)

    @property
    def n_missing(self) -> int:
        """Bytes that are still to come."""
        return self._filling.n_missing

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the file, in pieces of any length. They are copied.

        Raises:
            BadStateFileError: the header is none, or there are more bytes than were announced.
            PromptTooLongError: a state of more than ``max_tokens`` tokens. Another server may have
                room for it.
            StateMismatchError: the state is one of another model, layout or tokenizer.
        """
        self._filling.feed(chunk)

    def finish(self) -> Imported:
        """The state, once all bytes have come. Two passes over them, about 0.15 ms a MiB.

        Raises:
            BadStateFileError: bytes are missing, or are not those that the digest stands for; an
                id is none of the vocabulary; the ring is fuller than it can be; the pages hold
                more or fewer tokens than were absorbed.
            StateNotFiniteError: it holds NaN or infinity.
        """
        image = self._filling.image()
        views = image.views()
        if (name := not_finite(views)) is not None:
            raise StateNotFiniteError(name)
        _check_rings(image.layout, views)
        _check_guest(image, views)
        _check_ids(image, self._vocab_size)
        return Imported(image=image, history=self._history)

    def _accept(self, header: Header) -> None:
        check_same(self._identity, header.identity)  # and with it the layout, by its fingerprint
        if header.carried.n_computed > self._max_tokens:
            n_tokens, has_guest = header.carried.n_computed, header.layout.guest is not None
            raise PromptTooLongError(n_tokens, 0, self._max_tokens, has_guest=has_guest)
        self._history = decode_history(header.history)


def _check_rings(layout: StateLayout, views: dict[str, Tensor]) -> None:
    """Make sure that no ring is said to hold more tokens than it has places."""
    places = [spec.shape[2] for spec in of_kind(layout, TensorKind.RING)]
    for spec in of_kind(layout, TensorKind.RING_FILL):
        fill = views[spec.name]
        if not 0 <= int(fill.min()) <= int(fill.max()) <= min(places, default=0):
            raise BadStateFileError(f"{spec.name} is out of range")


def _check_guest(image: StateImage, views: dict[str, Tensor]) -> None:
    """Make sure that a state's pages hold its tokens, and behind the last one nothing.

    What is behind it no model would read, but the same state would have other bytes.
    """
    if image.layout.guest is None:
        return
    held, n_tokens = int(views[GUEST_TOKENS]), image.carried.n_computed
    if held != n_tokens:
        raise BadStateFileError(f"its pages hold {held} tokens, and it has absorbed {n_tokens}")
    tail = tail_of(image.layout, image.record, n_tokens)
    if tail is not None and bool(tail.view(torch.uint8).any()):
        raise BadStateFileError(f"{GUEST_PAGES} is not zero behind the last token")


def _check_ids(image: StateImage, vocab_size: int) -> None:
    log = np.frombuffer(image.token_ids, dtype="<i4")
    carried = np.fromiter(_carried_ids(image.carried), dtype=np.int64)
    for ids in (log, carried):
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise BadStateFileError(f"an id is not in [0, {vocab_size})")


def _carried_ids(carried: Carried) -> Iterator[int]:
    yield from carried.pending
    if (sampler := carried.sampler) is not None:
        yield from sampler.seen
        yield from sampler.grammar_ids
        yield from (token_id for token_id, _ in sampler.counts)
