"""What answers over HTTP tell of prompts that begin as others did."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.gateway.harness import ANNA, BERT, KEYS, Running, gateway_running
from tests.gateway.openai_http import complete, post, stream_events
from tests.hash_model import HashModel
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer

LONG = "once upon a time " * 20
"""340 ids, which are bytes here."""


def running(**settings: Any) -> AbstractAsyncContextManager[Running]:
    config = EngineConfig(**{"n_slots": 20, "prefix_cache_every": 0, **settings})
    engine = Engine(HashModel(vocab_size=256), config, served_name="fake")
    return gateway_running(engine)


async def computed(running: Running) -> int:
    client = await running.gateway.engines.own()
    return (await client.stats())["prompt_tokens_total"]


def cached(answer: Any) -> int:
    n: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return n


async def chat(running: Running, messages: list[dict[str, str]], **more: Any) -> Any:
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, **more}
    status, answer = await post(running, "/v1/chat/completions", body)
    assert status == 200, answer
    return answer


async def test_usage_says_what_of_a_prompt_was_not_computed() -> None:
    async with running() as http:
        first = await complete(http, prompt=LONG, max_tokens=3)
        assert (first["usage"]["prompt_tokens"], cached(first)) == (340, 0)
        second = await complete(http, prompt=LONG + "there was", max_tokens=3)
        assert (second["usage"]["prompt_tokens"], cached(second)) == (349, 320)
        assert await computed(http) == 340 + 29


@pytest.mark.parametrize("stop", [None, ["a", "e", "i", "\x01", "\x02", "\x03"]])
async def test_a_stream_tells_the_same_usage(stop: list[str] | None) -> None:
    body: dict[str, Any] = {"prompt": LONG, "max_tokens": 8, "temperature": 0, "stop": stop}
    async with running() as http:
        await complete(http, **body)
        whole = await complete(http, **body)
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = await stream_events(http, **body, stream_options=options)
        assert events[-1]["usage"] == whole["usage"]
        assert cached(whole) == 320
        assert {cached(event) for event in events} == {320}


async def test_choices_of_a_prompt_compute_it_once() -> None:
    async with running() as http:
        answer = await chat(http, [{"role": "user", "content": LONG}], n=16, temperature=1)
        n_prompt = answer["usage"]["prompt_tokens"]
        assert await computed(http) == n_prompt + 15
        assert cached(answer) == 0, "the first choice has computed all of it"
        again = await chat(http, [{"role": "user", "content": LONG}], n=3, temperature=1)
        assert cached(again) == 320


async def test_questions_about_one_document_at_once_compute_it_once() -> None:
    document = {"role": "system", "content": 5 * LONG}
    asked = [[document, {"role": "user", "content": f"{n}, {LONG[:90]}"}] for n in range(3)]
    async with running(max_num_batched_tokens=256) as http:
        answers = await asyncio.gather(*(chat(http, one) for one in asked))
        total = sum(answer["usage"]["prompt_tokens"] - cached(answer) for answer in answers)
        assert await computed(http) == total
        assert total < 1800 + 3 * (110 + 64)


async def test_a_conversation_computes_its_new_tokens_and_64_more_at_most() -> None:
    messages = [{"role": "system", "content": LONG}]
    async with running() as http:
        before = None
        for turn in range(6):
            messages.append({"role": "user", "content": f"{turn}: {LONG[: 20 * turn]}"})
            n_before = await computed(http)
            answer = await chat(http, messages)
            n_prompt = answer["usage"]["prompt_tokens"]
            n_computed = await computed(http) - n_before
            assert n_computed == n_prompt - cached(answer)
            if before is not None:
                assert n_computed <= n_prompt - before + 64
            before = n_prompt
            messages.append({"role": "assistant", "content": "well"})


async def test_an_edited_question_goes_on_from_the_border_before_it() -> None:
    stem = [{"role": "system", "content": LONG}, {"role": "user", "content": LONG}]
    stem.append({"role": "assistant", "content": "yes"})
    async with running() as http:
        await chat(http, [*stem, {"role": "user", "content": LONG}])
        other = await chat(http, [*stem, {"role": "user", "content": "Why?" + LONG}])
        start = ChatTemplate(http.gateway.texts.template.source).render(
            [*stem], add_generation_prompt=False
        )
        assert cached(other) == len(start) // 64 * 64


async def test_salts_and_tenants_share_nothing() -> None:
    engine = Engine(HashModel(vocab_size=256), EngineConfig(n_slots=8), served_name="fake")
    async with gateway_running(engine, keys=KEYS) as http:
        expected: list[tuple[dict[str, str], str | None, int]] = [
            (ANNA, None, 0),
            (ANNA, None, 320),
            (BERT, None, 0),
            (ANNA, "s", 0),
            (ANNA, "s", 320),
            (ANNA, "", 320),
        ]
        for key, salt, n_cached in expected:
            body = {"model": "fake", "prompt": LONG, "max_tokens": 1, "cache_salt": salt}
            async with http.http.post("/v1/completions", json=body, headers=key) as response:
                assert cached(await response.json()) == n_cached, (key, salt)


async def test_a_salt_that_is_too_long_is_refused_by_its_name() -> None:
    async with running() as http:
        body = {"prompt": LONG, "cache_salt": "s" * 257}
        status, answer = await post(http, "/v1/completions", body)
        assert (status, answer["error"]["param"]) == (400, "cache_salt")
        assert cached(await complete(http, **{**body, "cache_salt": "é" * 256})) == 0


async def test_log_probabilities_of_a_prompt_are_computed() -> None:
    async with running() as http:
        await complete(http, prompt=LONG, max_tokens=1)
        echo = await complete(http, prompt=LONG, max_tokens=1, echo=True, logprobs=0)
        assert len(echo["choices"][0]["logprobs"]["tokens"]) == 341
        assert cached(echo) == 0


async def test_native_routes_take_hints_and_tell_what_was_not_computed() -> None:
    ids = list(ByteTokenizer().encode(LONG))
    async with running() as http:
        body = {"ids": ids, "max_tokens": 2, "borders": [100], "cache_salt": "x"}
        for path, edit, n_cached in (
            ("/v1/generate", ids, None),
            ("/v1/generate", ids, 320),
            ("/v1/generate", ids[:100] + ids[150:], 64),
        ):
            async with http.http.post(path, json={**body, "ids": edit}) as response:
                usage = (await response.json())["usage"]
                assert usage.get("n_cached") == n_cached


async def test_metrics_have_the_tiers() -> None:
    async with running() as http:
        await complete(http, prompt=LONG, max_tokens=1)
        await complete(http, prompt=LONG, max_tokens=1)
        async with http.http.get("/metrics") as response:
            text = await response.text()
        assert 'wkvm_prefix_entries{tier="host"} 1.0' in text
        assert "wkvm_prefix_hits_total 1.0" in text
        assert "wkvm_prefix_misses_total 1.0" in text
        assert "wkvm_prefix_tokens_total 320.0" in text
