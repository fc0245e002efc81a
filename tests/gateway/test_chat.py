"""Chats over HTTP, with models whose output a test knows."""

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import TIMEOUT_S, Running, byte_texts, gateway_running, until_stats
from tests.gateway.scripted import ScriptModel
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.chat.bodies import ChatBody
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.fields import CommonFields
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

USER = {"role": "user", "content": "Hello"}
PROMPT = list(b"User: Hello\n\nAssistant:")
HELLO = {"model": "fake", "messages": [USER], "temperature": 0, "max_tokens": 8}


def saying(text: str | bytes, *, n_prompt: int = len(PROMPT), end: bool = True) -> Engine:
    """An engine that says a text after a prompt of so many ids, and then ends, or begins again."""
    script = (text.encode() if isinstance(text, str) else text) + b"\0" * end
    at = (n_prompt - 1) % len(script)
    model = ScriptModel(script[len(script) - at :] + script[: len(script) - at], (0,))
    return Engine(model, EngineConfig(n_slots=8))


async def ask(running: Running, **fields: Any) -> dict[str, Any]:
    body = HELLO | fields
    async with running.http.post("/v1/chat/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def refusal(running: Running, **fields: Any) -> dict[str, Any]:
    body = {name: value for name, value in (HELLO | fields).items() if value is not ...}
    async with running.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 400
        error: dict[str, Any] = (await response.json())["error"]
        return error


async def chunks(running: Running, **fields: Any) -> list[dict[str, Any]]:
    body = HELLO | fields | {"stream": True}
    async with running.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def joined(found: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """A choice of a stream, as the answer that is not streamed has it."""
    mine = [c for chunk in found for c in chunk["choices"] if c["index"] == index]
    assert mine[0]["delta"]["role"] == "assistant"
    assert not any("role" in choice["delta"] for choice in mine[1:])
    assert not any(choice["finish_reason"] for choice in mine[:-1])
    message: dict[str, Any] = {"role": "assistant", "refusal": None, "annotations": []}
    contents = [choice["delta"].get("content") for choice in mine]
    message["content"] = "".join(content or "" for content in contents)
    logprobs = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
    result = {
        "index": index,
        "message": message,
        "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
        "finish_reason": mine[-1]["finish_reason"],
        "stop_reason": mine[-1]["stop_reason"],
    }
    if any("token_ids" in choice for choice in mine):
        result["token_ids"] = [
            token_id for choice in mine for token_id in choice.get("token_ids", [])
        ]
    return result


async def test_an_answer_has_the_form_of_openai() -> None:
    async with gateway_running(saying(" Hi!")) as running:
        answer = await ask(running)
    assert answer.pop("id").startswith("chatcmpl-")
    assert abs(answer.pop("created") - time.time()) < 60
    assert answer.pop("system_fingerprint").startswith("fp_")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "Hi!",
        "refusal": None,
        "annotations": [],
    }
    choice = {"index": 0, "message": message, "logprobs": None}
    assert answer == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [choice | {"finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": 4,
            "total_tokens": len(PROMPT) + 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    async with gateway_running(saying("Hi")) as running:
        found = await chunks(running)
    assert len({chunk["id"] for chunk in found}) == 1
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in found)
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "H"},
        {"content": "i"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None, None, None, "stop"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 100},
        {"n": 4, "temperature": 1, "seed": 7},
        {"logprobs": True, "top_logprobs": 3, "return_token_ids": True},
        {"logprobs": True, "n": 2, "temperature": 1, "seed": 1},
        {"stop": ["A", "e", "\ufffd"], "max_tokens": 200},
        {"stop_token_ids": list(range(100)), "max_tokens": 50},
    ],
)
async def test_a_stream_adds_up_to_the_answer_that_is_not_streamed(fields: dict[str, Any]) -> None:
    async with gateway_running() as running:
        answer = await ask(running, **fields)
        found = await chunks(running, **fields, stream_options={"include_usage": True})
    assert [joined(found, index) for index in range(len(answer["choices"]))] == answer["choices"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == answer["usage"]
    assert all(chunk["usage"] is None for chunk in found[:-1])


async def test_every_chunk_can_say_what_its_choice_has_cost() -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    async with gateway_running(saying("Hi")) as running:
        found = await chunks(running, stream_options=options)
    spent = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert spent == [1, 1, 2, 2, 2]
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {len(PROMPT)}


async def test_a_stream_tells_the_ids_of_the_prompt_once_for_each_choice() -> None:
    async with gateway_running() as running:
        for options in ({}, {"include_usage": True}, {"continuous_usage_stats": True}):
            found = await chunks(running, return_token_ids=True, n=2, stream_options=options)
            told = [chunk for chunk in found if "prompt_token_ids" in chunk]
            assert [chunk["prompt_token_ids"] for chunk in told] == [PROMPT] * 2
            assert {chunk["choices"][0]["delta"]["role"] for chunk in told} == {"assistant"}


async def test_several_choices_differ_and_the_prompt_counts_once() -> None:
    async with gateway_running() as running:
        answer = await ask(running, n=3, temperature=1, seed=1)
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert answer["usage"]["completion_tokens"] == 3 * 8


async def test_log_probabilities_are_those_of_the_ids() -> None:
    async with gateway_running() as running:
        answer = await ask(running, logprobs=True, top_logprobs=2, return_token_ids=True)
        plain = await ask(running, logprobs=True)
    assert answer["prompt_token_ids"] == PROMPT
    ids = answer["choices"][0]["token_ids"]
    assert ids == fake_continuation(PROMPT, 8, 256)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[token_id] for token_id in ids]
    for entry in entries:
        best, second = entry["top_logprobs"]
        assert best["logprob"] == entry["logprob"] >= second["logprob"]
    bare = plain["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * 8
    assert [entry["logprob"] for entry in bare] == [entry["logprob"] for entry in entries]


async def test_a_space_after_the_colon_of_the_prompt_is_not_part_of_the_answer() -> None:
    for said, shown in ((" a b", "a b"), ("  a", " a"), ("a", "a"), (" ", ""), ("\n a", "\n a")):
        async with gateway_running(saying(said)) as running:
            answer = await ask(running)
            assert answer["choices"][0]["message"]["content"] == shown
            assert joined(await chunks(running)) == answer["choices"][0]


async def test_a_continued_message_keeps_its_space() -> None:
    prompt = b"User: Hello\n\nAssistant: So:"
    messages = [USER, {"role": "assistant", "content": "So:"}]
    async with gateway_running(saying(" a", n_prompt=len(prompt))) as running:
        answer = await ask(
            running, messages=messages, continue_final_message=True, return_token_ids=True
        )
    assert bytes(answer["prompt_token_ids"]) == prompt
    assert answer["choices"][0]["message"]["content"] == " a"


async def test_an_answer_can_follow_an_answer() -> None:
    messages = [USER, {"role": "assistant", "content": "Hi"}]
    async with gateway_running() as running:
        answer = await ask(running, messages=messages, return_token_ids=True)
        bare = await ask(
            running, messages=messages, return_token_ids=True, add_generation_prompt=False
        )
        error = await refusal(
            running, messages=messages, add_generation_prompt=True, continue_final_message=True
        )
    written = b"User: Hello\n\nAssistant: Hi\n\n"
    assert bytes(answer["prompt_token_ids"]) == written + b"Assistant:"
    assert bytes(bare["prompt_token_ids"]) == written
    assert error["param"] == "continue_final_message"


async def test_the_stops_of_the_template_end_an_answer_besides_those_of_the_request() -> None:
    text = "Hello\n\nUser: Bye"
    async with gateway_running(saying(text)) as running:
        for fields in ({}, {"stop": "zz"}):
            answer = await ask(running, max_tokens=100, **fields)
            [choice] = answer["choices"]
            assert choice["message"]["content"] == "Hello"
            assert choice["finish_reason"] == "stop"
            assert choice["stop_reason"] is None
            assert joined(await chunks(running, max_tokens=100, **fields)) == choice
        [choice] = (await ask(running, max_tokens=100, stop="lo"))["choices"]
        assert choice["message"]["content"] == "Hel"
        assert choice["stop_reason"] == "lo"
        [choice] = (await ask(running, max_tokens=len(text), ignore_eos=True))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")


async def test_characters_are_never_cut() -> None:
    text = "한국어 🙂"
    async with gateway_running(saying(text)) as running:
        found = await chunks(running, max_tokens=100)
        cut = await ask(running, max_tokens=len(text.encode()) - 1)
    assert "\ufffd" not in json.dumps(found, ensure_ascii=False)
    assert joined(found)["message"]["content"] == text
    assert cut["choices"][0]["message"]["content"] == "한국어 \ufffd"


async def test_the_newer_name_of_the_limit_and_the_older_one_mean_the_same() -> None:
    async with gateway_running() as running:
        for fields in (
            {"max_tokens": None, "max_completion_tokens": 3},
            {"max_tokens": 3, "max_completion_tokens": None},
            {"max_tokens": 3, "max_completion_tokens": 3},
        ):
            answer = await ask(running, **fields)
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["choices"][0]["finish_reason"] == "length"
        error = await refusal(running, max_tokens=3, max_completion_tokens=4)
    assert error["param"] == "max_tokens"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_minus_1_is_no_limit_as_to_llama_cpps_clients(field: str) -> None:
    engine = Engine(
        FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=len(PROMPT) + 6)
    )
    async with gateway_running(engine) as running:
        answer = await ask(running, **{"max_tokens": None, field: -1})
        assert answer["usage"]["completion_tokens"] == 6


