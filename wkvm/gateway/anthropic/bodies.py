"""The bodies of Anthropic's routes, and the chat that they ask for.

Limits and values that a chat has as well are checked where chats are, so that there is one rule
for all interfaces; ``dialect`` gives the fields at fault their names here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from wkvm.gateway.chat.bodies import ChatBody, NamedSchema, ResponseFormat
from wkvm.gateway.chat.messages import (
    OMITTED,
    TEXT_ONLY,
    CalledFunction,
    Message,
    Part,
    PastCall,
)
from wkvm.gateway.chat.tools import Function, NamedFunction, NamedTool, Schema, Tool
from wkvm.gateway.chat.tools import ToolChoice as ChatToolChoice
from wkvm.gateway.failures import invalid
from wkvm.gateway.fields import Integer

_MEDIA = {"image": "image_url", "document": "file"}
"""Blocks that are no text, and the parts of a chat that have the same note."""
_HIDDEN = ("redacted_thinking",)
"""Blocks of answers of before that nobody here can read."""

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]+\Z", max_length=256)]


class Block(msgspec.Struct):
    """A block of a content. Which fields count depends on the type; others are ignored."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: Id | None = None
    name: str | None = None
    input: msgspec.Raw | UnsetType = UNSET
    tool_use_id: Id | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct):
    """One message. Several of one role in a row are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class OfferedTool(msgspec.Struct):
    """A tool as it is offered. One with another type than ``custom`` would be run by the server."""

    name: Name
    description: str | None = None
    input_schema: Schema | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """What of the tools is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the answer is thought over first.

    Attributes:
        budget_tokens: the most that is thought.
        display: whether it is told.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct):
    """What the answer is to be."""

    type: Literal["json_schema"]
    schema: Schema


