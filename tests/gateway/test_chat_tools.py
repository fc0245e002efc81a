"""Tool calls and JSON answers over HTTP."""

import json
from typing import Any

import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import Running, byte_texts, gateway_running
from tests.gateway.test_chat import HELLO, USER, ask, chunks, joined, refusal, saying
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

DIRECTION = {"type": "string", "enum": ["north", "south"]}
PARAMETERS = {
    "type": "object",
    "properties": {"direction": DIRECTION, "steps": {"type": "integer", "minimum": 1}},
    "required": ["direction", "steps"],
}
GO = {"type": "function", "function": {"name": "go", "parameters": PARAMETERS}}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOOLS = [GO, WAIT]
NAMED = {"type": "function", "function": {"name": "go"}}
CALL = '{"name":"go","arguments":{"direction":"north","steps":2}}'
SYSTEM = (
    "System: Functions you can call:\n"
    f'{{"name":"go","parameters":{json.dumps(PARAMETERS, separators=(",", ":"))}}}\n'
    '{"name":"wait"}\n'
    'To call one, answer only {"name":NAME,"arguments":OBJECT}\n\n'
)
WRITTEN = f"{SYSTEM}User: Hello\n\nAssistant:"


def constrained() -> Engine:
    """An engine that takes grammars; ids are bytes."""
    grammars = GrammarCompiler([bytes((byte,)) for byte in range(256)], vocab_size=256)
    return Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=8), grammars=grammars)


async def prompt_of(running: Running, **fields: Any) -> str:
    answer = await ask(running, return_token_ids=True, **fields)
    return bytes(answer["prompt_token_ids"]).decode()


