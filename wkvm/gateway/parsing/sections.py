"""What comes after the words that open a call, in the forms that models write calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from wkvm.gateway.parsing.events import Calls, Event
from wkvm.gateway.parsing.json_text import JsonCall, Status, Value, skip_space, to_json

MAX_NAME = 256
"""Characters of a name, and of what stands around it."""


class Section(Protocol):
    """Reads calls.

    Attributes:
        status: FAILED only before the first call has begun.
        is_call: whether one has begun.
    """

    status: Status
    is_call: bool

    def take(self, text: str, out: list[Event]) -> int:
        """Read from the beginning of ``text``.

        Returns:
            How much was read. While OPEN, the rest is to be given again with what follows it.
        """
        ...


def literal(text: str, at: int, wanted: str) -> bool | None:
    """Whether ``wanted`` stands at a place; None if it may, as far as the text goes."""
    if text.startswith(wanted, at):
        return True
    return None if wanted.startswith(text[at:]) else False


class JsonSection:
    """Objects with a name and arguments, alone or in a list.

    Args:
        closing: what follows them; empty for nothing.
        separator: between objects outside of a list; empty where there is one at most.
        needs_arguments: see ``JsonCall``.
    """

    def __init__(
        self, calls: Calls, *, closing: str = "", separator: str = "", needs_arguments: bool = False
    ) -> None:
        self.status = Status.OPEN
        self.is_call = False
        self._calls = calls
        self._closing = closing
        self._separator = separator
        self._needs_arguments = needs_arguments
        self._in_list = False
        self._is_over = False
        self._object: JsonCall | None = None

    def take(self, text: str, out: list[Event]) -> int:
        """See ``Section``."""
        at = 0
        while self.status is Status.OPEN:
            if self._object is not None:
                at = self._object.take(text, at, out)
                self.is_call = self.is_call or self._object.is_call
                if self._object.status is Status.OPEN:
                    return at
                if self._object.status is Status.FAILED:
                    self._stop()
                    return at
                self._object = None
                self._is_over = not self._in_list and not self._separator
            at = skip_space(text, at)
            if self._is_over:
                return self._close(text, at)
            if at == len(text):
                return at
            at = self._between(text, at)
        return at

    def _between(self, text: str, at: int) -> int:
        """Take what stands before and after objects."""
        sign, is_first = text[at], not self.is_call
        if sign == "[" and is_first and not self._in_list:
            self._in_list = True
            return at + 1
        if sign == "{":
            self._object = JsonCall(self._calls, needs_arguments=self._needs_arguments)
            return at
        if self.is_call and sign == ("," if self._in_list else self._separator):
            return at + 1
        if self.is_call:
            self._is_over = True
            return at + (sign == "]" and self._in_list)
        self._stop()
        return at

    def _close(self, text: str, at: int) -> int:
        found = literal(text, at, self._closing)
        if found is None:
            return at
        self.status = Status.DONE
        return at + len(self._closing) if found else at

    def _stop(self) -> None:
        self.status = Status.DONE if self.is_call else Status.FAILED


@dataclass(frozen=True, slots=True)
class NamedForm:
    """How calls are written whose name stands before the JSON of their arguments.

    Attributes:
        opening: before each name; empty where nothing but the section's own opening is.
        arguments: between name and arguments; may be left out if empty is among them.
        ending: after each call's arguments.
        closing: after all.
        name: finds the name in what stands before the arguments.
    """

    opening: str
    arguments: tuple[str, ...]
    ending: str
    closing: str
    name: re.Pattern[str]


class NamedSection:
    """Calls whose name stands before the JSON of their arguments."""

    def __init__(self, calls: Calls, form: NamedForm) -> None:
        self.status = Status.OPEN
        self.is_call = False
        self._calls = calls
        self._form = form
        self._at = "opening" if form.opening else "name"
        self._value = Value()

    def take(self, text: str, out: list[Event]) -> int:
        """See ``Section``."""
        at, before = 0, (-1, "")
        while self.status is Status.OPEN and (at, self._at) != before:
            before = (at, self._at)
            match self._at:
                case "opening":
                    at = self._open(text, skip_space(text, at))
                case "name":
                    at = self._name(text, at, out)
                case "arguments":
                    at = self._arguments(text, at, out)
                case _:
                    at = self._end(text, skip_space(text, at))
        return at

    def _open(self, text: str, at: int) -> int:
        form = self._form
        found = literal(text, at, form.opening)
        if found:
            self._at = "name"
            return at + len(form.opening)
        over = literal(text, at, form.closing) if form.closing else False
        if found is None or over is None:
            return at
        if not self.is_call:
            self.status = Status.FAILED
            return at
        self.status = Status.DONE
        return at + len(form.closing) if over else at

    def _name(self, text: str, at: int, out: list[Event]) -> int:
        window = text[at : at + MAX_NAME]
        places = [(window.find(word), word) for word in self._form.arguments if word]
        places += [(window.find("{"), "")] if "" in self._form.arguments else []
        found = min((place for place in places if place[0] >= 0), default=None)
        if found is None:
            if len(window) == MAX_NAME:
                self._stop()
            return at
        end, word = found
        name = self._form.name.fullmatch(window[:end].strip())
        if name is None or name[1] not in self._calls.offered:
            self._stop()
            return at
        start = skip_space(text, at + end + len(word))
        if start == len(text):
            return at
        if text[start] != "{":
            self._stop()
            return at
        self._calls.begin(name[1], out)
        self.is_call, self._at, self._value = True, "arguments", Value()
        return start

    def _arguments(self, text: str, at: int, out: list[Event]) -> int:
        end = self._value.take(text, at)
        self._calls.add(text[at:end], out)
        if self._value.is_complete:
            self._calls.end(out)
            self._at = "end"
        return end

    def _end(self, text: str, at: int) -> int:
        form = self._form
        found = literal(text, at, form.ending) if form.ending else False
        if found is None:
            return at
        if form.opening:
            self._at = "opening"
        else:
            self.status = Status.DONE
        return at + len(form.ending) if found else at

    def _stop(self) -> None:
        self.status = Status.DONE if self.is_call else Status.FAILED


class XmlSection:
    """``<function=NAME>`` with a ``<parameter=KEY>`` for each argument.

    What the schema of the function says is a string is taken as it stands; of the rest, what is
    JSON is taken as such.

    Args:
        closing: what follows the function.
        is_open: whether ``<function=`` has been read already.
    """

    def __init__(self, calls: Calls, *, closing: str, is_open: bool) -> None:
        self.status = Status.OPEN
        self.is_call = False
        self._calls = calls
        self._closing = closing
        self._at = "name" if is_open else "function"
        self._properties: Mapping[str, object] = {}
        self._n_parameters = 0
        self._is_text = False
        self._is_begun = False
        self._value = ""

    def take(self, text: str, out: list[Event]) -> int:
        """See ``Section``."""
        at, before = 0, (-1, "")
        while self.status is Status.OPEN and (at, self._at) != before:
            before = (at, self._at)
            match self._at:
                case "function":
                    at = self._function(text, skip_space(text, at))
                case "name":
                    at = self._name(text, at, out)
                case "inside":
                    at = self._inside(text, skip_space(text, at), out)
                case "key":
                    at = self._key(text, at, out)
                case "value":
                    at = self._text(text, at, out)
                case _:
                    at = self._close(text, skip_space(text, at))
        return at

    def _function(self, text: str, at: int) -> int:
        found = literal(text, at, "<function=")
        if found:
            self._at = "name"
            return at + len("<function=")
        if found is False:
            self.status = Status.FAILED
        return at

    def _name(self, text: str, at: int, out: list[Event]) -> int:
        end = text.find(">", at, at + MAX_NAME)
        if end < 0:
            if len(text) - at >= MAX_NAME:
                self.status = Status.FAILED
            return at
        name = text[at:end].strip().strip("\"'")
        schema = self._calls.offered.get(name)
        if schema is None:
            self.status = Status.FAILED
            return at
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            self._properties = cast("Mapping[str, object]", properties)
        self._calls.begin(name, out)
        self.is_call, self._at = True, "inside"
        return end + 1

    def _inside(self, text: str, at: int, out: list[Event]) -> int:
        is_parameter = literal(text, at, "<parameter=")
        if is_parameter:
            self._at = "key"
            return at + len("<parameter=")
        is_end = literal(text, at, "</function>")
        if is_parameter is None or is_end is None:
            return at
        if is_end:
            self._calls.add("}" if self._n_parameters else "{}", out)
            self._calls.end(out)
            self._at = "closing"
            return at + len("</function>")
        self.status = Status.DONE  # it breaks off
        return at

    def _key(self, text: str, at: int, out: list[Event]) -> int:
        end = text.find(">", at, at + MAX_NAME)
        if end < 0:
            if len(text) - at >= MAX_NAME:
                self.status = Status.DONE
            return at
        key = text[at:end].strip().strip("\"'")
        self._calls.add(f"{',' if self._n_parameters else '{'}{to_json(key)}:", out)
        self._n_parameters += 1
        self._is_text = is_text(self._properties.get(key))
        if self._is_text:
            self._calls.add('"', out)
        self._is_begun, self._value, self._at = False, "", "value"
        return end + 1

    def _text(self, text: str, at: int, out: list[Event]) -> int:
        if not self._is_begun:
            if at == len(text):
                return at
            self._is_begun = True
            if text[at] == "\n":
                return at + 1
        end = text.find("</parameter>", at)
        if end < 0:
            safe = _safe_end(text, at)
            self._show(text[at:safe], out)
            return safe
        # The line end before it is of the form, unless it was the one right behind the key.
        last = end - 1 if end > at and text[end - 1] == "\n" else end
        self._show(text[at:last], out)
        self._calls.add('"' if self._is_text else _value_json(self._value), out)
        self._at = "inside"
        return end + len("</parameter>")

    def _show(self, text: str, out: list[Event]) -> None:
        if self._is_text:
            self._calls.add(to_json(text)[1:-1], out)
        else:
            self._value += text

    def _close(self, text: str, at: int) -> int:
        found = literal(text, at, self._closing)
        if found is None:
            return at
        self.status = Status.DONE
        return at + len(self._closing) if found else at


_ENDING = "\n</parameter>"


def _safe_end(text: str, at: int) -> int:
    """Up to where a value goes for certain that has not ended: what may begin its end is left."""
    for n in range(min(len(_ENDING) - 1, len(text) - at), 0, -1):
        tail = text[len(text) - n :]
        if _ENDING.startswith(tail) or _ENDING[1:].startswith(tail):
            return len(text) - n
    return len(text)


def is_text(schema: object) -> bool:
    """Whether a schema says that a value is a string, and nothing else."""
    if not isinstance(schema, Mapping):
        return False
    entries = cast("Mapping[str, object]", schema)
    enum = entries.get("enum")
    if isinstance(enum, list) and enum and "type" not in entries:
        return all(isinstance(one, str) for one in cast("list[object]", enum))
    return entries.get("type") in ("string", ["string"])


def _value_json(written: str) -> str:
    """What a model wrote, as JSON: as it is if it is JSON, else as a string."""
    value = written.strip()
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return to_json(written)
    return value