class OutputConfig(msgspec.Struct):
    """How the answer is to be. ``effort`` is taken and not used."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct):
    """Of the request. Taken and not used."""

    user_id: str | None = None


class PromptBody(msgspec.Struct, kw_only=True):
    """What ``/v1/messages/count_tokens`` takes, and ``/v1/messages`` too."""

    model: str
    messages: list[InputMessage]
    system: str | list[Block] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(PromptBody, kw_only=True):
    """What ``/v1/messages`` takes. ``policy`` says what becomes of other fields."""

    max_tokens: Integer
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    metadata: Metadata | None = None


def to_chat(body: PromptBody, *, omit_media: bool) -> ChatBody:
    """The chat that a request asks for. Thread-safe.

    Args:
        omit_media: replace images and documents by notes, instead of refusing them.

    Raises:
        HttpError: 400; it names the field, or the block.
    """
    if not body.messages:
        raise invalid("messages", "at least one message is needed")
    reader = _Reader(omit_media)
    messages = list[Message]()
    if body.system:
        messages.append(Message("system", reader.text(body.system, "system")))
    turns = list(_turns(body.messages))
    for turn in turns:
        messages += reader.messages(turn)
    chat = ChatBody(model=body.model, messages=messages)
    if turns[-1].role == "assistant":
        if messages[-1].tool_calls:
            raise invalid("messages", "the last one calls a tool, and the result is missing")
        chat.continue_final_message = True
    if body.tools is not None:
        chat.tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools)]
    if body.tool_choice is not None:
        chat.tool_choice = _tool_choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use is not None:
            chat.parallel_tool_calls = not body.tool_choice.disable_parallel_tool_use
    _think(body.thinking, chat)
    if body.output_config is not None and body.output_config.format is not None:
        schema = NamedSchema("answer", body.output_config.format.schema, strict=True)
        chat.response_format = ResponseFormat("json_schema", schema)
    if isinstance(body, MessagesBody):
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    return chat


@dataclass(frozen=True, slots=True)
class _Turn:
    """Messages of one role in a row: their blocks, each after where it is."""

    role: Literal["user", "assistant", "system"]
    blocks: list[tuple[str, Block]] = field(default_factory=list[tuple[str, Block]])


def _turns(messages: Sequence[InputMessage]) -> list[_Turn]:
    turns = list[_Turn]()
    for index, message in enumerate(messages):
        if not turns or turns[-1].role != message.role:
            turns.append(_Turn(message.role))
        where, content = f"messages[{index}].content", message.content
        if isinstance(content, str):
            turns[-1].blocks.append((where, Block("text", content)))
        else:
            turns[-1].blocks.extend((f"{where}[{i}]", one) for i, one in enumerate(content))
    return turns


class _Reader:
    """Reads the blocks of a request, in their order."""

    def __init__(self, omit_media: bool) -> None:
        self._omit_media = omit_media
        self._called = set[str]()

    def messages(self, turn: _Turn) -> list[Message]:
        """A turn as messages of a chat."""
        if turn.role == "assistant":
            return [self._answer(turn.blocks)]
        result, parts = list[Message](), list[Part]()
        for where, block in turn.blocks:
            other = self._other(block, where)
            if other is None:
                parts.append(self._part(block, where))
                continue
            if parts:
                result.append(Message(turn.role, parts))
                parts = []
            result.append(other)
        if parts or not result:
            result.append(Message(turn.role, parts))
        return result

    def _other(self, block: Block, where: str) -> Message | None:
        """A block of a user that is a message of another role."""
        match block.type:
            case "tool_result":
                return self._result(block, where)
            case "mid_conv_system":
                return Message("system", self.text(block.content or "", f"{where}.content"))
            case _:
                return None

    def text(self, content: str | Sequence[Block], where: str) -> str | list[Part]:
        """A content that is text alone."""
        if isinstance(content, str):
            return content
        return [self._part(block, f"{where}[{index}]") for index, block in enumerate(content)]

    def _part(self, block: Block, where: str) -> Part:
        if block.type == "text":
            if block.text is None:
                raise invalid(where, 'a block of type "text" needs a "text"')
            return Part("text", block.text)
        if block.type in _MEDIA:
            if self._omit_media:
                return Part("text", OMITTED[_MEDIA[block.type]])
            raise invalid(where, f"a block of type {block.type!r}, {TEXT_ONLY}")
        raise invalid(where, f"a block of type {block.type!r} is not supported here")

    def _answer(self, blocks: Sequence[tuple[str, Block]]) -> Message:
        parts, calls, thoughts = list[Part](), list[PastCall](), list[str]()
        for where, block in blocks:
            if block.type == "tool_use":
                calls.append(self._call(block, where))
            elif block.type == "thinking":
                thoughts.append(block.thinking or "")
            elif block.type not in _HIDDEN:
                parts.append(self._part(block, where))
        message = Message("assistant", parts, tool_calls=calls or None)
        if thoughts:
            message.reasoning_content = "\n".join(thoughts)
        return message

    def _call(self, block: Block, where: str) -> PastCall:
        if block.id is None or not block.name or block.input is UNSET:
            raise invalid(where, 'a block of type "tool_use" needs an "id", a "name", an "input"')
        try:
            msgspec.json.decode(block.input, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise invalid(f"{where}.input", "is not an object") from error
        self._called.add(block.id)
        # As it was written: no number is rounded.
        written = bytes(block.input).decode()
        return PastCall(CalledFunction(block.name, written), block.id, "function")

    def _result(self, block: Block, where: str) -> Message:
        if block.tool_use_id is None:
            raise invalid(where, 'a block of type "tool_result" needs a "tool_use_id"')
        if block.tool_use_id not in self._called:
            raise invalid(f"{where}.tool_use_id", "no block of type 'tool_use' before has this id")
        content = self.text(block.content or "", f"{where}.content")
        if block.is_error:
            parts = [Part("text", content)] if isinstance(content, str) else content
            content = [Part("text", "Error:"), *parts]
        return Message("tool", content, tool_call_id=block.tool_use_id)


def _think(thinking: Thinking | None, chat: ChatBody) -> None:
    """Let the model think, and tell of it, as far as that is asked for."""
    asked = thinking is not None and thinking.type != "disabled"
    chat.include_reasoning = asked and thinking is not None and thinking.display != "omitted"
    if thinking is not None:
        chat.chat_template_kwargs = {"enable_thinking": asked}
        chat.thinking_token_budget = thinking.budget_tokens if asked else None


def _tool(tool: OfferedTool, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        why = f"a tool of type {tool.type!r} would be run by the server, which runs none"
        raise invalid(f"{where}.type", why)
    if tool.input_schema is None:
        raise invalid(f"{where}.input_schema", "is required")
    if tool.input_schema.get("type", "object") != "object":
        raise invalid(f"{where}.input_schema", "the schema is not one of an object")
    function = Function(tool.name, tool.description, tool.input_schema, tool.strict)
    return Tool("function", function)


def _tool_choice(choice: ToolChoice) -> ChatToolChoice:
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise invalid("tool_choice.name", "is required")
            return NamedTool("function", NamedFunction(choice.name))
