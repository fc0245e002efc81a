"""``return_metrics``: an answer says how long it took."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete, post, stream_events
from wkvm.gateway.streams.pieces import ChoiceText, TextOptions

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY: dict[str, Any] = {"prompt": "ab", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
NAMES = {"queue_time_ms", "time_to_first_token_ms", "mean_itl_ms", "e2e_latency_ms"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


def check(metrics: dict[str, float], n_gaps: int) -> None:
    assert metrics.keys() == NAMES
    first, gap = metrics["time_to_first_token_ms"], metrics["mean_itl_ms"]
    assert 0 < first <= metrics["e2e_latency_ms"]
    assert first + gap * n_gaps == pytest.approx(metrics["e2e_latency_ms"], rel=0.05)


async def test_a_completion_says_how_long_it_took_if_it_is_asked(running: Running) -> None:
    assert "metrics" not in await complete(running, **BODY)
    metrics = (await complete(running, **BODY, return_metrics=True))["metrics"]
    check(metrics, 7)
    assert 0 <= metrics["queue_time_ms"] <= metrics["time_to_first_token_ms"]


async def test_all_choices_count(running: Running) -> None:
    answer = await complete(running, **BODY, n=3, best_of=4, return_metrics=True)
    assert answer["metrics"].keys() == NAMES


async def test_a_stream_says_it_once_after_its_choices(running: Running) -> None:
    events = await stream_events(running, **BODY, return_metrics=True)
    told = [event for event in events if "metrics" in event]
    assert told == events[-1:]
    assert told[0]["choices"] == []
    check(told[0]["metrics"], 7)


async def test_a_chat_says_it_too(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "temperature": 0}
    status, answer = await post(running, "/v1/chat/completions", body | {"return_metrics": True})
    assert status == 200
    assert answer["metrics"].keys() == NAMES


async def test_an_answer_that_a_stop_string_ends_is_timed_by_the_gateway(running: Running) -> None:
    text = (await complete(running, **BODY))["choices"][0]["text"]
    body = {**BODY, "max_tokens": 10**6, "stop": [text[5:7]], "return_metrics": True}
    metrics = (await complete(running, **body))["metrics"]
    assert metrics["queue_time_ms"] is None
    assert 0 < metrics["time_to_first_token_ms"] <= metrics["e2e_latency_ms"]


async def test_without_output_there_is_no_first_token(running: Running) -> None:
    metrics = (await complete(running, **BODY | {"max_tokens": 0}, return_metrics=True))["metrics"]
    assert metrics["time_to_first_token_ms"] is None
    assert metrics["mean_itl_ms"] is None
    assert metrics["e2e_latency_ms"] > 0


async def test_the_clock_is_read_where_ids_arrive(running: Running) -> None:
    moments = iter(range(100))
    client = await running.gateway.engines.client("")
    stream = await client.generate([5], max_tokens=10**6, ignore_eos=True)
    options = TextOptions(clock=lambda: float(next(moments)))
    text = ChoiceText(stream.choices[0], running.gateway.texts, options)
    for _ in range(3):
        await text.read()
    times = text.times()
    assert (times.queue_s, times.first_s, times.total_s) == (None, 1.0, 3.0)
    stream.cancel()
