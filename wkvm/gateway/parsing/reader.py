"""Reads an answer: its reasoning first, then text and calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wkvm.gateway.parsing.events import Calls, Event, Reasoning, Text
from wkvm.gateway.parsing.json_text import Status, skip_space
from wkvm.gateway.parsing.sections import Section

MAX_HELD = 4096
"""Characters that are held back while they may be the beginning of a call. Of more, it is text."""


class AnswerReader:
    """The reader of one answer. This one finds nothing but text; it is the fastest."""

    @property
    def is_call(self) -> bool:
        """Whether the answer has calls, and all of them are complete."""
        return False

    @property
    def passes_text(self) -> bool:
        """Whether all that comes now is text, shown as it is."""
        return True

    def feed(self, text: str) -> list[Event]:
        """Take text; return what of it can be told now."""
        return [Text(text)] if text else []

    def end(self) -> list[Event]:
        """The text is complete: return what was held back."""
        return []


@dataclass(frozen=True, slots=True)
class Opening:
    """What opens calls.

    Attributes:
        marker: the words that do; empty for a brace at the beginning of the answer.
        section: makes what reads on behind them.
    """

    marker: str
    section: Callable[[Calls], Section]


class CallReader(AnswerReader):
    """Finds calls. White space before and after a call is not shown.

    Args:
        calls: what may be called.
        openings: how calls begin. No marker is the beginning of another one.
        is_single: tell of the first call alone.
        is_required: tell of calls alone: what looks like text is a call that was cut off.
    """

    def __init__(
        self,
        calls: Calls,
        openings: Sequence[Opening],
        *,
        is_single: bool = False,
        is_required: bool = False,
    ) -> None:
        self._calls = calls
        self._is_single = is_single
        self._is_required = is_required
        marked = [opening for opening in openings if opening.marker]
        self._openings = sorted(marked, key=lambda one: len(one.marker), reverse=True)
        self._firsts = frozenset(one.marker[0] for one in marked)
        self._bare = next((one for one in openings if not one.marker), None)
        self._buffer = ""
        self._space = ""
        self._section: Section | None = None
        self._marker = ""
        self._raw = ""
        self._is_behind_call = False

    @property
    def is_call(self) -> bool:
        """See ``AnswerReader``."""
        return 0 < self._calls.n_begun == self._calls.n_complete

    @property
    def passes_text(self) -> bool:
        """See ``AnswerReader``."""
        return False

    def feed(self, text: str) -> list[Event]:
        """See ``AnswerReader``."""
        out = list[Event]()
        self._buffer += text
        self._read(out)
        return self._told(out)

    def end(self) -> list[Event]:
        """See ``AnswerReader``."""
        out = list[Event]()
        while self._section is not None:
            section, self._section = self._section, None
            if section.is_call:
                self._buffer = ""  # of what the call is wrapped in
            else:
                self._give_back(out)
                self._read(out)
        # What looked like the beginning of a marker is none.
        self._show(self._buffer, out)
        self._buffer = ""
        if not self._calls.n_begun:
            self._tell(self._space, out)
        return self._told(out)

    def _told(self, out: list[Event]) -> list[Event]:
        """What is told of what was found."""
        if self._is_required:
            out = [event for event in out if not isinstance(event, Text)]
        if not self._is_single or self._calls.n_begun < 2:
            return out
        return [event for event in out if _index(event) == 0]

    def _read(self, out: list[Event]) -> None:
        while self._read_call(out) if self._section is not None else self._read_text(out):
            pass

    def _read_text(self, out: list[Event]) -> bool:
        """Tell text up to the next marker; whether there is one."""
        buffer = self._buffer
        if self._bare is not None:
            at = skip_space(buffer, 0)
            if at == len(buffer) <= MAX_HELD:
                return False
            bare, self._bare = self._bare, None
            if at <= MAX_HELD and buffer[at] == "{":
                self._space += buffer[:at]
                self._begin(bare, buffer[at:])
                return True
        found: tuple[int, Opening] | None = None
        for opening in self._openings:
            at = buffer.find(opening.marker)
            if at >= 0 and (found is None or at < found[0]):
                found = at, opening
        end = self._safe_end(buffer) if found is None else found[0]
        self._show(buffer[:end], out)
        self._buffer = buffer[end:]
        if found is None:
            return False
        self._begin(found[1], self._buffer[len(found[1].marker) :])
        return True

    def _safe_end(self, buffer: str) -> int:
        """Where the first place is that may begin a marker of which too little is known yet."""
        if not self._openings:
            return len(buffer)
        longest = len(self._openings[0].marker)
        for at in range(max(0, len(buffer) - longest + 1), len(buffer)):
            if buffer[at] in self._firsts:
                tail = buffer[at:]
                for opening in self._openings:
                    marker = opening.marker
                    if len(marker) > len(tail) and marker.startswith(tail):
                        return at
        return len(buffer)

    def _begin(self, opening: Opening, rest: str) -> None:
        self._section, self._marker = opening.section(self._calls), opening.marker
        self._raw, self._buffer = "", rest

    def _read_call(self, out: list[Event]) -> bool:
        """Give the section what has come; whether it has ended."""
        section = self._section
        assert section is not None
        was_call, buffer = section.is_call, self._buffer
        room = len(buffer) if was_call else MAX_HELD - len(self._raw)
        found = list[Event]()
        n = section.take(buffer[:room], found)
        if not was_call:
            self._raw += buffer[:n]
            if section.is_call:
                self._space, self._raw, self._is_behind_call = "", "", True
        out += found
        self._buffer = buffer[n:]
        if section.status is Status.OPEN:
            if section.is_call and not was_call and room < len(buffer):
                return True
            if section.is_call or len(buffer) < room:
                return False
        self._section = None
        if not section.is_call:
            self._give_back(out)
        return True

    def _give_back(self, out: list[Event]) -> None:
        """It was no call: its marker is text, and what follows is read anew."""
        if self._marker:
            self._show(self._marker, out)
            self._buffer = self._raw + self._buffer
        else:
            text = self._raw + self._buffer
            self._buffer = text[1:]
            self._show(text[:1], out)
        self._raw = ""

    def _show(self, text: str, out: list[Event]) -> None:
        """Tell text, but for white space at its end: a call may follow."""
        shown = text.rstrip()
        if shown:
            self._tell(shown.lstrip() if self._is_behind_call else self._space + shown, out)
            self._space, self._is_behind_call = "", False
        self._space += text[len(shown) :]

    @staticmethod
    def _tell(text: str, out: list[Event]) -> None:
        if text:
            out.append(Text(text))


def _index(event: Event) -> int:
    """Of which call an event tells."""
    return 0 if isinstance(event, Text | Reasoning) else event.index


class ReasoningReader(AnswerReader):
    """Tells reasoning from the answer that follows it, which another reader reads.

    White space around the reasoning is not shown.

    Args:
        opening, closing: what stands before and after the reasoning.
        begun: what of that the prompt ends with: the opening, the beginning of it, or nothing.
    """

    def __init__(self, inner: AnswerReader, *, opening: str, closing: str, begun: str) -> None:
        self._inner = inner
        self._opening = opening
        self._closing = closing
        self._begun = begun
        self._held = begun
        self._space = ""
        self._at = "before"

    @property
    def is_call(self) -> bool:
        """See ``AnswerReader``."""
        return self._inner.is_call

    @property
    def passes_text(self) -> bool:
        """See ``AnswerReader``."""
        return self._at == "after" and self._inner.passes_text

    def feed(self, text: str) -> list[Event]:
        """See ``AnswerReader``."""
        if self._at == "after":
            return self._inner.feed(text)
        out = list[Event]()
        self._held += text
        if self._at == "before":
            self._find_opening(out)
        if self._at == "inside":
            self._find_closing(out)
        if self._at == "behind":
            self._skip_space(out)
        return out

    def end(self) -> list[Event]:
        """See ``AnswerReader``."""
        out = list[Event]()
        match self._at:
            case "before":
                out += self._inner.feed(self._held.removeprefix(self._begun))
            case "inside":
                self._think(self._held, out)
            case _:
                pass
        self._held, self._at = "", "after"
        return out + self._inner.end()

    def _find_opening(self, out: list[Event]) -> None:
        at = skip_space(self._held, 0)
        if at <= MAX_HELD and self._held.startswith(self._opening, at):
            self._held, self._at = self._held[at + len(self._opening) :], "inside"
        elif at > MAX_HELD or not self._opening.startswith(self._held[at:]):
            held, self._held, self._at = self._held, "", "after"
            out += self._inner.feed(held.removeprefix(self._begun))

    def _find_closing(self, out: list[Event]) -> None:
        end = self._held.find(self._closing)
        if end >= 0:
            self._think(self._held[:end], out)
            self._held, self._at = self._held[end + len(self._closing) :], "behind"
            return
        end = len(self._held)
        for n in range(min(len(self._closing) - 1, end), 0, -1):
            if self._held.endswith(self._closing[:n]):
                end -= n
                break
        self._think(self._held[:end], out)
        self._held = self._held[end:]

    def _skip_space(self, out: list[Event]) -> None:
        at = skip_space(self._held, 0)
        if at < len(self._held):
            held, self._held, self._at = self._held[at:], "", "after"
            out += self._inner.feed(held)
        else:
            self._held = ""

    def _think(self, text: str, out: list[Event]) -> None:
        shown = text.rstrip()
        if shown:
            out.append(Reasoning((self._space + shown) if self._is_thinking else shown.lstrip()))
            self._is_thinking, self._space = True, ""
        self._space += text[len(shown) :]

    _is_thinking = False
