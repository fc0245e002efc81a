"""Answers that are read in pieces, and what was found in them, put together."""

from collections.abc import Iterable
from dataclasses import dataclass

from wkvm.gateway.parsing.events import (
    CallArguments,
    CallBegins,
    CallEnds,
    Calls,
    Event,
    Reasoning,
    Text,
)
from wkvm.gateway.parsing.forms import REASONING_FORMS, TOOL_FORMS
from wkvm.gateway.parsing.reader import AnswerReader, CallReader, ReasoningReader

_TEXT = {"type": "string"}
OFFERED: dict[str, dict[str, object]] = {
    "go": {"properties": {"direction": _TEXT, "steps": {"type": "integer"}}},
    "wait": {},
    "say": {"properties": {"text": _TEXT}},
}


@dataclass
class Found:
    """What was found: each call with its name, its arguments, and whether it is complete."""

    reasoning: str
    text: str
    calls: list[tuple[str, str, bool]]


def reader_of(form: str, *, begun: str | None = None, is_single: bool = False) -> AnswerReader:
    reader = AnswerReader()
    if form != "plain":
        reader = CallReader(Calls(OFFERED), TOOL_FORMS[form].openings, is_single=is_single)
    if begun is not None:
        think = REASONING_FORMS["think"]
        reader = ReasoningReader(reader, opening=think.opening, closing=think.closing, begun=begun)
    return reader


def put_together(events: Iterable[Event]) -> Found:
    found = Found("", "", [])
    for event in events:
        match event:
            case Text(text):
                assert text
                found.text += text
            case Reasoning(text):
                assert text
                found.reasoning += text
            case CallBegins(index, name):
                assert index == len(found.calls)
                found.calls.append((name, "", False))
            case CallArguments(index, text):
                assert text
                assert index == len(found.calls) - 1
                name, arguments, is_complete = found.calls[index]
                assert not is_complete
                found.calls[index] = (name, arguments + text, False)
            case CallEnds(index):
                name, arguments, _ = found.calls[index]
                found.calls[index] = (name, arguments, True)
    return found


def read(
    form: str,
    text: str,
    *,
    cuts: Iterable[int] = (),
    begun: str | None = None,
    is_single: bool = False,
) -> Found:
    reader = reader_of(form, begun=begun, is_single=is_single)
    events, at = list[Event](), 0
    for cut in [*cuts, len(text)]:
        events += reader.feed(text[at:cut])
        at = cut
    events += reader.end()
    found = put_together(events)
    n_complete = sum(is_complete for _, _, is_complete in found.calls)
    if not is_single:
        assert reader.is_call == (0 < n_complete == len(found.calls))
    return found
