"""Tools of a chat: what clients may offer, how the model is told, and the grammar of a call.

A model calls a tool by answering with one JSON object, ``{"name": ..., "arguments": {...}}``,
and nothing else. Where a call is required, a grammar leaves it no other choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

import msgspec

from wkvm.gateway.failures import invalid

MAX_TOOLS = 128

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
Schema: TypeAlias = dict[str, object]


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
        offered = [_json(function) for function in self.functions]
        call = 'answer only {"name":NAME,"arguments":OBJECT}'
        return "\n".join(["Functions you can call:", *offered, f"To call one, {call}"])

    def grammar(self, answer: Schema | None = None) -> str:
        """A call of one of the functions, in the Lark notation of llguidance.

        Args:
            answer: JSON that may come instead of a call.
        """
        called = [function for function in self.functions if function.name in self.names]
        starts = [f"call_{index}" for index in range(len(called))]
        lines = list[str]()
        for index, function in enumerate(called):
            head = f'{{"name":"{function.name}","arguments":'.replace('"', '\\"')
            lines += [
                f'call_{index}: "{head}" arguments_{index} "}}"',
                f"arguments_{index}: %json {_json(arguments_schema(function))}",
            ]
        if answer is not None:
            starts.append("answer")
            lines.append(f"answer: %json {_json(answer)}")
        return "\n".join([f"start: {' | '.join(starts)}", *lines, ""])


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
    return compact({**closed(_parameters(function)), "type": "object"}, lenient=not function.strict)


def closed(schema: Schema) -> Schema:
    """A schema whose objects have the properties that are listed and no others.

    By itself JSON Schema allows any others, which nobody means who lists some, and with which a
    model may go on for ever. What says itself what else there may be, or needs more than it
    lists, is left as it is, as is a schema that joins lists of properties.
    """
    return schema if _is_joined(schema) else cast("Schema", _closed(schema))


def compact(schema: Schema, *, lenient: bool = False) -> Schema:
    """A schema whose JSON has no white space outside of strings: a model might never end it.

    Args:
        lenient: ignore what no grammar can express, instead of refusing it.
    """
    layout = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return {**schema, "x-guidance": {**layout, "lenient": lenient}}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _function(tool: Tool, field: str) -> Function:
    function = tool.function
    if tool.type != "function" or function is None:
        raise invalid(field, 'only tools of type "function" can be called, with a "function"')
    if (function.parameters or {}).get("type", "object") != "object":
        raise invalid(f"{field}.function.parameters", "the schema is not one of an object")
    return function


_SUBSCHEMA_MAPS = ("properties", "$defs", "definitions")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "prefixItems")
_OPENING = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties"))
"""With one of these, what else an object may have is said there."""
_JOINING = frozenset(("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"))
"""With one of these, an object has more properties than are listed beside it."""


def _is_joined(schema: object) -> bool:
    """Whether an object's properties are listed in several places: none of them has all."""
    if isinstance(schema, Mapping):
        entries = cast("Mapping[str, object]", schema)
        parts = entries.get("allOf")
        if isinstance(parts, list) and len(cast("list[object]", parts)) > 1:
            return True
        if "properties" in entries and _JOINING & entries.keys():
            return True
        return any(_is_joined(entry) for entry in entries.values())
    if isinstance(schema, list):
        return any(_is_joined(entry) for entry in cast("list[object]", schema))
    return False


def _closed(schema: object) -> object:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(cast("Mapping[str, object]", schema))
    for key in _SUBSCHEMA_MAPS:
        if isinstance(entries := result.get(key), Mapping):
            named = cast("Mapping[str, object]", entries)
            result[key] = {name: _closed(entry) for name, entry in named.items()}
    for key in _SUBSCHEMA_LISTS:
        if isinstance(entries := result.get(key), list):
            result[key] = [_closed(entry) for entry in cast("list[object]", entries)]
    if "items" in result:
        result["items"] = _closed(result["items"])
    if isinstance(listed := result.get("properties"), Mapping) and not _OPENING & result.keys():
        needed = result.get("required")
        if not isinstance(needed, list) or all(
            name in listed for name in cast("list[object]", needed)
        ):
            result["additionalProperties"] = False
    return result
