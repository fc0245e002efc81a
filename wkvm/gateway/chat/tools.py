"""Tools of a chat: what clients may offer, and how the model is told.

How a model writes calls depends on its family: see ``parsing``. One whose template knows no tools
is told to answer with one JSON object, ``{"name": ..., "arguments": {...}}``, and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

import msgspec

from wkvm.gateway.failures import invalid
from wkvm.gateway.parsing.forms import Called
from wkvm.gateway.parsing.json_text import to_json
from wkvm.gateway.schemas import Schema as Schema
from wkvm.gateway.schemas import check_schema, closed, compact

MAX_TOOLS = 128

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]


class Function(msgspec.Struct, omit_defaults=True):
    """A function as it is offered. Without ``parameters`` it takes none."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool as it is offered."""

    type: str
    function: Function | None = None


class NamedFunction(msgspec.Struct):
    """Which function to call."""

    name: str


class NamedTool(msgspec.Struct):
    """Which tool to call."""

    type: str
    function: NamedFunction | None = None


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What may be called.

    Attributes:
        functions: what the model is told of.
        names: what it may call.
        is_required: whether it must call one.
    """

    functions: tuple[Function, ...]
    names: frozenset[str]
    is_required: bool

    def definitions(self) -> list[dict[str, object]]:
        """The tools in the API's form, for a template that knows it."""
        return [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description or "",
                    "parameters": _parameters(function),
                },
            }
            for function in self.functions
        ]

    def instructions(self) -> str:
        """What a model is told whose template knows no tools."""
        offered = [to_json(function) for function in self.functions]
        call = 'answer only {"name":NAME,"arguments":OBJECT}'
        return "\n".join(["Functions you can call:", *offered, f"To call one, {call}"])

    def called(self) -> list[Called]:
        """What may be called, for a grammar."""
        return [
            Called(function.name, arguments_schema(function))
            for function in self.functions
            if function.name in self.names
        ]

    def offered(self) -> dict[str, Schema]:
        """What may be called, for who reads it: the schema of the arguments, by the name."""
        return {one.name: _parameters(one) for one in self.functions if one.name in self.names}


def _parameters(function: Function) -> Schema:
    none: Schema = {"type": "object", "properties": {}}
    return none if function.parameters is None else function.parameters


def tool_use(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> ToolUse | None:
    """What a request offers and demands; None if nothing may be called.

    Raises:
        HttpError: 400; a tool is none that can be called, or the choice is not among them.
    """
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    if len(functions) > MAX_TOOLS:
        raise invalid("tools", f"{len(functions)} tools; {MAX_TOOLS} are allowed")
    names = frozenset(function.name for function in functions)
    if len(names) < len(functions):
        raise invalid("tools", "two of them have the same name")
    match choice:
        case "none":
            return None
        case "auto" | None:
            return ToolUse(tuple(functions), names, is_required=False) if functions else None
        case "required":
            if not functions:
                raise invalid("tool_choice", "a call is required, but there are no tools")
            return ToolUse(tuple(functions), names, is_required=True)
        case NamedTool(type="function", function=NamedFunction(name=name)):
            if name not in names:
                raise invalid("tool_choice", f"{name!r} is not among the tools")
            return ToolUse(tuple(functions), frozenset((name,)), is_required=True)
        case NamedTool():
            raise invalid(
                "tool_choice", 'neither "none", "auto", "required", nor the name of a function'
            )


def arguments_schema(function: Function) -> Schema:
    """The JSON schema of a function's arguments, for a grammar.

    Properties that the function does not name are left out, unless it says that there may be
    others. Parts of the schema that no grammar can express are ignored unless it is ``strict``.
    """
    schema = closed(_parameters(function))
    if function.strict:
        schema = cast("Schema", check_schema(schema, "tools", at="parameters"))
    return compact({**schema, "type": "object"}, lenient=not function.strict)


def _function(tool: Tool, field: str) -> Function:
    function = tool.function
    if tool.type != "function" or function is None:
        why = '{"type": "function", "function": {"name": NAME}} is the form, of no other type'
        raise invalid(field, why)
    if (function.parameters or {}).get("type", "object") != "object":
        raise invalid(f"{field}.function.parameters", "the schema is not one of an object")
    if function.strict:
        check_schema(_parameters(function), "tools", at=f"{field}.function.parameters")
    return function
