"""Values as JSON, and where JSON ends that comes in pieces.

The latter is not checked: it is shown as the model wrote it.
"""

import re
from enum import Enum, auto

import msgspec

from wkvm.gateway.parsing.events import Calls, Event

_STRUCTURE = re.compile(r'["\\{}\[\]]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s]")
_NOT_SPACE = re.compile(r"[^ \t\r\n]")


class Status(Enum):
    """Where the reader of a part is.

    OPEN: it wants more. DONE: it is complete, and what follows is not of it. FAILED: it is not
    what it seemed to be, and nothing of it was told.
    """

    OPEN = auto()
    DONE = auto()
    FAILED = auto()


def to_json(value: object) -> str:
    """A value as JSON in one line."""
    return msgspec.json.encode(value).decode()


def skip_space(text: str, at: int) -> int:
    """Where the next character is that is no white space; the end if there is none."""
    found = _NOT_SPACE.search(text, at)
    return len(text) if found is None else found.start()


class Value:
    """Finds the end of one JSON value. The first character that it is given begins it."""

    def __init__(self) -> None:
        self.first = ""
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, text: str, at: int) -> int:
        """Where what belongs to the value ends, in ``text`` from ``at`` on."""
        if self.is_complete or at == len(text):
            return at
        if not self.first:
            self.first = text[at]
        if self.first in '{["':
            return self._nested(text, at)
        found = _SCALAR_END.search(text, at)
        self.is_complete = found is not None
        return len(text) if found is None else found.start()

    def _nested(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        while at < len(text):
            found = (_STRING if self._in_string else _STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            match found.group():
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    if at == len(text):
                        self._is_escaped = True
                    at = min(at + 1, len(text))
                    continue
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
            if self._depth <= 0 and not self._in_string:
                self.is_complete = True
                return at
        return at


class _At(Enum):
    """What comes next in an object."""

    OPENING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonCall:
    """Reads one object ``{"name": NAME, "arguments": OBJECT}``, whatever the order.

    Once the name and the beginning of the arguments are known it is a call, and they are told as
    they come.

    Args:
        calls: of the answer.
        needs_arguments: whether an object without them is none; else it has no arguments.
    """

    def __init__(self, calls: Calls, *, needs_arguments: bool) -> None:
        self.status = Status.OPEN
        self.is_call = False
        self._calls = calls
        self._needs_arguments = needs_arguments
        self._next = _At.OPENING
        self._value = Value()
        self._key = ""
        self._held = ""
        self._name: str | None = None
        self._early: str | None = None
        self._is_written = False

    def take(self, text: str, at: int, out: list[Event]) -> int:
        """Read ``text`` from ``at`` on; where the object, or what there is of it, ends."""
        while self.status is Status.OPEN and at < len(text):
            if self._next is _At.VALUE:
                at = self._take_value(text, skip_space(text, at) if not self._value.first else at)
                self._tell(out)
                continue
            if self._next is _At.KEY and self._value.first:
                at = self._take_key(text, at)
                continue
            at = skip_space(text, at)
            if at == len(text):
                break
            at = self._sign(text, at, out)
        return at

    def _sign(self, text: str, at: int, out: list[Event]) -> int:
        """Take what stands between keys and values."""
        match self._next, text[at]:
            case _At.OPENING, "{":
                self._next = _At.KEY
            case _At.KEY, '"':
                self._value, self._held = Value(), ""
                return self._take_key(text, at)
            case _At.COLON, ":":
                self._next, self._value, self._held = _At.VALUE, Value(), ""
            case _At.COMMA, ",":
                self._next, self._value = _At.KEY, Value()
            case _At.COMMA, "}":
                self._close(out)
            case _:
                self._break()
                return at
        return at + 1

    def _take_key(self, text: str, at: int) -> int:
        end = self._value.take(text, at)
        self._held += text[at:end]
        if self._value.is_complete:
            self._key, self._held = _string(self._held) or "", ""
            self._next = _At.COLON
        return end

    def _take_value(self, text: str, at: int) -> int:
        end = self._value.take(text, at)
        self._held += text[at:end]
        return end

    def _tell(self, out: list[Event]) -> None:
        """Tell what the piece of a value says that came last."""
        is_complete, first = self._value.is_complete, self._value.first
        if self._key in ("arguments", "parameters") and not self._is_written:
            if first == "{":
                if self._name is not None:
                    self._begin(out)
                    self._calls.add(self._held, out)
                    self._held = ""
                if is_complete:
                    self._arguments_over(out)
            elif is_complete:
                # Some write the arguments as a string that holds them.
                self._held = (_string(self._held) if first == '"' else None) or ""
                if self._held.lstrip()[:1] == "{":
                    self._arguments_over(out)
                else:
                    self._break()
        elif self._key == "name" and is_complete and self._name is None:
            self._name = _string(self._held)
            if self._name is None or self._name not in self._calls.offered:
                self._break()
                return
            if self._early is not None:
                self._begin(out)
                self._calls.add(self._early, out)
                self._calls.end(out)
                self._is_written = True
        if is_complete:
            self._held, self._next = "", _At.COMMA

    def _begin(self, out: list[Event]) -> None:
        if not self.is_call and self._name is not None:
            self.is_call = True
            self._calls.begin(self._name, out)

    def _arguments_over(self, out: list[Event]) -> None:
        if self._name is None:
            self._early = self._held
            return
        self._begin(out)
        self._calls.add(self._held, out)
        self._calls.end(out)
        self._is_written = True

    def _close(self, out: list[Event]) -> None:
        """The object has ended."""
        if not self.is_call and self._name is not None and not self._needs_arguments:
            self._begin(out)
            self._calls.add("{}", out)
            self._calls.end(out)
        self.status = Status.DONE if self.is_call else Status.FAILED

    def _break(self) -> None:
        """It is no such object, or was one so far."""
        self.status = Status.DONE if self.is_call else Status.FAILED


def _string(written: str) -> str | None:
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.MsgspecError, UnicodeError):
        return None
