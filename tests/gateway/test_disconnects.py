"""Clients that go away: their slots are free within a step, and nothing is left of them."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import Running, gateway_running, until_stats
from tests.gateway.openai_http import MODEL, complete
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.connection import Connection
from wkvm.models.base import Batch

N_SLOTS = 4
LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "x",
    "max_tokens": 10**7,
    "temperature": 1,
    "stream": True,
}
IDLE = {"n_lanes": 0, "n_running": 0, "n_queued": 0, "n_free_slots": N_SLOTS}


def engine(before_forward: Callable[[Batch], None] | None = None) -> Engine:
    model = FakeModel(vocab_size=256, before_forward=before_forward)
    return Engine(model, EngineConfig(n_slots=N_SLOTS))


def tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if not task.done()}


def sent(running: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent, and from which nothing is read."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(running.path))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


async def nothing_left(running: Running, before: set[asyncio.Task[Any]]) -> None:
    """Wait until everything is as it was."""
    await until_stats(running, **IDLE)
    async with asyncio.timeout(60):
        while tasks() - before - {asyncio.current_task()}:
            await until_stats(running, **IDLE)
    assert len(running.gateway.running) == 0


SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "one": ({}, 1, 0),
    "not streamed": ({"stream": False}, 1, 0),
    "not streamed, with a stop string": ({"stream": False, "stop": "a stop \ufffd"}, 1, 0),
    "n of 3": ({"n": 3}, 3, 0),
    "n of 6, some of them queued": ({"n": 6}, 4, 2),
    "a batch of 2 prompts times 3": ({"prompt": ["x", "y"], "n": 3}, 4, 2),
    "not streamed, n of 6": ({"n": 6, "stream": False}, 4, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_disconnect_frees_every_slot_of_a_request(shape: str) -> None:
    more, n_running, n_queued = SHAPES[shape]
    async with gateway_running(engine()) as running:
        await complete(running, prompt="x", max_tokens=1)
        before = tasks()
        for _ in range(3):
            writer = sent(running, {**LONG, **more})
            await until_stats(running, n_running=n_running, n_queued=n_queued)
            writer.close()
            await nothing_left(running, before)


async def test_a_disconnect_ends_a_request_that_is_queued() -> None:
    async with gateway_running(engine()) as running:
        before = tasks()
        first = sent(running, {**LONG, "n": N_SLOTS})
        await until_stats(running, n_running=N_SLOTS)
        queued = [sent(running, {**LONG, "n": n}) for n in (1, 2)]
        await until_stats(running, n_queued=3)
        for writer in queued:
            writer.close()
        await until_stats(running, n_queued=0, n_running=N_SLOTS)
        first.close()
        await nothing_left(running, before)


async def test_a_disconnect_frees_the_slot_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in steps: the one under way, and the one whose plan may be made already."""
    n_rows = list[int]()
    watched = engine(lambda batch: n_rows.append(sum(slot >= 0 for slot in batch.slot_list)))
    is_lost = asyncio.Event()
    connection_lost = Connection.connection_lost

    def lost(connection: Connection, exc: BaseException | None) -> None:
        n_rows.clear()
        is_lost.set()
        connection_lost(connection, exc)

    monkeypatch.setattr(Connection, "connection_lost", lost)
    async with gateway_running(watched) as running:
        staying = sent(running, LONG)
        await until_stats(running, n_running=1)
        leaving = sent(running, LONG)
        await until_stats(running, n_running=2)
        leaving.close()
        await asyncio.wait_for(is_lost.wait(), 60)
        await until_stats(running, n_running=1)
        assert n_rows.count(2) <= 2
        staying.close()
        await until_stats(running, **IDLE)


@pytest.mark.timed(0.2)
@pytest.mark.parametrize("more", [{}, {"n": 3}], ids=["one", "n of 3"])
async def test_a_reader_that_stalls_loses_its_request_and_others_go_on(
    more: dict[str, Any],
) -> None:
    config = GatewayConfig(write_timeout_s=0.2)
    async with gateway_running(engine(), config=config) as running:
        await complete(running, prompt="x", max_tokens=1)
        before = tasks()
        stalled = sent(running, {**LONG, **more, "logprobs": 20})
        await until_stats(running, n_running=more.get("n", 1))
        await complete(running, prompt="x", max_tokens=4)
        await nothing_left(running, before)
        stalled.close()


async def test_a_step_that_fails_is_an_event_and_the_stream_ends() -> None:
    n_forwards = 0

    def third_fails(batch: Batch) -> None:
        nonlocal n_forwards
        n_forwards += 1
        if n_forwards == 3:
            raise RuntimeError("broken")

    async with gateway_running(engine(third_fails)) as running:
        body = {**LONG, "allowed_token_ids": [97]}
        async with running.http.post("/v1/completions", json=body) as response:
            events = (await response.text()).split("\n\n")
        assert response.status == 200
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "execution_failed")
        assert [event for event in events[:-2] if "data: {" not in event] == []
        answer = await complete(running, prompt="x", max_tokens=1)
        assert answer["usage"]["completion_tokens"] == 1


async def test_a_step_that_fails_before_the_first_event_is_a_status() -> None:
    def fails(batch: Batch) -> None:
        raise RuntimeError("broken")

    async with gateway_running(engine(fails)) as running:
        for stream in (True, False):
            body = {**LONG, "stream": stream}
            async with running.http.post("/v1/completions", json=body) as response:
                assert response.status == 500
                assert (await response.json())["error"]["code"] == "execution_failed"


@pytest.mark.timed(0.2)
async def test_a_timeout_is_a_status_before_the_first_event_and_an_event_after_it() -> None:
    async with gateway_running(engine()) as running:
        body = {**LONG, "timeout_s": 0.2, "allowed_token_ids": [97]}
        async with running.http.post("/v1/completions", json={**body, "stream": False}) as answer:
            assert answer.status == 408
            assert (await answer.json())["error"]["code"] == "timeout"
        async with running.http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
            last = (await answer.text()).split("\n\n")[-2]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"


async def ask(running: Running, body: dict[str, Any], begun: asyncio.Event) -> tuple[int, bytes]:
    """The answer to a request that is called ``mine``; ``begun`` is set with its first byte."""
    headers = {"X-Request-Id": "mine"}
    async with running.http.post("/v1/completions", json=body, headers=headers) as answer:
        begun.set()
        return answer.status, await answer.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_cancelled_by_name_ends_and_says_so(stream: bool) -> None:
    async with gateway_running(engine()) as running:
        body = {**LONG, "stream": stream, "n": 2, "allowed_token_ids": [97]}
        begun = asyncio.Event()
        asking = asyncio.create_task(ask(running, body, begun))
        await until_stats(running, n_running=2)
        if stream:
            await begun.wait()
        async with running.http.post("/v1/cancel", json={"id": "mine"}) as answer:
            assert answer.status == 200
        status, data = await asking
        assert status == (200 if stream else 499)
        assert b'"code":"cancelled"' in data
        await until_stats(running, **IDLE)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_drain_cuts_off_may_be_sent_elsewhere(stream: bool) -> None:
    async with gateway_running(engine()) as running:
        body = {**LONG, "stream": stream, "allowed_token_ids": [97]}
        begun = asyncio.Event()
        asking = asyncio.create_task(ask(running, body, begun))
        await until_stats(running, n_running=1)
        if stream:
            await begun.wait()
        running.gateway.begin_drain()
        async with running.http.post("/v1/cancel", json={"id": "mine"}) as answer:
            assert answer.status == 200
        status, data = await asking
        assert status == (200 if stream else 503)
        assert b'"code":"draining"' in data
