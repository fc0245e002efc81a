"""``/v1/states``: each operation over HTTP, and what is wrong with one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import ANNA, BERT, KEYS, TIMEOUT_S, Running
from tests.gateway.stateful import ask, make, states_running
from wkvm.gateway.routes import ROUTES


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


async def test_a_state_is_made_of_exactly_what_is_given(running: Running) -> None:
    state = await make(running, tags={"kind": "tale"})
    assert (state["object"], state["name"], state["version"]) == ("state", "tale", 1)
    assert state["n_computed"] + state["n_pending"] == 3
    assert state["tail"] == [1, 2, 3]
    assert (state["ack"], state["operation"]) == ("durable", "create")
    assert state["tags"] == {"kind": "tale"}
    assert (await ask(running, "GET", "/v1/states/tale@1"))[1] == state


async def test_a_text_and_messages_become_ids(running: Running) -> None:
    assert (await make(running, "a", text="Hi"))["tail"] == list(b"Hi")
    messages = [{"role": "system", "content": "Be kind."}]
    made = await make(running, "b", messages=messages)
    assert bytes(made["tail"]) == b"System: Be kind.\n\n"


async def test_what_is_appended_comes_after_what_was_there(running: Running) -> None:
    await make(running)
    state = await make(running, state="tale", ids=[4, 5])
    assert (state["version"], state["tail"]) == (2, [1, 2, 3, 4, 5])
    whole = await make(running, "whole", ids=[1, 2, 3, 4, 5])
    assert whole["n_computed"] == state["n_computed"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "x"}, "ids"),
        ({"name": "x", "ids": []}, "ids"),
        ({"name": "x", "ids": [1], "text": "a"}, "text"),
        ({"name": "x", "ids": [1], "state": ""}, "state"),
        ({"name": "x", "ids": [1], "idempotency_key": ""}, "idempotency_key"),
        ({"name": "x", "ids": [256]}, "ids"),
        ({"name": "x", "ids": [-1]}, "ids"),
        ({"name": "x", "ids": [2**31]}, "ids"),
        ({"name": "x", "ids": [True]}, "ids"),
        ({"name": "x", "ids": [1], "more": 1}, "more"),
        ({"name": "x", "ids": [1], "durability": "tape"}, "durability"),
        ({"name": "x", "ids": [1], "checkpoint_every": 63}, "checkpoint_every"),
        ({"name": "../x", "ids": [1]}, "name"),
        ({"name": "x@1", "ids": [1]}, "name"),
        ({"ids": [1]}, "name"),
    ],
)
async def test_what_is_wrong_with_a_new_state_is_named(
    running: Running, body: dict[str, Any], param: str
) -> None:
    status, answer = await ask(running, "POST", "/v1/states", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert (await ask(running, "GET", "/v1/states"))[1]["data"] == []


async def test_states_are_listed_by_name_prefix_and_tag_in_pages(running: Running) -> None:
    for name in ("a1", "a2", "b1"):
        await make(running, name, tags={"end": name[-1]})

    async def names(query: str) -> tuple[list[str], str | None]:
        _, page = await ask(running, "GET", f"/v1/states?{query}")
        return [state["name"] for state in page["data"]], page["next"]

    assert await names("prefix=a") == (["a1", "a2"], None)
    assert await names("tag=end:1") == (["a1", "b1"], None)
    first, cursor = await names("limit=2")
    assert (first, await names(f"limit=2&cursor={cursor}")) == (["a1", "a2"], (["b1"], None))
    for query, param in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("tag=x", "tag"),
        ("y=1", "y"),
    ):
        status, answer = await ask(running, "GET", f"/v1/states?{query}")
        assert (status, answer["error"]["param"]) == (400, param)


async def test_versions_are_listed_newest_first(running: Running) -> None:
    await make(running)
    await make(running, state="tale", ids=[4])
    _, page = await ask(running, "GET", "/v1/states/tale/versions")
    assert [state["version"] for state in page["data"]] == [2, 1]


async def test_a_state_gets_another_name_other_tags_and_an_end(running: Running) -> None:
    await make(running)
    _, state = await ask(running, "PATCH", "/v1/states/tale", {"name": "story"})
    assert state["name"] == "story"
    _, state = await ask(running, "PATCH", "/v1/states/story", {"tags": {"a": "b"}})
    assert state["tags"] == {"a": "b"}
    _, state = await ask(running, "PATCH", "/v1/states/story", {"expires_in_s": 60})
    assert 0 < state["expires_at"] - state["updated_at"] < 120
    _, state = await ask(running, "PATCH", "/v1/states/story", {"expires_in_s": None})
    assert state["expires_at"] is None
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 404
    for body in ({}, {"name": "a", "tags": {}}):
        assert (await ask(running, "PATCH", "/v1/states/story", body))[0] == 400


async def test_a_state_is_deleted_and_so_is_a_version(running: Running) -> None:
    await make(running)
    await make(running, state="tale", ids=[4])
    status, answer = await ask(running, "DELETE", "/v1/states/tale@1")
    assert (status, answer) == (
        200,
        {"object": "state.deleted", "state": "tale@1", "deleted": True},
    )
    assert (await ask(running, "GET", "/v1/states/tale@1"))[0] == 404
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 200
    assert (await ask(running, "DELETE", "/v1/states/tale?expected_version=1"))[0] == 409
    assert (await ask(running, "DELETE", "/v1/states/tale"))[0] == 200
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 404


async def test_a_fork_makes_all_names_or_none(running: Running) -> None:
    parent = await make(running)
    body = {"names": ["a", "b"]}
    status, answer = await ask(running, "POST", "/v1/states/tale/fork", body)
    assert status == 201
    assert [state["name"] for state in answer["data"]] == ["a", "b"]
    assert {state["content_id"] for state in answer["data"]} == {parent["content_id"]}
    status, answer = await ask(running, "POST", "/v1/states/tale/fork", {"names": ["c", "b"]})
    assert (status, answer["error"]["code"]) == (409, "state_exists")
    assert (await ask(running, "GET", "/v1/states/c"))[0] == 404


async def test_a_state_goes_down_and_comes_up(running: Running) -> None:
    await make(running)
    status, state = await ask(running, "POST", "/v1/states/tale/hibernate")
    assert (status, state["tier"]) == (200, "disk")
    status, state = await ask(running, "POST", "/v1/states/tale/resume")
    assert (status, state["tier"]) == (200, "host")


async def test_a_snapshot_is_another_version_of_the_same_bytes(running: Running) -> None:
    state = await make(running)
    status, snapshot = await ask(running, "POST", "/v1/states/tale/snapshot")
    assert (status, snapshot["version"], snapshot["content_id"]) == (201, 2, state["content_id"])
    status, other = await ask(running, "POST", "/v1/states/tale/snapshot", {"save_as": "other"})
    assert (status, other["name"], other["content_id"]) == (201, "other", state["content_id"])


async def test_a_state_is_rolled_back_to_a_version_or_a_position(running: Running) -> None:
    first = await make(running)
    await make(running, state="tale", ids=[4, 5])
    status, state = await ask(running, "POST", "/v1/states/tale/rollback", {"version": 1})
    assert (status, state["version"], state["content_id"]) == (201, 3, first["content_id"])
    status, state = await ask(running, "POST", "/v1/states/tale/rollback", {"position": 2})
    assert (status, state["tail"]) == (201, [1, 2])
    for body in ({}, {"version": 1, "position": 1}):
        assert (await ask(running, "POST", "/v1/states/tale/rollback", body))[0] == 400
    status, answer = await ask(running, "POST", "/v1/states/tale/rollback", {"version": 99})
    assert (status, answer["error"]["code"]) == (404, "state_not_found")


async def test_a_stale_version_is_a_conflict_and_changes_nothing(running: Running) -> None:
    await make(running)
    await make(running, state="tale", ids=[4])
    for path, body in (
        ("rollback", {"version": 1, "expected_version": 1}),
        ("snapshot", {"expected_version": 1}),
        ("mutate", {"operation": "scale", "parameters": {"factor": 1}, "expected_version": 1}),
    ):
        status, answer = await ask(running, "POST", f"/v1/states/tale/{path}", body)
        assert (status, answer["error"]["code"]) == (409, "stale_version"), path
    assert (await ask(running, "GET", "/v1/states/tale"))[1]["version"] == 2


async def test_a_mutation_is_a_version_with_its_record(running: Running) -> None:
    await make(running)
    body = {"operation": "scale", "parameters": {"factor": 0.5}}
    status, state = await ask(running, "POST", "/v1/states/tale/mutate", body)
    assert (status, state.get("version"), state.get("operation")) == (201, 2, "scale"), state
    _, log = await ask(running, "GET", "/v1/states/tale/log")
    record = log["data"][0]["provenance"]
    assert (record["operation"], record["parameters"]["factor"]) == ("scale", 0.5)


async def test_what_is_wrong_with_a_mutation_is_named(running: Running) -> None:
    await make(running)
    body: dict[str, Any] = {"operation": "melt", "parameters": {}}
    status, _ = await ask(running, "POST", "/v1/states/tale/mutate", body)
    assert status == 400
    body = {"operation": "scale", "parameters": {"factor": 1e9}}
    status, answer = await ask(running, "POST", "/v1/states/tale/mutate", body)
    assert (status, "factor" in answer["error"]["message"]) == (400, True)
    assert (await ask(running, "GET", "/v1/states/tale"))[1]["version"] == 1


async def test_two_states_are_compared(running: Running) -> None:
    await make(running, "a", ids=[1, 2, 3])
    await make(running, "b", ids=[1, 2, 4])
    status, same = await ask(running, "POST", "/v1/states/a/diff", {"other": "a"})
    assert (status, same["equal"]) == (200, True)
    _, other = await ask(running, "POST", "/v1/states/a/diff", {"other": "b"})
    assert {tensor["name"] for tensor in other["tensors"]}
    status, answer = await ask(running, "POST", "/v1/states/a/diff", {"other": "c"})
    assert (status, answer["error"]["code"]) == (404, "state_not_found")


async def test_a_history_is_told_in_parts_and_done_again(running: Running) -> None:
    await make(running)
    await make(running, state="tale", ids=[4])
    _, part = await ask(running, "GET", "/v1/states/tale/log?limit=1")
    assert [entry["version"] for entry in part["data"]] == [2]
    _, rest = await ask(running, "GET", f"/v1/states/tale/log?before={part['next']}")
    assert ([entry["version"] for entry in rest["data"]], rest["next"]) == ([1], None)
    status, replayed = await ask(running, "POST", "/v1/states/tale/replay")
    assert (status, replayed["equal"], replayed["state"]) == (200, True, "tale@2")


async def test_an_operation_with_a_key_is_done_once(running: Running) -> None:
    await make(running, idempotency_key="k")
    again = await make(running, idempotency_key="k")
    assert again["version"] == 1
    status, answer = await ask(
        running, "POST", "/v1/states", {"name": "tale", "ids": [9], "idempotency_key": "k"}
    )
    assert (status, answer["error"]["code"]) == (409, "key_reused")


async def test_as_much_as_may_be_is_507(tmp_path: Path) -> None:
    async with states_running(tmp_path, max_states=1) as running:
        await make(running)
        status, answer = await ask(running, "POST", "/v1/states", {"name": "more", "ids": [1]})
        assert (status, answer["error"]["code"]) == (507, "quota_exceeded")
        assert answer["error"]["type"] == "insufficient_storage_error"


async def test_a_state_that_moved_is_a_conflict_that_says_where(running: Running) -> None:
    await make(running)
    client = await running.gateway.engines.client("")
    await client.states.migrate_begin("tale")
    await client.states.migrate_end(
        "tale", committed=True, target="tcp://127.0.0.1:9", target_name="tale", target_version=1
    )
    for method, path, body in (
        ("POST", "/v1/generate", {"state": "tale", "max_tokens": 1}),
        ("POST", "/v1/states/tale/snapshot", {}),
        ("POST", "/v1/sessions/tale/append", {"ids": [1]}),
    ):
        status, answer = await ask(running, method, path, body)
        assert (status, answer["error"]["code"]) == (409, "state_moved"), answer
        assert "tcp://127.0.0.1:9" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/stream"])
async def test_a_stream_whose_state_moves_ends_by_saying_where(running: Running, path: str) -> None:
    """The gateway itself connects nowhere at a tenant's word."""
    await make(running)
    body = {
        "model": "fake", "state": "tale", "save_as": "tale", "max_tokens": 100_000,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    if path == "/v1/stream":
        del body["stream"]
    client = await running.gateway.engines.client("")
    async with running.http.post(path, json=body) as response:
        await response.content.readuntil(b"\n\n")
        moving = await client.states.migrate_begin("tale")
        await client.states.migrate_end(
            "tale", committed=True, target="tcp://127.0.0.1:9",
            target_name="tale", target_version=moving.version,
        )  # fmt: skip
        told = (await response.read()).decode()
    assert "tcp://127.0.0.1:9" in told
    assert ('"code":"state_moved"' in told) == (path == "/v1/completions")
    assert ('"reason":"moved"' in told) == (path == "/v1/stream")


# --- as somebody else ---------------------------------------------------------------------------

BODIES: dict[str, Any] = {
    "/diff": {"other": "tale"},
    "/fork": {"names": ["taken"]},
    "/mutate": {"operation": "scale", "parameters": {"factor": 0}},
    "/rollback": {"version": 1},
    "/append": {"ids": [1]},
    "/generate": {"ids": [1]},
    "/save": {"name": "taken"},
}
PATHS = [
    (one.method, re_path)
    for one in ROUTES
    if "{ref}" in one.path or "/v1/sessions/{id}" in one.path
    if not (re_path := one.path).endswith("/import")
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_anothers_state_and_none_are_the_same_bytes(
    tmp_path: Path, method: str, path: str
) -> None:
    """Unknown, another tenant's, and deleted."""
    body: Any = next((b for end, b in BODIES.items() if path.endswith(end)), None)
    if method == "PATCH":
        body = {"tags": {"a": "b"}}
    url = path.replace("{ref}", "tale").replace("{id}", "tale")
    async with states_running(tmp_path, keys=KEYS) as running:

        async def refused() -> bytes:
            async with running.http.request(method, url, json=body, headers=BERT) as response:
                assert response.status == 404, await response.text()
                return await response.read()

        unknown = await refused()
        made = await make(running, headers=ANNA)
        assert await refused() == unknown
        assert (await ask(running, "GET", "/v1/states/tale", **ANNA))[1] == made
        await make(running, headers=BERT)
        await ask(running, "DELETE", "/v1/states/tale", **BERT)
        assert await refused() == unknown


@pytest.mark.timed(0.2)
async def test_an_expired_state_is_none(running: Running) -> None:
    await make(running, expires_in_s=0.2)
    async with asyncio.timeout(TIMEOUT_S):
        while (await ask(running, "GET", "/v1/states/tale"))[0] == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    status, answer = await ask(running, "POST", "/v1/generate", {"state": "tale", "max_tokens": 1})
    assert (status, answer["error"]["code"]) == (404, "state_not_found")
    assert (await ask(running, "GET", "/v1/states"))[1]["data"] == []


async def test_each_tenant_has_names_of_its_own(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        await make(running, headers=ANNA, ids=[1])
        await make(running, headers=BERT, ids=[2])
        for headers, tail in ((ANNA, [1]), (BERT, [2])):
            _, page = await ask(running, "GET", "/v1/states", **headers)
            assert [(state["name"], state["tail"]) for state in page["data"]] == [("tale", tail)]
