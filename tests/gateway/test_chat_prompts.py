"""What chats tell of their prompts, and how much of them counts: as vLLM has it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete, post, refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = {"role": "user", "content": "Hello"}
BEGUN = {"role": "assistant", "content": "Well, "}
PROMPT = list(b"User: Hello\n\nAssistant:")
GREEDY = {"temperature": 0, "max_tokens": 4}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


async def chat(running: Running, *, status: int = 200, **body: Any) -> Any:
    body = {"messages": [USER], **GREEDY, **body}
    got, answer = await post(running, "/v1/chat/completions", body)
    assert got == status, answer
    return answer


async def test_prompt_logprobs_of_a_chat_are_those_of_its_prompt(running: Running) -> None:
    answer = await chat(running, prompt_logprobs=2, n=2)
    completion = await complete(running, prompt=PROMPT, prompt_logprobs=2, **GREEDY)
    assert answer["prompt_logprobs"] == completion["choices"][0]["prompt_logprobs"]
    assert len(answer["prompt_logprobs"]) == len(PROMPT)
    assert "prompt_logprobs" not in await chat(running)


async def test_prompt_logprobs_are_refused_in_a_stream(running: Running) -> None:
    answer = await chat(running, status=400, prompt_logprobs=1, stream=True)
    assert answer["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize("value", [21, -2])
async def test_too_many_prompt_logprobs_are_refused_by_name(running: Running, value: int) -> None:
    answer = await chat(running, status=400, prompt_logprobs=value)
    assert answer["error"]["param"] == "prompt_logprobs"


async def test_of_a_truncated_chat_the_last_ids_count(running: Running) -> None:
    answer = await chat(running, truncate_prompt_tokens=7, return_token_ids=True)
    assert answer["prompt_token_ids"] == PROMPT[-7:]
    assert answer["usage"]["prompt_tokens"] == 7
    whole = await chat(running, truncate_prompt_tokens=len(PROMPT), return_token_ids=True)
    assert whole["prompt_token_ids"] == PROMPT


async def test_a_chat_cannot_be_truncated_to_nothing(running: Running) -> None:
    answer = await chat(running, status=400, truncate_prompt_tokens=0)
    assert answer["error"]["param"] == "truncate_prompt_tokens"
    param, _ = await refused(running, prompt="x", truncate_prompt_tokens=0)
    assert param == "truncate_prompt_tokens"


async def test_an_echo_is_what_an_assistant_had_begun(running: Running) -> None:
    asked: dict[str, Any] = {"messages": [USER, BEGUN], "continue_final_message": True}
    plain = (await chat(running, **asked))["choices"][0]["message"]["content"]
    echoed = (await chat(running, **asked, echo=True))["choices"][0]["message"]["content"]
    assert echoed == "Well, " + plain
    body = {"model": "fake", "stream": True, **asked, **GREEDY, "echo": True}
    async with running.http.post("/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert '"delta":{"role":"assistant","content":"Well, "' in text


async def test_what_a_user_said_is_no_echo(running: Running) -> None:
    plain = (await chat(running))["choices"][0]["message"]["content"]
    echoed = (await chat(running, echo=True))["choices"][0]["message"]["content"]
    assert echoed == plain
