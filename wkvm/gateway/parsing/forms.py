"""How models write calls and reasoning: what reads them, and the grammar that requires them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from wkvm.gateway.parsing.events import Calls, Event
from wkvm.gateway.parsing.json_text import Status, skip_space, to_json
from wkvm.gateway.parsing.reader import Opening
from wkvm.gateway.parsing.sections import (
    JsonSection,
    NamedForm,
    NamedSection,
    Section,
    XmlSection,
    is_text,
)

MAX_CALLS = 16
"""In one answer, where a grammar requires calls and there may be several."""

Word: TypeAlias = Callable[[str], str]
"""Text as a grammar has it: names of special tokens are their ids, the rest is in quotes."""
Schema: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Called:
    """A function that may be called, for a grammar.

    Attributes:
        name: of it.
        schema: of its arguments, an object.
    """

    name: str
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How a family of models writes calls.

    Attributes:
        openings: what reads them.
        head, tail: what stands around the arguments of each call; ``NAME`` is the function's.
        lead, between, trail: before, between and behind the calls.
        is_single: an answer has one call at most.
        is_xml: the arguments are written as ``XmlSection`` reads them, not as JSON.
    """

    openings: tuple[Opening, ...]
    head: str
    tail: str
    lead: str = ""
    between: str = "\n"
    trail: str = ""
    is_single: bool = False
    is_xml: bool = False

    @property
    def words(self) -> str:
        """All words around calls: what of that are special tokens has to be shown to readers."""
        markers = [opening.marker for opening in self.openings]
        return "".join([*markers, self.lead, self.head, self.tail, self.between, self.trail])

    def grammar(self, functions: Sequence[Called], word: Word, *, many: bool) -> list[str]:
        """The rule ``calls``, and those that it needs, in the Lark notation of llguidance.

        Args:
            functions: what may be called.
            word: see ``Word``.
            many: whether there may be several calls.
        """
        starts = " | ".join(f"call_{index}" for index in range(len(functions)))
        repeated = ""
        if many and not self.is_single:
            repeated = f"({word(self.between)} call){{0,{MAX_CALLS - 1}}}"
        lines = [
            f"calls: {word(self.lead)} call {repeated} {word(self.trail)}",
            f"call: {starts}",
        ]
        for index, function in enumerate(functions):
            before, after = self.head.split("NAME", 1)
            head = f"{word(before)} {word(function.name)} {word(after)}"
            lines.append(f"call_{index}: {head} arguments_{index} {word(self.tail)}")
            if self.is_xml:
                lines += _xml_arguments(index, function.schema, word)
            else:
                lines.append(f"arguments_{index}: %json {to_json(function.schema)}")
        return lines


def _xml_arguments(index: int, schema: Schema, word: Word) -> list[str]:
    """A parameter for each property, in their order. Strings are written as they are."""
    properties = cast("Schema", schema.get("properties") or {})
    required = cast("Sequence[str]", schema.get("required") or ())
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    names, rules = list[str](), list[str]()
    for number, (key, entry) in enumerate(properties.items()):
        value = cast("Schema", entry) if isinstance(entry, Mapping) else _ANYTHING
        rule = f"argument_{index}_{number}"
        names.append(rule if key in required else f"{rule}?")
        opening, ending = word(f"<parameter={key}>\n"), word("\n</parameter>\n")
        enum = value.get("enum")
        if is_text(value) and isinstance(enum, list):
            texts = [one for one in cast("list[object]", enum) if isinstance(one, str)]
            either = " | ".join(word(one) for one in texts) or '""'
            rules.append(f"{rule}: {opening} ({either}) {ending}")
        elif is_text(value):
            rules.append(f"{rule}: {opening} {rule}_text")
            rules.append(f"{rule}_text[suffix={to_json(XML_ENDING)}]: /{_text_pattern(value)}/")
        else:
            rules.append(f"{rule}: {opening} {rule}_json {ending}")
            rules.append(f"{rule}_json: %json {to_json({**value, **shared})}")
    return [f"arguments_{index}: {' '.join(names)}", *rules]


def _text_pattern(schema: Schema) -> str:
    """What a string may be that is written as it is: its pattern if it has one, else its length."""
    pattern, least, most = (schema.get(key) for key in ("pattern", "minLength", "maxLength"))
    if isinstance(pattern, str):
        begins, ends = pattern.startswith("^"), pattern.endswith("$")
        body = pattern[begins : len(pattern) - ends]
        before, after = "" if begins else "(?s:.*)", "" if ends else "(?s:.*)"
        return f"{before}(?:{in_slashes(body)}){after}"
    low = least if isinstance(least, int) else 0
    high = most if isinstance(most, int) else ""
    return f"(?s:.{{{low},{high}}})"


def in_slashes(regex: str) -> str:
    """A regular expression as it stands between slashes, on one line."""
    written, is_escaped = list[str](), False
    for sign in regex:
        if sign == "/" and not is_escaped:
            sign = "\\/"
        elif sign == "\n":
            sign = "n" if is_escaped else "\\n"
        is_escaped = sign == "\\" and not is_escaped
        written.append(sign)
    return "".join(written)


