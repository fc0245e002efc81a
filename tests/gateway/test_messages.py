"""What a template is given of a client's messages."""

import json

import msgspec
import pytest

from wkvm.gateway.chat.messages import Message, template_messages
from wkvm.gateway.failures import HttpError
from wkvm.gateway.text.template import WORLD_TEMPLATE, ChatTemplate

PLAIN = ChatTemplate(WORLD_TEMPLATE)
WITH_TOOLS = ChatTemplate("{{ tools }}{{ messages }}")

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}


def given(
    *messages: object, template: ChatTemplate = PLAIN, omit_media: bool = False
) -> list[dict[str, object]]:
    parsed = msgspec.convert(list(messages), list[Message])
    return template_messages(parsed, template, omit_media=omit_media)


def refusal(*messages: object, omit_media: bool = False) -> HttpError:
    with pytest.raises(HttpError) as caught:
        given(*messages, omit_media=omit_media)
    assert caught.value.status == 400
    return caught.value


def test_text_parts_are_lines_of_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert given({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


def test_a_developer_is_the_system_to_a_template_that_knows_none() -> None:
    message = {"role": "developer", "content": "Be kind."}
    assert given(message)[0]["role"] == "system"
    knowing = ChatTemplate("{% if messages[0].role == 'developer' %}{% endif %}")
    assert given(message, template=knowing)[0]["role"] == "developer"


def test_names_go_to_the_template() -> None:
    assert given({"role": "user", "content": "a", "name": "anna"})[0]["name"] == "anna"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", "nothing"])
def test_a_part_that_is_no_text_is_refused_by_its_place(kind: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}
    error = refusal({"role": "system", "content": ""}, message)
    assert error.param == "messages[1].content[1]"
    assert "reads text only" in error.message


@pytest.mark.parametrize(
    ("kind", "what"), [("image_url", "image"), ("input_audio", "sound"), ("file", "file")]
)
def test_a_note_stands_for_media_that_the_operator_leaves_out(kind: str, what: str) -> None:
    parts = [{"type": kind, kind: {"url": "data:"}}, {"type": "text", "text": "What is it?"}]
    content = given({"role": "user", "content": parts}, omit_media=True)[0]["content"]
    assert content == f"(A{'n' * (what == 'image')} {what} was left out here: this model reads " + (
        "text only.)\nWhat is it?"
    )


def test_unknown_parts_are_refused_even_where_media_are_left_out() -> None:
    assert refusal({"role": "user", "content": [{"type": "x"}]}, omit_media=True).param


def test_a_text_part_without_text_is_refused() -> None:
    error = refusal({"role": "user", "content": [{"type": "text"}]})
    assert error.param == "messages[0].content[0]"


def test_no_messages_are_refused() -> None:
    assert refusal().param == "messages"


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "function"])
def test_only_an_answer_may_have_no_content(role: str) -> None:
    assert refusal({"role": role}).param == "messages[0].content"
    assert given({"role": "assistant"}) == [{"role": "assistant", "content": ""}]


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert given({"role": "assistant", "refusal": "No."})[0]["content"] == "No."


def test_calls_and_results_are_texts_to_a_template_without_tools() -> None:
    assert given(CALL, RESULT) == [
        {"role": "assistant", "content": '{"name":"add","arguments":{"a": 1}}'},
        {"role": "user", "content": "Result of add: 2"},
    ]


def test_several_results_are_one_turn() -> None:
    second = {"role": "tool", "tool_call_id": "unknown", "content": "3"}
    assert given(CALL, RESULT, second, {"role": "user", "content": "and?"})[1:] == [
        {"role": "user", "content": "Result of add: 2\nResult: 3"},
        {"role": "user", "content": "and?"},
    ]


def test_calls_in_the_deprecated_form_are_calls() -> None:
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}
    result = {"role": "function", "name": "f", "content": "1"}
    assert [message["content"] for message in given(old, result)] == [
        '{"name":"f","arguments":{}}',
        "Result of f: 1",
    ]


@pytest.mark.parametrize("template", [PLAIN, WITH_TOOLS], ids=["plain", "with tools"])
def test_what_is_null_in_a_past_call_counts_as_absent(template: ChatTemplate) -> None:
    nulls = {"id": None, "type": None, "function": {"name": "f", "arguments": None}}
    message = {"role": "assistant", "tool_calls": [nulls], "content": None, "name": None}
    bare = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    assert given(message, template=template) == given(bare, template=template)


def test_text_before_a_call_stays() -> None:
    content = given(CALL | {"content": "Let me see."})[0]["content"]
    assert content == 'Let me see.\n{"name":"add","arguments":{"a": 1}}'


def test_a_template_with_tools_gets_calls_and_results_as_they_are() -> None:
    call, result = given(CALL, RESULT, template=WITH_TOOLS)
    assert call["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "2", "name": "add"}


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "\ud800"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    broken = json.loads(json.dumps(CALL))
    broken["tool_calls"][0]["function"]["arguments"] = arguments
    calls = given(broken, template=WITH_TOOLS)[0]["tool_calls"]
    assert isinstance(calls, list)
    assert calls[0]["function"]["arguments"] == arguments
