"""The call in the text of an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkvm.gateway.answers import Answer, Delta, PlainAnswer, PossibleCall, RequiredCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\{}[]\n,: é')),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.sampled_from('a"\\{}'), max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(st.sampled_from('ab"\\{}'), max_size=3), JSON, max_size=3)


def whole(answer: Answer, *texts: str) -> tuple[str, str | None, str]:
    deltas = [*map(answer.feed, texts), answer.end()]
    names = [delta.name for delta in deltas if delta.name is not None]
    assert len(names) <= 1
    text = "".join(delta.text for delta in deltas)
    return text, names[0] if names else None, "".join(delta.arguments for delta in deltas)


def cut(text: str, data: st.DataObject) -> list[str]:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(arguments=ARGUMENTS, spaces=st.booleans(), n_lost=st.integers(0, 5), data=st.data())
def test_how_a_required_call_is_cut_never_matters(
    arguments: dict[str, object], spaces: bool, n_lost: int, data: st.DataObject
) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    written = json.dumps(arguments, separators=separators)
    text = json.dumps({"name": "f", "arguments": arguments}, separators=separators)
    answer = RequiredCall()
    assert whole(answer, *cut(text, data)) == ("", "f", written)
    assert answer.is_call
    begun, again = RequiredCall(), RequiredCall()
    lost = text[: len(text) - 1 - n_lost]
    assert whole(begun, *cut(lost, data)) == whole(again, lost)
    assert begun.is_call is again.is_call is (n_lost == 0)


def test_a_required_call_shows_arguments_as_they_come() -> None:
    answer = RequiredCall()
    assert answer.feed('{"name":"f","argu') == Delta()
    assert answer.feed('ments":{"a":') == Delta(name="f", arguments='{"a":')
    assert answer.feed('"x') == Delta(arguments='"x')
    assert answer.feed('"}} ') == Delta(arguments='"}')
    assert answer.is_call


@given(arguments=ARGUMENTS, data=st.data())
def test_a_whole_answer_that_is_a_call_is_one_however_it_is_cut(
    arguments: dict[str, object], data: st.DataObject
) -> None:
    answer = PossibleCall(["f", "g"])
    text = f" {json.dumps({'name': 'g', 'arguments': arguments})}\n"
    assert whole(answer, *cut(text, data)) == ("", "g", json.dumps(arguments))
    assert answer.is_call


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Hello",
        "{}",
        "{",
        '{"name":"f"}',
        '{"name":"h","arguments":{}}',
        '{"name":"f","arguments":[]}',
        '{"name":"f","arguments":"{}"}',
        '{"name":"f","arguments":{}',
        '{"name":"f","arguments":{}} and more',
        '{"name":"f","arguments":{},"x":1}',
        'So: {"name":"f","arguments":{}}',
        '{"name":"f","arguments":' + '{"a":' * 20_000,
    ],
)
@given(data=st.data())
def test_whatever_else_is_text(text: str, data: st.DataObject) -> None:
    answer = PossibleCall(["f"])
    assert whole(answer, *cut(text, data)) == (text, None, "")
    assert not answer.is_call


def test_text_that_can_be_no_call_is_not_held_back() -> None:
    answer = PossibleCall(["f"])
    assert answer.feed(" ") == Delta()
    assert answer.feed("S") == Delta(" S")
    assert answer.feed("{") == Delta("{")


def test_numbers_of_a_call_stay_as_they_were_written() -> None:
    written = '{"a":1.10,"b":123456789012345678901234567890}'
    text = f'{{"arguments":{written},"name":"f"}}'
    assert whole(PossibleCall(["f"]), text) == ("", "f", written)


def test_an_answer_without_tools_is_all_text() -> None:
    text = '{"name":"f","arguments":{}}'
    assert whole(PlainAnswer(), text) == (text, None, "")
