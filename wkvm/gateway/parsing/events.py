"""What the reader of an answer finds in it. Every API writes these in its own form."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is shown; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of a function that was offered.

    Attributes:
        index: of the call in its answer, from 0.
        name: of the function.
        call_id: a name for the call that no other has.
    """

    index: int
    name: str
    call_id: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON of a call's arguments; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnds:
    """The arguments of a call are complete. A call that was cut off has no such event."""

    index: int


Event: TypeAlias = Text | Reasoning | CallBegins | CallArguments | CallEnds


class Calls:
    """The calls of one answer: what may be called, and which is the next.

    Attributes:
        offered: the schema of the arguments of each function, by its name.
        n_begun, n_complete: calls so far.
    """

    def __init__(self, offered: Mapping[str, Mapping[str, object]]) -> None:
        self.offered = offered
        self.n_begun = 0
        self.n_complete = 0

    def begin(self, name: str, out: list[Event]) -> None:
        """A call begins; the one before has ended, or never will."""
        out.append(CallBegins(self.n_begun, name, f"call_{uuid.uuid4().hex[:24]}"))
        self.n_begun += 1

    def add(self, text: str, out: list[Event]) -> None:
        """More of the arguments of the call that began last."""
        if text:
            out.append(CallArguments(self.n_begun - 1, text))

    def end(self, out: list[Event]) -> None:
        """The arguments of the call that began last are complete."""
        out.append(CallEnds(self.n_begun - 1))
        self.n_complete += 1
