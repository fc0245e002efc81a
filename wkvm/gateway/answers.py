"""Answers as deltas: what the reader of an answer finds, one thing at a time."""

from collections.abc import Iterable
from dataclasses import dataclass

from wkvm.gateway.parsing.events import (
    CallArguments,
    CallBegins,
    CallEnds,
    Event,
    Reasoning,
    Text,
)


@dataclass(frozen=True, slots=True)
class Delta:
    """What has come: text, reasoning, or a piece of a call.

    Attributes:
        text: to be shown.
        name: what is called, in the first piece of a call.
        arguments: a piece of the JSON of its arguments.
        reasoning: what the model thinks.
        index: which call of the answer it is.
        call_id: its name, in the first piece.
    """

    text: str = ""
    name: str | None = None
    arguments: str = ""
    reasoning: str = ""
    index: int = 0
    call_id: str = ""


def deltas_of(events: Iterable[Event]) -> list[Delta]:
    """Events as deltas. The end of a call is none."""
    deltas = list[Delta]()
    for event in events:
        match event:
            case Text(text):
                deltas.append(Delta(text))
            case Reasoning(text):
                deltas.append(Delta(reasoning=text))
            case CallBegins(index, name, call_id):
                deltas.append(Delta(name=name, index=index, call_id=call_id))
            case CallArguments(index, text):
                deltas.append(Delta(arguments=text, index=index))
            case CallEnds():
                pass
    return deltas
