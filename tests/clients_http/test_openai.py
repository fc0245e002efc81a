"""The official ``openai`` package against a real server."""

import asyncio
import importlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import wkvm_client

from tests.cli.conftest import wait_until_idle
from tests.clients_http.conftest import ANSWER, MAX_QUEUE, MODEL, N_SLOTS, QUESTION, Door

CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "temperature": 0}
LONG: dict[str, Any] = {"max_tokens": 1_000_000, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def openai() -> Any:
    return importlib.import_module("openai")


@pytest.fixture
def client(openai: Any, door: Door, key: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=door.base_url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def aclient(openai: Any, door: Door, key: str) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=door.base_url, api_key=key, max_retries=0) as client:
        yield client


def streamed_text(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


# --- states -----------------------------------------------------------------------------------


def test_a_chat_goes_on_from_a_state_by_its_new_message_alone(client: Any) -> None:
    name = f"talk-{uuid.uuid4().hex}"
    first = client.chat.completions.create(**CHAT, extra_body={"save_as": name})
    assert first.state["version"] == 1
    body = {"state": name, "save_as": name}
    second = client.chat.completions.create(**CHAT, extra_body=body, max_tokens=4)
    assert (second.state["name"], second.state["version"]) == (name, 2)
    details = second.usage.prompt_tokens_details
    assert details.cached_tokens == first.state["n_computed"]


def test_a_stream_on_a_state_ends_with_where_it_is(client: Any) -> None:
    name = f"talk-{uuid.uuid4().hex}"
    chunks = list(client.chat.completions.create(**CHAT, stream=True, extra_body={"save_as": name}))
    assert streamed_text(chunks) == ANSWER
    assert chunks[-1].state["name"] == name


def test_no_state_is_a_typed_error(openai: Any, client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**CHAT, extra_body={"state": "nobody"})
    assert caught.value.code == "state_not_found"


# --- answers ----------------------------------------------------------------------------------


def test_a_chat_is_answered(client: Any) -> None:
    reply = client.chat.completions.create(**CHAT)
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert choice.finish_reason == "stop"
    assert (reply.object, reply.model) == ("chat.completion", MODEL)
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_streamed_chat_is_the_whole_one_in_pieces(client: Any) -> None:
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    assert streamed_text(chunks) == ANSWER
    assert len(chunks) > 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert all(c.usage is None for c in chunks)
    assert len({c.id for c in chunks}) == 1


def test_a_streams_usage_is_that_of_the_whole_answer(client: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.chat.completions.create(**CHAT, **options)
    assert last.choices == []
    assert last.usage == client.chat.completions.create(**CHAT).usage


def test_a_streamed_completion_is_the_whole_one_in_pieces(client: Any) -> None:
    whole = client.completions.create(**TEXT, max_tokens=20)
    chunks = list(client.completions.create(**TEXT, max_tokens=20, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_several_prompts_are_completed_each_under_its_index(client: Any) -> None:
    prompts = ["Once upon a time", "The sea", "A little dog"]
    reply = client.completions.create(**TEXT | {"prompt": prompts}, max_tokens=8)
    alone = [
        client.completions.create(**TEXT | {"prompt": prompt}, max_tokens=8).choices[0].text
        for prompt in prompts
    ]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [choice.text for choice in reply.choices] == alone
    assert reply.usage.completion_tokens == 24


def test_a_stop_string_ends_an_answer_before_it(client: Any) -> None:
    for stop in ("hot star", ["hot star", "nowhere"]):
        (choice,) = client.chat.completions.create(**CHAT, stop=stop).choices
        assert choice.message.content == "The sun is a very big and "
        assert choice.finish_reason == "stop"
        chunks = list(client.chat.completions.create(**CHAT, stop=stop, stream=True))
        assert streamed_text(chunks) == choice.message.content


def test_log_probabilities_of_a_chat_come_with_every_token_streamed_or_not(client: Any) -> None:
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
    reply = client.chat.completions.create(**CHAT, **options)
    whole = reply.choices[0].logprobs.content
    assert len(whole) == reply.usage.completion_tokens
    assert b"".join(bytes(token.bytes) for token in whole).decode().strip() == ANSWER
    assert all(len(token.top_logprobs) == 3 for token in whole)
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in whole)
    chunks = client.chat.completions.create(**CHAT, **options, stream=True)
    parts = [c.choices[0].logprobs for c in chunks]
    assert [token for part in parts if part for token in part.content] == whole


def test_log_probabilities_of_an_echo_cover_the_prompt(client: Any) -> None:
    reply = client.completions.create(**TEXT, max_tokens=2, logprobs=1, echo=True)
    (choice,) = reply.choices
    assert choice.text.startswith(TEXT["prompt"])
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == reply.usage.total_tokens


def test_n_choices_with_a_seed_differ_and_repeat(client: Any) -> None:
    options = {"n": 3, "seed": 7, "temperature": 3.0, "max_tokens": 12}
    first, second = (client.chat.completions.create(**CHAT | options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in second.choices] == texts


def test_streamed_choices_are_told_apart_and_their_usage_is_summed(client: Any) -> None:
    options = {"n": 2, "seed": 7, "temperature": 3.0, "max_tokens": 12}
    whole = client.chat.completions.create(**CHAT | options)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**CHAT | options, **usage)
    assert whole.choices[0].message != whole.choices[1].message
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(c.delta.content or "" for c in mine) == choice.message.content
    assert last.usage == whole.usage


def test_a_tool_that_must_be_called_is_called(client: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    options: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "max_tokens": 200}
    (choice,) = client.chat.completions.create(**CHAT, **options).choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    chunks = list(client.chat.completions.create(**CHAT, **options, stream=True))
    deltas = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert deltas[0].function.name == "weather"
    assert "".join(d.function.arguments or "" for d in deltas) == call.function.arguments


def test_a_json_schema_is_followed(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"big": {"type": "boolean"}, "kind": {"enum": ["star", "moon"]}},
        "required": ["big", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "sun", "schema": schema, "strict": True}}
    reply = client.chat.completions.create(**CHAT, response_format=form, max_tokens=200)
    answer = json.loads(reply.choices[0].message.content)
    assert answer.keys() == {"big", "kind"}
    assert answer["kind"] in ("star", "moon")


def test_texts_have_embeddings_of_one_length_in_their_order(client: Any) -> None:
    texts = ["The sun is hot.", "The moon is cold."]
    both = client.embeddings.create(model=MODEL, input=texts)
    alone = [client.embeddings.create(model=MODEL, input=text).data[0] for text in texts]
    assert [one.index for one in both.data] == [0, 1]
    for one, other in zip(both.data, alone, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
    assert both.data[0].embedding != both.data[1].embedding
    # The client asks for base64 unless it is told otherwise.
    plain = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert plain.data[0].embedding == alone[0].embedding
    assert both.usage.total_tokens == both.usage.prompt_tokens > 0


def test_the_model_is_listed_and_found_by_its_name(client: Any) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "wkvm")
    assert client.models.retrieve(MODEL) == model


# --- many at once -----------------------------------------------------------------------------


async def test_50_whole_answers_at_once_are_each_the_one_of_the_request_alone(aclient: Any) -> None:
    async def ask(number: int) -> Any:
        prompt = f"Once upon a time, {number}"
        reply = await aclient.completions.create(**TEXT | {"prompt": prompt}, max_tokens=8)
        return reply.choices[0].text, reply.usage

    at_once = await asyncio.gather(*(ask(number) for number in range(50)))
    assert [await ask(number) for number in range(0, 50, 7)] == at_once[::7]
    assert len({text for text, _ in at_once}) > 10


async def test_50_streams_at_once_are_each_the_one_of_the_request_alone(aclient: Any) -> None:
    async def ask() -> str:
        stream = await aclient.chat.completions.create(**CHAT, stream=True)
        return streamed_text([chunk async for chunk in stream])

    assert await asyncio.gather(*(ask() for _ in range(50))) == [ANSWER] * 50


async def test_a_stream_that_is_closed_early_frees_its_slot(aclient: Any, door: Door) -> None:
    stream = await aclient.chat.completions.create(**CHAT, **LONG, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.to_thread(wait_until_idle, door.server)


async def test_a_request_that_is_cancelled_frees_its_slot(
    aclient: Any, door: Door, key: str
) -> None:
    asking = asyncio.ensure_future(aclient.chat.completions.create(**CHAT, **LONG))
    await asyncio.to_thread(wait_until_busy, door, key)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await asyncio.to_thread(wait_until_idle, door.server)


def wait_until_busy(door: Door, key: str) -> None:
    """Return when a slot is taken."""
    with wkvm_client.connect(door.server.address, api_key=key) as client:
        for _ in range(100_000):
            stats = client.stats()
            if stats["n_free_slots"] < stats["n_slots"]:
                return
    raise AssertionError("no request came")


# --- errors -----------------------------------------------------------------------------------


def test_a_wrong_key_is_an_authentication_error(openai: Any, door: Door) -> None:
    with (
        openai.OpenAI(base_url=door.base_url, api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        stranger.models.list()
    assert raised.value.code == "invalid_api_key"


def test_another_model_is_not_found(openai: Any, client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as of_chat:
        client.chat.completions.create(**CHAT | {"model": "other"})
    with pytest.raises(openai.NotFoundError) as of_text:
        client.completions.create(**TEXT | {"model": "other"})
    with pytest.raises(openai.NotFoundError) as of_list:
        client.models.retrieve("other")
    assert {e.value.code for e in (of_chat, of_text, of_list)} == {"model_not_found"}


def test_a_route_that_is_not_served_is_not_found(openai: Any, client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(model=MODEL, input="x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_p", 0),
        ("max_tokens", 0),
        ("max_completion_tokens", -2),
        ("n", 0),
        ("stop", ""),
        ("seed", 2**70),
        ("frequency_penalty", 1e9),
        ("presence_penalty", -1e9),
        ("logit_bias", {"x": 1}),
        ("top_logprobs", 100),
        ("messages", []),
        ("tool_choice", "required"),
    ],
)
def test_a_value_that_cannot_be_is_a_bad_request_that_names_its_field(
    openai: Any, client: Any, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**CHAT | {"logprobs": True, field: value})
    assert raised.value.param == field
    assert raised.value.type == "invalid_request_error"


def test_the_same_is_refused_before_a_stream_begins(openai: Any, client: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**CHAT | {"temperature": -1}, stream=True)


def test_an_error_tells_the_id_that_the_request_had(openai: Any, client: Any) -> None:
    headers = {"X-Request-Id": "a-name-of-ours"}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**CHAT | {"temperature": -1}, extra_headers=headers)
    assert raised.value.request_id == "a-name-of-ours"


def test_more_than_the_queue_holds_is_a_rate_limit_error_and_leaves_nothing_behind(
    openai: Any, client: Any, door: Door
) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        client.completions.create(**TEXT, **LONG, n=N_SLOTS + MAX_QUEUE + 1)
    assert raised.value.code == "overloaded"
    assert float(raised.value.response.headers["retry-after"]) > 0
    wait_until_idle(door.server)


async def test_a_client_that_retries_is_served_when_there_is_room(
    openai: Any, door: Door, key: str
) -> None:
    statuses = list[int]()
    holding = list[Any]()

    async def look(response: Any) -> None:
        statuses.append(response.status_code)
        if response.status_code == 429 and holding:
            await holding.pop().close()

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [look]})
    async with openai.AsyncOpenAI(
        base_url=door.base_url, api_key=key, max_retries=30, http_client=http
    ) as client:
        all_of_it = N_SLOTS + MAX_QUEUE
        stream = await client.completions.create(**TEXT, **LONG, n=all_of_it, stream=True)
        await anext(aiter(stream))
        holding.append(stream)
        statuses.clear()
        reply = await client.chat.completions.create(**CHAT)
    # More than one refusal if the server takes long to see that the stream is closed.
    *refused, last = statuses
    assert (set(refused), last) == ({429}, 200)
    assert reply.choices[0].message.content == ANSWER
