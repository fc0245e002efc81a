"""One response as a front other than HTTP drives it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Running, until_stats
from tests.gateway.responding import MODEL, cached, tales_running, text_of
from tests.gateway.stateful import ask as ask_http
from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses import records
from wkvm.gateway.responses.bodies import CreateBody
from wkvm.gateway.responses.core import Caller, Local, Run, ask, forget

SUN = "What is the sun?"


async def caller_of(running: Running) -> Caller:
    engines = running.gateway.engines
    return Caller(running.gateway, await engines.client(""), engines.whose(""), "mine")


def body(text: str | None = SUN, **fields: Any) -> CreateBody:
    return CreateBody(model=MODEL, input=text, temperature=0.0, max_output_tokens=24, **fields)


async def events(run: Run) -> list[Any]:
    async with run:
        return [event async for event in run]


async def test_what_is_not_stored_is_remembered_by_its_front(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller, local = await caller_of(running), dict[str, Local]()
        first = Run(caller, await ask(caller, body(store=False), local=local), local=local)
        await events(first)
        assert set(local) == {first.id}
        going_on = body("Why?", store=False, previous_response_id=first.id)
        second = Run(caller, await ask(caller, going_on, local=local), local=local)
        await events(second)
        assert cached(second.resource) == first.resource["usage"]["total_tokens"]
        with pytest.raises(HttpError) as caught:
            await ask(caller, going_on)
        assert caught.value.code == "previous_response_not_found"
        assert (await ask_http(running, "GET", f"/v1/responses/{first.id}"))[0] == 404
        await forget(caller, local)
        _, states = await ask_http(running, "GET", "/v1/states")
        assert states["data"] == []
        third = Run(caller, await ask(caller, going_on, local=local), local=local)
        await events(third)
        assert cached(third.resource) == 0
        assert text_of(third.resource) == text_of(second.resource)


async def test_a_prompt_can_be_read_without_an_answer(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        warm = Run(caller, await ask(caller, body(), generates=False))
        kinds = [event["type"] for event in await events(warm)]
        assert kinds == ["response.created", "response.in_progress", "response.completed"]
        assert (warm.resource["status"], warm.resource["output"]) == ("completed", [])
        assert warm.resource["usage"]["output_tokens"] == 0
        going_on = body(None, previous_response_id=warm.id)
        answered = Run(caller, await ask(caller, going_on))
        await events(answered)
        cold = Run(caller, await ask(caller, body()))
        await events(cold)
        assert text_of(answered.resource) == text_of(cold.resource)
        assert cached(answered.resource) >= warm.resource["usage"]["input_tokens"] - 1
        n_input = answered.resource["usage"]["input_tokens"]
        assert n_input == cold.resource["usage"]["input_tokens"]


async def test_leaving_early_cancels(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        run = Run(caller, await ask(caller, body(ignore_eos=True)))
        async with run:
            async for event in run:
                if event["type"] == "response.in_progress":
                    break
        await running.gateway.responses.over()
        await until_stats(running, n_running=0)
        _, found = await ask_http(running, "GET", f"/v1/responses/{run.id}")
        assert found["status"] == "cancelled"


async def test_leaving_what_the_engine_has_ended_leaves_no_state(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        run = Run(caller, await ask(caller, body()))
        async with run:
            async for event in run:
                if event["type"] == "response.in_progress":
                    break
            while (await ask_http(running, "GET", f"/v1/states/{run.id}"))[0] != 200:
                pass
        await running.gateway.responses.over()
        _, found = await ask_http(running, "GET", f"/v1/responses/{run.id}")
        assert found["status"] == "cancelled"
        assert (await ask_http(running, "GET", f"/v1/states/{run.id}"))[0] == 404


async def test_a_cancelled_one_has_a_last_event(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        asked = body(ignore_eos=True)
        asked.max_output_tokens = 100_000
        run = Run(caller, await ask(caller, asked))
        found = list[Any]()
        async with run:
            async for event in run:
                found.append(event)
                run.cancel()
        assert found[-1]["type"] == "response.incomplete"
        assert found[-1]["response"]["status"] == "cancelled"
        assert run.error is None
        assert run.is_over


async def test_what_the_engine_refuses_is_raised_before_any_event(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        asked = body()
        asked.temperature = -1.0
        run = Run(caller, await ask(caller, asked))
        with pytest.raises(HttpError) as caught:
            await run.__aenter__()
        assert caught.value.param == "temperature"
        assert len(running.gateway.responses) == 0


async def test_a_conversation_that_went_on_meanwhile_is_not_gone_on_with(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        _, talk = await ask_http(running, "POST", "/v1/conversations")
        runs = [Run(caller, await ask(caller, body(conversation=talk["id"]))) for _ in range(2)]
        await events(runs[0])
        with pytest.raises(HttpError) as caught:
            await runs[1].__aenter__()
        assert (caught.value.status, caught.value.code) == (409, "conversation_locked")
        await until_stats(running, n_running=0)


async def test_one_that_is_given_up_while_it_is_written_is_kept_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, loop = records.begin, asyncio.get_running_loop()

    def begin_and_cancel(*given: Any) -> list[str]:
        made_room = begin(*given)
        loop.call_soon_threadsafe(task.cancel)
        return made_room

    monkeypatch.setattr(records, "begin", begin_and_cancel)
    async with tales_running(tmp_path) as running:
        caller = await caller_of(running)
        run = Run(caller, await ask(caller, body()))
        task = asyncio.create_task(events(run))
        with pytest.raises(asyncio.CancelledError):
            await task
        await running.gateway.responses.over()
        kept = await running.gateway.responses.database.run(
            lambda there: there.db.execute("SELECT id, status FROM responses").fetchall()
        )
        assert kept == [(run.id, "cancelled")]
        assert len(running.gateway.responses) == 0
        await until_stats(running, n_running=0)
        _, states = await ask_http(running, "GET", "/v1/states")
        assert states["data"] == []