def calls_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pieces of calls in a stream."""
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    return [call for delta in deltas for call in delta.get("tool_calls", [])]


async def test_the_model_is_told_of_tools_before_everything_else() -> None:
    async with gateway_running() as running:
        assert await prompt_of(running, tools=TOOLS) == WRITTEN
        system = {"role": "system", "content": "Be kind."}
        found = await prompt_of(running, tools=TOOLS, messages=[system, USER])
        assert found == WRITTEN.replace("System: ", "System: Be kind.\n")
        none = await prompt_of(running, tools=TOOLS, tool_choice="none")
        assert none == "User: Hello\n\nAssistant:"


async def test_a_template_that_knows_tools_is_given_them() -> None:
    template = ChatTemplate("{% for t in tools %}{{ t.function.name }}{% endfor %}")
    async with gateway_running(texts=Texts(ByteTokenizer(), template)) as running:
        assert await prompt_of(running, tools=TOOLS) == "gowait"


async def test_an_answer_that_is_a_call_becomes_one() -> None:
    for said in (CALL, f" {CALL}", f"\n{CALL}\n"):
        async with gateway_running(saying(said, n_prompt=len(WRITTEN))) as running:
            [choice] = (await ask(running, tools=TOOLS, max_tokens=100))["choices"]
            found = await chunks(running, tools=TOOLS, max_tokens=100)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert call["id"].startswith("call_")
        arguments = '{"direction":"north","steps":2}'
        assert call["function"] == {"name": "go", "arguments": arguments}
        first, *others = calls_of(found)
        assert first["function"] == {"name": "go", "arguments": ""}
        assert (first["index"], first["type"]) == (0, "function")
        assert all(list(piece) == ["function", "index"] for piece in others)
        assert "".join([piece["function"]["arguments"] for piece in others]) == arguments
        assert len(others) > 10
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("said", ["Let us go.", "{go}", '{"name":"go"}', CALL.replace("go", "run")])
async def test_an_answer_that_is_no_call_is_text(said: str) -> None:
    async with gateway_running(saying(said, n_prompt=len(WRITTEN))) as running:
        [choice] = (await ask(running, tools=TOOLS, max_tokens=100))["choices"]
        found = await chunks(running, tools=TOOLS, max_tokens=100)
    assert choice["message"]["content"] == said
    assert choice["finish_reason"] == "stop"
    assert joined(found) == choice


async def test_an_answer_without_tools_is_text_even_if_it_looks_like_a_call() -> None:
    async with gateway_running(saying(CALL)) as running:
        [choice] = (await ask(running, max_tokens=100))["choices"]
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            found = await chunks(running, max_tokens=100, **fields)
            assert joined(found) == choice
    assert choice["message"]["content"] == CALL


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_required_call_comes_whatever_the_model_would_say(choice: object) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 500}
    async with gateway_running(constrained()) as running:
        for seed in range(4):
            answer = await ask(running, **fields, temperature=1, seed=seed)
            found = await chunks(running, **fields, temperature=1, seed=seed)
            [call] = answer["choices"][0]["message"]["tool_calls"]
            assert answer["choices"][0]["finish_reason"] == "tool_calls"
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "wait":
                assert choice == "required"
                assert arguments == {}
            else:
                assert arguments["direction"] in ("north", "south")
                assert arguments["steps"] >= 1
            first, *rest = calls_of(found)
            assert first["function"]["name"] == call["function"]["name"]
            pieces = [piece["function"]["arguments"] for piece in rest]
            assert "".join(pieces) == call["function"]["arguments"]
            assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_arguments_stream_as_they_come() -> None:
    async with gateway_running(constrained()) as running:
        found = await chunks(running, tools=TOOLS, tool_choice=NAMED, max_tokens=500)
    assert len(calls_of(found)) > 10


async def test_a_call_that_is_cut_off_ends_for_its_length() -> None:
    async with gateway_running(constrained()) as running:
        fields = {"tools": TOOLS, "tool_choice": NAMED}
        [choice] = (await ask(running, **fields, max_tokens=5))["choices"]
        assert choice["message"]["content"] == ""
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "length"
        [choice] = (await ask(running, **fields, max_tokens=37))["choices"]
        found = await chunks(running, **fields, max_tokens=37)
        assert choice["finish_reason"] == "length"
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"direction"'
        assert "".join(c["function"]["arguments"] for c in calls_of(found)) == '{"direction"'


async def test_what_constrains_an_answer_has_a_longer_default_limit() -> None:
    tool = {"type": "function", "function": {"name": "say", "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "minLength": 400}},
        "required": ["text"],
    }}}  # fmt: skip
    async with gateway_running(constrained()) as running:
        answer = await ask(running, tools=[tool], tool_choice="required", max_tokens=None)
    assert byte_texts().default_max_tokens < answer["usage"]["completion_tokens"]


async def test_an_answer_can_be_required_to_be_json() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    async with gateway_running(constrained()) as running:
        answer = await ask(running, response_format=named, max_tokens=100)
        content = answer["choices"][0]["message"]["content"]
        assert content in ('{"a":true}', '{"a":false}')
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert (
            joined(await chunks(running, response_format=named, max_tokens=100))
            == answer["choices"][0]
        )
        both = await ask(running, response_format=named, tools=[GO], max_tokens=200)
        message = both["choices"][0]["message"]
        assert message["content"] == content or message["tool_calls"]
        text = await ask(running, response_format={"type": "json_object"}, max_tokens=9)
        assert text["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize("strict", [None, True])
async def test_json_has_no_properties_that_its_schema_does_not_list(strict: bool | None) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    named = {"name": "x", "schema": schema, "strict": strict}
    form = {"type": "json_schema", "json_schema": named}
    async with gateway_running(constrained()) as running:
        answer = await ask(running, response_format=form, max_tokens=100, n=8)
    contents = {choice["message"]["content"] for choice in answer["choices"]}
    assert contents <= {'{"a":true}', '{"a":false}'}


async def test_an_answer_can_be_one_of_several_texts() -> None:
    async with gateway_running(constrained()) as running:
        answer = await ask(running, structured_outputs={"choice": ["yes", "no"]})
        for fields in ({"tools": [GO]}, {"response_format": {"type": "json_object"}}):
            error = await refusal(running, structured_outputs={"choice": ["yes"]}, **fields)
            assert error["param"] == "structured_outputs"
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        (
            {"tools": [GO | {"function": {"name": "f", "strict": True, "parameters": {"not": {}}}}],
             "tool_choice": "required"},
            "tools",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "x", "strict": True, "schema": {"type": "string", "minLength": "many"}}}},
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "x", "schema": {"enum": ["a" * 70_000]}}}},
            "response_format",
        ),
    ],
)  # fmt: skip
async def test_a_schema_that_makes_no_grammar_is_refused_by_its_field(
    fields: dict[str, Any], param: str
) -> None:
    async with gateway_running(constrained()) as running:
        for stream in (False, True):
            error = await refusal(running, **fields, stream=stream)
            assert error["param"] == param
            assert error["message"].startswith(f"{param}: ")
        assert (await ask(running))["usage"]["completion_tokens"] == HELLO["max_tokens"]


async def test_an_engine_without_grammars_requires_no_calls() -> None:
    async with gateway_running() as running:
        error = await refusal(running, tools=TOOLS, tool_choice="required")
        assert error["param"] == "tools"
        error = await refusal(running, response_format={"type": "json_object"})
        assert error["param"] == "response_format"


async def test_calls_and_results_of_before_are_part_of_the_prompt() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "go", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "You are there."},
    ]
    async with gateway_running() as running:
        assert await prompt_of(running, messages=messages) == (
            'User: Hello\n\nAssistant: {"name":"go","arguments":{}}\n\n'
            "User: Result of go: You are there.\n\nAssistant:"
        )
