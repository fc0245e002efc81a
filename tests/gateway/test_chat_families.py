"""Chats of models of all families over HTTP: calls that are required, and what is thought."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import byte_texts, gateway_running
from tests.gateway.stateful import states_running
from tests.gateway.test_chat import ask, chunks, refusal, saying
from tests.gateway.test_chat_tools import calls_of
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.gateway.parsing.forms import TOOL_FORMS
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer, Tokenizer
from wkvm.gateway.texts import Texts

NAMES = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|tool_call|>", "<think>", "</think>"),
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "direction": {"type": "string", "enum": ["north", "south", ""]},
        "steps": {"type": "integer", "minimum": 1, "maximum": 20},
        "note": {"type": "string", "maxLength": 12},
        "fast": {"type": ["boolean", "null"]},
    },
    "required": ["direction", "steps"],
    "additionalProperties": False,
}
GO = {"type": "function", "function": {"name": "go", "parameters": PARAMETERS}}
WAIT = {"type": "function", "function": {"name": "wait"}}
TEMPLATE = ChatTemplate(
    "{{ tools }}{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: "
    "{%- if enable_thinking is defined and enable_thinking %}<think>\n"
    "{%- elif enable_thinking is defined %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    "{#- <think></think> -#}"
)
SPECIAL_CLOSING = 256 + NAMES.index("</think>")


class SpecialTokenizer(ByteTokenizer):
    """Ids are bytes; those beyond are special tokens, the words around calls and reasoning."""

    def __init__(self) -> None:
        super().__init__()
        self.specials = {256 + at: name for at, name in enumerate(NAMES)}

    @property
    def vocab_size(self) -> int:
        return 256 + len(NAMES)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if special:
            return self.encode_runs(self.split_specials(text))
        return super().encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        name = self.specials.get(token_id)
        return super().token_bytes(token_id) if name is None else name.encode()


def engine_of(tokenizer: Tokenizer) -> Engine:
    size = tokenizer.vocab_size
    token_bytes = [bytes((one,)) if one < 256 else b"" for one in range(size)]
    model = FakeModel(vocab_size=size, eos_ids=(0,))
    grammars = GrammarCompiler([b"", *token_bytes[1:]], vocab_size=size)
    return Engine(model, EngineConfig(n_slots=8), grammars=grammars)


def texts_of(form: str, *, special: bool) -> Texts:
    tokenizer = SpecialTokenizer() if special else ByteTokenizer()
    return Texts(tokenizer, TEMPLATE, tool_parser=form, reasoning_parser="none")


def check(calls: list[dict[str, Any]]) -> None:
    assert calls
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "go":
            jsonschema.validate(arguments, PARAMETERS)
        else:
            assert (call["function"]["name"], arguments) == ("wait", {})


@pytest.mark.parametrize(
    ("form", "special"),
    [
        *((form, False) for form in TOOL_FORMS),
        *((form, True) for form in ("granite", "kimi_k2", "mistral", "mistral_args")),
    ],
)
async def test_required_calls_come_in_the_form_of_the_family(form: str, special: bool) -> None:
    texts = texts_of(form, special=special)
    fields: dict[str, Any] = {"tools": [GO, WAIT], "max_tokens": 4000, "temperature": 1}
    fields |= {"tool_choice": "required", "logit_bias": {"0": 1}}
    counts = set[int]()
    async with gateway_running(engine_of(texts.tokenizer), texts=texts) as running:
        for seed in range(2):
            [choice] = (await ask(running, **fields, seed=seed))["choices"]
            calls = choice["message"]["tool_calls"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            check(calls)
            counts.add(len(calls))
            pieces = calls_of(await chunks(running, **fields, seed=seed))
            for index, call in enumerate(calls):
                mine = [piece["function"] for piece in pieces if piece["index"] == index]
                assert mine[0] == {"name": call["function"]["name"], "arguments": ""}
                written = "".join([piece["arguments"] for piece in mine])
                assert written == call["function"]["arguments"]
        single = await ask(running, **fields, seed=0, parallel_tool_calls=False)
        assert len(single["choices"][0]["message"]["tool_calls"]) == 1
        named = {"type": "function", "function": {"name": "wait"}}
        answer = await ask(running, **{**fields, "tool_choice": named}, seed=0)
        assert {
            call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]
        } == {"wait"}
    assert counts == {1} or not TOOL_FORMS[form].is_single


async def test_several_calls_and_text_beside_them() -> None:
    said = (
        'I go.\n<tool_call>\n{"name": "go", "arguments": {"steps": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
    )
    texts = replace(texts_of("hermes", special=False), template=ChatTemplate("{{ tools }}x"))
    prompt = len(texts.template.render([], tools=[GO, WAIT]))
    fields = {"tools": [GO, WAIT], "max_tokens": 200, "messages": [{"role": "user", "content": ""}]}
    async with gateway_running(texts=texts) as running:
        asked = await ask(running, **fields, return_token_ids=True)
        prompt = len(asked["prompt_token_ids"])
    async with gateway_running(saying(said, n_prompt=prompt), texts=texts) as running:
        [choice] = (await ask(running, **fields))["choices"]
        found = await chunks(running, **fields)
    assert choice["message"]["content"] == "I go."
    assert choice["finish_reason"] == "tool_calls"
    names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert names == ["go", "wait"]
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    assert [piece["index"] for piece in calls_of(found) if "id" in piece] == [0, 1]


# --- reasoning ----------------------------------------------------------------------------


def thinking(*, special: bool = False, engine: Engine | None = None) -> tuple[Engine, Texts]:
    texts = Texts(SpecialTokenizer() if special else ByteTokenizer(), TEMPLATE)
    return engine or engine_of(texts.tokenizer), texts


def thought_of(found: list[dict[str, Any]]) -> str:
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    assert [d.get("reasoning") for d in deltas] == [d.get("reasoning_content") for d in deltas]
    return "".join([delta.get("reasoning_content", "") for delta in deltas])


@pytest.mark.parametrize("opened", [False, True])
async def test_reasoning_is_told_apart_streamed_and_not(opened: bool) -> None:
    said = "Hm.\nSo</think>\n\nYes." if opened else "<think>\nHm.\nSo\n</think>\n\nYes."
    _, texts = thinking()
    fields: dict[str, Any] = {"max_tokens": 100}
    if opened:
        fields["chat_template_kwargs"] = {"enable_thinking": True}
    options = {"enable_thinking": True} if opened else {}
    user = [{"role": "user", "content": "Hello"}]
    prompt = texts.template.write(user, texts.tokenizer, options=options).ids()
    async with gateway_running(saying(said, n_prompt=len(prompt)), texts=texts) as running:
        [choice] = (await ask(running, **fields))["choices"]
        assert choice["message"]["reasoning_content"] == "Hm.\nSo"
        assert choice["message"]["reasoning"] == "Hm.\nSo"
        assert choice["message"]["content"] == "Yes."
        found = await chunks(running, **fields)
        assert thought_of(found) == "Hm.\nSo"
        [choice] = (await ask(running, **fields, include_reasoning=False))["choices"]
        assert "reasoning_content" not in choice["message"]
        assert choice["message"]["content"] == "Yes."


async def test_rwkv_is_asked_to_think_by_the_beginning_of_the_word() -> None:
    texts = replace(byte_texts(), reasoning_parser="rwkv")
    prompt = b"User: Hello\n\nAssistant: <think"
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 100}
    engine = saying(">Hm.</think>\nYes.", n_prompt=len(prompt))
    async with gateway_running(engine, texts=texts) as running:
        answer = await ask(running, return_token_ids=True, **fields)
        found = await chunks(running, **fields)
    assert bytes(answer["prompt_token_ids"]) == prompt
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")
    assert thought_of(found) == "Hm."


async def test_a_template_is_given_what_a_request_says() -> None:
    _, texts = thinking()
    async with gateway_running(texts=texts) as running:

        async def prompt(**fields: Any) -> str:
            answer = await ask(running, return_token_ids=True, **fields)
            return bytes(answer["prompt_token_ids"]).decode()

        assert (await prompt()).endswith("assistant:")
        given = await prompt(chat_template_kwargs={"enable_thinking": False})
        assert given.endswith("<think>\n\n</think>\n\n")
        assert (await prompt(reasoning_effort="none")).endswith("</think>\n\n")
        assert (await prompt(reasoning_effort="high")).endswith("assistant:")
        before = {"role": "assistant", "content": "A", "reasoning_content": "B"}
        assert "assistant: BA\n" in await prompt(messages=[before, {"role": "user", "content": ""}])
        error = await refusal(running, chat_template_kwargs={"tools": []})
        assert error["param"] == "chat_template_kwargs"


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kwargs", [{"enable_thinking": True}, {"enable_thinking": False}, {}])
async def test_what_an_answer_must_be_holds_for_what_follows_the_reasoning(
    special: bool, kwargs: dict[str, bool]
) -> None:
    engine, texts = thinking(special=special)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    # "</think>" is as good as never written by chance, if it is no token
    bias = {str(SPECIAL_CLOSING): 6} if special else {}
    fields: dict[str, Any] = {"response_format": form, "chat_template_kwargs": kwargs}
    fields |= {"max_tokens": 4000 if special else 60, "temperature": 1, "logit_bias": bias}
    async with gateway_running(engine, texts=texts) as running:
        for seed in range(3):
            [choice] = (await ask(running, **fields, seed=seed))["choices"]
            message = choice["message"]
            if choice["finish_reason"] == "stop":
                assert json.loads(message["content"]) in ({"a": 1}, {"a": 2})
                assert ("reasoning" in message) <= (kwargs != {"enable_thinking": False})
            else:
                assert not special
                assert message["content"] == ""
                assert message["reasoning"]


@pytest.mark.parametrize("kwargs", [{"enable_thinking": True}, {}])
async def test_an_answer_goes_on_from_its_state_within_reasoning_and_after_it(
    tmp_path: Path, kwargs: dict[str, bool]
) -> None:
    engine, texts = thinking(special=True)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    fields: dict[str, Any] = {"response_format": form, "chat_template_kwargs": kwargs}
    bias = {str(SPECIAL_CLOSING): 4, str(256 + NAMES.index("<think>")): 20}
    fields |= {"temperature": 1, "logit_bias": bias, "return_token_ids": True}
    async with states_running(tmp_path, engine, texts=texts) as running:
        [whole] = (await ask(running, **fields, seed=8, max_tokens=4000))["choices"]
        assert whole["message"]["reasoning"]
        n = len(whole["token_ids"])
        for k in (4, n - 3):
            first = await ask(running, **fields, seed=8, max_tokens=k, save_as="s")
            more = {**fields, "messages": [], "state": "s", "save_as": "s", "max_tokens": 4000}
            [rest] = (await ask(running, **more))["choices"]
            assert first["choices"][0]["token_ids"] + rest["token_ids"] == whole["token_ids"]
            assert rest["finish_reason"] == "stop"
            if k > 4:
                content = first["choices"][0]["message"]["content"] + rest["message"]["content"]
                assert content == whole["message"]["content"]


@pytest.mark.parametrize("budget", [0, 1, 25])
@pytest.mark.parametrize("required", [False, True])
async def test_reasoning_ends_with_its_budget(budget: int, required: bool) -> None:
    engine, texts = thinking(special=True)
    fields: dict[str, Any] = {
        "thinking_token_budget": budget,
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 200,
        "temperature": 1,
        "return_token_ids": True,
        "logit_bias": {str(SPECIAL_CLOSING): -20},
    }
    if required:
        schema = {"enum": ["yes", "no"]}
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema},
        }
    async with gateway_running(engine, texts=texts) as running:
        [choice] = (await ask(running, **fields, seed=4))["choices"]
    ids = choice["token_ids"]
    assert ids.index(SPECIAL_CLOSING) == budget
    if required:
        assert choice["message"]["content"] in ('"yes"', '"no"')
    else:
        assert len(ids) == 200


async def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    engine, texts = thinking()
    async with gateway_running(engine, texts=texts) as running:
        assert (await refusal(running, thinking_token_budget=5))["param"] == "thinking_token_budget"
    engine, texts = thinking(special=True)
    async with gateway_running(engine, texts=texts) as running:
        error = await refusal(running, thinking_token_budget=-1)
        assert error["param"] == "thinking_token_budget"
    async with gateway_running(texts=byte_texts()) as running:
        await ask(running, thinking_token_budget=5)  # it thinks not at all


# --- what no grammar can express ----------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, '"not", at #/properties/a/not'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems", at #/uniqueItems'),
        ({"anyOf": [{}, {"if": {}}]}, '"if", at #/anyOf/1/if'),
        ({"$defs": {"d": {"type": "string", "format": "iri"}}}, '"iri", at #/$defs/d/format'),
        ({"items": [{}]}, '"items", at #/items'),
        ({"$ref": "https://example.com/s"}, '"$ref", at #/$ref'),
        ({"type": "object", "minProperties": 2, "patternProperties": {}}, "minProperties"),
        ({"properties": {"a": 7}}, "#/properties/a is no schema"),
    ],
)
@pytest.mark.parametrize("strict", [None, True])
async def test_a_keyword_is_refused_by_its_name_and_path_before_anything_runs(
    schema: dict[str, Any], at: str, strict: bool | None
) -> None:
    named = {"name": "x", "schema": schema, "strict": strict}
    model = FakeModel(vocab_size=256)
    engine = Engine(
        model,
        EngineConfig(n_slots=2),
        grammars=GrammarCompiler([bytes((one,)) for one in range(256)], vocab_size=256),
    )
    async with gateway_running(engine) as running:
        form = {"type": "json_schema", "json_schema": named}
        error = await refusal(running, response_format=form)
        assert (error["param"], error["type"]) == ("response_format", "invalid_request_error")
        assert at in error["message"]
        error = await refusal(running, structured_outputs={"json": schema})
        assert error["param"] == "structured_outputs"
        assert at in error["message"]
    assert model.n_forwards == 0


async def test_what_asks_for_nothing_and_what_json_schema_does_not_know_are_ignored() -> None:
    schema = {
        "type": "array",
        "items": {"const": "1", "title": "x", "x-order": 1, "type": "string", "format": "password"},
        "uniqueItems": False,
        "maxItems": 1,
        "default": {"not": 1},
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with gateway_running(engine_of(ByteTokenizer())) as running:
        answer = await ask(running, response_format=form)
    assert json.loads(answer["choices"][0]["message"]["content"]) in ([], ["1"])
