"""The tool call in the text of an answer, as the text comes.

What is shown does not depend on how the text was cut, so that a streamed answer is the one that
would not have been streamed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_-]{1,128})"\s*,\s*"arguments"\s*:\s*')
_STRUCTURE = re.compile(r'["\\{}\[\]]')


@dataclass(frozen=True, slots=True)
class Delta:
    """What has come: text, or a piece of a call.

    Attributes:
        text: to be shown.
        name: what is called, in the first piece of a call.
        arguments: a piece of the JSON of its arguments.
    """

    text: str = ""
    name: str | None = None
    arguments: str = ""


class Answer(ABC):
    """An answer as it comes.

    Attributes:
        is_call: whether it is a call, and complete.
    """

    is_call = False

    @abstractmethod
    def feed(self, text: str) -> Delta:
        """Take text; return what of it can be shown now."""

    def end(self) -> Delta:
        """The text is complete: return what was held back."""
        return Delta()


class PlainAnswer(Answer):
    """An answer that can be no call."""

    def feed(self, text: str) -> Delta:
        """All of it, at once."""
        return Delta(text)


class RequiredCall(Answer):
    """An answer that is held to be a call by a grammar."""

    def __init__(self) -> None:
        self._head = ""
        self._has_name = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> Delta:
        """The name, once it is complete; then the arguments as they come."""
        if self._has_name:
            return Delta(arguments=self._arguments(text))
        self._head += text
        found = _HEAD.match(self._head)
        # The white space that may follow is matched too: the arguments begin with what comes next.
        if found is None or found.end() == len(self._head):
            return Delta()
        self._has_name = True
        rest, self._head = self._head[found.end() :], ""
        return Delta(name=found[1], arguments=self._arguments(rest))

    def _arguments(self, text: str) -> str:
        """The part of ``text`` that is not beyond the end of the object."""
        if self.is_call:
            return ""
        escaped_at = 0 if self._is_escaped else -1
        for found in _STRUCTURE.finditer(text):
            sign, at = found.group(), found.start()
            if at == escaped_at:
                continue
            match sign:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    escaped_at = at + 1
                case "{" | "[" if not self._in_string:
                    self._depth += 1
                case "}" | "]" if not self._in_string:
                    self._depth -= 1
                    if self._depth == 0:
                        self.is_call = True
                        return text[: at + 1]
                case _:
                    pass
        self._is_escaped = escaped_at == len(text)
        return text


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


class PossibleCall(Answer):
    """An answer that is a call if all of it is the JSON of one, of a function that was offered.

    One that begins with a brace is held back to its end.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._is_text = False

    def feed(self, text: str) -> Delta:
        """The text, unless it may still become a call."""
        if self._is_text:
            return Delta(text)
        self._held += text
        if not self._held.strip() or self._held.lstrip().startswith("{"):
            return Delta()
        self._is_text = True
        return Delta(self._held)

    def end(self) -> Delta:
        """The call, or the text that was held back."""
        held = "" if self._is_text else self._held
        self._is_text = True
        try:
            call = msgspec.json.decode(held, type=_Call)
            msgspec.json.decode(call.arguments, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return Delta(held)
        if call.name not in self._names:
            return Delta(held)
        self.is_call = True
        # As the model wrote them: no number is rounded.
        return Delta(name=call.name, arguments=bytes(call.arguments).decode())
