"""Tools that a client offers: what is taken, what the model is told, and the grammar of a call."""

import json
from dataclasses import replace

import llguidance
import msgspec
import pytest

from tests.gateway.harness import byte_texts
from wkvm.gateway.chat.reading import constraint, reading_of
from wkvm.gateway.chat.tools import (
    MAX_TOOLS,
    Tool,
    ToolChoice,
    ToolUse,
    arguments_schema,
    tool_use,
)
from wkvm.gateway.failures import HttpError
from wkvm.gateway.schemas import Schema
from wkvm.gateway.structured import NamedSchema, ResponseFormat

PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


def tool(name: str = "weather", parameters: object = PLACE, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def use(*tools: object, choice: object = None) -> ToolUse | None:
    return tool_use(
        msgspec.convert(list(tools), list[Tool]), msgspec.convert(choice, ToolChoice | None)
    )


def required(*tools: object) -> ToolUse:
    found = use(*tools, choice="required")
    assert found is not None
    return found


def refusal(*tools: object, choice: object = None) -> HttpError:
    with pytest.raises(HttpError) as caught:
        use(*tools, choice=choice)
    assert caught.value.status == 400
    return caught.value


def accepts(grammar: str, text: str) -> bool:
    """Whether a grammar lets exactly this text be an output."""
    tokens = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokens, grammar)
    assert not matcher.is_error(), matcher.get_error()
    n_taken = matcher.try_consume_tokens(list(text.encode()))
    return n_taken == len(text.encode()) and matcher.is_accepting()


def grammar_of(use: ToolUse, schema: Schema | None = None) -> str:
    """What constrains an answer that is a call, or JSON of a schema if there is one."""
    texts = byte_texts()
    wanted = None
    if schema is not None:
        wanted = ResponseFormat("json_schema", NamedSchema("x", schema)).to_wanted()
        use = replace(use, is_required=False)
    reading = reading_of(texts, use, is_single=False, begun=None, in_text=False)
    grammar, _ = constraint(texts, reading, use, wanted)
    assert grammar is not None
    return grammar.source


def called(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_without_tools_nothing_is_called(choice: str | None) -> None:
    assert use(choice=choice) is None
    assert tool_use(None, None) is None


def test_tools_may_be_called_unless_the_request_says_otherwise() -> None:
    found = use(tool())
    assert found is not None
    assert not found.is_required
    assert use(tool(), choice="none") is None
    assert required(tool()).is_required


def test_a_named_function_is_the_only_one_that_may_be_called() -> None:
    named = {"type": "function", "function": {"name": "b"}}
    found = use(tool("a"), tool("b"), choice=named)
    assert found is not None
    assert found.is_required
    assert found.names == {"b"}
    assert len(found.functions) == 2
    assert accepts(grammar_of(found), called("b", {"place": "x"}))
    assert not accepts(grammar_of(found), called("a", {"place": "x"}))


def test_what_is_wrong_with_tools_is_named() -> None:
    assert refusal(tool(), {"type": "custom"}).param == "tools[1]"
    assert refusal({"type": "function"}).param == "tools[0]"
    assert refusal(tool(parameters={"type": "string"})).param == "tools[0].function.parameters"
    assert refusal(tool(), tool()).param == "tools"
    assert refusal(*(tool(f"f{n}") for n in range(MAX_TOOLS + 1))).param == "tools"


@pytest.mark.parametrize("name", ["", "a b", 'a"', "é", "a" * 65, "a\n"])
def test_names_of_functions_are_words(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        use(tool(name))


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "other"}},
        {"type": "function"},
        {"type": "custom", "custom": {"name": "weather"}},
        {"type": "allowed_tools"},
    ],
)
def test_a_choice_that_is_none_of_the_tools_is_refused(choice: object) -> None:
    assert refusal(tool(), choice=choice).param == "tool_choice"


def test_a_required_call_needs_tools() -> None:
    assert refusal(choice="required").param == "tool_choice"


def test_the_model_is_told_of_every_function() -> None:
    text = required(tool(description="Tells the weather."), tool("time", None)).instructions()
    assert text.splitlines() == [
        "Functions you can call:",
        '{"name":"weather","description":"Tells the weather.","parameters":'
        + json.dumps(PLACE, separators=(",", ":"))
        + "}",
        '{"name":"time"}',
        'To call one, answer only {"name":NAME,"arguments":OBJECT}',
    ]


