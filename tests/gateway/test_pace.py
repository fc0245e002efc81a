"""Streams whose events have more than one id: as was asked for, and when the loop is late."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Running, gateway_running
from tests.gateway.stateful import states_running
from wkvm.gateway.config import MAX_STREAM_INTERVAL, GatewayConfig
from wkvm.gateway.errors import SettingError
from wkvm.gateway.streams.pace import LATE_S, TICK_S, Pace

N = 13
NATIVE = {"ids": [1, 2, 3], "max_tokens": N, "ignore_eos": True, "temperature": 0}
TEXT = {"max_tokens": N, "ignore_eos": True, "temperature": 0, "stream": True}


async def events_of(running: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with running.http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).split("\n\n")
    data = [line.rpartition("data: ")[2] for line in lines]
    return [json.loads(one) for one in data if one.startswith("{")]


async def test_an_event_of_the_native_route_has_as_many_ids_as_were_asked_for() -> None:
    async with gateway_running() as running:
        all_ids = list[list[int]]()
        for interval in (1, 4):
            body = {**NATIVE, "stream_interval": interval}
            found = await events_of(running, "/v1/stream", body)
            all_ids.append([token for event in found for token in event["ids"]])
            if interval == 4:
                lengths = [len(event["ids"]) for event in found]
                assert lengths[0] == 1
                assert all(n >= 4 for n in lengths[1:-1])
        assert all_ids[0] == all_ids[1]
        assert len(all_ids[0]) == N


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_the_text_is_the_same_in_fewer_events(
    path: str, body: dict[str, Any], n: int
) -> None:
    async with gateway_running() as running:
        texts, counts = list[dict[int, str]](), list[int]()
        asked = {"model": running.gateway.model, "n": n, "seed": 7, **TEXT, **body}
        for interval in (1, 5):
            found = await events_of(running, path, {**asked, "stream_interval": interval})
            told = dict[int, str]()
            for event in found:
                for choice in event["choices"]:
                    text = choice.get("text") or choice.get("delta", {}).get("content") or ""
                    told[choice["index"]] = told.get(choice["index"], "") + text
            texts.append(told)
            counts.append(len(found))
        assert texts[0] == texts[1]
        assert counts[1] < counts[0]


async def test_the_setting_counts_where_a_request_does_not_say() -> None:
    async with gateway_running(config=GatewayConfig(stream_interval=6)) as running:
        found = await events_of(running, "/v1/stream", NATIVE)
        assert [len(event["ids"]) for event in found][1:-1] in ([6, 6], [6])


async def test_a_turn_of_a_session_takes_it_too(tmp_path: Path) -> None:
    async with states_running(tmp_path) as running:
        async with running.http.post("/v1/sessions", json={"name": "s", "ids": [1]}) as response:
            assert response.status == 201
        body = {**TEXT, "text": "abc", "return_token_ids": True, "stream_interval": 4}
        found = await events_of(running, "/v1/sessions/s/generate", body)
    lengths = [len(event["token_ids"]) for event in found]
    assert lengths[0] == 1
    assert all(n >= 4 for n in lengths[1:-1])
    assert sum(lengths) == N


@pytest.mark.parametrize("interval", [0, -1, MAX_STREAM_INTERVAL + 1])
@pytest.mark.parametrize("path", ["/v1/stream", "/v1/completions", "/v1/chat/completions"])
async def test_an_interval_that_cannot_be_is_refused(path: str, interval: int) -> None:
    async with gateway_running() as running:
        body: dict[str, Any] = {"stream_interval": interval, "model": running.gateway.model}
        given: dict[str, dict[str, Any]] = {
            "/v1/stream": {"ids": [1]},
            "/v1/completions": {"prompt": "a"},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        }
        async with running.http.post(path, json={**body, **given[path]}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "stream_interval"


def test_a_setting_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="stream-interval"):
        GatewayConfig(stream_interval=0)


async def test_a_loop_that_was_held_up_is_behind_and_catches_up() -> None:
    pace, turned = Pace(), asyncio.Event()
    pace.enter()
    pace.hold(pace, turned.set)
    time.sleep(TICK_S + 4 * LATE_S)  # noqa: ASYNC251  (the loop is to be late)
    await turned.wait()
    assert pace.is_behind
    assert pace.lag_s >= 3 * LATE_S
    async with asyncio.timeout(60):
        while pace.is_behind:
            turned.clear()
            pace.hold(pace, turned.set)
            await turned.wait()
    pace.leave(pace)
    assert pace._timer is None


async def test_a_loop_without_streams_is_not_looked_at() -> None:
    pace = Pace()
    pace.enter()
    pace.enter()
    pace.leave(1)
    assert pace._timer is not None
    pace.leave(2)
    assert pace._timer is None
