"""What a client is told of a body that is not what a route takes."""

import msgspec
import pytest

from wkvm.gateway.chat.bodies import ChatBody
from wkvm.gateway.decoding import decode_body
from wkvm.gateway.embeddings import EmbeddingBody
from wkvm.gateway.failures import HttpError
from wkvm.gateway.native.bodies import ScoreBody


def refusal(data: bytes, kind: type[msgspec.Struct]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        decode_body(data, kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("data", "param", "place"),
    [
        (b'{"temperature":"hot"}', "temperature", "temperature: "),
        (b'{"messages":[{"role":"user"},{"role":"king"}]}', "messages", "messages[1].role: "),
        (b'{"response_format":{"type":"xml"}}', "response_format", "response_format.type: "),
    ],
)
def test_a_value_that_does_not_fit_is_found_by_its_place(
    data: bytes, param: str, place: str
) -> None:
    error = refusal(data, ChatBody)
    assert error.param == param
    assert error.message.startswith(place)


def test_where_there_are_few_values_they_are_told() -> None:
    error = refusal(b'{"messages":[{"role":"king"}]}', ChatBody)
    roles = "'assistant', 'developer', 'function', 'system', 'tool', 'user'"
    assert error.message == f"messages[0].role: 'king' is none of {roles}"
    error = refusal(b'{"model":"m","input":"x","pooling":"cls"}', EmbeddingBody)
    assert error.message == "pooling: 'cls' is none of 'last', 'mean', 'state'"


@pytest.mark.parametrize(
    ("data", "message"),
    [(b'{"idz":[1]}', "idz: there is no such field"), (b"{}", "ids: is required")],
)
def test_fields_that_are_unknown_or_missing_are_named(data: bytes, message: str) -> None:
    error = refusal(data, ScoreBody)
    assert (error.param, error.message) == (message.partition(":")[0], message)


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "no body"), (b"{", "JSON"), (b"[]", "the body is not")]
)
def test_a_body_that_is_no_object_is_said_to_be_at_fault(data: bytes, words: str) -> None:
    error = refusal(data, ChatBody)
    assert error.param is None
    assert words in error.message
