"""Whether requests would be taken is told at once, to everybody, and costs the engine nothing."""

import asyncio
import math
import re
import threading
from typing import NoReturn

import pytest
from wkvm_client import aio

from tests.fakes import FakeModel
from tests.gateway.harness import Running, gateway_running, lose_engine
from tests.server.harness import until
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.engines import Engines
from wkvm.gateway.monitoring import health, watch
from wkvm.gateway.monitoring.watch import MAX_AGE_S, EngineWatch, Reading
from wkvm.gateway.routes import ROUTES
from wkvm.models.base import Batch

KEYS = (ApiKey.of("secret", "anna"),)
SECRET = {"Authorization": "Bearer secret"}


class FixedWatch(EngineWatch):
    """Says what it was given."""

    def __init__(self, running: Running, reading: Reading) -> None:
        super().__init__(running.gateway.engines)
        self._reading = reading

    async def read(self) -> Reading:
        return self._reading


async def readiness(running: Running) -> tuple[int, str | None]:
    """Status and reason as of now, not as of the last answer of the engine."""
    running.gateway.watch = EngineWatch(running.gateway.engines)
    return await cached_readiness(running)


async def cached_readiness(running: Running) -> tuple[int, str | None]:
    async with running.http.get("/ready") as response:
        body = await response.json()
        assert body["status"] == ("ready" if response.status == 200 else "not ready")
        return response.status, body.get("reason")


def test_no_route_is_open_but_health_and_ready_and_the_files_of_the_console() -> None:
    page = {"/", "/assets/{file}", "/icon.svg"}
    assert {route.path for route in ROUTES if route.is_open} == {"/health", "/ready", *page}


async def test_without_a_key_every_route_that_is_not_open_is_refused() -> None:
    async with gateway_running(keys=KEYS) as running:
        for one in ROUTES:
            path = re.sub(r"{.*", "x", one.path)
            async with running.http.request(one.method, path) as response:
                assert (response.status != 401) == one.is_open, one.path


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_the_open_routes_need_no_key_and_are_not_cached(path: str) -> None:
    async with gateway_running(keys=KEYS) as running, running.http.get(path) as response:
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/ping", "/v2/health/live", "/v2/health/ready", "/version"])
async def test_other_probes_are_served_to_who_has_a_key(path: str) -> None:
    async with (
        gateway_running(keys=KEYS) as running,
        running.http.get(path, headers=SECRET) as response,
    ):
        assert response.status == 200


async def test_the_version_is_of_the_gateway_and_of_its_engine() -> None:
    async with gateway_running() as running, running.http.get("/version") as response:
        server = running.gateway.engines.info.server
        version = server.removeprefix("wkvm/")
        assert await response.json() == {"version": version, "engine": server}


@pytest.mark.parametrize(
    ("age_us", "expected"), [(0, (200, None)), (5_000_000, (200, None)), (5_000_001, None)]
)
async def test_a_step_may_take_five_seconds(
    age_us: int, expected: tuple[int, str | None] | None
) -> None:
    async with gateway_running() as running:
        running.gateway.watch = FixedWatch(running, Reading(True, False, {"step_age_us": age_us}))
        assert await cached_readiness(running) == (expected or (503, "engine_stuck"))


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"loop_lag_us": 5_000_000}, (200, None)),
        ({"loop_lag_us": 5_000_001}, (503, "loop_late")),
        ({"memory_refuses": 1}, (200, None)),
        ({"memory_refuses": 2}, (503, "out_of_memory")),
        ({"store_refuses": 0}, (200, None)),
        ({"store_refuses": 1}, (503, "disk_full")),
        ({"store_refuses": 2}, (503, "store_failed")),
        ({"step_age_us": 6_000_000, "store_refuses": 2}, (503, "engine_stuck")),
    ],
)
async def test_a_late_loop_no_memory_and_a_store_that_refuses_are_told(
    counters: dict[str, int], expected: tuple[int, str | None]
) -> None:
    async with gateway_running() as running:
        running.gateway.watch = FixedWatch(running, Reading(True, False, counters))
        assert await cached_readiness(running) == expected


async def test_the_gateways_own_event_loop_counts_too() -> None:
    async with gateway_running() as running:
        running.gateway.lag_s = lambda: 5.1
        assert await readiness(running) == (503, "loop_late")


