"""What a client knows of its states, written down outside the server, and what must follow.

A history is a hash of tokens (``tests.hash_model``) and their number: all that its future
depends on. Before anything is asked for, its outcome is known; so an operation that was cut off
is known too, in both ways in which it may have ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.hash_model import HashLog


class History(NamedTuple):
    """Tokens, as a hash and a count. The pending one is among them."""

    state: int = 0
    n: int = 0

    def after(self, ids: Iterable[int]) -> "History":
        """With ids absorbed."""
        log, given = HashLog(), list(ids)
        log.state = self.state
        log.feed(given)
        return History(log.state, self.n + len(given))

    def generated(self, prompt: Iterable[int], n: int) -> "tuple[list[int], History]":
        """The greedy ids after ``prompt``, and the history with both."""
        fed = self.after(prompt)
        log = HashLog()
        log.state = fed.state
        ids = log.generate(n)
        return ids, History(log.state, fed.n + n)


@dataclass(slots=True)
class Page:
    """What is known of one handle."""

    acked: dict[int, History] = field(default_factory=dict[int, History])
    """By version: promised to be there."""
    visible: dict[int, History] = field(default_factory=dict[int, History])
    """By version: in memory alone, so a crash may lose it."""
    open: History | None = None
    """What was asked for as the next version, without an answer yet."""
    may_be_gone: bool = False
    """Whether its deletion was asked for, without an answer yet."""

    @property
    def head(self) -> int:
        """The newest version that is known; 0 for none."""
        return max(self.acked.keys() | self.visible.keys(), default=0)

    @property
    def history(self) -> History:
        """Of the head."""
        known = self.visible | self.acked
        return known.get(self.head, History())


class Book:
    """By name, what is known of all handles."""

    def __init__(self) -> None:
        self.pages = dict[str, Page]()
        self.n_acked = 0

    def page(self, name: str) -> Page:
        """Of a handle that is there, or about to be."""
        return self.pages.setdefault(name, Page())

    def asked(self, name: str, history: History) -> None:
        """A version with this history was asked for."""
        self.page(name).open = history

    def answered(self, name: str, version: int, ack: str) -> None:
        """It was acknowledged."""
        page = self.page(name)
        assert page.open is not None
        assert version > page.head, f"{name}@{version} came after {page.head}"
        (page.acked if ack == "durable" else page.visible)[version] = page.open
        page.open = None
        self.n_acked += ack == "durable"

    def refused(self, name: str) -> None:
        """It was refused, so it is not there."""
        self.page(name).open = None

    def stopped_in_order(self) -> None:
        """What was in memory alone was put on the disk before the server ended."""
        for page in self.pages.values():
            page.acked |= page.visible
            page.visible.clear()

    def saved(self, name: str, version: int) -> None:
        """A version that was in memory alone was promised to be on disk from now on."""
        page = self.page(name)
        if version in page.visible:
            page.acked[version] = page.visible.pop(version)

    def promises(self) -> Iterator[tuple[str, int, History]]:
        """Every version that was acknowledged as durable."""
        for name, page in self.pages.items():
            for version, history in page.acked.items():
                yield name, version, history
