"""LiteLLM's adapters for OpenAI's, vLLM's and Anthropic's interfaces against a real server."""

from typing import Any

import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door
from tests.clients_http.outside import results_of


@pytest.fixture(scope="module")
def results(door: Door, key: str) -> Any:
    return results_of("litellm_calls.py", door.base_url, key, MODEL, QUESTION)


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def chat(request: pytest.FixtureRequest, results: Any) -> Any:
    return results["chat"][request.param]


@pytest.fixture(params=["text-completion-openai", "hosted_vllm"])
def text(request: pytest.FixtureRequest, results: Any) -> Any:
    return results["text"][request.param]


def test_a_chat_is_answered_with_its_usage(chat: Any) -> None:
    assert (chat["text"], chat["finish_reason"]) == (ANSWER, "stop")
    n_prompt, n_output, n_total = chat["usage"]
    assert n_total == n_prompt + n_output > n_output > 0


def test_a_streamed_chat_is_the_whole_one_in_pieces_and_ends_with_its_usage(chat: Any) -> None:
    assert chat["streamed_text"] == ANSWER
    assert chat["n_chunks"] > 1
    assert chat["streamed_usage"] == chat["usage"]


def test_async_chats_are_answered_whole_and_streamed(chat: Any) -> None:
    assert chat["at_once"] == [ANSWER] * 4


def test_a_stop_string_ends_an_answer_before_it(chat: Any) -> None:
    assert chat["stopped_text"] == "The sun is a very big and "


def test_a_tool_is_called_and_its_result_is_answered(chat: Any) -> None:
    name, arguments = chat["tools"]["called"]
    assert name == "weather"
    assert arguments in ({"city": "Oslo"}, {"city": "Rome"})
    assert chat["tools"]["told"]


def test_a_schema_is_followed(chat: Any) -> None:
    assert chat["tools"]["held"] in ({"city": "Oslo"}, {"city": "Rome"})


@pytest.mark.slow
def test_a_hundred_chats_at_once_are_answered_as_one_alone(door: Door, key: str) -> None:
    many = results_of("litellm_calls.py", door.base_url, key, MODEL, QUESTION, "100")
    assert {prefix: one["at_once"] for prefix, one in many["chat"].items()} == {
        prefix: [ANSWER] * 100 for prefix in ("openai", "hosted_vllm", "anthropic")
    }


def test_errors_are_of_the_classes_for_them(chat: Any) -> None:
    assert chat["errors"] == ["BadRequestError", "AuthenticationError", "NotFoundError"]


def test_a_text_is_completed_whole_and_streamed(text: Any) -> None:
    assert text["text"] == text["streamed_text"] != ""
    assert text["usage"][1] == 8


@pytest.mark.parametrize("prefix", ["openai", "hosted_vllm"])
def test_texts_have_embeddings(results: Any, prefix: str) -> None:
    first, second = (one["embedding"] for one in results["embeddings"][prefix]["data"])
    assert len(first) == len(second) > 100
    assert first != second
    assert results["embeddings"][prefix]["usage"]["prompt_tokens"] > 0


def test_responses_are_answered_whole_and_streamed(results: Any) -> None:
    assert results["responses"]["text"] == ANSWER
    assert results["responses"]["n_events"] > 1
    assert results["responses"]["last"] == "response.completed"


def test_a_response_that_goes_on_from_another_computes_what_is_new_alone(results: Any) -> None:
    assert results["responses"]["n_cached"] == results["responses"]["n_tokens"]


def test_messages_of_anthropic_are_made_of_responses(results: Any) -> None:
    assert results["responses"]["as_message"] == ANSWER


def test_errors_of_responses_are_of_the_classes_for_them(results: Any) -> None:
    assert results["responses"]["errors"] == [
        *("BadRequestError", "AuthenticationError", "NotFoundError")
    ]


def test_no_host_but_this_one_is_asked_for(results: Any) -> None:
    assert results["asked"] == []
