"""Which pages of the guest pool are free, and by how many holders the others are shared.

Bookkeeping only: page numbers, never tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class PageAllocator:
    """A free list over pages, each of which may have several holders.

    A page is free when the last of them lets go. One that is lent besides is *idle* then: it keeps
    what it holds until whoever lent it takes it back, which must be before it is handed out. Pages
    that were freed together are handed out again in their order, since pages that follow each other
    are copied at once.
    """

    def __init__(self, n_pages: int) -> None:
        if n_pages < 1:
            raise ValueError(f"n_pages is {n_pages}, at least 1 is needed")
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._n_holders = [0] * n_pages
        self._n_lent = [0] * n_pages
        self._n_idle = 0

    @property
    def n_free(self) -> int:
        """How many pages nobody holds, idle ones included."""
        return len(self._free) + self._n_idle

    @property
    def n_unused(self) -> int:
        """How many pages can be taken now."""
        return len(self._free)

    def n_holders(self, page: int) -> int:
        """How many hold a page; 0 if it is free."""
        return self._n_holders[page]

    def alloc(self, n: int) -> tuple[int, ...]:
        """Take ``n`` pages, or none. Each has one holder then.

        Returns:
            ``n`` distinct page numbers. Their contents are undefined.

        Raises:
            ValueError: fewer than ``n`` pages are free; nothing was taken.
        """
        if not 0 <= n <= len(self._free):
            raise ValueError(f"cannot take {n} pages, {len(self._free)} are free")
        first = len(self._free) - n
        taken = tuple(reversed(self._free[first:]))
        del self._free[first:]
        for page in taken:
            self._n_holders[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to each of ``pages``, which are distinct.

        Raises:
            ValueError: one of them is free, or there is none of that number; nothing changed.
        """
        self._check_held(pages)
        for page in pages:
            self._n_idle -= not self._n_holders[page]
            self._n_holders[page] += 1

    def lend(self, pages: Sequence[int]) -> None:
        """Have what is in ``pages``, which are distinct, stay when nobody holds them any more.

        Raises:
            ValueError: one of them is free, or there is none of that number; nothing changed.
        """
        self._check_held(pages)
        for page in pages:
            self._n_lent[page] += 1

    def take_back(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Undo a ``lend``.

        Returns:
            Those of them that are free now.
        """
        freed = list[int]()
        for page in pages:
            if not self._n_lent[page]:
                raise ValueError(f"page {page} is not lent")
            self._n_lent[page] -= 1
            if not self._n_lent[page] and not self._n_holders[page]:
                self._n_idle -= 1
                freed.append(page)
        self._free += reversed(freed)
        return tuple(freed)

    def free(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Take a holder from each of ``pages``, which are distinct.

        Returns:
            Those of them that are free now.

        Raises:
            ValueError: one of them was free, or there is none of that number; nothing changed.
        """
        self._check_held(pages, are_held=True)
        freed = list[int]()
        for page in pages:
            self._n_holders[page] -= 1
            if self._n_holders[page]:
                continue
            if self._n_lent[page]:
                self._n_idle += 1
            else:
                freed.append(page)
        self._free += reversed(freed)
        return tuple(freed)

    def _check_held(self, pages: Sequence[int], *, are_held: bool = False) -> None:
        if len(set(pages)) != len(pages):
            raise ValueError("a page is named twice")
        for page in pages:
            if not 0 <= page < self.n_pages:
                raise ValueError(f"page {page} is not in [0, {self.n_pages})")
            if not self._n_holders[page] and (are_held or not self._n_lent[page]):
                raise ValueError(f"page {page} is free already")


@dataclass(slots=True, eq=False)
class Prefix:
    """The full pages of an image that requests begin from: one copy for all of them.

    Attributes:
        record: the image, or the checkpoint on the device; what is shared is told apart by this
            object.
        tenant: on whose account the pages are.
        n_counted: how many of them are on that account.
        n_holders: how many requests have them.
        is_filled: whether a grant was planned that puts the image's pages into them.
    """

    record: Any
    tenant: str
    pages: tuple[int, ...]
    n_counted: int
    n_holders: int = 0
    is_filled: bool = False


@dataclass(slots=True, eq=False)
class Holding:
    """The pages of one request, from when it gets its slot until it gives it up.

    Attributes:
        own: nobody else's; they come after those of ``prefix``.
        record: the image that they are filled with; None for none, and once the device was told.
        ticket: of the grant by which the device was told of them; 0 if it was not yet.
    """

    prefix: Prefix | None
    own: tuple[int, ...]
    record: Any = None
    ticket: int = 0

    @property
    def pages(self) -> tuple[int, ...]:
        """All of them, in order."""
        return self.own if self.prefix is None else self.prefix.pages + self.own