async def test_a_step_that_does_not_end_makes_the_gateway_unready_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, may_return = threading.Event(), threading.Event()

    def block(batch: Batch) -> None:
        entered.set()
        may_return.wait(60)

    engine = Engine(FakeModel(vocab_size=256, before_forward=block), EngineConfig(n_slots=2))
    monkeypatch.setattr(health, "MAX_STEP_AGE_S", 0.0)
    async with gateway_running(engine) as running:
        assert await readiness(running) == (200, None)
        client = await running.gateway.engines.client("")
        stream = await client.generate((1,), max_tokens=1)
        await asyncio.to_thread(entered.wait, 10)
        assert await readiness(running) == (503, "engine_stuck")
        may_return.set()
        await stream.completion()
        await until(lambda: running.engine_loop.tick_age_s == 0)
        assert await readiness(running) == (200, None)


async def test_an_engine_whose_loop_has_ended_is_stuck() -> None:
    async with gateway_running() as running:
        running.engine_loop.close()
        await until(lambda: running.engine_loop.tick_age_s == math.inf)
        assert await readiness(running) == (503, "engine_stuck")


async def test_a_gateway_that_drains_is_not_ready_but_alive() -> None:
    async with gateway_running() as running:
        running.gateway.begin_drain()
        assert await readiness(running) == (503, "draining")
        async with running.http.get("/health") as response:
            assert response.status == 200


async def test_a_connection_that_cannot_be_told_of_a_drain_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = list[str]()

    def fail() -> NoReturn:
        raise RuntimeError("its transport is closed")

    async with gateway_running() as running:
        for one in (fail, lambda: told.append(""), fail):
            running.gateway.on_drain.add(one)
        running.gateway.begin_drain()
        assert told == [""]
        assert await readiness(running) == (503, "draining")
    caplog.clear()


async def test_an_engine_that_drains_is_not_ready() -> None:
    async with gateway_running() as running:
        await running.server.drain()
        assert await readiness(running) == (503, "draining")


async def test_an_engine_that_is_gone_is_not_ready() -> None:
    async with gateway_running() as running:
        await lose_engine(running)
        assert await readiness(running) == (503, "engine_unavailable")


async def test_an_engine_that_does_not_answer_in_time_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(key: str | None = None) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr(watch, "ANSWER_TIMEOUT_S", 0.01)
    silent = Engines(connect, dial=connect)
    async with gateway_running() as running:
        running.gateway.watch = EngineWatch(silent)
        assert await cached_readiness(running) == (503, "engine_unavailable")
    await silent.aclose()


def test_the_answer_comes_within_two_seconds_whatever_the_engine_does() -> None:
    assert watch.ANSWER_TIMEOUT_S < 2


class CountedEngines(Engines):
    """Counts how often it is asked for its own connection, and lets it wait."""

    def __init__(self, inner: Engines) -> None:
        super().__init__(inner._connect, inner._dial)
        self._inner = inner
        self.n_asked = 0
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def own(self) -> aio.Client:
        self.n_asked += 1
        await self.may_go.wait()
        return await self._inner.own()


async def test_a_flood_asks_the_engine_once() -> None:
    async with gateway_running() as running:
        engines = CountedEngines(running.gateway.engines)
        engines.may_go.clear()
        running.gateway.watch = EngineWatch(engines, clock=lambda: 0.0)
        flood = [asyncio.create_task(cached_readiness(running)) for _ in range(50)]
        await until(lambda: engines.n_asked > 0)
        engines.may_go.set()
        assert await asyncio.gather(*flood) == [(200, None)] * 50
        assert engines.n_asked == 1


async def test_an_answer_counts_for_a_while_and_then_no_more() -> None:
    now = 100.0
    async with gateway_running() as running:
        engines = CountedEngines(running.gateway.engines)
        watched = EngineWatch(engines, clock=lambda: now)
        first = await watched.read()
        now += MAX_AGE_S * 0.9
        assert await watched.read() is first
        now += MAX_AGE_S * 0.2
        assert await watched.read() is not first
        assert engines.n_asked == 2


async def test_who_gives_up_waiting_takes_nobody_elses_answer_away() -> None:
    async with gateway_running() as running:
        engines = CountedEngines(running.gateway.engines)
        engines.may_go.clear()
        watched = EngineWatch(engines)
        first = asyncio.create_task(watched.read())
        await asyncio.sleep(0)
        second = asyncio.create_task(watched.read())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        engines.may_go.set()
        assert (await second).is_up
        assert engines.n_asked == 1


async def test_an_engine_that_is_slow_to_answer_is_not_asked_again_meanwhile() -> None:
    now = 100.0
    async with gateway_running() as running:
        engines = CountedEngines(running.gateway.engines)
        engines.may_go.clear()
        watched = EngineWatch(engines, clock=lambda: now)
        first = asyncio.create_task(watched.read())
        await until(lambda: engines.n_asked > 0)
        now += MAX_AGE_S * 5
        second = asyncio.create_task(watched.read())
        await asyncio.sleep(0)
        engines.may_go.set()
        assert await first is await second
        assert engines.n_asked == 1
