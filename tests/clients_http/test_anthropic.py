"""Anthropic's own client against a real server."""

from typing import Any

import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door
from tests.clients_http.outside import evaluation_python, results_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(door: Door, key: str) -> Any:
    arguments = (door.url, key, MODEL, QUESTION)
    return results_of("anthropic_calls.py", *arguments, python=evaluation_python())


def test_a_message_is_answered_with_its_usage(results: Any) -> None:
    assert (results["text"], results["stop_reason"]) == (ANSWER, "end_turn")
    assert results["usage"] == [results["counted"], results["usage"][1]]


def test_a_streamed_answer_is_the_whole_one_in_pieces_with_its_usage(results: Any) -> None:
    assert "".join(results["pieces"]) == ANSWER
    assert results["pieces"]
    assert results["streamed_usage"] == results["usage"]


def test_a_stop_sequence_ends_an_answer_before_it_and_is_named(results: Any) -> None:
    assert results["stopped"] == ["The sun is a very big and ", "stop_sequence", "hot star"]


def test_a_typed_answer_is_of_its_type(results: Any) -> None:
    assert results["parsed"] in ("star", "moon")


def test_a_tool_that_must_be_called_is_called_streamed_or_not(results: Any) -> None:
    stop_reason, name, arguments = results["called"]
    assert (stop_reason, name) == ("tool_use", "weather")
    assert arguments in ({"city": "Oslo"}, {"city": "Rome"})
    assert results["streamed_call"] == [arguments]


def test_the_result_of_a_tool_is_answered(results: Any) -> None:
    assert results["told"]


def test_a_loop_of_tools_ends(results: Any) -> None:
    assert results["ran"] == "end_turn"


def test_a_hundred_at_once_each_get_the_answer_of_one_alone(results: Any) -> None:
    assert results["at_once"] == [ANSWER] * 100


def test_a_client_that_retries_gets_through_a_narrow_door(narrow: Door, key: str) -> None:
    arguments = (narrow.url, key, MODEL, QUESTION, "20", "60")
    results = results_of("anthropic_calls.py", *arguments, python=evaluation_python())
    assert results["at_once"] == [ANSWER] * 20


def test_the_model_is_listed(results: Any) -> None:
    ((name, kind, display_name, year),) = results["models"]
    assert (name, kind, display_name) == (MODEL, "model", MODEL)
    assert year > 2024


def test_errors_are_of_the_classes_for_them(results: Any) -> None:
    assert results["errors"] == ["BadRequestError", "NotFoundError", "AuthenticationError"]


def test_no_host_but_this_one_is_asked_for(results: Any) -> None:
    assert results["asked"] == []
