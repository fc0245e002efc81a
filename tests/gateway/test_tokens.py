"""Text to ids and back over HTTP: the ids are those with which a completion or a chat begins."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes import FakeModel
from tests.gateway.conftest import BUNDLED
from tests.gateway.harness import Running, gateway_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.text.template_files import load_chat_template
from wkvm.gateway.texts import Texts
from wkvm.gateway.tokens import MAX_IDS, MAX_TEXT

TEXT = "Once upon a time, 한글 🙂\n"
MESSAGES = [{"role": "user", "content": "Hi <|end|> there"}]


@pytest_asyncio.fixture
async def running(bundled: Tokenizer) -> AsyncIterator[Running]:
    """The bundled model's texts over an engine that is none."""
    (end_id,) = bundled.encode("<|end|>", special=True)
    model = FakeModel(vocab_size=bundled.vocab_size, eos_ids=(end_id,))
    engine = Engine(model, EngineConfig(n_slots=2, max_model_len=512), served_name="tiny")
    texts = Texts(bundled, load_chat_template(BUNDLED))
    async with gateway_running(engine, texts=texts) as running:
        yield running


async def post(running: Running, path: str, **body: object) -> dict[str, Any]:
    async with running.http.post(path, json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def refusal(running: Running, path: str, **body: object) -> tuple[int, str | None]:
    """Status and field."""
    # aiohttp's client warns of large bodies that are no files
    data, headers = io.BytesIO(json.dumps(body).encode()), {"Content-Type": "application/json"}
    async with running.http.post(path, data=data, headers=headers) as response:
        return response.status, (await response.json())["error"]["param"]


async def test_the_calls_of_an_evaluation_harness(running: Running, bundled: Tokenizer) -> None:
    async with running.http.get("/tokenizer_info") as response:
        info = await response.json()
    assert info["eos_token"] == "<|end|>"
    assert info["bos_token"] == "<|endoftext|>"
    assert "messages" in info["chat_template"]
    tokens = (await post(running, "/tokenize", prompt=TEXT, add_special_tokens=False))["tokens"]
    assert tokens == bundled.encode(TEXT)
    assert (await post(running, "/detokenize", tokens=tokens)) == {"prompt": TEXT, "content": TEXT}
    end = await post(running, "/tokenize", prompt=info["eos_token"], add_special_tokens=False)
    assert end["tokens"] == info["eos_token_ids"]


async def test_a_prompt_is_counted_and_no_tokens_are_added(
    running: Running, bundled: Tokenizer
) -> None:
    ids = bundled.encode(TEXT)
    expected = {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    for add in (True, False, None):
        body = {"model": "tiny", "prompt": TEXT, "add_special_tokens": add}
        assert await post(running, "/tokenize", **body) == expected


async def test_each_id_has_a_text_of_its_own_if_wanted(running: Running) -> None:
    answer = await post(running, "/tokenize", prompt="Once 한", return_token_strs=True)
    strings = answer["token_strs"]
    assert len(strings) == answer["count"]
    assert "".join(strings).startswith("Once ")


async def test_messages_are_tokenized_as_a_chat_begins_with_them(
    running: Running, bundled: Tokenizer
) -> None:
    template = load_chat_template(BUNDLED)
    for opens in (True, False):
        answer = await post(running, "/tokenize", messages=MESSAGES, add_generation_prompt=opens)
        expected = template.encode(MESSAGES, bundled, add_generation_prompt=opens)
        assert answer["tokens"] == expected
    default = await post(running, "/tokenize", messages=MESSAGES)
    assert default["tokens"] == template.encode(MESSAGES, bundled)


async def test_names_of_special_tokens_in_messages_stay_text(
    running: Running, bundled: Tokenizer
) -> None:
    (end_id,) = bundled.encode("<|end|>", special=True)
    assert end_id not in (await post(running, "/tokenize", messages=MESSAGES))["tokens"]
    assert end_id in (await post(running, "/tokenize", prompt="Hi <|end|> there"))["tokens"]


async def test_a_completion_of_a_prompt_costs_what_tokenize_counts(running: Running) -> None:
    count = (await post(running, "/tokenize", prompt=TEXT + "<|end|>"))["count"]
    body = {"model": "tiny", "prompt": TEXT + "<|end|>", "max_tokens": 1}
    completion = await post(running, "/v1/completions", **body)
    assert completion["usage"]["prompt_tokens"] == count


async def test_a_chat_costs_what_tokenize_counts(running: Running) -> None:
    count = (await post(running, "/tokenize", messages=MESSAGES))["count"]
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1}
    completion = await post(running, "/v1/chat/completions", **body)
    assert completion["usage"]["prompt_tokens"] == count


async def test_a_long_text_is_the_same_as_a_short_one_repeated(
    running: Running, bundled: Tokenizer
) -> None:
    text = "Once upon a time. " * 5000
    answer = await post(running, "/tokenize", prompt=text)
    assert answer["tokens"] == bundled.encode(text)
    assert (await post(running, "/detokenize", tokens=answer["tokens"]))["prompt"] == text


@pytest.mark.parametrize("tokens", [[], [0], [255, 1]])
async def test_ids_become_text_with_special_tokens_by_name(
    running: Running, bundled: Tokenizer, tokens: list[int]
) -> None:
    expected = bundled.decode(tokens, skip_special=False)
    assert (await post(running, "/detokenize", tokens=tokens))["prompt"] == expected


@pytest.mark.parametrize("bad", [-1, 10**6, 2**31, 2**63 - 1, 2**63, True, 1.5, "1", None, [1]])
async def test_an_id_that_is_none_is_refused(running: Running, bad: object) -> None:
    assert await refusal(running, "/detokenize", tokens=[1, bad]) == (400, "tokens")


async def test_the_first_id_beyond_the_vocabulary_is_refused(
    running: Running, bundled: Tokenizer
) -> None:
    assert await refusal(running, "/detokenize", tokens=[bundled.vocab_size]) == (400, "tokens")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": MESSAGES}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x" * (MAX_TEXT + 1)}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    running: Running, body: dict[str, object], param: str
) -> None:
    assert await refusal(running, "/tokenize", **body) == (400, param)


async def test_more_ids_than_a_prompt_can_have_are_refused(running: Running) -> None:
    assert await refusal(running, "/detokenize", tokens=[1] * (MAX_IDS + 1)) == (400, "tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_not_found(running: Running, path: str) -> None:
    body = {"model": "other", "prompt": "x", "tokens": [1]}
    assert await refusal(running, path, **body) == (404, "model")


async def test_a_tokenizer_without_special_tokens_has_none_to_tell() -> None:
    async with gateway_running() as running, running.http.get("/tokenizer_info") as response:
        info = await response.json()
        assert (info["eos_token"], info["bos_token"]) == (None, None)
        assert (info["vocab_size"], info["tokenizer_class"]) == (256, "ByteTokenizer")


async def test_the_end_is_named_by_its_id_where_the_configuration_names_none(
    bundled: Tokenizer,
) -> None:
    (end_id,) = bundled.encode("<|end|>", special=True)
    model = FakeModel(vocab_size=bundled.vocab_size, eos_ids=(end_id,))
    texts = Texts(bundled, type(load_chat_template(BUNDLED))("{{ messages[0].content }}"))
    async with (
        gateway_running(Engine(model, EngineConfig(n_slots=2)), texts=texts) as running,
        running.http.get("/tokenizer_info") as response,
    ):
        info = await response.json()
        assert info["eos_token"] == "<|end|>"
        assert info["special_tokens"][str(end_id)] == "<|end|>"
