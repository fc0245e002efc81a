"""Tools that are no functions, and are offered to the model as such all the same.

A model calls by a name with arguments. A ``custom`` tool, which takes a text, is a function with
one argument; ``local_shell`` is a function that takes a command; a ``namespace`` is its functions,
each under a name of its own. What is called is told in the form of the tool that was offered.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from wkvm.gateway.chat.tools import Schema
from wkvm.gateway.failures import invalid
from wkvm.gateway.nesting import read_json

LEFT_OUT = frozenset(
    (
        "image_generation",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    )
)
"""Tools that OpenAI's servers run by themselves, and that clients offer whatever is served."""
NOT_READ = frozenset(("image_generation_call", "tool_search_call", "web_search_call"))
"""Items about such tools: they are kept, and the model is not told of them."""

SHELL = "local_shell"
_SHELL_PARAMETERS: Schema = {
    "type": "object",
    "properties": {
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The program and its arguments.",
        },
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_TEXT_PARAMETERS: Schema = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}

CallKind: TypeAlias = Literal["function_call", "custom_tool_call", "local_shell_call"]


class GrammarFormat(msgspec.Struct):
    """What the text for a custom tool is to be. The model is told of it and not held to it."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class OfferedTool(msgspec.Struct):
    """A tool as it is offered. Which fields count depends on the type.

    Attributes:
        parameters, strict: of a function; without ``parameters`` it takes none.
        format: of a custom tool.
        tools: of a namespace: functions.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    format: GrammarFormat | None = None
    tools: "list[OfferedTool] | None" = None


@dataclass(frozen=True, slots=True)
class Called:
    """What a call of a function is told as."""

    kind: CallKind
    name: str
    namespace: str | None = None


def full_name(name: str, namespace: str | None) -> str:
    """What the model is told that a function is called."""
    return name if namespace is None else f"{namespace}__{name}"


def functions(
    tools: Sequence[OfferedTool] | None,
) -> Iterator[tuple[str, OfferedTool, Called]]:
    """The functions that tools are to the model: where each is, what it is, how it is told.

    Raises:
        HttpError: 400; a tool is of a type that is not served, or lacks its name.
    """
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.type in LEFT_OUT:
            continue
        if tool.type == SHELL:
            yield where, _shell(), Called("local_shell_call", SHELL)
            continue
        if tool.type not in ("function", "custom", "namespace"):
            why = "supported are function, custom, local_shell and namespace"
            raise invalid(f"{where}.type", f"there are no tools of type {tool.type[:40]!r}; {why}")
        if tool.name is None:
            raise invalid(f"{where}.name", "is required, beside the type and not in a function")
        match tool.type:
            case "function":
                yield where, tool, Called("function_call", tool.name)
            case "custom":
                yield where, _of_text(tool), Called("custom_tool_call", tool.name)
            case _:
                yield from _within(tool, tool.name, where)


def _within(
    space: OfferedTool, namespace: str, where: str
) -> Iterator[tuple[str, OfferedTool, Called]]:
    for index, tool in enumerate(space.tools or ()):
        inner = f"{where}.tools[{index}]"
        if tool.type != "function":
            raise invalid(f"{inner}.type", "a namespace has functions alone")
        if tool.name is None:
            raise invalid(f"{inner}.name", "is required")
        named = msgspec.structs.replace(tool, name=full_name(tool.name, namespace))
        yield inner, named, Called("function_call", tool.name, namespace)


def _shell() -> OfferedTool:
    what = "Run a command on the user's machine."
    return OfferedTool("function", SHELL, what, _SHELL_PARAMETERS)


def _of_text(tool: OfferedTool) -> OfferedTool:
    about, form = tool.description or "", tool.format
    if form is not None and form.definition is not None:
        about += f"\nThe input follows this grammar ({form.syntax or 'lark'}):\n{form.definition}"
    return OfferedTool("function", tool.name, about or None, _TEXT_PARAMETERS)


def calls_of(tools: Sequence[OfferedTool] | None) -> dict[str, Called]:
    """How calls are told, by the name that the model calls."""
    return {tool.name or "": called for _, tool, called in functions(tools)}


def told(tool: OfferedTool) -> dict[str, Any]:
    """A tool as an answer tells it."""
    if tool.type == "function":
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
    given: dict[str, Any] = {"type": tool.type, "name": tool.name}
    given["description"] = tool.description
    if tool.format is not None:
        given["format"] = _some(msgspec.structs.asdict(tool.format))
    if tool.tools is not None:
        given["tools"] = [told(one) for one in tool.tools]
    return _some(given)


def text_input(arguments: str) -> str:
    """The text that a custom tool is called with; empty if the call was cut off."""
    given = _object(arguments).get("input")
    return given if isinstance(given, str) else ""


def text_arguments(text: str) -> str:
    """The arguments of a call of a custom tool, as the model writes them."""
    return _json({"input": text})


def shell_action(arguments: str) -> dict[str, Any]:
    """What ``local_shell`` is asked to do; nothing if the call was cut off."""
    given = _object(arguments)
    return {
        "type": "exec",
        "command": _words(given.get("command")),
        "env": {},
        "timeout_ms": given.get("timeout_ms"),
        "user": None,
        "working_directory": given.get("working_directory"),
    }


def shell_arguments(action: dict[str, Any]) -> str:
    """The arguments of a call of ``local_shell``, as the model writes them."""
    names = ("command", "working_directory", "timeout_ms")
    return _json(_some({name: action.get(name) for name in names}))


def _words(command: object) -> list[str]:
    """What the model called a command, which it need not have written as a list."""
    try:
        return msgspec.convert(command, list[str])
    except msgspec.ValidationError:
        return [command] if isinstance(command, str) else []


def _some(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(arguments: str) -> dict[str, Any]:
    try:
        return read_json(arguments, dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return {}