XML_ENDING = "\n</parameter>\n"
_ANYTHING: Schema = {}


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """How a family of models writes what it thinks: between two words, before its answer."""

    opening: str
    closing: str

    def begun(self, tail: str) -> str | None:
        """What of this the text of a prompt ends with.

        Args:
            tail: the end of a prompt.

        Returns:
            The opening or its beginning, the empty string if the model may begin by itself, or
            None if the prompt says that it does not think.
        """
        text = tail.rstrip()
        if text.endswith(self.opening):
            return self.opening
        if text.endswith(self.closing):
            return None
        # RWKV's models are asked with the beginning of the word.
        for n in range(len(self.opening) - 1, 2, -1):
            if text.endswith(self.opening[:n]):
                return self.opening[:n]
        return ""

    def is_inside(self, text: str) -> bool:
        """Whether an answer that begins so, and is continued, is in its reasoning."""
        return text.rfind(self.opening) > text.rfind(self.closing)


class _Either:
    """Calls whose name comes before their arguments, or is within a list of objects."""

    def __init__(self, listed: Section, named: Section) -> None:
        self._listed = listed
        self._named = named
        self._chosen: Section | None = None
        self.status = Status.OPEN
        self.is_call = False

    def take(self, text: str, out: list[Event]) -> int:
        """See ``Section``."""
        at = 0
        if self._chosen is None:
            at = skip_space(text, 0)
            if at == len(text):
                return at
            self._chosen = self._listed if text[at] in "[{" else self._named
        at += self._chosen.take(text[at:], out)
        self.status, self.is_call = self._chosen.status, self._chosen.is_call
        return at


_ANY_NAME = re.compile(r"([^\s\[\]{}<>]+)")
_MISTRAL = NamedForm("", ("[ARGS]", ""), "", "", _ANY_NAME)
_KIMI = NamedForm(
    "<|tool_call_begin|>",
    ("<|tool_call_argument_begin|>",),
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    re.compile(r"(?:functions\.)?([^\s:]+?)(?::\d+)?"),
)


def _json_section(
    closing: str = "", *, separator: str = "", needs_arguments: bool = False
) -> Callable[[Calls], Section]:
    return lambda calls: JsonSection(
        calls, closing=closing, separator=separator, needs_arguments=needs_arguments
    )


def _named(form: NamedForm) -> Callable[[Calls], Section]:
    return lambda calls: NamedSection(calls, form)


def _mistral(calls: Calls) -> Section:
    return _Either(JsonSection(calls), NamedSection(calls, _MISTRAL))


_CLOSED_TAG = "</tool_call>"
_HEAD = '{"name": "NAME", "arguments": '


def _listed(opening: str, closing: str) -> ToolForm:
    """Objects in a list, between two words."""
    return ToolForm(
        openings=(Opening(opening, _json_section(closing)),),
        lead=f"{opening}[",
        head=_HEAD,
        tail="}",
        between=", ",
        trail=f"]{closing}",
    )


TOOL_FORMS: Mapping[str, ToolForm] = {
    "json": ToolForm(
        openings=(Opening("", _json_section(needs_arguments=True)),),
        head='{"name":"NAME","arguments":',
        tail="}",
        is_single=True,
    ),
    "hermes": ToolForm(
        openings=(Opening("<tool_call>", _json_section(_CLOSED_TAG)),),
        head=f"<tool_call>\n{_HEAD}",
        tail=f"}}\n{_CLOSED_TAG}",
    ),
    "qwen3_coder": ToolForm(
        openings=(
            Opening(
                "<tool_call>", lambda calls: XmlSection(calls, closing=_CLOSED_TAG, is_open=False)
            ),
            Opening(
                "<function=", lambda calls: XmlSection(calls, closing=_CLOSED_TAG, is_open=True)
            ),
        ),
        head="<tool_call>\n<function=NAME>\n",
        tail=f"</function>\n{_CLOSED_TAG}",
        is_xml=True,
    ),
    "llama3_json": ToolForm(
        openings=(
            Opening("", _json_section(separator=";", needs_arguments=True)),
            Opening("<|python_tag|>", _json_section(separator=";", needs_arguments=True)),
        ),
        head='{"name": "NAME", "parameters": ',
        tail="}",
        between="; ",
        is_single=True,
    ),
    "mistral": ToolForm(
        openings=(Opening("[TOOL_CALLS]", _mistral),),
        lead="[TOOL_CALLS] [",
        head=_HEAD,
        tail="}",
        between=", ",
        trail="]",
    ),
    "mistral_args": ToolForm(
        openings=(Opening("[TOOL_CALLS]", _mistral),),
        head="[TOOL_CALLS]NAME[ARGS]",
        tail="",
        between="",
    ),
    "nemotron": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "granite": _listed("<|tool_call|>", ""),
    "granite_tag": _listed("<tool_call>", ""),
    "jamba": _listed("<tool_calls>", "</tool_calls>"),
    "kimi_k2": ToolForm(
        openings=(Opening("<|tool_calls_section_begin|>", _named(_KIMI)),),
        lead="<|tool_calls_section_begin|>",
        head="<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        tail="<|tool_call_end|>",
        between="",
        trail="<|tool_calls_section_end|>",
    ),
}
"""By the name of the parser. ``json`` is what a model is told whose template knows no tools."""

REASONING_FORMS: Mapping[str, ReasoningForm] = {
    "think": ReasoningForm("<think>", "</think>"),
    "mistral": ReasoningForm("[THINK]", "[/THINK]"),
    "kimi": ReasoningForm("◁think▷", "◁/think▷"),
    "seed_oss": ReasoningForm("<seed:think>", "</seed:think>"),
    "granite": ReasoningForm("Here is my thought process:", "Here is my response:"),
}
"""By the name of the parser."""
