"""Items: what responses take in and give out. How they are kept, and the chat that they are.

An item is kept as a dict in the API's own form, with an id and a status, whoever sent it and
however short it was. A chat is made of these alone, so that a conversation reads the same whether
it was sent at once or came turn by turn.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from wkvm.gateway.chat import messages as chat
from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.responses import foreign

Kept: TypeAlias = dict[str, Any]
"""An item as it is kept and answered."""

_MEDIA = {"input_image": "image_url", "input_audio": "input_audio", "input_file": "file"}
"""Parts that are no text, and what they are called in chats."""
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "reasoning": "rs",
    **dict.fromkeys(foreign.NOT_READ, "hosted"),
}
"""The kinds of items that are understood, and how their ids begin."""
MAX_ID_LENGTH = 128


class Part(msgspec.Struct):
    """A part of a content; ``refusal`` is of the type of this name."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, kw_only=True):
    """An item as it is sent. Which fields count depends on the type; others are ignored.

    Attributes:
        type: ``message`` if there is none and a role.
        role, content, phase: of a message.
        call_id, name, arguments: of a call; ``namespace`` where the function is of one.
        input: of a call of a custom tool, with ``call_id`` and ``name``.
        action: of a call of ``local_shell``, with ``call_id``.
        output: of a call's result, with its ``call_id``.
        summary, encrypted_content: of reasoning; its ``content`` is what was thought.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    action: dict[str, Any] | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


def fresh_id(kind: str) -> str:
    """An id for an item of a kind."""
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def kept_items(given: str | Sequence[Item] | None, field: str, *, omit_media: bool) -> list[Kept]:
    """What was sent, as it is kept. A reference is ``{"type": "item_reference", "id"}`` still.

    Args:
        given: a text is one message of a user.
        field: what to call it.
        omit_media: put notes in the place of parts that are no text, instead of refusing them.

    Raises:
        HttpError: 400; an item is none that a text model can read, or lacks something.
    """
    if given is None:
        return []
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
    return [
        _kept(item, f"{field}[{index}]", omit_media=omit_media) for index, item in enumerate(given)
    ]


def _kept(item: Item, field: str, *, omit_media: bool) -> Kept:
    kind = item.type or ("message" if item.role is not None else None)
    if item.id is not None and not 1 <= len(item.id) <= MAX_ID_LENGTH:
        raise invalid(f"{field}.id", f"an id has 1 to {MAX_ID_LENGTH} characters")
    if kind == "item_reference" or (kind is None and item.id is not None):
        return {"type": "item_reference", "id": _needed(item.id, f"{field}.id")}
    if kind is None:
        raise invalid(f"{field}.type", "an item needs a type")
    if kind not in _PREFIXES:
        raise invalid(f"{field}.type", f"items of type {kind!r} are not supported")
    kept: Kept = {"id": item.id or fresh_id(kind), "type": kind, "status": "completed"}
    if item.status in ("completed", "incomplete", "in_progress"):
        kept["status"] = item.status
    match kind:
        case "message":
            if item.role is None:
                raise invalid(f"{field}.role", "a message needs a role")
            kept["role"] = item.role
            kept["content"] = _content(item, f"{field}.content", omit_media=omit_media)
            if item.phase in ("commentary", "final_answer"):
                kept["phase"] = item.phase
        case "function_call":
            kept["call_id"] = _needed(item.call_id, f"{field}.call_id")
            kept["name"] = _needed(item.name, f"{field}.name")
            kept["arguments"] = _needed(item.arguments, f"{field}.arguments")
            if item.namespace is not None:
                kept["namespace"] = item.namespace
        case "custom_tool_call":
            kept["call_id"] = _needed(item.call_id, f"{field}.call_id")
            kept["name"] = _needed(item.name, f"{field}.name")
            kept["input"] = _needed(item.input, f"{field}.input")
        case "local_shell_call":
            kept["call_id"] = _needed(item.call_id, f"{field}.call_id")
            kept["action"] = _action(item, f"{field}.action")
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            # That of a shell has the call's id as its own.
            call_id = item.call_id or (item.id if kind == "local_shell_call_output" else None)
            kept["call_id"] = _needed(call_id, f"{field}.call_id")
            kept["output"] = _output(item, f"{field}.output", omit_media=omit_media)
        case _ if kind in foreign.NOT_READ:
            if item.action is not None:
                kept["action"] = item.action
        case _:
            kept["summary"] = _texts(item.summary, "summary_text", f"{field}.summary")
            if item.content is not None:
                content = item.content
                if isinstance(content, str):
                    content = [Part("reasoning_text", content)]
                kept["content"] = _texts(content, "reasoning_text", f"{field}.content")
    return kept


def _needed(value: str | None, field: str) -> str:
    if value is None:
        raise invalid(field, "is required")
    return value


def _action(item: Item, field: str) -> dict[str, Any]:
    if item.action is None:
        raise invalid(field, "is required")
    try:
        msgspec.convert(item.action.get("command"), list[str])
    except msgspec.ValidationError as error:
        raise invalid(f"{field}.command", "a list of texts is needed") from error
    return {"type": "exec", **item.action}


def _content(item: Item, field: str, *, omit_media: bool) -> list[Kept]:
    is_answer = item.role == "assistant"
    if item.content is None:
        raise invalid(field, "a message needs one")
    parts = item.content
    if isinstance(parts, str):
        parts = [Part("output_text" if is_answer else "input_text", parts)]
    return [
        _part(part, f"{field}[{index}]", is_answer=is_answer, omit_media=omit_media)
        for index, part in enumerate(parts)
    ]


def _part(part: Part, field: str, *, is_answer: bool, omit_media: bool) -> Kept:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": _needed(part.refusal, f"{field}.refusal")}
    text = part.text
    if part.type not in ("input_text", "output_text", "text"):
        text = _omitted(part, field, omit_media=omit_media)
    elif text is None:
        raise invalid(f"{field}.text", "is required")
    if is_answer:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _omitted(part: Part, field: str, *, omit_media: bool) -> str:
    """The note for a part that is no text.

    Raises:
        HttpError: 400; there is to be none, or it is of a type that nobody knows.
    """
    known = _MEDIA.get(part.type)
    if known is None:
        raise invalid(f"{field}.type", f"there are no parts of type {part.type!r} here")
    if not omit_media:
        raise invalid(field, f"a part of type {part.type!r}, {chat.TEXT_ONLY}")
    return chat.OMITTED[known]


def _output(item: Item, field: str, *, omit_media: bool) -> str | list[Kept]:
    match item.output:
        case None:
            raise invalid(field, "is required")
        case str() as text:
            return text
        case list() as parts:
            return [
                _part(part, f"{field}[{index}]", is_answer=False, omit_media=omit_media)
                for index, part in enumerate(parts)
            ]


def _texts(parts: Sequence[Part] | None, kind: str, field: str) -> list[Kept]:
    for index, part in enumerate(parts or ()):
        if part.type != kind or part.text is None:
            raise invalid(f"{field}[{index}]", f"needs the type {kind!r}, and a text")
    return [{"type": kind, "text": part.text} for part in parts or ()]


def chat_messages(items: Sequence[Kept]) -> list[chat.Message]:
    """The chat that items are. What an answer thought, said and called is one message.

    Raises:
        HttpError: 400; a reference is among them.
    """
    result = list[chat.Message]()
    is_open, thought = False, None
    for item in items:
        match item["type"]:
            case "message":
                role: chat.Role = item["role"]
                result.append(chat.Message(role, _said(item["content"])))
                is_open = role == "assistant"
                if is_open:
                    result[-1].reasoning_content = thought
                thought = None
            case "reasoning":
                is_open, thought = False, _thought(item)
            case "function_call" | "custom_tool_call" | "local_shell_call":
                if not is_open:
                    result.append(chat.Message("assistant", reasoning_content=thought))
                    thought = None
                call = chat.PastCall(_called(item), item["call_id"], "function")
                result[-1].tool_calls = [*(result[-1].tool_calls or ()), call]
                is_open = True
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                output = item["output"]
                said = output if isinstance(output, str) else _said(output)
                result.append(chat.Message("tool", said, tool_call_id=item["call_id"]))
                is_open = False
            case kind if kind in foreign.NOT_READ:
                continue
            case _:
                raise HttpError(400, "a reference to an item stands for nothing", param="input")
    return result


def _called(item: Kept) -> chat.CalledFunction:
    match item["type"]:
        case "custom_tool_call":
            return chat.CalledFunction(item["name"], foreign.text_arguments(item["input"]))
        case "local_shell_call":
            return chat.CalledFunction(foreign.SHELL, foreign.shell_arguments(item["action"]))
        case _:
            name = foreign.full_name(item["name"], item.get("namespace"))
            return chat.CalledFunction(name, item["arguments"])


def _said(parts: Sequence[Kept]) -> chat.Content:
    told = [
        chat.Part("refusal", refusal=part["refusal"])
        if part["type"] == "refusal"
        else chat.Part("text", part["text"])
        for part in parts
    ]
    return (told[0].text or "") if len(told) == 1 and told[0].text is not None else told


def _thought(item: Kept) -> str | None:
    """What was thought; a summary is all there is of what was thought elsewhere."""
    parts = item.get("content") or item["summary"]
    return "".join([part["text"] for part in parts]) or None
