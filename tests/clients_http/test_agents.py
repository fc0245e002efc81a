"""OpenAI's Agents SDK against a real server: loops of tools, handoffs, typed ends."""

from typing import Any

import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door
from tests.clients_http.outside import evaluation_python, results_of

pytestmark = pytest.mark.slow

KINDS = ("chat", "responses", "websocket")


@pytest.fixture(scope="module")
def results(door: Door, key: str) -> Any:
    arguments = (door.base_url, key, MODEL, QUESTION, *KINDS)
    return results_of("agents_calls.py", *arguments, python=evaluation_python())


@pytest.fixture(params=KINDS)
def runs(request: pytest.FixtureRequest, results: Any) -> Any:
    return results[request.param]


def test_an_agent_answers_with_its_usage(runs: Any) -> None:
    assert runs["answered"] == ANSWER
    n_input, n_output, n_total = runs["usage"]
    assert n_total == n_input + n_output > n_output > 0


def test_a_conversation_goes_on(runs: Any) -> None:
    assert runs["second"]


def test_a_tool_is_called_and_its_result_is_answered(runs: Any) -> None:
    assert runs["items"] == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    assert runs["result"] in ("In Oslo it is sunny.", "In Rome it is sunny.")
    assert runs["n_requests"] == 2
    assert runs["called"]


def test_a_streamed_loop_ends_as_the_whole_one(runs: Any) -> None:
    assert runs["streamed"] == runs["called"]
    assert runs["n_events"] > 1


def test_a_typed_end_is_of_its_type(runs: Any) -> None:
    assert runs["typed"] in ("star", "moon")


def test_another_agent_takes_over(runs: Any) -> None:
    assert runs["handed_to"] == "plain"


def test_agents_side_by_side_each_answer_as_alone(runs: Any) -> None:
    assert runs["at_once"] == [ANSWER] * 12


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("chat", "AuthenticationError"),
        ("responses", "AuthenticationError"),
        ("websocket", "InvalidStatus"),  # that of the library below
    ],
)
def test_a_wrong_key_is_told_by_its_class(results: Any, kind: str, name: str) -> None:
    assert results[kind]["error"] == name


def test_no_host_but_this_one_is_asked_for(results: Any) -> None:
    assert results["asked"] == []