async def test_a_chat_that_is_cut_to_fit_leaves_room_for_the_answer() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=16))
    async with gateway_running(engine) as running:
        for limit, n_output in ((3, 3), (None, 8), (-1, 8)):
            body = {"max_tokens": limit, "truncate_prompt_tokens": -1, "return_token_ids": True}
            answer = await ask(running, **body)
            assert answer["prompt_token_ids"] == [*PROMPT][n_output - 16 :]
            assert answer["usage"]["completion_tokens"] == n_output


async def test_without_a_limit_the_default_counts_as_far_as_there_is_room() -> None:
    texts = dataclasses.replace(byte_texts(), default_max_tokens=5)
    config = EngineConfig(n_slots=2, max_model_len=len(PROMPT) + 3)
    async with gateway_running(texts=texts) as running:
        answer = await ask(running, max_tokens=None)
        assert answer["usage"]["completion_tokens"] == 5
    engine = Engine(FakeModel(vocab_size=256), config)
    async with gateway_running(engine, texts=texts) as running:
        answer = await ask(running, max_tokens=None)
        assert answer["usage"]["completion_tokens"] == 3
        n_tokens = len(PROMPT) + 40
        error = await refusal(running, messages=[USER | {"content": "Hello" * 9}])
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        # By these words clients know the error, too.
        assert f"this model's maximum context length is {len(PROMPT) + 3}" in error["message"]
        assert f"{n_tokens} of the prompt" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ...}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages"),
        ({"messages": [USER | {"content": 1}]}, "messages"),
        ({"messages": [USER | {"content": None}]}, "messages[0].content"),
        ({"messages": [USER | {"content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": ..., "max_completion_tokens": -2}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": ..., "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": ..., "max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"prediction": {"type": "content", "content": "a"}}, "prediction"),
        ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"guided_json": {}}, "guided_json"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
