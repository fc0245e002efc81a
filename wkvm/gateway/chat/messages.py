"""The messages of a chat: what clients may send, and what a template is given of it.

A template that knows no tools is given their calls and results as text, in the form in
which it is asked for calls.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from wkvm.gateway.failures import invalid
from wkvm.gateway.nesting import read_json
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import Tokenizer

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]

OMITTED = {
    "image_url": "(An image was left out here: this model reads text only.)",
    "input_audio": "(A sound was left out here: this model reads text only.)",
    "file": "(A file was left out here: this model reads text only.)",
}
"""What stands for a part that is no text, by its type, if the operator allows that."""
TEXT_ONLY = (
    "but this model reads text only; a server with --omit-media takes media, and tells the model"
    " that they were left out"
)
"""Why a part that is no text is refused."""


class Part(msgspec.Struct):
    """A part of a content: text, or something else that has a type."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content: TypeAlias = str | list[Part]


class CalledFunction(msgspec.Struct):
    """What was called. ``arguments`` is what the model wrote: it should be JSON."""

    name: str
    arguments: str | None = None


class PastCall(msgspec.Struct):
    """A tool call in an answer of before."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(msgspec.Struct):
    """One message. Which fields count depends on the role; others are ignored."""

    role: Role
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def calls(self) -> list[PastCall]:
        """The calls, those in the deprecated form included."""
        old = [] if self.function_call is None else [PastCall(self.function_call)]
        return (self.tool_calls or []) + old


def template_messages(
    messages: Sequence[Message], template: ChatTemplate, *, omit_media: bool
) -> list[dict[str, object]]:
    """Messages as a template takes them; each content is a string.

    Args:
        messages: of a client.
        template: what they are for.
        omit_media: replace parts that are no text by notes, instead of refusing them.

    Raises:
        HttpError: 400; a message lacks its content, or has parts that are no text.
    """
    if not messages:
        raise invalid("messages", "at least one message is needed")
    names = dict[str, str]()
    result = list[dict[str, object]]()
    was_tool = False
    for index, message in enumerate(messages):
        content = content_text(message, index, omit_media=omit_media)
        names.update({call.id: call.function.name for call in message.calls if call.id})
        name = message.name or names.get(message.tool_call_id or "")
        is_tool = message.role in ("tool", "function")
        entry: dict[str, object] = {"role": message.role, "content": content}
        if name is not None:
            entry["name"] = name
        thought = message.reasoning_content or message.reasoning
        if thought is not None and message.role == "assistant":
            # Templates leave it out of the prompt, or not, as the model was trained.
            entry["reasoning_content"] = thought
        if message.role == "developer" and not template.knows_developer:
            entry["role"] = "system"
        elif template.knows_tools:
            entry |= _native(message)
        elif is_tool:
            entry = {"role": "user", "content": _result(name, content)}
            if was_tool:
                # Several results are one turn: some templates refuse two turns of a user.
                content = f"{result.pop()['content']}\n{entry['content']}"
                entry["content"] = content
        elif message.calls:
            lines = [content] if content else []
            entry["content"] = "\n".join([*lines, *map(_call_text, message.calls)])
        result.append(entry)
        was_tool = is_tool
    return result


def _native(message: Message) -> dict[str, object]:
    """What a template that knows tools is told of calls and results."""
    entry = dict[str, object]()
    if message.role == "function":
        entry["role"] = "tool"
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.calls:
        entry["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function)},
            }
            for call in message.calls
        ]
    return entry


def _arguments(function: CalledFunction) -> object:
    """Arguments as templates expect them: an object, to be written as JSON by the template."""
    written = function.arguments or ""
    try:
        return read_json(written, dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return written


def _call_text(call: PastCall) -> str:
    name = msgspec.json.encode(call.function.name).decode()
    arguments = (call.function.arguments or "").strip()
    return f'{{"name":{name},"arguments":{arguments or "{}"}}}'


def _result(name: str | None, content: str) -> str:
    return f"Result of {name}: {content}" if name else f"Result: {content}"


def content_text(message: Message, index: int, *, omit_media: bool) -> str:
    """The content of a message as one text.

    Args:
        index: which message it is.
        omit_media: see ``template_messages``.

    Raises:
        HttpError: 400; it lacks its content, or has parts that are no text.
    """
    field = f"messages[{index}].content"
    match message.content:
        case str() as text:
            return text
        case None:
            if message.role != "assistant":
                raise invalid(field, f"a message of role {message.role!r} needs one")
            return message.refusal or ""
        case list() as parts:
            texts = [
                _part_text(part, f"{field}[{index}]", omit_media=omit_media)
                for index, part in enumerate(parts)
            ]
            return "\n".join(texts)


def _part_text(part: Part, field: str, *, omit_media: bool) -> str:
    known: Mapping[str, str | None] = {"text": part.text, "refusal": part.refusal}
    if part.type in known:
        text = known[part.type]
        if text is None:
            raise invalid(field, f"a part of type {part.type!r} needs a field of this name")
        return text
    if omit_media and part.type in OMITTED:
        return OMITTED[part.type]
    raise invalid(field, f"a part of type {part.type!r}, {TEXT_ONLY}")


def leaves_space(prompt: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt leaves the space after its colon to the answer, which shows it no more."""
    return bool(prompt) and tokenizer.token_bytes(prompt[-1]).endswith(b":")
