"""Token ids in, token ids out: ``/v1/generate``, and ``/v1/cancel`` for what runs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import ANNA, BERT, KEYS, Running, gateway_running, until_stats
from tests.gateway.native_http import LONG, post
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.models.base import Batch


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


async def test_the_answer_is_the_models(running: Running) -> None:
    body = {"ids": [1, 2, 3], "temperature": 0, "max_tokens": 5}
    status, got = await post(running, "/v1/generate", body, **{"X-Request-Id": "mine"})
    assert status == 200
    assert got["id"] == "mine"
    assert got["model"] == running.gateway.model
    (choice,) = got["choices"]
    ids = fake_continuation([1, 2, 3], 5, 256)
    assert choice == {"index": 0, "ids": ids, "reason": "length", "stop_id": None}
    assert got["usage"] == {"n_prompt": 3, "n_output": 5}
    assert 0 < got["timings"]["first_token_s"] <= got["timings"]["total_s"]
    assert "prompt_logprobs" not in got


async def test_a_stop_id_is_named_and_is_not_among_the_ids(running: Running) -> None:
    ids = fake_continuation([1, 2, 3], 5, 256)
    body = {"ids": [1, 2, 3], "temperature": 0, "stop_ids": [ids[3]]}
    _, got = await post(running, "/v1/generate", body)
    (choice,) = got["choices"]
    assert (choice["ids"], choice["reason"], choice["stop_id"]) == (ids[:3], "stop", ids[3])


async def test_choices_are_counted_together(running: Running) -> None:
    body = {"ids": [1, 2], "n": 3, "max_tokens": 7, "seed": 4, "ignore_eos": True}
    _, got = await post(running, "/v1/generate", body)
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2]
    assert len({tuple(choice["ids"]) for choice in got["choices"]}) == 3
    assert got["usage"] == {"n_prompt": 2, "n_output": 21}


async def test_log_probabilities_come_for_output_and_prompt(running: Running) -> None:
    body = {"ids": [5, 6, 7], "temperature": 0, "max_tokens": 2, "logprobs": 1}
    _, got = await post(running, "/v1/generate", {**body, "prompt_logprobs": 0})
    (choice,) = got["choices"]
    assert [one["id"] for one in choice["logprobs"]] == choice["ids"]
    for one in choice["logprobs"]:
        assert one["rank"] == 1
        assert one["top"] == [{"id": one["id"], "logprob": one["logprob"]}]
    assert [one["id"] for one in got["prompt_logprobs"]] == [6, 7]
    assert all(one["top"] == [] and one["logprob"] < 0 for one in got["prompt_logprobs"])


@pytest.mark.parametrize("path", ["chunked", "decode"])
async def test_a_text_is_scored(running: Running, path: str) -> None:
    body = {"ids": [5, 6, 7], "prompt_logprobs": 2, "max_tokens": 0}
    _, expected = await post(running, "/v1/generate", body)
    asked = {"ids": [5, 6, 7], "path": path, "n_top": 2}
    status, got = await post(running, "/v1/score", asked, **{"X-Request-Id": "mine"})
    assert status == 200
    assert got == {
        "id": "mine",
        "model": running.gateway.model,
        "logprobs": expected["prompt_logprobs"],
    }


async def test_what_is_wrong_with_a_text_is_answered(running: Running) -> None:
    for body, param in (
        ({"ids": []}, "ids"),
        ({"ids": [1, 10**6]}, "ids"),
        ({"ids": [1], "path": "fast"}, "path"),
        ({"ids": [1], "n_top": 99}, "n_top"),
        ({"ids": [1], "model": "other"}, "model"),
    ):
        status, got = await post(running, "/v1/score", body)
        assert status in (400, 404)
        assert got["error"]["param"] == param
    _, got = await post(running, "/v1/score", {"ids": [1], "path": "fast"})
    assert got["error"]["message"] == "path: 'fast' is neither chunked nor decode"


async def test_every_keyword_reaches_the_engine(running: Running) -> None:
    biased = {"ids": [1], "temperature": 0, "max_tokens": 2, "logit_bias": {"77": 100.0}}
    allowed = {"ids": [1], "max_tokens": 2, "allowed_ids": [9], "stop_ids": [9], "min_tokens": 0}
    _, of_bias = await post(running, "/v1/generate", biased)
    _, of_allowed = await post(running, "/v1/generate", allowed)
    assert of_bias["choices"][0]["ids"] == [77, 77]
    assert of_allowed["choices"][0]["stop_id"] == 9
    everything: dict[str, Any] = {
        "ids": [1, 2, 3], "model": running.gateway.model, "temperature": 1.5, "top_k": 30,
        "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "penalty_decay": 0.99, "logit_bias": None, "allowed_ids": None,
        "stop_ids": [], "ignore_eos": True, "min_tokens": 2, "max_tokens": 6, "logprobs": None,
        "prompt_logprobs": None, "seed": 3, "n": 1, "timeout_s": 60, "priority": -1,
    }  # fmt: skip
    client = await running.gateway.engines.client("")
    options = {k: v for k, v in everything.items() if k not in ("ids", "model")}
    stream = await client.generate([1, 2, 3], **options)
    _, got = await post(running, "/v1/generate", everything)
    assert got["choices"][0]["ids"] == (await stream.completion()).ids


async def test_a_keyword_of_a_schema_that_no_grammar_expresses_is_named(running: Running) -> None:
    deep = '{"items":' * 500 + "{}" + "}" * 500
    for source, said in (('{"items": {"not": {}}}', '"not", at #/items/not'), (deep, "deep")):
        grammar = {"kind": "json_schema", "source": source}
        for path in ("/v1/generate", "/v1/stream", "/v1/submit"):
            status, got = await post(running, path, {"ids": [1], "grammar": grammar})
            assert (status, got["error"]["param"]) == (400, "grammar")
            assert said in got["error"]["message"]


async def test_a_grammar_reaches_the_engine(running: Running) -> None:
    """The fake engine has none, and says so."""
    grammar = {"kind": "regex", "source": "a+"}
    status, got = await post(running, "/v1/generate", {"ids": [1], "grammar": grammar})
    assert status == 400
    assert "grammar" in got["error"]["message"]
    assert (await post(running, "/v1/generate", {"ids": [1], "grammar": None}))[0] == 200
    bad = {"kind": "perl", "source": ""}
    assert (await post(running, "/v1/generate", {"ids": [1], "grammar": bad}))[0] == 400


async def test_a_request_without_output_scores_its_prompt(running: Running) -> None:
    body = {"ids": [5, 6], "max_tokens": 0, "prompt_logprobs": 0}
    _, got = await post(running, "/v1/generate", body)
    assert got["choices"] == [{"index": 0, "ids": [], "reason": "length", "stop_id": None}]
    assert len(got["prompt_logprobs"]) == 1
    assert got["timings"]["first_token_s"] == 0


@pytest.mark.timed(1.0)
async def test_a_deadline_that_passes_leaves_the_ids_up_to_then(running: Running) -> None:
    status, got = await post(running, "/v1/generate", {**LONG, "timeout_s": 0.05})
    assert status == 200
    assert got["choices"][0]["reason"] == "timed_out"
    assert got["usage"]["n_output"] == len(got["choices"][0]["ids"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ids": []}, "ids"),
        ({"ids": [256]}, "ids"),
        ({"ids": [-1]}, "ids"),
        ({"ids": [1.5]}, "ids"),
        ({"ids": "text"}, "ids"),
        ({"ids": [1], "temperature": -1}, "temperature"),
        ({"ids": [1], "temperature": None}, "temperature"),
        ({"ids": [1], "top_p": 2}, "top_p"),
        ({"ids": [1], "n": 65}, "n"),
        ({"ids": [1], "n": 0}, "n"),
        ({"ids": [1], "max_tokens": -1}, "max_tokens"),
        ({"ids": [1], "max_tokens": 2**80}, "max_tokens"),
        ({"ids": [1], "logprobs": 21}, "logprobs"),
        ({"ids": [1], "logit_bias": {"1000": 1}}, "logit_bias"),
        ({"ids": [1], "logit_bias": {"x": 1}}, "logit_bias"),
        ({"ids": [1], "timeout_s": 0}, "timeout_s"),
        ({"ids": [1], "stop_ids": [2**40]}, "stop_ids"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_value_out_of_range_is_refused_by_its_name(
    running: Running, body: dict[str, Any], param: str
) -> None:
    status, got = await post(running, "/v1/generate", body)
    assert status == 400
    assert got["error"]["param"] == param
    assert got["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body", [{}, [], None, 1, {"ids": [1], "prompt": "hi"}, {"ids": [1], "credit": 5}]
)
async def test_a_body_of_another_shape_is_refused(running: Running, body: Any) -> None:
    status, got = await post(running, "/v1/generate", body)
    assert status == 400
    assert got["error"]["type"] == "invalid_request_error"


async def test_another_model_is_not_here(running: Running) -> None:
    status, got = await post(running, "/v1/generate", {"ids": [1], "model": "other"})
    assert (status, got["error"]["code"]) == (404, "model_not_found")


async def test_a_step_that_fails_is_an_error_and_no_hang() -> None:
    def fail(batch: Batch) -> None:
        raise RuntimeError("no")

    engine = Engine(FakeModel(vocab_size=256, before_forward=fail), EngineConfig(n_slots=2))
    async with gateway_running(engine) as running:
        status, got = await post(running, "/v1/generate", {"ids": [1]})
    assert status == 500
    assert got["error"]["code"] == "execution_failed"


async def test_a_client_that_leaves_frees_its_slot(running: Running) -> None:
    asking = asyncio.create_task(post(running, "/v1/generate", LONG))
    await until_stats(running, n_running=1)
    asking.cancel()
    await asyncio.wait([asking])
    await until_stats(running, n_running=0)
    assert len(running.gateway.running) == 0


async def test_a_running_request_is_cancelled_by_its_name(running: Running) -> None:
    asking = asyncio.create_task(post(running, "/v1/generate", LONG, **{"X-Request-Id": "x"}))
    await until_stats(running, n_running=1)
    assert await post(running, "/v1/cancel", {"id": "x"}) == (200, {"id": "x", "cancelled": True})
    status, got = await asking
    assert status == 200
    assert got["choices"][0]["reason"] == "cancelled"
    status, got = await post(running, "/v1/cancel", {"id": "x"})
    assert (status, got["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize("body", [{}, {"id": 1}, {"id": "x" * 129}, {"id": "x", "all": True}])
async def test_what_names_no_request_is_no_cancellation(running: Running, body: Any) -> None:
    assert (await post(running, "/v1/cancel", body))[0] == 400


async def test_two_requests_of_one_name_are_both_cancelled(running: Running) -> None:
    asking = [
        asyncio.create_task(post(running, "/v1/generate", LONG, **{"X-Request-Id": "x"}))
        for _ in range(2)
    ]
    await until_stats(running, n_running=2)
    await post(running, "/v1/cancel", {"id": "x"})
    reasons = [got["choices"][0]["reason"] for _, got in await asyncio.gather(*asking)]
    assert reasons == ["cancelled"] * 2


async def test_nobody_cancels_the_requests_of_another_tenant() -> None:
    async with gateway_running(keys=KEYS) as running:
        named = {**ANNA, "X-Request-Id": "x"}
        asking = asyncio.create_task(post(running, "/v1/generate", LONG, **named))
        await until_stats(running, n_running=1)
        foreign = await post(running, "/v1/cancel", {"id": "x"}, **BERT)
        absent = await post(running, "/v1/cancel", {"id": "y"}, **BERT)
        assert foreign[0] == 404
        assert str(foreign).replace("'x'", "'y'") == str(absent)
        await until_stats(running, n_running=1)
        await post(running, "/v1/cancel", {"id": "x"}, **ANNA)
        assert (await asking)[1]["choices"][0]["reason"] == "cancelled"


async def test_a_prompt_beyond_the_engines_frame_is_too_large() -> None:
    config = ServerConfig(binary_port=None, max_frame_bytes=2**16)
    async with gateway_running(server_config=config) as running:
        status, got = await post(running, "/v1/generate", {"ids": [1] * 2**15})
    assert (status, got["error"]["code"]) == (413, "request_too_large")