async def test_what_cannot_be_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], param: str
) -> None:
    async with gateway_running() as running:
        for stream in (False, True):
            error = await refusal(running, **fields, **({"stream": True} if stream else {}))
            if not (stream and param == "stream_options"):
                assert error["param"] == param
                assert error["type"] == "invalid_request_error"
            if param == "stream_options":
                break
        assert running.engine_loop.stats()["n_running"] == 0


async def test_fields_that_ask_for_nothing_here_are_taken() -> None:
    async with gateway_running() as running:
        answer = await ask(
            running,
            store=True,
            metadata={"a": "b"},
            user="anna",
            safety_identifier="x",
            prompt_cache_key="y",
            service_tier="auto",
            modalities=["text"],
            parallel_tool_calls=False,
            reasoning_effort="low",
            verbosity="low",
            response_format={"type": "text"},
            tools=[],
            tool_choice="auto",
            functions=[],
            function_call="none",
            chat_template_kwargs={},
            audio=None,
            whatever=[1],
        )
    assert answer["usage"]["completion_tokens"] == 8


async def test_another_model_is_not_found() -> None:
    async with (
        gateway_running() as running,
        running.http.post("/v1/chat/completions", json=HELLO | {"model": "gpt"}) as response,
    ):
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_media_are_left_out_where_the_operator_says_so() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "?"}]
    async with gateway_running(config=GatewayConfig(omit_media=True)) as running:
        answer = await ask(running, messages=[USER | {"content": parts}], return_token_ids=True)
    assert b"An image was left out" in bytes(answer["prompt_token_ids"])


