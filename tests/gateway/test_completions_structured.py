"""Completions that must be something: ``structured_outputs``."""

import dataclasses
import json
import re
from typing import Any

import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import byte_texts, gateway_running
from tests.gateway.openai_http import added_up, complete, refused, stream_events
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler


def constrained() -> Engine:
    """An engine that takes grammars; ids are bytes."""
    grammars = GrammarCompiler([bytes((byte,)) for byte in range(256)], vocab_size=256)
    return Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=8), grammars=grammars)


@pytest.mark.parametrize(
    ("outputs", "allowed"),
    [
        ({"choice": ['say "yes"', "no\\n", "안녕"]}, {'say "yes"', "no\\n", "안녕"}),
        ({"regex": "[ab]{3}c"}, {f"{a}{b}{c}c" for a in "ab" for b in "ab" for c in "ab"}),
        ({"json": {"enum": [1, 22]}}, {"1", "22"}),
        ({"json": '{"enum": [1, 22]}'}, {"1", "22"}),
        ({"grammar": 'start: "x" | "y"'}, {"x", "y"}),
    ],
    ids=["choice", "regex", "schema", "schema as text", "grammar"],
)
async def test_the_text_is_what_it_must_be_streamed_and_not(
    outputs: dict[str, Any], allowed: set[str]
) -> None:
    async with gateway_running(constrained()) as running:
        body = {"prompt": "x", "structured_outputs": outputs, "n": 4, "seed": 2}
        whole = (await complete(running, **body))["choices"]
        assert {choice["text"] for choice in whole} <= allowed
        assert {choice["finish_reason"] for choice in whole} == {"stop"}
        choices = added_up(await stream_events(running, **body))
        assert [choices[index] for index in range(4)] == whole


async def test_a_json_object_is_one() -> None:
    async with gateway_running(constrained()) as running:
        body = {"prompt": "x", "structured_outputs": {"json_object": True}, "max_tokens": 2000}
        body |= {"logit_bias": {str(ord("}")): 20}}
        (choice,) = (await complete(running, **body))["choices"]
        assert isinstance(json.loads(choice["text"]), dict)


async def test_what_is_suggested_for_text_cuts_nothing_off_where_a_grammar_constrains() -> None:
    texts = dataclasses.replace(byte_texts(), suggested={"top_k": 1})
    outputs = {"structured_outputs": {"regex": "[a-z]"}, "n": 16, "seed": 1}
    async with gateway_running(constrained(), texts=texts) as running:

        async def said(**body: Any) -> set[str]:
            choices = (await complete(running, prompt="x", max_tokens=1, **body))["choices"]
            return {choice["text"] for choice in choices}

        assert len(await said(**outputs)) > 1
        assert len(await said(**outputs, top_k=1)) == 1
        assert len(await said(n=16, seed=1)) == 1


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"regex": "a", "choice": ["b"]},
        {"choice": []},
        {"choice": [""]},
        {"regex": "["},
        {"grammar": "start ::="},
        {"json": "{"},
        {"json": {"type": "nothing"}},
        {"structural_tag": {}},
        {"regex": "a" * 70_000},
    ],
    ids=lambda outputs: json.dumps(outputs)[:24],
)
async def test_what_makes_no_grammar_is_refused_by_name(outputs: dict[str, Any]) -> None:
    async with gateway_running(constrained()) as running:
        for stream in (False, True):
            body = {"prompt": "x", "structured_outputs": outputs, "stream": stream}
            param, message = await refused(running, **body)
            assert param == "structured_outputs"
            assert message.startswith("structured_outputs: ")


async def test_an_engine_without_grammars_says_so() -> None:
    async with gateway_running() as running:
        body = {"prompt": "x", "structured_outputs": {"regex": "a"}}
        assert (await refused(running, **body))[0] == "structured_outputs"


@pytest.mark.parametrize("field", ["guided_json", "guided_choice"])
async def test_other_names_for_it_are_refused_and_say_what_to_use(field: str) -> None:
    async with gateway_running() as running:
        param, message = await refused(running, prompt="x", **{field: {"type": "json_object"}})
        assert param == field
        assert "structured_outputs" in message
        await complete(running, prompt="x", max_tokens=1, response_format={"type": "text"})


async def test_a_format_is_that_of_chats_and_there_is_one_of_it() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with gateway_running(constrained()) as running:
        (choice,) = (await complete(running, prompt="x", response_format=form))["choices"]
        assert choice["text"] in ('{"a":1}', '{"a":2}')
        assert choice["finish_reason"] == "stop"
        body = {"prompt": "x", "response_format": form, "structured_outputs": {"regex": "a"}}
        assert (await refused(running, **body))[0] == "structured_outputs"
        for wrong in ({"type": "xml"}, {"type": "json_schema"}):
            assert (await refused(running, prompt="x", response_format=wrong))[0] == (
                "response_format"
            )
        schema["properties"] = {"a": {"pattern": "("}}
        assert (await refused(running, prompt="x", response_format=form))[0] == "response_format"


TAG: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"enum": [1, 22]}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


@pytest.mark.parametrize("field", ["response_format", "structured_outputs", "as text"])
async def test_in_free_text_a_trigger_begins_a_structure(field: str) -> None:
    fields: dict[str, Any] = {"response_format": TAG}
    if field != "response_format":
        tag = json.dumps(TAG) if field == "as text" else TAG
        fields = {"structured_outputs": {"structural_tag": tag}}
    bias = {str(ord(sign)): 6 for sign in "<f="}
    async with gateway_running(constrained()) as running:
        body = {"prompt": "x", "max_tokens": 400, "n": 4, "seed": 3, "logit_bias": bias, **fields}
        texts = [choice["text"] for choice in (await complete(running, **body))["choices"]]
    parts = [part for text in texts for part in text.split("<f=")[1:]]
    whole = re.compile("(a>(1|22)|b>(true|false))</f>")
    assert len(parts) > 4
    assert all(whole.match(part) or len(part) < 12 for part in parts)


@pytest.mark.parametrize(
    "change",
    [
        {"structures": []},
        {"triggers": [""]},
        {"triggers": ["<g"]},
        {"structures": [{"begin": "<f=", "end": "", "schema": {"not": {}}}]},
    ],
)
async def test_a_structural_tag_that_makes_no_grammar_is_refused(change: dict[str, Any]) -> None:
    async with gateway_running(constrained()) as running:
        body = {"prompt": "x", "response_format": {**TAG, **change}}
        assert (await refused(running, **body))[0] == "response_format"
        tag = json.dumps({**TAG, **change})
        body = {"prompt": "x", "structured_outputs": {"structural_tag": tag}}
        assert (await refused(running, **body))[0] == "structured_outputs"


@pytest.mark.parametrize("depth", [60, 70, 200, 440])
@pytest.mark.parametrize("field", ["response_format", "structured_outputs", "as text"])
async def test_a_deep_schema_is_taken_or_refused(field: str, depth: int) -> None:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    fields: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }
    if field != "response_format":
        outputs = json.dumps(schema) if field == "as text" else schema
        fields = {"structured_outputs": {"json": outputs}}
    async with gateway_running(constrained()) as running:
        if depth == 60:
            await complete(running, prompt="x", max_tokens=3, **fields)
        else:
            _, message = await refused(running, prompt="x", **fields)
            assert "deep" in message or "recursion" in message
