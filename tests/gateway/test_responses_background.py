"""Responses that run without their clients, and clients that leave."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import TIMEOUT_S, Running, lose_engine, until_stats
from tests.gateway.responding import (
    MODEL,
    ask_for,
    cached,
    events_of,
    respond,
    tales_running,
    text_of,
)
from tests.gateway.stateful import ask
from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses import feed as feed_module
from wkvm.gateway.responses import records
from wkvm.gateway.responses.feed import Feed

SUN = "What is the sun?"
LONG: dict[str, Any] = {"max_output_tokens": 64}
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_output_tokens": 100_000}


async def kept(running: Running, response_id: str) -> Any:
    status, found = await ask(running, "GET", f"/v1/responses/{response_id}")
    assert status == 200, found
    return found


async def until_over(running: Running, response_id: str) -> Any:
    """What is kept of a background response once its last event has come."""
    await events_of(running, "GET", f"/v1/responses/{response_id}?stream=true")
    return await kept(running, response_id)


async def test_a_background_response_goes_on_without_its_client(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True)
        assert (asked["status"], asked["output"]) == ("queued", [])
        made = await until_over(running, asked["id"])
        whole = await respond(running, SUN)
        assert made["status"] == "completed"
        assert text_of(made) == text_of(whole)
        more = await respond(running, "Why?", previous_response_id=asked["id"])
        assert cached(more) == made["usage"]["total_tokens"]


async def test_its_events_are_the_same_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        body = {"model": MODEL, "input": SUN, "temperature": 0, "background": True, "stream": True}
        live = await events_of(running, "POST", "/v1/responses", body)
        path = f"/v1/responses/{live[0]['response']['id']}?stream=true"
        assert await events_of(running, "GET", path) == live
        for n_seen in (0, 3, len(live) - 1):
            rest = await events_of(running, "GET", f"{path}&starting_after={n_seen}")
            assert rest == live[n_seen + 1 :]
        kinds = [event["type"] for event in live[:3]]
        assert kinds == ["response.created", "response.queued", "response.in_progress"]
        assert [event["sequence_number"] for event in live] == list(range(len(live)))


async def test_who_reads_a_background_response_may_leave(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        body = {"model": MODEL, "input": SUN, "background": True, "stream": True, **ENDLESS}
        async with running.http.post("/v1/responses", json=body) as response:
            await response.content.readline()
            (response_id,) = running.gateway.responses.feeds
        await until_stats(running, n_running=1)
        found = await kept(running, response_id)
        assert found["status"] == "in_progress"
        assert (await ask(running, "POST", f"/v1/responses/{response_id}/cancel"))[0] == 200


async def test_a_cancelled_response_ends_and_has_what_there_was(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, **ENDLESS)
        path = f"/v1/responses/{asked['id']}"
        reading = asyncio.create_task(events_of(running, "GET", f"{path}?stream=true"))
        status, cancelled = await ask(running, "POST", f"{path}/cancel")
        assert (status, cancelled["status"]) == (200, "cancelled")
        async with asyncio.timeout(TIMEOUT_S):
            events = await reading
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"] == cancelled == await kept(running, asked["id"])
        assert (await ask(running, "POST", f"{path}/cancel"))[1] == cancelled
        await until_stats(running, n_running=0)
        assert (await ask(running, "GET", f"/v1/states/{asked['id']}"))[0] == 404
        status, answer = await ask_for(running, "Why?", previous_response_id=asked["id"])
        assert (status, answer["error"]["code"]) == (400, "previous_response_unusable")


async def test_what_is_being_made_cannot_be_gone_on_from(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, **ENDLESS)
        status, answer = await ask_for(running, "Why?", previous_response_id=asked["id"])
        assert (status, answer["error"]["code"]) == (409, "response_in_progress")
        assert (await ask(running, "DELETE", f"/v1/responses/{asked['id']}"))[0] == 200
        await until_stats(running, n_running=0)
        assert (await ask(running, "GET", f"/v1/responses/{asked['id']}"))[0] == 404


async def test_a_client_that_leaves_cancels_its_response(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        for is_streamed in (True, False):
            body = {"model": MODEL, "input": SUN, "stream": is_streamed, **ENDLESS}
            asking = asyncio.create_task(_ask_and_wait(running, body))
            await until_stats(running, n_running=1)
            (response_id,) = running.gateway.responses.database.making
            while (await ask(running, "GET", f"/v1/responses/{response_id}"))[0] != 200:
                pass
            asking.cancel()
            await asyncio.wait([asking])
            await until_stats(running, n_running=0)
            while (await kept(running, response_id))["status"] == "in_progress":
                pass
            assert (await kept(running, response_id))["status"] == "cancelled"
            assert (await ask(running, "GET", f"/v1/states/{response_id}"))[0] == 404


async def _ask_and_wait(running: Running, body: dict[str, Any]) -> None:
    async with running.http.post("/v1/responses", json=body) as response:
        await response.read()


async def test_a_lost_engine_is_told_and_kept(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, **ENDLESS)
        feed = running.gateway.responses.feeds[asked["id"]]
        await until_stats(running, n_running=1)
        await lose_engine(running)
        async with asyncio.timeout(TIMEOUT_S):
            while not feed.is_over:
                await feed.changed(feed.n_events)
        assert b"response.failed" in feed.since(0)[-1]
        found = await kept(running, asked["id"])
        assert found["status"] == "failed"
        assert found["error"]["code"] == "engine_unavailable"


async def test_a_drain_refuses_responses_and_waits_for_those_there_are(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, max_output_tokens=16)
        running.door.begin_drain()
        status, answer = await ask_for(running, SUN)
        assert (status, answer["error"]["code"]) == (503, "draining")
        await running.door.drained(TIMEOUT_S)
        assert (await kept(running, asked["id"]))["status"] in ("completed", "incomplete")


async def test_what_a_drain_does_not_wait_for_has_failed(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, **ENDLESS)
        await until_stats(running, n_running=1)
        await running.door.drained(0.01)
    async with tales_running(tmp_path) as running:
        found = await kept(running, asked["id"])
        assert found["status"] == "failed"
        assert found["error"]["message"] != records.LOST  # it was kept before the end


async def test_a_response_is_cancelled_by_its_request_too(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        headers = {"X-Request-Id": "mine"}
        asking = asyncio.create_task(ask_for(running, SUN, headers=headers, **ENDLESS))
        await until_stats(running, n_running=1)
        status, answer = await ask(running, "POST", "/v1/cancel", {"id": "mine"})
        assert (status, answer["cancelled"]) == (200, True)
        status, answer = await asking
        assert (status, answer["error"]["code"]) == (499, "cancelled")


async def test_events_that_are_not_kept_are_gone(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True)
        await until_over(running, asked["id"])

        def lose(there: Any) -> None:
            there.db.execute("UPDATE responses SET events = NULL")

        await running.gateway.responses.database.run(lose)
        path = f"/v1/responses/{asked['id']}?stream=true"
        status, answer = await ask(running, "GET", path)
        assert (status, answer["error"]["code"]) == (410, "events_gone")


async def test_of_many_events_the_first_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_BYTES", 3000)
    async with tales_running(tmp_path) as running:
        asked = await respond(running, SUN, background=True, ignore_eos=True, **LONG)
        feed = running.gateway.responses.feeds[asked["id"]]
        path = f"/v1/responses/{asked['id']}?stream=true"
        async with asyncio.timeout(TIMEOUT_S):
            while not feed.is_over:
                await feed.changed(feed.n_events)
        last = feed.n_events - 1
        assert len(feed.since(last)) == 1
        for query in ("", f"&starting_after={last - 1}"):
            status, answer = await ask(running, "GET", path + query)
            assert (status, answer["error"]["code"]) == (410, "events_gone")
        assert (await kept(running, asked["id"]))["status"] == "incomplete"


def test_events_have_their_limit_to_the_byte() -> None:
    feed = Feed()
    feed.add(b"x" * (feed_module.MAX_BYTES - 1))
    feed.add(b"y")
    assert feed.whole() is not None
    feed.add(b"z")
    assert feed.whole() is None
    assert feed.since(1) == [b"y", b"z"]
    with pytest.raises(HttpError) as caught:
        feed.since(0)
    assert caught.value.status == 410
