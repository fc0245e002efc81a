"""``bad_words``: texts that do not come, in completions and chats alike."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import added_up, complete, post, refused, stream_events
from tests.gateway.test_completions_structured import constrained

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY: dict[str, Any] = {"prompt": "ab", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
LETTERS = {"structured_outputs": {"regex": "[ab ]{24}"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running(constrained()) as running:
        yield running


async def text_of(running: Running, **body: Any) -> str:
    return str((await complete(running, **BODY, **body))["choices"][0]["text"])


async def test_a_text_does_not_come_alone_or_after_a_space(running: Running) -> None:
    plain = await text_of(running, **LETTERS)
    assert "ab" in plain
    assert "aa" in plain
    text = await text_of(running, **LETTERS, bad_words=["ab", "aa"])
    assert len(text) == 24
    assert not {"ab", "aa"} & {text[at : at + 2] for at in range(23)}


async def test_a_stream_lacks_them_too(running: Running) -> None:
    body = {**BODY, "bad_words": ["a", "b"], "n": 2, "seed": 3, "temperature": 1}
    whole = (await complete(running, **body))["choices"]
    choices = added_up(await stream_events(running, **body))
    assert [choices[index] for index in range(2)] == whole
    assert not any(set(choice["text"]) & set("ab") for choice in whole)


async def test_free_text_lacks_what_it_would_have_begun_with(running: Running) -> None:
    ids = (await complete(running, **BODY, return_token_ids=True))["choices"][0]["token_ids"]
    first = next(one for one in ids if 32 < one < 127)
    lacking = await complete(running, **BODY, return_token_ids=True, bad_words=[chr(first)])
    assert first not in lacking["choices"][0]["token_ids"]


async def test_a_chat_lacks_them(running: Running) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    _, plain = await post(running, "/v1/chat/completions", body)
    said = next(one for one in plain["choices"][0]["message"]["content"] if "!" < one < "~")
    status, answer = await post(running, "/v1/chat/completions", body | {"bad_words": [said]})
    assert status == 200
    assert said not in answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "words", [["x"] * 513, [""], [" "], ["x" * 65], ["\U0001f600" * 17], "x", [1]]
)
async def test_what_is_no_list_of_short_texts_is_refused(running: Running, words: Any) -> None:
    assert (await refused(running, **BODY, bad_words=words))[0] == "bad_words"


async def test_as_many_and_as_long_texts_as_may_be_are_taken(running: Running) -> None:
    words = [f"{at:03}" for at in range(511)] + ["x" * 63]
    await complete(running, **BODY | {"max_tokens": 1}, bad_words=words)


async def test_a_server_without_grammars_says_so_by_the_field() -> None:
    async with gateway_running() as running:
        assert (await refused(running, **BODY, bad_words=["x"]))[0] == "bad_words"
        await complete(running, **BODY, bad_words=[])
