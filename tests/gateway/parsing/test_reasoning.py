"""What a model thinks is told from what it answers."""

import pytest

from tests.gateway.parsing.reading import Found, read
from wkvm.gateway.parsing.forms import REASONING_FORMS, TOOL_FORMS
from wkvm.gateway.parsing.names import (
    REASONING_ALIASES,
    REASONING_PARSERS,
    TOOL_ALIASES,
    TOOL_PARSERS,
)
from wkvm.gateway.parsing.registry import reasoning_form, tool_form

THINK = REASONING_FORMS["think"]


@pytest.mark.parametrize(
    ("begun", "text", "reasoning", "answer"),
    [
        ("", "<think>\nHm.\n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
        ("", "\n<think>Hm.\n\nSo</think>Yes.", "Hm.\n\nSo", "Yes."),
        ("", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("", "Yes. <think>No.</think>", "", "Yes. <think>No.</think>"),
        ("", "<thin", "", "<thin"),
        ("", "  ", "", "  "),
        ("", "<think>Hm </thin", "Hm </thin", ""),
        ("<think>", "\nHm.</think>Yes.", "Hm.", "Yes."),
        ("<think>", "Hm. <think>?</think></think>", "Hm. <think>?", "</think>"),
        ("<think>", "", "", ""),
        ("<think", ">Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think", "Yes.", "", "Yes."),
        ("<think", "", "", ""),
    ],
)
def test_reasoning_is_what_comes_between_its_words_before_the_answer(
    begun: str, text: str, reasoning: str, answer: str
) -> None:
    assert read("plain", text, begun=begun) == Found(reasoning, answer, [])
    assert read("plain", text, begun=begun, cuts=range(len(text))) == Found(reasoning, answer, [])


def test_what_looks_like_a_call_within_the_reasoning_is_reasoning() -> None:
    call = '<tool_call>{"name":"go","arguments":{}}</tool_call>'
    found = read("hermes", f"<think>{call}</think>{call}", begun="")
    assert found == Found(call, "", [("go", "{}", True)])


@pytest.mark.parametrize(
    ("tail", "begun"),
    [
        ("Assistant: <think>\n", "<think>"),
        ("Assistant: <think", "<think"),
        ("Assistant: <think>\n\n</think>\n\n", None),
        ("Assistant:", ""),
        ("is 1 <", ""),
    ],
)
def test_what_a_prompt_ends_with_says_how_the_answer_begins(tail: str, begun: str | None) -> None:
    assert THINK.begun(tail) == begun


def test_a_continued_answer_may_be_in_its_reasoning() -> None:
    assert THINK.is_inside("<think>So")
    assert not THINK.is_inside("<think>So</think>Yes")
    assert not THINK.is_inside("Yes")


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ('<tool_call>\n{"name": <function-name>}</tool_call> <think></think>', "hermes", "think"),
        ("<tool_call>\n<function=a>\n<parameter=b>", "qwen3_coder", None),
        ("{%- if x -%}[TOOL_CALLS]", "mistral", None),
        ("[TOOL_CALLS][ARGS][THINK][/THINK]", "mistral_args", "mistral"),
        ("<|python_tag|>", "llama3_json", None),
        ("<TOOLCALL>", "nemotron", None),
        ("<|tool_call|>", "granite", None),
        ("<tool_calls>", "jamba", None),
        ("<|tool_calls_section_begin|>", "kimi_k2", None),
        ("{{ tools }}", "json", None),
    ],
)
def test_a_template_tells_what_its_model_writes(
    template: str, tools: str, reasoning: str | None
) -> None:
    assert tool_form("auto", template, knows_tools=True) is tool_form(tools, "", knows_tools=True)
    found = reasoning_form("auto", template)
    assert found is (None if reasoning is None else REASONING_FORMS[reasoning])
    json_form = tool_form("json", "", knows_tools=True)
    assert tool_form("auto", template, knows_tools=False) is json_form


def test_every_parser_that_can_be_named_exists() -> None:
    for name in TOOL_PARSERS:
        tool_form(name, "", knows_tools=True)
    for name in REASONING_PARSERS:
        assert reasoning_form(name, "") is not None or name in ("auto", "none")


def test_every_form_can_be_named() -> None:
    assert set(TOOL_PARSERS) == {"auto", *TOOL_FORMS, *TOOL_ALIASES}
    assert set(REASONING_PARSERS) == {"auto", "none", *REASONING_FORMS, *REASONING_ALIASES}
