"""The body of a response, and the chat that it asks for."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from wkvm.gateway.chat import bodies as chat_bodies
from wkvm.gateway.chat.messages import Message
from wkvm.gateway.chat.tools import Function, NamedFunction, NamedTool, Schema, Tool
from wkvm.gateway.failures import HttpError, invalid, renamed
from wkvm.gateway.fields import CommonFields, Integer
from wkvm.gateway.responses import foreign
from wkvm.gateway.responses.foreign import OfferedTool
from wkvm.gateway.responses.items import Item
from wkvm.gateway.states.fields import STATE_FIELDS

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
"""Entries, and characters of their keys and values."""

LOGPROBS = "message.output_text.logprobs"
_INCLUDES = frozenset(
    (
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
"""What may be asked for. All but the first are of tools and pictures, of which there are none."""

_DECIDED = STATE_FIELDS - {"durability", "idempotency_key"}
"""Fields of requests on states that a response decides itself."""

_FIELDS = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
"""What a response calls the fields of the chat that is made of it."""


class ChosenTool(msgspec.Struct):
    """Which tool to call."""

    type: str
    name: str | None = None


class TextFormat(msgspec.Struct):
    """What the text is to be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    """Of the text of an answer. ``verbosity`` is taken and not used."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct):
    """How much a template lets the model think. ``summary`` is taken and not used: all is told."""

    effort: str | None = None
    summary: str | None = None


class ConversationName(msgspec.Struct):
    """Which conversation."""

    id: str


class InputFields(CommonFields, kw_only=True):
    """What the input of a response depends on.

    Attributes:
        input: a text, or items.
        previous_response_id: whose conversation goes on.
        conversation: to which the response belongs; not with the former.
    """

    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    tools: list[OfferedTool] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation."""
        given = self.conversation
        return given.id if isinstance(given, ConversationName) else given


class CountBody(InputFields, kw_only=True):
    """What ``/v1/responses/input_tokens`` takes. Other fields are ignored."""


class CreateBody(InputFields, kw_only=True):
    """What ``/v1/responses`` takes. What becomes of others, ``policy`` says.

    Attributes:
        store: whether the response and its state are kept; they are if nothing is said.
        background: whether it goes on by itself.
        max_output_tokens: of the answer.
        include: what the answer has besides.
        max_tool_calls, prompt_cache_key, safety_identifier: taken, told, and not used.
        chat_template_kwargs, thinking_token_budget: as of a chat.
    """

    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: Integer | None = None
    max_tool_calls: Integer | None = None
    top_logprobs: Integer | None = None
    include: list[str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    chat_template_kwargs: dict[str, object] | None = None
    thinking_token_budget: Integer | None = None

    @property
    def stores(self) -> bool:
        """Whether it is kept."""
        return self.store is not False

    @property
    def has_logprobs(self) -> bool:
        """Whether the text comes with log probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def check(self) -> None:
        """Refuse what no response can have.

        Raises:
            HttpError: 400; it names the field.
        """
        for name in sorted(_DECIDED):
            if getattr(self, name) is not None:
                raise invalid(name, "the response says which states it is on")
        if self.model is None:
            raise invalid("model", "is required")
        if self.n_choices != 1:
            raise invalid("n", "a response is one choice")
        if self.background and not self.stores:
            raise invalid("background", "needs store: there would be nothing to ask for")
        for index, name in enumerate(self.include or ()):
            if name not in _INCLUDES:
                raise invalid(f"include[{index}]", f"{name[:80]!r} is nothing that can be included")
        check_metadata(self.metadata)

    def chat(self, messages: list[Message]) -> chat_bodies.ChatBody:
        """The chat that is asked for.

        Args:
            messages: all of it, from its beginning.

        Raises:
            HttpError: 400; a tool or a format is none.
        """
        common = {name: getattr(self, name) for name in CommonFields.__struct_fields__}
        common["stream_options"] = None
        common["idempotency_key"] = None  # it is the response's: the engine makes what is new
        return chat_bodies.ChatBody(
            **common,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.has_logprobs,
            top_logprobs=self.top_logprobs,
            chat_template_kwargs=self.chat_template_kwargs,
            thinking_token_budget=self.thinking_token_budget,
            **tool_fields(self),
        )


def tool_fields(body: InputFields) -> dict[str, Any]:
    """The fields of a chat for its tools and its format.

    Raises:
        HttpError: 400; a tool or a format is none.
    """
    return {
        "tools": [_tool(tool, where) for where, tool, _ in foreign.functions(body.tools)],
        "tool_choice": _choice(body.tool_choice),
        "response_format": _format(body.text),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }


def _tool(tool: OfferedTool, field: str) -> Tool:
    given = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    try:
        return Tool("function", msgspec.convert(given, Function))
    except msgspec.ValidationError as error:
        raise invalid(f"{field}.name", "has 1 to 64 letters, digits, _ or -") from error


def _choice(choice: str | ChosenTool | None) -> Any:
    if not isinstance(choice, ChosenTool):
        return choice
    if choice.type == foreign.SHELL:
        return NamedTool("function", NamedFunction(foreign.SHELL))
    if choice.type not in ("function", "custom") or choice.name is None:
        why = f"type {choice.type[:40]!r} is not supported: name a function"
        raise invalid("tool_choice", why)
    return NamedTool("function", NamedFunction(choice.name))


def _format(text: TextConfig | None) -> chat_bodies.ResponseFormat | None:
    form = None if text is None else text.format
    if form is None:
        return None
    if form.type != "json_schema":
        return chat_bodies.ResponseFormat(form.type)
    if form.name is None or form.schema is None:
        raise invalid("text.format", 'type "json_schema" needs a name and a schema')
    named = chat_bodies.NamedSchema(form.name, form.schema, form.strict)
    return chat_bodies.ResponseFormat("json_schema", named)


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Check the client's own words on something.

    Raises:
        HttpError: 400; they are too many, or too long.
    """
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"{len(metadata)} entries; at most {MAX_METADATA} are allowed")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise invalid("metadata", f"a key has at most {MAX_METADATA_KEY} characters")
        if len(value) > MAX_METADATA_VALUE:
            raise invalid("metadata", f"a value has at most {MAX_METADATA_VALUE} characters")


def field_names(names: Mapping[str, str]) -> dict[str, str]:
    """What a response calls the engine's fields.

    Args:
        names: what the chat that is made of it calls them.
    """
    return {field: _FIELDS.get(name, name) for field, name in names.items()}


def as_response(error: HttpError) -> HttpError:
    """An error about a chat, as one about the response that it is made of."""
    if error.param is None:
        return error
    root, dot, rest = error.param.partition(".")
    root, bracket, _ = root.partition("[")
    if root not in _FIELDS:
        return error
    # Messages are not where the client's items are: there is what came before.
    param = _FIELDS[root] if bracket else f"{_FIELDS[root]}{dot}{rest}"
    return renamed(error, {error.param: param})


def told_tools(tools: Sequence[OfferedTool] | None) -> list[dict[str, Any]]:
    """Tools as an answer tells them."""
    return [foreign.told(tool) for tool in tools or ()]
