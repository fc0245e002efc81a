"""Conversations: items that stay, and responses that go on with them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import ANNA, BERT, KEYS, Running, until_stats
from tests.gateway.responding import ask_for, cached, respond, tales_running, text_of
from tests.gateway.stateful import ask

SUN = "What is the sun?"
BASE = "/v1/conversations"


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with tales_running(tmp_path_factory.mktemp("talks")) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def begin(running: Running, *items: Any, **headers: str) -> str:
    status, talk = await ask(running, "POST", BASE, {"items": list(items)}, **headers)
    assert status == 200, talk
    name: str = talk["id"]
    return name


async def texts_of(running: Running, name: str) -> list[str]:
    _, listed = await ask(running, "GET", f"{BASE}/{name}/items?order=asc&limit=100")
    return [one["content"][0]["text"] for one in listed["data"]]


async def test_a_conversation_is_made_changed_and_deleted(running: Running) -> None:
    status, talk = await ask(running, "POST", BASE)
    assert (status, talk["object"], talk["metadata"]) == (200, "conversation", {})
    path = f"{BASE}/{talk['id']}"
    assert await ask(running, "GET", path) == (200, talk)
    status, changed = await ask(running, "POST", path, {"metadata": {"a": "b"}})
    assert (status, changed) == (200, {**talk, "metadata": {"a": "b"}})
    status, gone = await ask(running, "DELETE", path)
    assert gone == {"id": talk["id"], "object": "conversation.deleted", "deleted": True}
    for method, part in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/items/x")):
        status, answer = await ask(running, method, path + part)
        assert (status, answer["error"]["code"]) == (404, "conversation_not_found")


async def test_items_are_added_listed_and_taken_out(running: Running) -> None:
    name = await begin(running, said("one"))
    status, added = await ask(
        running, "POST", f"{BASE}/{name}/items", {"items": [said("two"), said("three", "system")]}
    )
    assert status == 200
    assert [one["role"] for one in added["data"]] == ["user", "system"]
    assert await texts_of(running, name) == ["one", "two", "three"]
    path = f"{BASE}/{name}/items/{added['first_id']}"
    assert await ask(running, "GET", path) == (200, added["data"][0])
    assert (await ask(running, "DELETE", path))[1]["id"] == name
    assert await texts_of(running, name) == ["one", "three"]
    for method in ("GET", "DELETE"):
        status, answer = await ask(running, method, path)
        assert (status, answer["error"]["code"]) == (404, "item_not_found")


async def test_items_that_are_sent_again_have_ids_of_their_own(running: Running) -> None:
    name = await begin(running, {**said("one"), "id": "msg_x"}, {**said("two"), "id": "msg_x"})
    again = {"items": [{**said("three"), "id": "msg_x"}]}
    _, added = await ask(running, "POST", f"{BASE}/{name}/items", again)
    _, listed = await ask(running, "GET", f"{BASE}/{name}/items?order=asc")
    names = [one["id"] for one in listed["data"]]
    assert names[0] == "msg_x"
    assert names[2] == added["first_id"]
    assert len(set(names)) == 3
    first = await respond(running, SUN, conversation=name)
    await respond(running, [*first["output"], said("Why?")], conversation=name)
    _, listed = await ask(running, "GET", f"{BASE}/{name}/items?order=asc")
    names = [one["id"] for one in listed["data"]]
    assert len(set(names)) == len(names) == 8


async def test_a_response_adds_what_it_took_and_gave(running: Running) -> None:
    name = await begin(running)
    made = await respond(running, SUN, conversation=name)
    assert made["conversation"] == {"id": name}
    assert await texts_of(running, name) == [SUN, text_of(made)]


async def test_a_turn_computes_what_is_new(running: Running) -> None:
    name = await begin(running, said("Be kind.", "system"))
    first = await respond(running, SUN, conversation=name)
    second = await respond(running, "Why?", conversation={"id": name})
    assert cached(second) == first["usage"]["total_tokens"]
    await ask(running, "POST", f"{BASE}/{name}/items", {"items": [said("Look.")]})
    third = await respond(running, ..., conversation=name)
    assert cached(third) == second["usage"]["total_tokens"]
    assert (await texts_of(running, name))[-2:] == ["Look.", text_of(third)]


async def test_what_was_taken_out_is_not_read_any_more(running: Running) -> None:
    name = await begin(running, said("I am Tom."))
    first = await respond(running, SUN, conversation=name)
    _, listed = await ask(running, "GET", f"{BASE}/{name}/items?order=asc")
    await ask(running, "DELETE", f"{BASE}/{name}/items/{listed['first_id']}")
    second = await respond(running, "Why?", conversation=name)
    assert cached(second) == 0
    alone = await respond(running, [said(SUN), *first["output"], said("Why?")])
    assert second["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    assert text_of(second) == text_of(alone)


async def test_two_turns_at_once_are_one(running: Running) -> None:
    name = await begin(running)
    answers = await asyncio.gather(
        *(ask_for(running, f"Tell me {n}.", conversation=name) for n in range(4))
    )
    won = [answer for status, answer in answers if status == 200]
    lost = [answer["error"] for status, answer in answers if status == 409]
    assert len(won) == 1
    assert len(lost) == 3
    assert {error["code"] for error in lost} == {"conversation_locked"}
    assert {error["type"] for error in lost} == {"conflict_error"}
    assert (await texts_of(running, name))[1:] == [text_of(won[0])]


async def test_while_a_turn_runs_nothing_else_changes_it(running: Running) -> None:
    name = await begin(running)
    asked = await respond(
        running, SUN, conversation=name, background=True, ignore_eos=True, max_output_tokens=10**5
    )
    path = f"{BASE}/{name}"
    for method, part, body in (
        ("DELETE", "", None),
        ("POST", "/items", {"items": [said("x")]}),
    ):
        status, answer = await ask(running, method, path + part, body)
        assert (status, answer["error"]["code"]) == (409, "conversation_locked")
    assert (await ask(running, "GET", path))[0] == 200
    await ask(running, "POST", f"/v1/responses/{asked['id']}/cancel")
    assert await texts_of(running, name) == []
    assert (await respond(running, SUN, conversation=name))["status"] == "completed"


async def test_a_deleted_response_gives_its_conversation_back(running: Running) -> None:
    name = await begin(running)
    asked = await respond(
        running, SUN, conversation=name, background=True, ignore_eos=True, max_output_tokens=10**5
    )
    assert (await ask(running, "DELETE", f"/v1/responses/{asked['id']}"))[0] == 200
    await until_stats(running, n_running=0)
    assert (await respond(running, SUN, conversation=name))["status"] == "completed"


async def test_a_response_that_is_not_stored_leaves_a_conversation_as_it_is(
    running: Running,
) -> None:
    name = await begin(running, said("I am Tom."))
    first = await respond(running, SUN, conversation=name)
    before = await texts_of(running, name)
    made = await respond(running, "Why?", conversation=name, store=False)
    assert cached(made) == first["usage"]["total_tokens"]
    assert await texts_of(running, name) == before


async def test_a_response_of_a_conversation_is_gone_on_from_beside_it(running: Running) -> None:
    name = await begin(running, said("I am Tom."))
    first = await respond(running, SUN, conversation=name)
    await respond(running, "Why?", conversation=name)
    before = await texts_of(running, name)
    aside = await respond(running, "And?", previous_response_id=first["id"])
    assert cached(aside) == first["usage"]["total_tokens"]
    assert await texts_of(running, name) == before
    await ask(running, "DELETE", f"{BASE}/{name}")
    status, answer = await ask_for(running, "And?", previous_response_id=first["id"])
    assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize(
    ("part", "body", "field"),
    [
        ("", {}, "metadata"),
        ("", {"metadata": {"x" * 65: ""}}, "metadata"),
        ("/items", {}, "items"),
        ("/items", {"items": []}, "items"),
        ("/items", {"items": [{"type": "x"}]}, "items[0].type"),
        ("/items", {"items": [{"type": "item_reference", "id": "msg_never"}]}, "items[0].id"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_field(
    running: Running, part: str, body: Any, field: str
) -> None:
    name = await begin(running)
    status, answer = await ask(running, "POST", f"{BASE}/{name}{part}", body)
    assert (status, answer["error"]["param"]) == (400, field)


async def test_a_conversation_that_never_was_is_not_found(running: Running) -> None:
    status, answer = await ask_for(running, SUN, conversation="conv_never")
    assert (status, answer["error"]["code"]) == (404, "conversation_not_found")
    assert answer["error"]["param"] == "conversation"


async def test_another_tenant_sees_none(tmp_path: Path) -> None:
    async with tales_running(tmp_path, keys=KEYS) as running:
        name = await begin(running, said("one"), **ANNA)
        _, listed = await ask(running, "GET", f"{BASE}/{name}/items", **ANNA)
        item = listed["first_id"]
        for method, part, body in (
            ("GET", "", None),
            ("POST", "", {"metadata": {}}),
            ("DELETE", "", None),
            ("GET", "/items", None),
            ("POST", "/items", {"items": [said("x")]}),
            ("GET", f"/items/{item}", None),
            ("DELETE", f"/items/{item}", None),
        ):
            theirs = await ask(running, method, f"{BASE}/{name}{part}", body, **BERT)
            never = await ask(running, method, f"{BASE}/conv_never{part}", body, **BERT)
            assert theirs[0] == never[0] == 404
            told = theirs[1]["error"]["message"].replace(name, "conv_never")
            assert told == never[1]["error"]["message"]
        status, _ = await ask_for(running, SUN, conversation=name, headers=BERT)
        assert status == 404
        assert (await ask(running, "GET", f"{BASE}/{name}", **ANNA))[0] == 200


async def test_so_many_conversations_there_may_be(tmp_path: Path) -> None:
    async with tales_running(tmp_path, max_responses=3) as running:
        names = [await begin(running) for _ in range(3)]
        status, answer = await ask(running, "POST", BASE)
        assert (status, answer["error"]["code"]) == (507, "quota_exceeded")
        await ask(running, "DELETE", f"{BASE}/{names[0]}")
        await begin(running)
