"""Token ids as they arrive: ``/v1/stream``."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import Running, gateway_running, until_stats
from tests.gateway.native_http import LONG, post
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.models.base import Batch


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a response as they come; text where an event is no JSON."""
    async for line in response.content:
        if line != b"\n":
            data = line.removeprefix(b"data: ").removesuffix(b"\n")
            yield data.decode() if data == b"[DONE]" else json.loads(data)


async def stream(running: Running, body: dict[str, Any]) -> list[Any]:
    async with running.http.post("/v1/stream", json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        return [event async for event in events_of(response)]


async def test_the_events_of_a_stream_are_the_answer_of_generate_in_parts(
    running: Running,
) -> None:
    body = {"ids": [1, 2, 3], "temperature": 0, "max_tokens": 40, "logprobs": 2}
    *events, done = await stream(running, body)
    _, whole = await post(running, "/v1/generate", body)
    (choice,) = whole["choices"]
    assert done == "[DONE]"
    assert len(events) > 1
    assert [token for event in events for token in event["ids"]] == choice["ids"]
    assert [one for event in events for one in event["logprobs"]] == choice["logprobs"]
    assert [event for event in events if "reason" in event] == [events[-1]]
    assert (events[-1]["reason"], events[-1]["stop_id"]) == (choice["reason"], choice["stop_id"])
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["timings"]["total_s"] > 0


async def test_choices_are_told_apart_and_each_has_its_end(running: Running) -> None:
    body = {"ids": [1, 2], "n": 3, "max_tokens": 20, "seed": 4, "ignore_eos": True}
    *events, _ = await stream(running, body)
    _, whole = await post(running, "/v1/generate", body)
    for choice in whole["choices"]:
        own = [event for event in events if event["index"] == choice["index"]]
        assert [token for event in own for token in event["ids"]] == choice["ids"]
        assert [event.get("reason") for event in own] == [None] * (len(own) - 1) + ["length"]
        assert own[-1]["usage"] == {"n_prompt": 2, "n_output": 20}


async def test_log_probabilities_of_the_prompt_come_once_and_first(running: Running) -> None:
    body = {"ids": [5, 6, 7], "n": 2, "max_tokens": 3, "prompt_logprobs": 0, "ignore_eos": True}
    *events, _ = await stream(running, body)
    assert [one["id"] for one in events[0]["prompt_logprobs"]] == [6, 7]
    assert all("prompt_logprobs" not in event for event in events[1:])
    assert all("logprobs" not in event for event in events)


async def test_ids_come_before_the_end(running: Running) -> None:
    async with running.http.post("/v1/stream", json=LONG) as response:
        ids: list[int] = []
        async for event in events_of(response):
            ids += event["ids"]
            if len(ids) >= 5:
                break
    assert ids == fake_continuation([1, 2], len(ids), 256)
    await until_stats(running, n_running=0)
    assert len(running.gateway.running) == 0


async def test_a_stream_is_cancelled_by_its_name(running: Running) -> None:
    headers = {"X-Request-Id": "x"}
    async with running.http.post("/v1/stream", json=LONG, headers=headers) as response:
        assert response.headers["X-Request-Id"] == "x"
        assert (await post(running, "/v1/cancel", {"id": "x"}))[0] == 200
        *_, last, done = [event async for event in events_of(response)]
    assert last["reason"] == "cancelled"
    assert done == "[DONE]"


async def test_what_is_refused_before_the_first_event_has_a_status(running: Running) -> None:
    status, got = await post(running, "/v1/stream", {"ids": [1], "stop_ids": [256]})
    assert (status, got["error"]["param"]) == (400, "stop_ids")


async def test_a_step_that_fails_ends_the_stream_with_an_error() -> None:
    n_steps = 0

    def fail(batch: Batch) -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 4:
            raise RuntimeError("no")

    engine = Engine(FakeModel(vocab_size=256, before_forward=fail), EngineConfig(n_slots=2))
    async with gateway_running(engine) as running:
        *events, last = await stream(running, LONG)
    assert [token for event in events for token in event["ids"]] == fake_continuation(
        [1, 2], 3, 256
    )
    assert last["error"]["code"] == "execution_failed"


async def test_a_client_that_does_not_read_holds_the_engine_up_and_not_memory() -> None:
    """The engine stops at the credit of a stream, beyond what the sockets hold."""
    async with gateway_running() as running:
        reader, writer = await asyncio.open_unix_connection(str(running.path), limit=1)
        body = json.dumps({**LONG, "logprobs": 20}).encode()
        writer.write(
            b"POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        client = await running.gateway.engines.own()
        while not (await client.stats())["n_paused"]:
            pass
        assert not reader.at_eof()
        writer.close()
        await until_stats(running, n_running=0)
