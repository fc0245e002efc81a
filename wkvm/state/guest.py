"""The guest pool: device memory for what attention layers keep of each token, in pages.

A page has room for ``PAGE_TOKENS`` tokens of one state, in all layers. Which pages a slot has is
written into a table on the device, once for each request, and read there by the kernels. Which
page is free, and who shares one, is not known here: see ``wkvm.core.pages``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from wkvm.core.layout import (
    GUEST_TOKENS,
    ITEM_BYTES,
    MAX_SLOT_PAGES,
    PAGE_TOKENS,
    GuestSpec,
    StateLayout,
)
from wkvm.core.start import Grant
from wkvm.state.dtypes import DTYPES

NO_PAGE = -1
"""In the table: there is no page for these tokens."""


class GuestPool:
    """``n_pages`` pages of one shape on one device, and the table of ``n_slots`` slots.

    A page that is granted holds anything, NaN included; whoever reads it looks at the tokens that
    were written and at no others.

    Attributes:
        spec: of every page.
        n_pages: pages are in ``[0, n_pages)``.
        pages: ``[n_pages, *spec.page_shape]``, contiguous.
        page_bytes: ``[n_pages, spec.page_bytes]`` uint8: the same memory.
        table: ``[n_slots, max_pages]`` int32: by slot, the page of each ``PAGE_TOKENS`` tokens in
            order; ``NO_PAGE`` behind the last one. A slot has at most ``MAX_SLOT_PAGES``.
    """

    def __init__(
        self, spec: GuestSpec, n_pages: int, n_slots: int, device: torch.device | str
    ) -> None:
        if n_pages < 1:
            raise ValueError(f"a guest pool needs at least one page, got {n_pages}")
        self.spec = spec
        self.n_pages = n_pages
        self.page_bytes = _zeros(n_pages, spec.page_bytes, torch.device(device))
        self.pages = self.page_bytes.view(DTYPES[spec.dtype]).view(n_pages, *spec.page_shape)
        shape = n_slots, min(n_pages, MAX_SLOT_PAGES)
        self.table = torch.full(shape, NO_PAGE, dtype=torch.int32, device=device)
        self._of_slot: list[tuple[int, ...]] = [()] * n_slots

    def grant(self, slot: int, pages: Sequence[int]) -> None:
        """Let a slot have these pages, in this order, and no others. Does not wait for the device.

        What they hold is left as it is.
        """
        self._check(pages)
        # Behind the pages of before there is nothing already.
        n_behind = max(len(self._of_slot[slot]) - len(pages), 0)
        row = torch.tensor([*pages, *[NO_PAGE] * n_behind], dtype=torch.int32)
        if self.table.is_cuda:
            row = row.pin_memory()  # or the host would wait for the device
        self.table[slot, : len(row)].copy_(row, non_blocking=True)
        self._of_slot[slot] = tuple(pages)

    def pages_of(self, slot: int) -> tuple[int, ...]:
        """The pages that a slot was granted last, in order."""
        return self._of_slot[slot]

    def fill(self, pages: Sequence[int], source: Tensor) -> None:
        """Overwrite pages; does not wait for the device if ``source`` is there, or pinned.

        Args:
            source: ``[len(pages) * spec.page_bytes]`` uint8.
        """
        self._check(pages)
        rows = source.view(len(pages), self.spec.page_bytes)
        for at, first, n in runs(pages):
            self.page_bytes[first : first + n].copy_(rows[at : at + n], non_blocking=True)

    def read(self, pages: Sequence[int], target: Tensor) -> None:
        """The reverse of ``fill``: copy pages to ``target``."""
        self._check(pages)
        rows = target.view(len(pages), self.spec.page_bytes)
        for at, first, n in runs(pages):
            rows[at : at + n].copy_(self.page_bytes[first : first + n], non_blocking=True)

    def poison(self, pages: Sequence[int]) -> None:
        """Fill pages with NaN: a row that is computed from them shows it."""
        self._check(pages)
        index = torch.tensor(pages, dtype=torch.int64, pin_memory=self.pages.is_cuda)
        self.pages.index_fill_(0, index.to(self.pages.device, non_blocking=True), float("nan"))

    def _check(self, pages: Sequence[int]) -> None:
        # A negative index would silently name a page from the end.
        if pages and not 0 <= min(pages) <= max(pages) < self.n_pages:
            raise ValueError(f"a page of {list(pages)} is not in [0, {self.n_pages})")


def _zeros(n_pages: int, n_bytes: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        # torch would touch all of it; so the system hands it out when it is first used.
        return torch.from_numpy(np.zeros((n_pages, n_bytes), np.uint8))
    return torch.zeros(n_pages, n_bytes, dtype=torch.uint8, device=device)


def runs(pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The stretches of pages that follow each other: one copy does for each.

    Yields:
        Where in ``pages`` it begins, its first page, and how many there are.
    """
    start = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1:
            yield start, pages[start], at - start
            start = at


def to_fill(layout: StateLayout, grant: Grant) -> tuple[tuple[int, ...], Tensor]:
    """Which pages of a grant are filled from its image, and with what of it; perhaps none."""
    if layout.guest is None or grant.record is None:
        return (), torch.empty(0, dtype=torch.uint8)
    image, size = grant.record[layout.record_bytes :], layout.guest.page_bytes
    return grant.pages[grant.n_shared : len(image) // size], image[grant.n_shared * size :]


# --- images: a record and its pages in host memory -----------------------------------------------


def n_tokens_of(layout: StateLayout, image: Tensor) -> int:
    """How many tokens the pages of an image hold, by its record. On the host.

    Args:
        layout: one with a guest.
        image: uint8, at least the record.
    """
    at = layout.offsets[[spec.name for spec in layout.tensors].index(GUEST_TOKENS)]
    return int(image[at : at + ITEM_BYTES["int32"]].view(torch.int32).item())


def pages_in(layout: StateLayout, image: Tensor) -> Tensor:
    """The pages of an image, ``[n, *page_shape]``: the same memory."""
    if layout.guest is None:
        raise ValueError("this layout has no guest")
    pages = image[layout.record_bytes :].view(DTYPES[layout.guest.dtype])
    return pages.view(-1, *layout.guest.page_shape)


def tail_of(layout: StateLayout, image: Tensor, n_tokens: int) -> Tensor | None:
    """What the last page has behind the last token: the same memory, typed. None for nothing."""
    used = n_tokens % PAGE_TOKENS
    if layout.guest is None or not used or len(image) == layout.record_bytes:
        return None
    return pages_in(layout, image)[-1, :, :, used:]


def finished(layout: StateLayout, image: Tensor) -> Tensor:
    """An image cut to the pages of its tokens, with zeros behind the last token. In place.

    Args:
        layout: of the image; without a guest nothing is to be done.
        image: ``[n]`` uint8 on the host: a record and at least as many pages as it counts.

    Raises:
        ValueError: it has fewer.
    """
    if layout.guest is None:
        return image
    n_tokens = n_tokens_of(layout, image)
    n_bytes = layout.image_bytes(n_tokens)
    if n_tokens < 0 or n_bytes > len(image):
        raise ValueError(f"an image of {len(image):,} bytes holds no {n_tokens:,} tokens")
    image = image[:n_bytes]
    tail = tail_of(layout, image, n_tokens)
    if tail is not None:
        tail.zero_()
    return image
