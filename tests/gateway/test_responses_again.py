"""What is sent again with its idempotency key is done once, and told again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import ANNA, BERT, KEYS, Running
from tests.gateway.responding import (
    MODEL,
    ask_for,
    respond,
    stream,
    tales_running,
    text_of,
)
from tests.gateway.stateful import ask
from wkvm.gateway.calls import Call
from wkvm.gateway.conversations import talks
from wkvm.gateway.responses import handlers
from wkvm.gateway.responses.database import Connection
from wkvm.gateway.responses.keys import MAX_KEY, Key
from wkvm.gateway.responses.records import Record
from wkvm.gateway.responses.room import Limits
from wkvm.gateway.responses.writer import told_again

SUN = "What is the sun?"
TALKS = "/v1/conversations"
HEADER = {"headers": {"Idempotency-Key": "of the header"}}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with tales_running(tmp_path_factory.mktemp("again")) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def begin(running: Running, **headers: str) -> str:
    _, talk = await ask(running, "POST", TALKS, {}, **headers)
    name: str = talk["id"]
    return name


async def items_of(running: Running, talk: str, **headers: str) -> list[Any]:
    path = f"{TALKS}/{talk}/items?order=asc&limit=100"
    _, listed = await ask(running, "GET", path, **headers)
    items: list[Any] = listed["data"]
    return items


@pytest.mark.parametrize("key", [{"idempotency_key": "of the body"}, HEADER])
async def test_a_response_that_is_asked_for_again_is_appended_once(
    running: Running, key: dict[str, Any]
) -> None:
    talk = await begin(running)
    first = await respond(running, SUN, conversation=talk, **key)
    items = await items_of(running, talk)
    assert await respond(running, SUN, conversation=talk, **key) == first
    assert await items_of(running, talk) == items


async def test_without_a_key_each_is_a_turn_of_its_own(running: Running) -> None:
    talk = await begin(running)
    for n in (2, 4):
        await respond(running, SUN, conversation=talk)
        assert len(await items_of(running, talk)) == n


async def test_a_stream_that_is_asked_for_again_tells_the_same(running: Running) -> None:
    asked: dict[str, Any] = {"idempotency_key": "stream", "top_logprobs": 2}
    first, again = [await stream(running, SUN, **asked) for _ in range(2)]
    assert again[-1]["response"] == first[-1]["response"]
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    kinds = [event["type"] for event in first if not event["type"].endswith("text.delta")]
    assert [one["type"] for one in again if not one["type"].endswith("text.delta")] == kinds
    said = ["".join(one.get("delta", "") for one in events) for events in (first, again)]
    assert said[0] == said[1] == text_of(first[-1]["response"])


async def test_of_two_at_once_one_is_made(running: Running) -> None:
    talk = await begin(running)
    both = await asyncio.gather(
        *(respond(running, SUN, conversation=talk, idempotency_key="twice") for _ in range(2))
    )
    assert both[0] == both[1]
    assert len(await items_of(running, talk)) == 2


async def test_of_two_that_were_both_new_when_they_came_one_is_made(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, n = handlers._made_before, 0

    async def made_before(call: Call, key: Key) -> Record | None:
        nonlocal n
        n += 1
        return None if n <= 2 else await real(call, key)

    monkeypatch.setattr(handlers, "_made_before", made_before)
    both = await asyncio.gather(
        *(respond(running, SUN, idempotency_key="both new") for _ in range(2))
    )
    assert both[0] == both[1]
    assert n == 3


async def test_a_background_response_that_is_asked_for_again_is_the_one_that_runs(
    running: Running,
) -> None:
    body = {"background": True, "idempotency_key": "job", "ignore_eos": True}
    body |= {"max_output_tokens": 100_000}
    first = await respond(running, SUN, **body)
    again = await respond(running, SUN, **body)
    assert again["id"] == first["id"]
    path = f"/v1/responses/{first['id']}/cancel"
    assert (await ask(running, "POST", path))[1]["status"] == "cancelled"
    anew = await respond(running, SUN, **body)
    assert anew["id"] != first["id"]
    await ask(running, "POST", f"/v1/responses/{anew['id']}/cancel")


async def test_a_key_stands_for_one_request(running: Running) -> None:
    talk = await begin(running)
    await respond(running, SUN, idempotency_key="one")
    for others in ({"temperature": 1}, {"conversation": talk}):
        status, answer = await ask_for(running, SUN, idempotency_key="one", **others)
        assert (status, answer["error"]["code"]) == (409, "key_reused")
    items = {"items": [{"role": "user", "content": SUN}], "idempotency_key": "one"}
    status, answer = await ask(running, "POST", f"{TALKS}/{talk}/items", items)
    assert (status, answer["error"]["code"]) == (409, "key_reused")


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY + 1)])
async def test_no_key_and_one_that_is_too_long_are_refused(running: Running, key: str) -> None:
    for asked in ({"idempotency_key": key}, {"headers": {"Idempotency-Key": key}}):
        status, answer = await ask_for(running, SUN, **asked)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    longest = "k" * MAX_KEY
    assert (await ask_for(running, SUN, idempotency_key=longest, max_output_tokens=1))[0] == 200


async def test_items_are_added_once(running: Running) -> None:
    talk = await begin(running)
    body = {"items": [{"role": "user", "content": SUN}] * 2, "idempotency_key": "items"}
    first = await ask(running, "POST", f"{TALKS}/{talk}/items", body)
    await ask(running, "POST", f"{TALKS}/{talk}/items", {"items": body["items"]})
    assert await ask(running, "POST", f"{TALKS}/{talk}/items", body) == first
    assert len(await items_of(running, talk)) == 4


async def test_a_conversation_is_made_once(running: Running) -> None:
    body = {"metadata": {"a": "b"}, "idempotency_key": "talk"}
    first = await ask(running, "POST", TALKS, body)
    assert await ask(running, "POST", TALKS, body) == first


async def test_a_conversation_that_two_processes_make_at_once_is_made_once(tmp_path: Path) -> None:
    """One of them looks before the other has it, and writes after."""
    one, other = Connection(tmp_path, set()), Connection(tmp_path, set())
    key, limits = Key("talk", b"digest"), Limits(n_responses=10, n_bytes=2**20, ttl_s=60)
    made = list[talks.Talk]()

    def meanwhile(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not made:
            made.append(talks.create(other, b"t", {}, (), limits, key))

    one.db.set_trace_callback(meanwhile)
    assert talks.create(one, b"t", {}, (), limits, key).id == made[0].id
    one.close()
    other.close()


async def test_nothing_is_left_of_the_key_of_what_is_deleted(running: Running) -> None:
    database = running.gateway.responses.database

    async def n_keys() -> int:
        (n,) = await database.run(
            lambda there: there.db.execute("SELECT count(*) FROM asked").fetchone()
        )
        return int(n)

    before = await n_keys()
    talk = (await ask(running, "POST", TALKS, {"idempotency_key": "gone"}))[1]["id"]
    items = {"items": [{"role": "user", "content": SUN}], "idempotency_key": "gone too"}
    await ask(running, "POST", f"{TALKS}/{talk}/items", items)
    made = await respond(running, SUN, idempotency_key="gone as well")
    assert await n_keys() == before + 3
    for path in (f"{TALKS}/{talk}", f"/v1/responses/{made['id']}"):
        assert (await ask(running, "DELETE", path))[0] == 200
    assert await n_keys() == before
    anew = await respond(running, SUN, idempotency_key="gone as well")
    assert anew["id"] != made["id"]


async def test_a_key_is_remembered_over_a_restart(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"idempotency_key": "k"}
    async with tales_running(tmp_path) as running:
        asked["conversation"] = talk = await begin(running)
        first = await respond(running, SUN, **asked)
    async with tales_running(tmp_path) as running:
        assert await respond(running, SUN, **asked) == first
        assert len(await items_of(running, talk)) == 2


async def test_a_key_is_its_tenants_alone(tmp_path: Path) -> None:
    async with tales_running(tmp_path, keys=KEYS) as running:
        made = [
            await respond(running, SUN, idempotency_key="k", headers=who) for who in (ANNA, BERT)
        ]
        assert made[0]["id"] != made[1]["id"]


async def test_what_is_not_stored_is_computed_anew(running: Running) -> None:
    asked = {"store": False, "idempotency_key": "nothing kept", "max_output_tokens": 1}
    first, again = [await respond(running, SUN, **asked) for _ in range(2)]
    assert first["id"] != again["id"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 'a "text"\n'},
        {
            "type": "local_shell_call",
            "call_id": "c",
            "action": {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {},
                "timeout_ms": 5,
                "user": None,
                "working_directory": "/",
            },
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        },
    ],
)
async def test_an_item_of_any_kind_is_told_again_as_it_is(item: dict[str, Any]) -> None:
    item = {**item, "id": "item", "status": "completed"}
    made = {"id": "r", "status": "completed", "output": [item], "model": MODEL, "usage": {}}
    events = told_again(made)
    done = [one for one in events if one["type"] == "response.output_item.done"]
    assert [one["item"] for one in done] == [item]
    assert events[-1]["response"] == made
    assert events[0]["response"]["output"] == []
