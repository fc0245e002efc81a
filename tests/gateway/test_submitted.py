"""Requests that nobody waits for: ``/v1/submit`` and ``/v1/status``."""

import asyncio
from typing import Any

import pytest

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import (
    ANNA,
    BERT,
    KEYS,
    Running,
    gateway_running,
    lose_engine,
    until_stats,
)
from tests.gateway.native_http import LONG, post
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.config import GatewayConfig
from wkvm.models.base import Batch

SHORT = {"ids": [1, 2, 3], "temperature": 0, "max_tokens": 5, "ignore_eos": True}


async def submit(running: Running, body: dict[str, Any], **headers: str) -> str:
    status, got = await post(running, "/v1/submit", body, **headers)
    assert status == 202
    assert list(got) == ["id"]
    return str(got["id"])


async def status(running: Running, name: str, query: str = "", **headers: str) -> tuple[int, Any]:
    async with running.http.get(f"/v1/status/{name}{query}", headers=headers) as response:
        return response.status, await response.json()


async def end(running: Running, name: str, **headers: str) -> Any:
    """Wait for a request to end."""
    while True:
        code, got = await status(running, name, "?from=1000000", **headers)
        assert code == 200
        if got["status"] != "running":
            return got


async def test_a_submitted_request_runs_to_its_end_and_has_the_answer_of_generate() -> None:
    async with gateway_running() as running:
        name = await submit(running, {**SHORT, "logprobs": 1})
        got = await end(running, name)
        assert (got["id"], got["status"]) == (name, "done")
        assert got["choices"][0]["ids"] == fake_continuation([1, 2, 3], 5, 256)
        _, waited = await post(running, "/v1/generate", {**SHORT, "logprobs": 1})
        assert got["choices"] == waited["choices"]
        assert got["usage"] == waited["usage"]


async def test_a_name_is_never_the_clients_choice() -> None:
    async with gateway_running() as running:
        names = {await submit(running, SHORT, **{"X-Request-Id": "x"}) for _ in range(3)}
        assert len(names) == 3
        assert "x" not in names


async def test_a_request_that_runs_shows_its_ids_so_far() -> None:
    async with gateway_running() as running:
        name = await submit(running, LONG)
        ids: list[int] = []
        while len(ids) < 10:
            _, got = await status(running, name)
            assert (got["id"], got["status"], got["from"]) == (name, "running", 0)
            ids = got["choices"][0]["ids"]
        _, got = await status(running, name, "?from=7")
        assert got["from"] == 7
        assert got["choices"][0]["ids"][:3] == ids[7:10]
        assert ids == fake_continuation([1, 2], len(ids), 256)


@pytest.mark.parametrize("start", ["-1", "x", "", "1.5", "1" * 19, "%C2%B2"])
async def test_a_start_that_is_no_count_is_refused(start: str) -> None:
    async with gateway_running() as running:
        code, got = await status(running, "gen-0", f"?from={start}")
        assert (code, got["error"]["param"]) == (400, "from")


async def test_a_request_without_a_reader_is_not_held_up() -> None:
    """More ids come than a stream that is read may have waiting."""
    async with gateway_running() as running:
        got = await end(running, await submit(running, {**LONG, "max_tokens": 1100}))
        assert got["usage"]["n_output"] == 1100


async def test_it_outlives_the_connection_that_it_came_by() -> None:
    async with gateway_running() as running:
        async with running.http.post(
            "/v1/submit", json=LONG, headers={"Connection": "close"}
        ) as response:
            name = (await response.json())["id"]
        await until_stats(running, n_running=1)
        assert (await status(running, name))[1]["status"] == "running"


async def test_a_submitted_request_is_cancelled_by_its_name_and_keeps_its_ids() -> None:
    async with gateway_running() as running:
        name = await submit(running, LONG)
        await until_stats(running, n_running=1)
        assert await post(running, "/v1/cancel", {"id": name}) == (
            200,
            {"id": name, "cancelled": True},
        )
        got = await end(running, name)
        assert (got["status"], got["choices"][0]["reason"]) == ("done", "cancelled")
        assert len(got["choices"][0]["ids"]) == got["usage"]["n_output"]


async def test_to_cancel_what_is_over_changes_nothing() -> None:
    async with gateway_running() as running:
        name = await submit(running, SHORT)
        got = await end(running, name)
        again = await post(running, "/v1/cancel", {"id": name})
        assert again == (200, {"id": name, "cancelled": False})
        assert (await status(running, name))[1] == got


async def test_what_the_engine_refuses_is_refused_when_it_is_submitted() -> None:
    async with gateway_running() as running:
        code, got = await post(running, "/v1/submit", {"ids": [1], "temperature": -1})
        assert (code, got["error"]["param"]) == (400, "temperature")
        code, got = await post(running, "/v1/submit", {"ids": [256]})
        assert (code, got["error"]["param"]) == (400, "ids")


async def test_a_full_queue_refuses_when_it_is_submitted() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=1, max_queue=1))
    async with gateway_running(engine) as running:
        await submit(running, LONG)
        await until_stats(running, n_running=1)
        await submit(running, LONG)
        code, got = await post(running, "/v1/submit", LONG)
        assert (code, got["error"]["code"]) == (429, "overloaded")