async def test_what_a_template_refuses_is_the_messages_fault() -> None:
    template = ChatTemplate("{{ raise_exception('alternate, please') }}")
    async with gateway_running(texts=Texts(ByteTokenizer(), template)) as running:
        error = await refusal(running)
    assert error["param"] == "messages"
    assert "alternate, please" in error["message"]


async def test_a_template_that_makes_nothing_of_the_messages_is_an_error_of_theirs() -> None:
    texts = Texts(ByteTokenizer(), ChatTemplate("{{ '' }}"))
    async with gateway_running(texts=texts) as running:
        assert (await refusal(running))["param"] == "messages"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slots(stream: bool) -> None:
    body = HELLO | {"max_tokens": 10**9, "n": 2, "stream": stream}
    async with gateway_running() as running, asyncio.timeout(TIMEOUT_S):
        posting = asyncio.create_task(running.http.post("/v1/chat/completions", json=body))
        await until_stats(running, n_running=2)
        if stream:
            response = await posting
            await response.content.readany()
            response.close()
        else:
            posting.cancel()
        await until_stats(running, n_running=0, n_free_slots=8)


async def test_a_long_message_does_not_hold_up_others() -> None:
    """The event loop goes on while a long message is read: another one is answered."""
    begun, answered = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            if len(text) > 2**19:
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(answered.wait(), loop).result(TIMEOUT_S)
            return super().encode(text[:64], special=special)

    texts = dataclasses.replace(byte_texts(), tokenizer=Slow())
    async with gateway_running(texts=texts) as running, asyncio.timeout(TIMEOUT_S):
        message = USER | {"content": "a" * 2**19}
        long = asyncio.create_task(ask(running, messages=[message]))
        await begun.wait()
        await ask(running)
        answered.set()
        await long


def test_every_field_of_a_chat_is_in_the_documents() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    chats = text.partition("### Chats")[2].partition("\n### ")[0]
    shared = text.partition("### Completions")[2].partition("\n### ")[0]
    for field in msgspec.structs.fields(ChatBody):
        inherited = field.name in CommonFields.__struct_fields__
        assert f"`{field.name}`" in (shared if inherited else chats), field.name


@pytest.mark.timed(0.2)
async def test_a_chat_whose_time_is_over_says_so() -> None:
    body = HELLO | {"max_tokens": 10**9, "timeout_s": 0.2}
    async with gateway_running() as running:
        async with running.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 408
            assert (await response.json())["error"]["code"] == "timeout"
        body["stream"] = True
        async with running.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            *events, last, rest = (await response.text()).split("\n\n")
    assert rest == ""
    assert json.loads(events[0].removeprefix("data: "))["choices"]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"


async def test_a_chat_can_be_cancelled_by_its_request_id() -> None:
    body = HELLO | {"max_tokens": 10**9}
    headers = {"X-Request-Id": "mine"}
    async with gateway_running() as running, asyncio.timeout(TIMEOUT_S):
        posting = asyncio.create_task(
            running.http.post("/v1/chat/completions", json=body, headers=headers)
        )
        await until_stats(running, n_running=1)
        async with running.http.post("/v1/cancel", json={"id": "mine"}) as response:
            assert response.status == 200
        async with await posting as response:
            assert response.status == 499
            assert response.headers["X-Request-Id"] == "mine"
        await until_stats(running, n_running=0)


async def test_a_request_may_name_its_answer() -> None:
    async with gateway_running() as running:
        assert (await ask(running, request_id="mine"))["id"] == "chatcmpl-mine"
