"""Calls in the text of an answer, as families of models write them, however the text is cut."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gateway.parsing.reading import OFFERED, Found, read, reader_of
from wkvm.gateway.parsing.events import CallArguments
from wkvm.gateway.parsing.reader import MAX_HELD

GO = '{"direction": "north", "steps": 2}'
CALLS: dict[str, str] = {
    "json": '{"name":"go","arguments":%s}',
    "hermes": '<tool_call>\n{"name": "go", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "go", "parameters": %s}',
    "mistral": '[TOOL_CALLS] [{"name": "go", "arguments": %s}]',
    "mistral_args": "[TOOL_CALLS]go[ARGS]%s",
    "nemotron": '<TOOLCALL>[{"name": "go", "arguments": %s}]</TOOLCALL>',
    "granite": '<|tool_call|>[{"name": "go", "arguments": %s}]',
    "granite_tag": '<tool_call>[{"name": "go", "arguments": %s}]',
    "jamba": '<tool_calls>[\n{"name": "go", "arguments": %s}\n]</tool_calls>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.go:0"
    "<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_calls_section_end|>",
}
"""One call of each form; ``%s`` is where its arguments are."""
XML = (
    "<tool_call>\n<function=go>\n<parameter=direction>\nnorth\n</parameter>\n"
    "<parameter=steps>\n2\n</parameter>\n</function>\n</tool_call>"
)
SEVERAL: dict[str, str] = {
    "hermes": '<tool_call>{"name":"go","arguments":{"a":1}}</tool_call>\n'
    '<tool_call>{"name":"wait","arguments":{}}</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=go>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=wait>\n</function>\n</tool_call>",
    "llama3_json": '{"name":"go","parameters":{"a":1}}; {"name":"wait","parameters":{}}',
    "mistral": '[TOOL_CALLS] [{"name":"go","arguments":{"a":1}}, {"name":"wait","arguments":{}}]',
    "mistral_args": '[TOOL_CALLS]go[ARGS]{"a":1}[TOOL_CALLS]wait{}',
    "nemotron": '<TOOLCALL>[{"name":"go","arguments":{"a":1}},'
    '{"name":"wait","arguments":{}}]</TOOLCALL>',
    "kimi_k2": "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.go:0<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>\n'
    "<|tool_call_begin|>functions.wait:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
}


@pytest.mark.parametrize("form", CALLS)
def test_a_call_is_found_with_its_arguments_as_they_were_written(form: str) -> None:
    found = read(form, CALLS[form] % GO)
    assert found == Found("", "", [("go", GO, True)])


def test_arguments_between_tags_become_json_by_what_the_schema_says() -> None:
    found = read("qwen3_coder", XML)
    assert found == Found("", "", [("go", '{"direction":"north","steps":2}', True)])


@pytest.mark.parametrize("value", ["", "a\n", '"', "<b>&</b>", "\n\nx", "</param", "2", "é\\"])
def test_a_text_between_tags_is_taken_as_it_stands(value: str) -> None:
    written = f"<function=say><parameter=text>\n{value}\n</parameter></function>"
    [(name, arguments, _)] = read("qwen3_coder", written).calls
    assert (name, json.loads(arguments)) == ("say", {"text": value})


@pytest.mark.parametrize(
    ("written", "value"),
    [("True", True), ("None", None), ("[1, 2]", [1, 2]), ("{'a'}", "{'a'}"), ("1.50", 1.5)],
)
def test_what_is_no_text_between_tags_is_json_as_far_as_it_can_be(
    written: str, value: object
) -> None:
    text = f"<function=go><parameter=steps>\n{written}\n</parameter></function>"
    [(_, arguments, _)] = read("qwen3_coder", text).calls
    assert json.loads(arguments) == {"steps": value}


@pytest.mark.parametrize("form", SEVERAL)
def test_several_calls_are_told_apart(form: str) -> None:
    found = read(form, SEVERAL[form])
    assert [(name, json.loads(arguments)) for name, arguments, _ in found.calls] == [
        ("go", {"a": 1}),
        ("wait", {}),
    ]
    assert found.text == ""
    assert len(read(form, SEVERAL[form], is_single=True).calls) == 1


@pytest.mark.parametrize("form", [*CALLS, "qwen3_coder"])
def test_text_before_and_after_a_call_is_text(form: str) -> None:
    call = XML if form == "qwen3_coder" else CALLS[form] % GO
    found = read(form, f"{call}\nDone.\n")
    assert found.text == "Done."
    if form not in ("json", "llama3_json"):
        found = read(form, f"I go.\n\n{call}\n")
        assert found.text == "I go."
    assert len(found.calls) == 1


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", "Let us go."),
        ("json", "{go}"),
        ("json", ' {"name":"run","arguments":{}}\n'),
        ("json", '{"name":"go"}'),
        ("json", '{"name":"go","arguments":7}'),
        ("json", 'So: {"name":"go","arguments":{}}'),
        ("json", '{"name":"go"'),
        ("json", '{"name":"go","arg'),
        ("hermes", "<tool_call>\nnothing"),
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'),
        ("hermes", "a <tool_call> is <tool_calls>"),
        ("hermes", "so <tool_ca"),
        ("hermes", "<tool_call>[]</tool_call>"),
        ("hermes", "<tool_call>" * 3),
        ("qwen3_coder", "<tool_call><function=run></function></tool_call>"),
        ("qwen3_coder", "<tool_call><function=" + "g" * 300),
        ("qwen3_coder", "<tool_call>\n<func"),
        ("mistral", "[TOOL_CALLS] nothing to call here"),
        ("mistral_args", "[TOOL_CALLS]run[ARGS]{}"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0"),
        ("nemotron", '<TOOLCALL>[{"name": 3}]</TOOLCALL>'),
        ("hermes", '<tool_call>{"x":"' + "y" * 5000),
    ],
)
def test_what_only_looks_like_a_call_is_text_to_its_last_character(form: str, text: str) -> None:
    assert read(form, text) == Found("", text, [])
    assert read(form, text, cuts=range(len(text))) == Found("", text, [])


def test_a_call_behind_what_only_looks_like_one_is_a_call() -> None:
    text = '<tool_call>{"name": <tool_call>{"name":"go","arguments":{}}</tool_call>'
    assert read("hermes", text) == Found("", '<tool_call>{"name":', [("go", "{}", True)])


@pytest.mark.parametrize(
    "written",
    [
        '{"arguments": {"a": "}"}, "name": "go"}',
        '{"id": 7, "type": "function", "name": "go", "arguments": {"a": "}"}}',
        '{"name": "go", "arguments": "{\\"a\\": \\"}\\"}"}',
        '{"name" :"go" , "parameters":{"a": "}"} , "more": [{}]}',
    ],
)
def test_a_call_may_have_its_fields_in_any_order_and_others_too(written: str) -> None:
    [(name, arguments, is_complete)] = read("json", written).calls
    assert (name, json.loads(arguments), is_complete) == ("go", {"a": "}"}, True)


def test_a_wrapped_call_without_arguments_has_none() -> None:
    assert read("hermes", '<tool_call>{"name":"wait"}</tool_call>').calls == [("wait", "{}", True)]


@pytest.mark.parametrize("form", [*CALLS, "qwen3_coder"])
def test_a_call_that_is_cut_off_is_not_complete(form: str) -> None:
    call = XML if form == "qwen3_coder" else CALLS[form] % GO
    end = call.index("north") + 3
    [(name, arguments, is_complete)] = read(form, call[:end]).calls
    assert (name, is_complete) == ("go", False)
    assert arguments.endswith('"nor')
    assert not reader_of(form).is_call


@pytest.mark.parametrize("form", [*CALLS, "qwen3_coder"])
def test_arguments_come_as_they_are_written(form: str) -> None:
    call = XML if form == "qwen3_coder" else CALLS[form] % GO
    reader = reader_of(form)
    before = call.index("north") + 3
    told = [event for one in call[:before] for event in reader.feed(one)]
    assert len(told) > 3
    text = "".join([event.text for event in told if isinstance(event, CallArguments)])
    assert text.endswith("nor")


@pytest.mark.parametrize("n", [MAX_HELD, MAX_HELD + 1])
@pytest.mark.parametrize("thinks", [False, True])
def test_so_much_white_space_may_come_before_what_begins_an_answer(n: int, thinks: bool) -> None:
    text = " " * n + ("<think>x</think>" if thinks else CALLS["json"] % "{}")
    begun = "" if thinks else None
    found = read("json", text, begun=begun)
    assert found == read("json", text, begun=begun, cuts=range(0, len(text), 3))
    assert bool(found.reasoning or found.calls) == (n == MAX_HELD)


PIECES = st.sampled_from(
    [
        *[CALLS[form] % GO for form in CALLS],
        *SEVERAL.values(),
        XML,
        "<tool_call>",
        "</tool_call>",
        "<function=go>",
        "<parameter=direction>\n",
        "\n</parameter>",
        "</function>",
        '{"name":"go","arguments":{"a":"\\"}',
        '{"name"',
        "}",
        "]",
        ", ",
        ";",
        "\n",
        " ",
        "<",
        "[TOOL_CALLS]",
        "go",
        "[ARGS]",
        "{",
        "text",
        "é",
        "<think>",
        "</think>",
        "</thi",
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=20)
FORMS = [*CALLS, "qwen3_coder"]


@given(
    form=st.sampled_from(FORMS),
    text=TEXTS,
    thinks=st.booleans(),
    begun=st.sampled_from(["", "<think", "<think>"]),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_where_the_text_is_cut_never_matters(
    form: str, text: str, thinks: bool, begun: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    begun_as = begun if thinks else None
    whole = read(form, text, begun=begun_as)
    assert read(form, text, cuts=cuts, begun=begun_as) == whole
    assert read(form, text, cuts=range(len(text)), begun=begun_as) == whole


@given(form=st.sampled_from(FORMS), text=TEXTS)
@settings(max_examples=200, deadline=None)
def test_all_that_is_no_call_is_shown(form: str, text: str) -> None:
    found = read(form, text)
    if not found.calls:
        assert found.text == text
    assert all(name in OFFERED for name, _, _ in found.calls)


@example("</thi")
@given(st.text(max_size=30))
@settings(deadline=None)
def test_an_answer_without_anything_to_find_is_text(text: str) -> None:
    assert read("plain", text) == Found("", text, [])
