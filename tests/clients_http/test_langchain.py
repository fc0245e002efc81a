"""LangChain's adapters for OpenAI's interface against a real server."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

PROMPTS = ["Once upon a time", "The sea", "A little dog"]


@pytest.fixture(scope="module")
def adapters() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
            patch.setenv(variable, "false")
        yield importlib.import_module("langchain_openai")


@pytest.fixture(scope="module")
def openai() -> Any:
    return importlib.import_module("openai")


@pytest.fixture
def settings(openai: Any, door: Door, key: str) -> Iterator[dict[str, Any]]:
    # Connections of our own: those of the adapters are never closed.
    with openai.DefaultHttpxClient() as http:
        yield {
            "model": MODEL,
            "base_url": door.base_url,
            "api_key": key,
            "max_retries": 0,
            "http_client": http,
        }


@pytest.fixture
def chat(adapters: Any, settings: dict[str, Any]) -> Any:
    return adapters.ChatOpenAI(**settings, temperature=0)


@pytest.fixture
async def achat(openai: Any, adapters: Any, settings: dict[str, Any]) -> AsyncIterator[Any]:
    async with openai.DefaultAsyncHttpxClient() as http:
        yield adapters.ChatOpenAI(**settings, temperature=0, http_async_client=http)


@pytest.fixture
def responses(adapters: Any, settings: dict[str, Any]) -> Any:
    """Chats by way of responses."""
    return adapters.ChatOpenAI(**settings, temperature=0, use_responses_api=True)


@pytest.fixture
def text(adapters: Any, settings: dict[str, Any]) -> Any:
    return adapters.OpenAI(**settings, temperature=0, max_tokens=8)


def test_a_chat_is_answered_with_its_usage(chat: Any) -> None:
    message = chat.invoke(QUESTION)
    assert message.content == ANSWER
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == MODEL
    usage = message.usage_metadata
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_system_message_and_a_history_are_taken(chat: Any) -> None:
    history = [("system", "You are kind."), ("human", "Hello"), ("ai", "Hi!"), ("human", QUESTION)]
    assert "sun" in chat.invoke(history).content


def test_a_streamed_chat_is_the_whole_one_in_pieces_and_ends_with_its_usage(
    adapters: Any, settings: dict[str, Any], chat: Any
) -> None:
    streaming = adapters.ChatOpenAI(**settings, temperature=0, stream_usage=True)
    chunks = list(streaming.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 1
    assert whole.content == ANSWER
    assert whole.usage_metadata == chat.invoke(QUESTION).usage_metadata


async def test_an_async_stream_is_the_whole_answer_in_pieces(achat: Any) -> None:
    chunks = [chunk async for chunk in achat.astream(QUESTION)]
    assert len(chunks) > 1
    assert "".join(chunk.content for chunk in chunks) == ANSWER


async def test_many_async_chats_at_once_are_answered(achat: Any) -> None:
    messages = await asyncio.gather(*(achat.ainvoke(QUESTION) for _ in range(20)))
    assert [message.content for message in messages] == [ANSWER] * 20


def test_a_batch_is_answered_in_its_order(chat: Any) -> None:
    questions = [QUESTION, "What is the moon?", "Hello"]
    answers = [message.content for message in chat.batch(questions)]
    assert answers == [chat.invoke(question).content for question in questions]
    assert len(set(answers)) == 3


def test_log_probabilities_and_stops_are_passed_on(chat: Any) -> None:
    message = chat.bind(logprobs=True, stop=["hot star"]).invoke(QUESTION)
    assert message.content == "The sun is a very big and "
    logprobs = message.response_metadata["logprobs"]["content"]
    assert len(logprobs) == message.usage_metadata["output_tokens"]


def test_a_tool_that_must_be_called_is_called(chat: Any) -> None:
    tool = {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    (call,) = chat.bind_tools([tool], tool_choice="weather").invoke(QUESTION).tool_calls
    assert call["name"] == "weather"
    assert call["args"].keys() == {"city"}


def test_a_structured_answer_follows_its_schema(chat: Any) -> None:
    schema = {
        "title": "sun",
        "type": "object",
        "properties": {"kind": {"enum": ["star", "moon"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    answer = chat.with_structured_output(schema, method="json_schema").invoke(QUESTION)
    assert answer in ({"kind": "star"}, {"kind": "moon"})


def test_a_response_is_answered_whole_and_streamed_with_its_usage(responses: Any) -> None:
    whole = responses.invoke(QUESTION)
    chunks = list(responses.stream(QUESTION))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    assert whole.text == streamed.text == ANSWER
    assert len(chunks) > 1
    assert streamed.usage_metadata == whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] > 0


def test_a_response_goes_on_from_the_one_before_by_its_name(
    adapters: Any, settings: dict[str, Any]
) -> None:
    chat = adapters.ChatOpenAI(
        **settings, temperature=0, use_responses_api=True, use_previous_response_id=True
    )
    first = chat.invoke([("human", QUESTION)])
    second = chat.invoke([("human", QUESTION), first, ("human", "What is the moon?")])
    usage = second.usage_metadata
    assert usage["input_token_details"]["cache_read"] == first.usage_metadata["total_tokens"]


def test_a_response_calls_a_tool_and_answers_its_result(responses: Any) -> None:
    messages = importlib.import_module("langchain_core.messages")
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"name": "weather", "description": "Of a city.", "parameters": parameters}
    called = responses.bind_tools([tool], tool_choice="weather").invoke(QUESTION)
    (call,) = called.tool_calls
    assert call["args"] in ({"city": "Oslo"}, {"city": "Rome"})
    result = messages.ToolMessage("It is sunny.", tool_call_id=call["id"])
    assert responses.bind_tools([tool]).invoke([("human", QUESTION), called, result]).text


def test_a_text_is_completed_whole_and_streamed(text: Any) -> None:
    whole = text.invoke(PROMPTS[0])
    assert whole
    chunks = list(text.stream(PROMPTS[0]))
    assert chunks
    assert "".join(chunks) == whole


def test_texts_of_one_request_are_completed_in_their_order_with_their_usage(text: Any) -> None:
    result = text.generate(PROMPTS)
    texts = [generations[0].text for generations in result.generations]
    assert texts == [text.invoke(prompt) for prompt in PROMPTS]
    assert result.llm_output["token_usage"]["completion_tokens"] == 24


def test_documents_and_queries_have_embeddings(adapters: Any, settings: dict[str, Any]) -> None:
    # Without this it cuts texts into the ids of another model's tokenizer.
    embeddings = adapters.OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    first, second = embeddings.embed_documents(["The sun is hot.", "The moon is cold."])
    assert len(first) == len(second)
    assert embeddings.embed_query("The sun is hot.") == pytest.approx(first, abs=1e-5)


def test_an_error_is_the_one_of_the_openai_package(openai: Any, chat: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat.bind(temperature=-1).invoke(QUESTION)