def test_a_grammar_takes_calls_of_the_tools_and_nothing_else() -> None:
    grammar = grammar_of(required(tool(), tool("time", None)))
    assert accepts(grammar, called("weather", {"place": 'a "b" {c}'}))
    assert accepts(grammar, called("time", {}))
    assert not accepts(grammar, called("weather", {}))
    assert not accepts(grammar, called("time", {"place": "x"}))
    assert not accepts(grammar, called("other", {}))
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, called("time", {}) + " ")
    assert not accepts(grammar, json.dumps({"name": "time", "arguments": {}}))


def test_each_schema_of_a_grammar_has_its_own_definitions() -> None:
    def referring(kind: str) -> Schema:
        return {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/X"}},
            "required": ["x"],
            "$defs": {"X": {"type": kind}},
        }

    grammar = grammar_of(required(tool("a", referring("integer")), tool("b", referring("boolean"))))
    assert accepts(grammar, called("a", {"x": 1}))
    assert accepts(grammar, called("b", {"x": True}))
    assert not accepts(grammar, called("a", {"x": True}))


def test_an_answer_may_be_allowed_besides_calls() -> None:
    grammar = grammar_of(required(tool()), {"type": "array", "items": {"type": "integer"}})
    assert accepts(grammar, "[1,2]")
    assert accepts(grammar, called("weather", {"place": ""}))


def test_functions_get_no_arguments_that_they_do_not_name() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    parameters = {
        "type": "object",
        "properties": {"a": inner, "list": {"type": "array", "items": inner}},
    }
    found = required(tool(parameters=parameters))
    grammar = grammar_of(found)
    assert accepts(grammar, called("weather", {"a": {"b": 1}, "list": [{"b": 1}]}))
    assert not accepts(grammar, called("weather", {"c": 1}))
    assert not accepts(grammar, called("weather", {"a": {"c": 1}}))
    assert not accepts(grammar, called("weather", {"list": [{"c": 1}]}))
    assert found.functions[0].parameters == parameters


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({"properties": {"a": {}}, "required": ["b"]}, {"b": 1}),
        (
            {"$defs": {n: {"properties": {n: {}}, "required": [n]} for n in "ab"},
             "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
            {"a": 1, "b": 1},
        ),
        (
            {"properties": {"a": {}}, "required": ["a"],
             "anyOf": [{"properties": {n: {}}, "required": [n]} for n in "bc"]},
            {"a": 1, "b": 1},
        ),
    ],
    ids=["needed, not listed", "allOf", "anyOf beside properties"],
)  # fmt: skip
def test_properties_that_a_schema_needs_are_not_left_out(
    parameters: Schema, arguments: Schema
) -> None:
    assert accepts(grammar_of(required(tool(parameters=parameters))), called("weather", arguments))


def test_functions_that_take_anything_get_it() -> None:
    for parameters in ({}, {"type": "object"}, {**PLACE, "additionalProperties": True}):
        grammar = grammar_of(required(tool(parameters=parameters)))
        assert accepts(grammar, called("weather", {"place": "x", "more": 1})), parameters


def test_only_a_strict_function_is_held_to_what_no_grammar_can_express() -> None:
    parameters = {**PLACE, "not": {"required": ["x"]}}
    grammar = grammar_of(required(tool(parameters=parameters)))
    assert accepts(grammar, called("weather", {"place": "x"}))
    error = refusal(tool(parameters=parameters, strict=True))
    assert error.param == "tools"
    assert '"not", at #/not' in error.message
    assert "tools[0].function.parameters" in error.message


def test_a_schema_cannot_bring_a_layout_of_its_own() -> None:
    [function] = required(
        tool(parameters={**PLACE, "x-guidance": {"whitespace_flexible": True}})
    ).functions
    guidance = arguments_schema(function)["x-guidance"]
    assert isinstance(guidance, dict)
    assert guidance["whitespace_flexible"] is False


def test_definitions_are_those_of_the_api() -> None:
    assert required(tool(), tool("time", None)).definitions() == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "", "parameters": PLACE},
        },
        {
            "type": "function",
            "function": {
                "name": "time",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