async def test_a_step_that_fails_shows_as_an_error() -> None:
    n_steps = 0

    def fail(batch: Batch) -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 3:
            raise RuntimeError("no")

    engine = Engine(FakeModel(vocab_size=256, before_forward=fail), EngineConfig(n_slots=2))
    async with gateway_running(engine) as running:
        name = await submit(running, LONG)
        got = await end(running, name)
        assert got["status"] == "failed"
        assert (got["error"]["status"], got["error"]["type"]) == (500, "server_error")
        assert got["error"]["code"] == "execution_failed"
        assert got["error"]["message"]


async def test_an_engine_that_goes_shows_as_an_error() -> None:
    async with gateway_running() as running:
        name = await submit(running, LONG)
        client = await running.gateway.engines.client("")
        await until_stats(running, n_running=1)
        await client.aclose()
        got = await end(running, name)
        assert (got["status"], got["error"]["status"]) == ("failed", 503)


async def test_results_can_be_had_while_there_is_no_engine() -> None:
    async with gateway_running(keys=KEYS) as running:
        name = await submit(running, SHORT, **ANNA)
        got = await end(running, name, **ANNA)
        await lose_engine(running)
        code, kept = await status(running, name, "?from=1000000", **ANNA)
        assert (code, kept) == (200, got)
        # Whose this key is, nobody can say now: it was never let in.
        assert (await status(running, name, **BERT))[0] == 503


async def test_tenants_do_not_see_each_others_requests() -> None:
    async with gateway_running(keys=KEYS) as running:
        name = await submit(running, LONG, **ANNA)
        foreign = await status(running, name, **BERT)
        absent = await status(running, "gen-0", **BERT)
        assert foreign[0] == 404
        assert str(foreign).replace(name, "gen-0") == str(absent)
        assert (await post(running, "/v1/cancel", {"id": name}, **BERT))[0] == 404
        assert (await status(running, name, **ANNA))[1]["status"] == "running"


async def test_as_many_run_as_are_kept_and_one_more_is_refused() -> None:
    async with gateway_running(keys=KEYS, config=GatewayConfig(max_submitted=2)) as running:
        for _ in range(2):
            await submit(running, LONG, **ANNA)
        code, got = await post(running, "/v1/submit", LONG, **ANNA)
        assert (code, got["error"]["code"]) == (429, "too_many_submitted")
        await submit(running, LONG, **BERT)
        await until_stats(running, n_running=3)


async def test_nothing_is_left_of_one_that_found_no_room_after_all() -> None:
    """Both find room at first, since neither has been taken over yet."""
    async with gateway_running(config=GatewayConfig(max_submitted=1)) as running:
        answers = await asyncio.gather(*(post(running, "/v1/submit", LONG) for _ in range(2)))
        assert sorted(code for code, _ in answers) == [202, 429]
        await until_stats(running, n_running=1)


async def test_the_one_that_is_over_for_longest_makes_room() -> None:
    async with gateway_running(config=GatewayConfig(max_submitted=3)) as running:
        long = await submit(running, LONG)
        first, second = [await submit(running, SHORT), await submit(running, SHORT)]
        await end(running, first)
        await end(running, second)
        third = await submit(running, SHORT)
        assert (await status(running, first))[0] == 404
        assert [(await status(running, one))[0] for one in (long, second, third)] == [200] * 3


async def test_results_beyond_the_bytes_make_room_but_for_the_last() -> None:
    async with gateway_running(config=GatewayConfig(max_submitted_bytes=1)) as running:
        first = await submit(running, SHORT)
        await end(running, first)
        second = await submit(running, SHORT)
        await end(running, second)
        assert (await status(running, first))[0] == 404
        assert (await status(running, second))[0] == 200


@pytest.mark.timed(0.05)
async def test_a_result_is_forgotten_after_its_time() -> None:
    async with gateway_running(config=GatewayConfig(submitted_ttl_s=0.05)) as running:
        name = await submit(running, SHORT)
        await end(running, name)
        code, got = await status(running, name)
        while code == 200:
            code, got = await status(running, name)
        assert (code, got["error"]["code"]) == (404, "request_not_found")


async def test_while_the_server_drains_results_can_be_had() -> None:
    async with gateway_running() as running:
        name, other = await submit(running, SHORT), await submit(running, LONG)
        await end(running, name)
        running.gateway.begin_drain()
        assert (await status(running, name))[0] == 200
        assert (await post(running, "/v1/cancel", {"id": other}))[0] == 200
        assert (await post(running, "/v1/submit", SHORT))[0] == 503


async def test_nothing_is_left_of_a_submit_whose_client_went_before_the_answer() -> None:
    async with gateway_running() as running:
        asking = asyncio.create_task(post(running, "/v1/submit", LONG))
        await until_stats(running, n_running=1)
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            await post(running, "/v1/cancel", {"id": asking.result()[1]["id"]})
        await until_stats(running, n_running=0)
