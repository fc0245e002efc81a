"""A hundred requests at once from clients of others, and doors that are too narrow for them."""

import asyncio
import importlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cli.conftest import wait_until_idle
from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

pytestmark = pytest.mark.slow

N = 100
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def openai() -> Any:
    return importlib.import_module("openai")


@pytest.fixture
async def client(openai: Any, door: Door, key: str) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=door.base_url, api_key=key, max_retries=0) as client:
        yield client


async def test_a_hundred_chats_whole_and_streamed_are_each_the_one_alone(
    client: Any, door: Door
) -> None:
    async def whole() -> Any:
        return (await client.chat.completions.create(**CHAT)).choices[0].message.content

    async def streamed() -> str:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    answers = await asyncio.gather(*(one() for _ in range(N // 2) for one in (whole, streamed)))
    assert answers == [ANSWER] * N
    await asyncio.to_thread(wait_until_idle, door.server)


async def test_a_hundred_completions_have_the_log_probabilities_of_each_alone(
    client: Any,
) -> None:
    async def ask(number: int) -> Any:
        prompt = f"Once upon a time there were {number} dogs"
        given = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "echo": True}
        return await client.completions.create(model=MODEL, prompt=prompt, **given)

    at_once = await asyncio.gather(*(ask(number) for number in range(N)))
    for number in range(0, N, 9):
        alone = await ask(number)
        got, expected = at_once[number].choices[0], alone.choices[0]
        assert got.text == expected.text
        assert got.logprobs.tokens == expected.logprobs.tokens
        assert got.logprobs.token_logprobs[1:] == pytest.approx(
            expected.logprobs.token_logprobs[1:], abs=1e-4
        )
        assert at_once[number].usage == alone.usage


async def test_a_hundred_loops_of_tools_end(client: Any) -> None:
    async def loop() -> tuple[str, str]:
        must = {"tools": [TOOL], "tool_choice": "required"}
        reply = await client.chat.completions.create(**CHAT, **must)
        message = reply.choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
        history = [*CHAT["messages"], message.model_dump(exclude_none=True), result]
        given = CHAT | {"messages": history, "tools": [TOOL], "max_tokens": 12}
        told = await client.chat.completions.create(**given)
        assert json.loads(call.function.arguments).keys() == {"city"}
        return call.function.arguments, told.choices[0].message.content

    ends = Counter(await asyncio.gather(*(loop() for _ in range(N))))
    assert ends == {(await loop()): N}


async def test_a_hundred_answers_by_schema_parse(client: Any) -> None:
    form = {"name": "weather", "schema": PARAMETERS, "strict": True}
    given = CHAT | {"response_format": {"type": "json_schema", "json_schema": form}}

    async def ask() -> Any:
        return (await client.chat.completions.create(**given)).choices[0].message.content

    answers = Counter(await asyncio.gather(*(ask() for _ in range(N))))
    assert answers == {(await ask()): N}
    assert json.loads(next(iter(answers))).keys() == {"city"}


async def test_a_hundred_responses_each_go_on_from_their_own(client: Any) -> None:
    given = {"model": MODEL, "temperature": 0, "max_output_tokens": 40}

    async def two_turns() -> tuple[str, str, bool]:
        first = await client.responses.create(**given, input=QUESTION)
        second = await client.responses.create(
            **given, input="What is the moon?", previous_response_id=first.id
        )
        n_cached = second.usage.input_tokens_details.cached_tokens
        goes_on = n_cached >= first.usage.total_tokens
        return first.output_text, second.output_text, goes_on

    ends = Counter(await asyncio.gather(*(two_turns() for _ in range(N))))
    ((alone, n),) = ends.items()
    assert (alone, n) == (await two_turns(), N)
    assert alone[0] == ANSWER
    assert alone[2]


async def test_a_hundred_conversations_keep_their_own_items(client: Any) -> None:
    async def talk(number: int) -> list[str]:
        item = {"type": "message", "role": "user", "content": f"I have {number} dogs."}
        conversation = await client.conversations.create(items=[item])
        asked = {"model": MODEL, "input": QUESTION, "max_output_tokens": 4, "temperature": 0}
        await client.responses.create(**asked, conversation=conversation.id)
        items = client.conversations.items.list(conversation.id, order="asc")
        return [item.content[0].text async for item in items]

    talks = await asyncio.gather(*(talk(number) for number in range(N)))
    assert [texts[:2] for texts in talks] == [
        [f"I have {number} dogs.", QUESTION] for number in range(N)
    ]
    assert {len(texts) for texts in talks} == {3}


async def test_a_hundred_chats_of_langchain_are_each_the_one_alone(
    openai: Any, door: Door, key: str
) -> None:
    adapters = importlib.import_module("langchain_openai")
    given = {"model": MODEL, "base_url": door.base_url, "api_key": key, "max_retries": 0}
    async with openai.DefaultAsyncHttpxClient() as http:
        chat = adapters.ChatOpenAI(**given, temperature=0, http_async_client=http)
        messages = await chat.abatch([QUESTION] * N)
    assert [message.content for message in messages] == [ANSWER] * N


async def test_clients_that_retry_get_through_a_narrow_door(
    openai: Any, narrow: Door, key: str
) -> None:
    waits = list[str | None]()

    async def look(response: Any) -> None:
        if response.status_code != 200:
            waits.append(response.headers.get("retry-after"))
            assert response.status_code == 429

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [look]})
    given = {"base_url": narrow.base_url, "api_key": key, "http_client": http}
    async with openai.AsyncOpenAI(**given, max_retries=60) as client:
        replies = await asyncio.gather(*(client.chat.completions.create(**CHAT) for _ in range(20)))
        assert [reply.choices[0].message.content for reply in replies] == [ANSWER] * 20
    # As many as there was no room for were told to come back, and did.
    assert len(waits) >= 17
    assert all(wait is not None and float(wait) > 0 for wait in waits)


async def test_clients_that_do_not_retry_are_told_by_their_own_class(
    openai: Any, narrow: Door, key: str
) -> None:
    given = {"base_url": narrow.base_url, "api_key": key, "max_retries": 0}
    async with openai.AsyncOpenAI(**given) as client:
        asked = (client.chat.completions.create(**CHAT) for _ in range(20))
        replies = await asyncio.gather(*asked, return_exceptions=True)
    refused = [reply for reply in replies if isinstance(reply, openai.APIError)]
    assert refused
    assert {type(error) for error in refused} == {openai.RateLimitError}
    assert {error.code for error in refused} == {"overloaded"}
    wait_until_idle(narrow.server)
