"""What is measured is told, under names that stay, and nothing that a client names is among it."""

import asyncio
import math
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from wkvm_bench.null_engine import NullEngine

from tests.fakes import GuestModel
from tests.gateway.harness import Running, gateway_running, lose_engine
from tests.gateway.stateful import ask, states_running
from tests.server.harness import until
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.calls import Call, Route
from wkvm.gateway.monitoring import metrics
from wkvm.gateway.monitoring.watch import EngineWatch
from wkvm.gateway.routes import ROUTES

ROOT = Path(__file__).parents[2]
KEYS = (ApiKey.of("secret", "anna"),)
SECRET = {"Authorization": "Bearer secret"}


async def text_of(running: Running, headers: Mapping[str, str] | None = None) -> str:
    """The metrics as of now, not as of the last answer of the engine."""
    running.gateway.watch = EngineWatch(running.gateway.engines)
    async with running.http.get("/metrics", headers=headers) as response:
        assert response.status == 200
        return await response.text()


def values_in(text: str) -> dict[str, float]:
    """Each sample as ``name`` or ``name{label="value",...}``."""
    values = dict[str, float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


async def values_of(running: Running, headers: Mapping[str, str] | None = None) -> dict[str, float]:
    return values_in(await text_of(running, headers))


async def generate(running: Running, n_prompt: int, n_output: int) -> None:
    client = await running.gateway.engines.client("")
    stream = await client.generate((5,) * n_prompt, max_tokens=n_output, ignore_eos=True)
    await stream.completion()


async def test_the_numbers_are_those_of_what_was_requested() -> None:
    async with gateway_running() as running:
        for n in (1, 2, 30):
            await generate(running, n, 2 * n)
        values = await values_of(running)
        assert values["wkvm_requests_total"] == 3
        assert values["wkvm_prompt_tokens_total"] == 33
        assert values["wkvm_output_tokens_total"] == 66
        assert values['wkvm_requests_ended_total{reason="length"}'] == 3
        for name in ("request_queue_time", "time_to_first_token", "e2e_request_latency"):
            assert values[f"wkvm_{name}_seconds_count"] == 3, name
        assert values["wkvm_inter_token_latency_seconds_count"] == 66 - 3
        assert values["wkvm_request_prompt_tokens_sum"] == 33
        assert values['wkvm_request_prompt_tokens_bucket{le="2.0"}'] == 2
        assert values['wkvm_request_output_tokens_bucket{le="5.0"}'] == 2
        assert values["wkvm_step_duration_seconds_count"] == values["wkvm_steps_total"]


async def test_times_are_in_seconds() -> None:
    async with gateway_running() as running:
        await generate(running, 3, 3)
        values, stats = await values_of(running), running.engine_loop.stats()
        total = values["wkvm_e2e_request_latency_seconds_sum"]
        assert math.isclose(total, stats["request_us_sum"] / 1e6)
        assert values['wkvm_e2e_request_latency_seconds_bucket{le="1000.0"}'] == 1
        assert values['wkvm_e2e_request_latency_seconds_bucket{le="+Inf"}'] == 1


async def test_buckets_add_up() -> None:
    async with gateway_running() as running:
        await generate(running, 3, 20)
        values = await values_of(running)
        n = values["wkvm_inter_token_latency_seconds_count"]
        buckets = [
            value
            for name, value in values.items()
            if name.startswith("wkvm_inter_token_latency_seconds_bucket")
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == n == 19


async def test_routers_find_the_load_under_the_names_that_they_know() -> None:
    async with gateway_running() as running:
        client = await running.gateway.engines.client("")
        stream = await client.generate((5,), max_tokens=99, credit=1, ignore_eos=True)
        await stream.choices[0].read()
        values = await values_of(running)
        assert values['vllm:num_requests_running{model_name="fake"}'] == 1
        assert values['vllm:num_requests_waiting{model_name="fake"}'] == 0
        assert values['vllm:kv_cache_usage_perc{model_name="fake"}'] == 1 / 8
        assert (values["wkvm_slots"], values["wkvm_slots_free"]) == (8, 7)
        stream.cancel()
        await stream.completion()


async def test_routers_find_pages_where_more_of_them_than_of_the_slots_are_taken() -> None:
    config = EngineConfig(n_slots=8, guest_tokens=64 * 4)
    async with gateway_running(engine=Engine(GuestModel(vocab_size=256), config)) as running:
        client = await running.gateway.engines.client("")
        stream = await client.generate((5,), max_tokens=99, credit=1, ignore_eos=True)
        await stream.choices[0].read()
        values = await values_of(running)
        assert values['vllm:kv_cache_usage_perc{model_name="fake"}'] == 2 / 4
        assert (values["wkvm_pages"], values["wkvm_pages_free"]) == (4, 2)
        stream.cancel()
        await stream.completion()


async def test_every_counter_of_the_engine_is_told() -> None:
    elsewhere = {"n_completed_remembered", "draining", "step_age_us", "loop_lag_us"}
    tables = (metrics._GAUGES, metrics._COUNTERS, metrics._ENDS)
    known = {name for table in tables for name in table} | elsewhere
    known |= {name for _, names in metrics._TIERS.values() for name in names.values()}
    histograms = {*metrics._SECONDS, *metrics._LENGTHS}
    async with gateway_running() as running:
        for name in running.engine_loop.stats():
            assert name in known or re.sub(r"_(le_\d+|count|sum)$", "", name) in histograms, name


async def test_requests_are_counted_by_route_and_class_of_status() -> None:
    async with gateway_running() as running:
        for path in ("/health", "/health", "/v1/models/fake", "/v1/models/a", "/nothing", "/b/c"):
            async with running.http.get(path):
                pass
        values = await values_of(running)
        counted = {
            name.removeprefix("wkvm_http_requests_total"): value
            for name, value in values.items()
            if name.startswith("wkvm_http_requests_total")
        }
        assert counted == {
            '{method="GET",route="/health",status="2xx"}': 2,
            '{method="GET",route="/v1/models/{id}",status="2xx"}': 1,
            '{method="GET",route="/v1/models/{id}",status="4xx"}': 1,
            '{method="*",route="/{path}",status="4xx"}': 2,
        }
        open_now = {name for name, value in values.items() if "requests_open" in name and value}
        assert open_now == {'wkvm_http_requests_open{method="GET",route="/metrics"}'}


async def test_nothing_that_clients_name_becomes_a_label() -> None:
    canary = "canary7f3a"
    async with gateway_running(keys=KEYS) as running:
        await values_of(running, SECRET)
        before: set[str] | None = None
        for _ in range(2):
            for method in ("GET", "POST", "BREW"):
                for prefix in ("/", "/v1/models/", "/v1/status/", "/v1/"):
                    for _ in range(5):
                        path = f"{prefix}{canary}{uuid.uuid4().hex}?{canary}={canary}"
                        headers = {**SECRET, "X-Request-Id": canary, "User-Agent": canary}
                        async with running.http.request(method, path, headers=headers) as answer:
                            assert answer.status in (400, 404, 405)
            async with running.http.get("/", headers={"Authorization": f"Bearer {canary}"}):
                pass
            text = await text_of(running, SECRET)
            assert canary not in text
            assert "secret" not in text
            names = set(values_in(text))
            assert before is None or names == before
            before = names


async def test_who_has_no_key_gets_no_numbers_and_is_counted() -> None:
    async with gateway_running(keys=KEYS) as running:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with running.http.get("/metrics", headers=headers) as response:
                assert response.status == 401
        assert (await values_of(running, SECRET))["wkvm_http_refused_keys_total"] == 2


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3",
        "application/openmetrics-text; version=x.y; escaping=nonsense",
        "application/openmetrics-text",
    ],
)
async def test_open_metrics_for_who_accepts_them(accept: str) -> None:
    async with gateway_running() as running:
        await generate(running, 1, 2)
        async with running.http.get("/metrics", headers={"Accept": accept}) as response:
            assert response.status == 200
            expected = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert response.headers["Content-Type"] == expected
            text = await response.text()
        assert text.endswith("# EOF\n")
        families = open_metrics_families(text)  # type: ignore[no-untyped-call]
        names = {family.name for family in families}
        assert {"wkvm_requests", "wkvm_time_to_first_token_seconds"} <= names


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=a.b;q=x", ";;,=,"])
async def test_the_text_format_for_everybody_else(accept: str) -> None:
    async with (
        gateway_running() as running,
        running.http.get("/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_without_the_engine_the_gateway_tells_its_own_numbers_to_who_was_let_in_before() -> (
    None
):
    async with gateway_running(keys=(*KEYS, ApiKey.of("unseen", "ben"))) as running:
        assert (await values_of(running, SECRET))["wkvm_engine_up"] == 1
        await lose_engine(running)
        values = await values_of(running, SECRET)
        assert values["wkvm_engine_up"] == 0
        assert values['wkvm_http_requests_total{method="GET",route="/metrics",status="2xx"}'] == 1
        assert "wkvm_slots" not in values
        for key in ("unseen", "wrong"):
            headers = {"Authorization": f"Bearer {key}"}
            async with running.http.get("/metrics", headers=headers) as response:
                assert response.status in (401, 503)


async def test_a_drain_can_be_watched() -> None:
    async with gateway_running(keys=KEYS) as running:
        assert (await values_of(running, SECRET))["wkvm_draining"] == 0
        running.gateway.begin_drain()
        await running.server.drain()
        values = await values_of(running, SECRET)
        assert (values["wkvm_draining"], values["wkvm_engine_up"]) == (1, 1)


async def test_an_engine_that_counts_little_is_no_error() -> None:
    async with gateway_running(NullEngine(n_slots=4)) as running:
        values = await values_of(running)
        assert values["wkvm_slots"] == 4
        assert values["wkvm_step_age_seconds"] == 0
        assert "wkvm_requests_total" not in values
        assert "wkvm_time_to_first_token_seconds_count" not in values


async def test_what_is_served_is_told() -> None:
    async with gateway_running() as running:
        info = running.gateway.engines.info
        text = await text_of(running)
        assert f'model="{info.model}"' in text
        assert f'model_digest="{info.model_digest}"' in text
        assert f'engine="{info.server}"' in text


async def test_streams_are_counted_while_they_are_open_and_left_ones_as_gone() -> None:
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def stream(call: Call) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(call.request)
        await response.write(b"x")
        entered.set()
        await may_end.wait()
        return response

    routes = (*ROUTES, Route("GET", "/stream", stream))
    label = 'wkvm_http_requests_total{method="GET",route="/stream",status="%s"}'
    async with gateway_running(routes=routes) as running:
        async with running.http.get("/stream") as response:
            await entered.wait()
            assert (await values_of(running))["wkvm_http_streams_open"] == 1
            may_end.set()
            await response.read()
        values = await values_of(running)
        assert (values["wkvm_http_streams_open"], values[label % "2xx"]) == (0, 1)

        entered.clear()
        may_end.clear()
        async with aiohttp.ClientSession(
            "http://gateway", connector=aiohttp.UnixConnector(str(running.path))
        ) as leaving:
            response = await leaving.get("/stream")
            await entered.wait()
            response.close()
        await until(lambda: not running.gateway.counts.n_streams)
        values = await values_of(running)
        assert (values[label % "2xx"], values[label % "gone"]) == (1, 1)


async def test_the_documented_names_are_those_that_are_told(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    section = text.partition("### Metrics\n")[2].partition("\n## ")[0]
    documented = {
        name.partition("{")[0] for name in re.findall(r"`((?:wkvm_|vllm:)[^`]+)`", section)
    }
    engine = Engine(GuestModel(vocab_size=256), EngineConfig(n_slots=8))
    async with states_running(tmp_path, engine) as running:
        await generate(running, 1, 1)
        families = text_string_to_metric_families(await text_of(running))
        told = {
            f"{family.name}_total" if family.type == "counter" else family.name
            for family in families
            if not family.name.startswith("process_")
        }
    assert told == documented


async def test_what_was_kept_as_a_state_is_counted(tmp_path: Path) -> None:
    body = {"ids": [1], "max_tokens": 1, "save_as": "tale"}
    async with states_running(tmp_path) as running:
        await ask(running, "POST", "/v1/generate", body)
        await ask(running, "POST", "/v1/generate", {**body, "expected_version": 7})
        values = await values_of(running)
    assert values["wkvm_state_commits_total"] == 1
    assert values["wkvm_states_committing"] == 0


async def test_a_streamed_completion_is_an_open_stream() -> None:
    body = {"model": "fake", "prompt": "x", "max_tokens": 10**9, "stream": True}
    async with gateway_running() as running:
        async with running.http.post("/v1/completions", json=body) as response:
            await response.content.readline()
            assert (await values_of(running))["wkvm_http_streams_open"] == 1
            response.close()
        await until(lambda: not running.gateway.counts.n_streams)
