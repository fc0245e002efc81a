"""Bodies of chat requests, whatever is in them."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.harness import byte_texts
from wkvm.gateway.chat.bodies import ChatBody, Question, question
from wkvm.gateway.decoding import decode_body
from wkvm.gateway.errors import TemplateError
from wkvm.gateway.failures import HttpError
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

USER = {"role": "user", "content": "Hello"}
TEXTS = {
    "plain": byte_texts(),
    "with tools": Texts(ByteTokenizer(), ChatTemplate("{{ tools | tojson }}{{ messages }}")),
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["type", "text", "function", "name", "parameters", "properties", "schema"])
WORDS = st.sampled_from(["function", "text", "image_url", "user", "object", "f", "json_schema"])
SHAPED = st.recursive(
    WORDS | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(ChatBody.__struct_fields__)


def asked(body: dict[str, Any], texts: Texts) -> Question | str:
    """The question, or why it is refused. No other error may come of a body."""
    try:
        parsed = decode_body(json.dumps(body).encode(), ChatBody)
        return question(parsed, texts, max_model_len=None, omit_media=False)
    except (HttpError, TemplateError) as error:
        return str(error)


@pytest.mark.parametrize("kind", TEXTS)
@given(fields=st.dictionaries(FIELDS, SHAPED | JSON, max_size=4))
def test_any_body_is_a_question_or_an_error_of_the_client(
    kind: str, fields: dict[str, Any]
) -> None:
    assert asked({"messages": [USER], **fields}, TEXTS[kind])


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("depth", [50, 200, 450])
@pytest.mark.parametrize("place", ["tools", "response_format", "structured_outputs", "arguments"])
def test_a_deep_body_is_a_question_or_refused(kind: str, depth: int, place: str) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    call = {"function": {"name": "f", "arguments": msgspec.json.encode(schema).decode()}}
    bodies: dict[str, dict[str, Any]] = {
        "tools": {"tools": [tool], "tool_choice": "required"},
        "response_format": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            }
        },
        "structured_outputs": {"structured_outputs": {"json": schema}},
        "arguments": {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]},
    }
    found = asked({"messages": [USER], **bodies[place]}, TEXTS[kind])
    if isinstance(found, str):
        assert depth > 50
        assert "nested too deeply" in found or "recursion" in found


def test_what_is_suggested_for_text_cuts_nothing_off_where_a_grammar_constrains() -> None:
    suggested = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1}
    texts = replace(byte_texts(), suggested=suggested)
    free = asked({"messages": [USER]}, texts)
    bound = {"messages": [USER], "response_format": {"type": "json_object"}}
    constrained, chosen = asked(bound, texts), asked({**bound, "top_p": 0.8}, texts)
    assert not isinstance(free, str)
    assert not isinstance(constrained, str)
    assert not isinstance(chosen, str)
    assert suggested.items() <= free.keywords.items()
    assert constrained.keywords["temperature"] == 0.5
    assert not {"top_p", "top_k", "min_p"} & constrained.keywords.keys()
    assert chosen.keywords["top_p"] == 0.8
