"""JSON of clients has a limit on its nesting that is far from the stack's."""

import msgspec
import pytest

from tests.gateway.harness import byte_texts
from wkvm.gateway.chat.bodies import ChatBody, question
from wkvm.gateway.decoding import decode_body
from wkvm.gateway.failures import HttpError
from wkvm.gateway.nesting import MAX_CONTAINERS, MAX_NESTING, NestingError, read_json
from wkvm.gateway.responses.bodies import CreateBody

USER = {"role": "user", "content": "Hello"}


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_as_many_levels_as_may_be_are_read() -> None:
    assert read_json(nested(MAX_NESTING), object) == msgspec.json.decode(nested(MAX_NESTING))


def test_one_level_more_is_refused() -> None:
    with pytest.raises(NestingError, match="128 levels"):
        read_json(nested(MAX_NESTING + 1), object)


def test_many_objects_side_by_side_are_no_levels() -> None:
    assert read_json("[" + "{}," * 1000 + "1]", list[object])[-1] == 1


@pytest.mark.parametrize("one", ["[]", "{}", '{"a":1}', '["[{"]'])
def test_the_objects_and_arrays_of_a_text_are_counted(one: str) -> None:
    most = "[" + ",".join([one] * (MAX_CONTAINERS - 1)) + "]"
    assert len(read_json(most, list[object])) == MAX_CONTAINERS - 1
    with pytest.raises(NestingError, match="65,537 objects and arrays: the limit is 65,536"):
        read_json(f"[{most}]", object)


def test_objects_and_arrays_that_are_never_closed_are_counted_too() -> None:
    with pytest.raises(NestingError, match="objects and arrays"):
        read_json("[" * (MAX_CONTAINERS + 1), object)


def test_numbers_and_texts_are_not_counted() -> None:
    assert len(read_json("[" + "1," * MAX_CONTAINERS + '"a"]', list[object])) > MAX_CONTAINERS


@pytest.mark.parametrize("text", ["[" * 999, '"' + "[" * 999, "\\" + '"' + "{" * 999, "\\"])
def test_brackets_in_texts_are_no_levels(text: str) -> None:
    data = msgspec.json.encode([text, [text], *[[]] * 200])
    assert read_json(data, list[object])[:2] == [text, [text]]


def test_a_text_that_ends_with_a_backslash_hides_no_levels() -> None:
    with pytest.raises(NestingError):
        read_json('["\\\\",' + nested(MAX_NESTING) + "]", object)


@pytest.mark.parametrize("text", ['["', '["\\', "[" * 999, "]" * 999, '[{"' * 200])
def test_what_is_no_json_is_no_json(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_json(text, object)


@pytest.mark.parametrize("depth", [MAX_NESTING, 550, 900, 978, 980])
def test_tools_of_responses_are_refused_before_they_are_told(depth: int) -> None:
    tool = f'{{"type": "function", "name": "f", "parameters": {nested(depth)}}}'
    with pytest.raises(HttpError, match="nested too deeply"):
        decode_body(f'{{"tools": [{tool}]}}'.encode(), CreateBody)


@pytest.mark.parametrize("kind", ["json", "structural_tag"])
def test_json_in_a_text_has_the_limit_too(kind: str) -> None:
    body = {"model": "m", "messages": [USER], "structured_outputs": {kind: nested(982)}}
    chat = decode_body(msgspec.json.encode(body), ChatBody)
    with pytest.raises(HttpError, match="nested too deeply"):
        question(chat, byte_texts(), max_model_len=None, omit_media=False)
