"""The events of one response, and the items that they build.

An event is a dict in the API's own form. Whoever sends them frames them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from wkvm.gateway.chat.replies import TokenLogprob
from wkvm.gateway.parsing.events import CallArguments, CallBegins, CallEnds, Reasoning, Text
from wkvm.gateway.parsing.events import Event as Found
from wkvm.gateway.responses import foreign
from wkvm.gateway.responses.foreign import Called
from wkvm.gateway.responses.items import Kept, fresh_id
from wkvm.gateway.responses.resource import Resource

Event: TypeAlias = dict[str, Any]


class EventWriter:
    """Turns what an answer says into events. They are numbered from 0, each once.

    Args:
        calls: how calls are told, by the name that the model calls. Others are of functions.

    Attributes:
        output: the items so far; the last one may be open.
    """

    def __init__(self, calls: Mapping[str, Called]) -> None:
        self.output = list[Kept]()
        self._calls = calls
        self._n_events = 0
        self._open = ""
        self._text = list[str]()
        # As JSON: a text's are told twice, and until then they are a fifth of the size.
        self._logprobs = list[msgspec.Raw]()
        self._held = list[msgspec.Raw]()

    def about(self, kind: str, resource: Resource) -> Event:
        """An event about the whole response, such as ``response.created``."""
        return self._event(kind, response=resource)

    def read(self, found: Sequence[Found], logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """The events of what came.

        Args:
            found: by the reader of the answer.
            logprobs: of the ids that came; their text may come later.
        """
        events = list[Event]()
        self._held += (msgspec.Raw(msgspec.json.encode(one)) for one in logprobs)
        for one in found:
            match one:
                case Reasoning(text):
                    events += self._think(text)
                case Text(text):
                    events += self._say(text)
                case CallBegins(_, name, call_id):
                    events += self._call(name, call_id)
                case CallArguments(_, text):
                    events += self._argue(text)
                case CallEnds():
                    pass
        return events

    def end(self, *, is_whole: bool) -> list[Event]:
        """The last events before the response's own.

        Args:
            is_whole: whether the answer ended by itself.
        """
        events = list[Event]()
        if not self.output and is_whole:
            events += self._message()  # an answer that says nothing is an answer
        return [*events, *self._close("completed" if is_whole else "incomplete")]

    def again(self, item: Kept) -> list[Event]:
        """The events of an item that is over, with its text in one."""
        blank = dict[str, Any]()
        match kind := item["type"]:
            case "message":
                part = item["content"][0]
                blank["content"], text = list[Any](), part["text"]
                self._held = [msgspec.Raw(msgspec.json.encode(one)) for one in part["logprobs"]]
            case "reasoning":
                blank["content"], text = list[Any](), item["content"][0]["text"]
            case "custom_tool_call":
                blank["input"], text = "", foreign.text_arguments(item["input"])
            case "local_shell_call":
                blank["action"] = foreign.shell_action("")
                text = foreign.shell_arguments(item["action"])
            case _:
                blank["arguments"], text = "", item["arguments"]
        events = [self._added({**item, "status": "in_progress", **blank})]
        if "content" in blank:
            empty = _thought_part("") if kind == "reasoning" else _text_part("", [])
            events.append(self._event_of_item("content_part.added", content_index=0, part=empty))
        if text:
            tell = {"message": self._say, "reasoning": self._think}.get(kind, self._argue)
            events += tell(text)
        return [*events, *self._close(item["status"])]

    def _think(self, text: str) -> list[Event]:
        events = list[Event]()
        if self._open != "reasoning":
            events = [*self._close("completed"), self._thought()]
            events.append(
                self._event_of_item("content_part.added", content_index=0, part=_thought_part(""))
            )
        self._text.append(text)
        delta = self._event_of_item("reasoning_text.delta", content_index=0, delta=text)
        return [*events, delta]

    def _thought(self) -> Event:
        return self._added(
            {
                "id": fresh_id("reasoning"),
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
        )

    def _say(self, text: str) -> list[Event]:
        events = list[Event]()
        if self._open != "message":
            events = [*self._close("completed"), *self._message()]
        self._text.append(text)
        new, self._held = self._held, []
        self._logprobs += new
        delta = self._event_of_item("output_text.delta", content_index=0, delta=text, logprobs=new)
        return [*events, delta]

    def _message(self) -> list[Event]:
        item: Kept = {
            "id": fresh_id("message"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        added = self._added(item)
        part = self._event_of_item("content_part.added", content_index=0, part=_text_part("", []))
        return [added, part]

    def _call(self, name: str, call_id: str) -> list[Event]:
        closed = self._close("completed")
        called = self._calls.get(name) or Called("function_call", name)
        item: Kept = {
            "id": fresh_id(called.kind),
            "type": called.kind,
            "status": "in_progress",
            "call_id": call_id,
        }
        match called.kind:
            case "local_shell_call":
                item["action"] = foreign.shell_action("")
            case "custom_tool_call":
                item |= {"name": called.name, "input": ""}
            case "function_call":
                item |= {"name": called.name, "arguments": ""}
                if called.namespace is not None:
                    item["namespace"] = called.namespace
        return [*closed, self._added(item)]

    def _argue(self, text: str) -> list[Event]:
        """More of a call's arguments. Only those of functions are told as they come."""
        self._text.append(text)
        if self._open != "function_call":
            return []
        return [self._event_of_item("function_call_arguments.delta", delta=text)]

    def _added(self, item: Kept) -> Event:
        self.output.append(item)
        self._open, self._text, self._logprobs = item["type"], [], []
        return self._event(
            "response.output_item.added", output_index=len(self.output) - 1, item=item
        )

    def _close(self, status: str) -> list[Event]:
        if not self._open:
            return []
        kind, self._open = self._open, ""
        text, item = "".join(self._text), {**self.output[-1], "status": status}
        if kind == "message":
            self._logprobs += self._held
            self._held = []
            part = _text_part(text, self._logprobs)
            item["content"] = [part]
            events = [
                self._event_of_item(
                    "output_text.done", content_index=0, text=text, logprobs=self._logprobs
                ),
                self._event_of_item("content_part.done", content_index=0, part=part),
            ]
        elif kind == "reasoning":
            thought = _thought_part(text)
            item["content"] = [thought]
            events = [
                self._event_of_item("reasoning_text.done", content_index=0, text=text),
                self._event_of_item("content_part.done", content_index=0, part=thought),
            ]
        elif kind == "local_shell_call":
            item["action"] = foreign.shell_action(text)
            events = []
        elif kind == "custom_tool_call":
            item["input"] = said = foreign.text_input(text)
            events = [
                self._event_of_item("custom_tool_call_input.delta", delta=said),
                self._event_of_item("custom_tool_call_input.done", input=said),
            ]
        else:
            item["arguments"] = text
            events = [
                self._event_of_item(
                    "function_call_arguments.done", arguments=text, name=item["name"]
                )
            ]
        self.output[-1] = item
        done = self._event(
            "response.output_item.done", output_index=len(self.output) - 1, item=item
        )
        return [*events, done]

    def _event_of_item(self, kind: str, **fields: Any) -> Event:
        return self._event(
            f"response.{kind}",
            item_id=self.output[-1]["id"],
            output_index=len(self.output) - 1,
            **fields,
        )

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return event


def told_again(resource: Resource) -> list[Event]:
    """The events of a response that is over, as of one that comes at once."""
    writer = EventWriter({})
    begun: Resource = {**resource, "status": "in_progress", "output": [], "usage": None}
    begun |= {"completed_at": None, "incomplete_details": None}
    events = [writer.about(f"response.{kind}", begun) for kind in ("created", "in_progress")]
    for item in resource["output"]:
        events += writer.again(item)
    return [*events, writer.about(f"response.{resource['status']}", resource)]


def _text_part(text: str, logprobs: Sequence[msgspec.Raw]) -> dict[str, Any]:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": list(logprobs),
    }


def _thought_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
