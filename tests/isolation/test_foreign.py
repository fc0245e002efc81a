"""Another tenant's object, of every kind: answered byte by byte as one that never was.

The routes are those of the table; each that names something in its path is asked for what another
tenant has. So is each field of a body that names something. All is asked twice, on a server where
the other tenant has these things and on one where nobody ever had them, and the answers are the
same bytes.
"""

import json
import random
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client.errors import StateNotFoundError

from tests.isolation.world import World, world_running
from tests.soak import amount, seed, tell
from wkvm.gateway.calls import Route
from wkvm.gateway.routes import ROUTES

STATE, SESSION, SLOT = "tale", "talk", "llama-slot-1"
BODIES: dict[str, Any] = {
    "/slots/{id}": {"filename": STATE},
    "/v1/conversations/{id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{id}/items": {"items": [{"role": "user", "content": "Hm?"}]},
    "/v1/sessions/{id}/append": {"ids": [1]},
    "/v1/sessions/{id}/fork": {"names": ["mine"]},
    "/v1/sessions/{id}/generate": {"ids": [1], "max_tokens": 2},
    "/v1/sessions/{id}/rollback": {"version": 1},
    "/v1/sessions/{id}/save": {"name": "mine"},
    "/v1/states/{ref}": {"tags": {"a": "b"}},
    "/v1/states/{ref}/diff": {"other": STATE},
    "/v1/states/{ref}/fork": {"names": ["mine"]},
    "/v1/states/{ref}/mutate": {"operation": "decay", "parameters": {"factor": 0.5}}
    | {"save_as": "mine"},
    "/v1/states/{ref}/rollback": {"version": 1},
    "/v1/states/{ref}/snapshot": {"save_as": "mine"},
}
"""What is asked where a route takes a body; without an entry, an empty object."""
QUERIES = {"/slots/{id}": "?action=restore"}
NOT_OF_TENANTS = {"/v1/models/{id:.+}", "/assets/{file}"}
"""What all tenants see."""
MAKING = {"/v1/states/{ref}/import"}
"""Routes that make what they name, which is free to each tenant."""
REFUSALS = {"/v1/submit": (202,)}
"""Where the refusal comes later than the answer."""


def routes_with_names() -> Iterator[Route]:
    for route in ROUTES:
        if "{" in route.path and route.path not in NOT_OF_TENANTS | MAKING:
            yield route


def path_of(route: Route, names: dict[str, str]) -> str:
    """The path of what somebody has."""
    kind = route.path.split("/")[2 if route.path.startswith("/v1/") else 1]
    path = re.sub(r"\{(id|ref)\}", names[kind], route.path).replace("{item}", names["item"])
    return path + QUERIES.get(route.path, "")


async def belongings(world: World) -> dict[str, str]:
    """Let anna have one of each kind; their names by what routes call them."""
    http, headers = world.http, world.headers("anna")

    async def made(path: str, body: Any) -> Any:
        async with http.post(path, json=body, headers=headers) as response:
            assert response.status in (200, 201, 202), await response.text()
            return await response.json()

    await made("/v1/states", {"name": STATE, "ids": [1, 2, 3]})
    await made("/v1/sessions", {"name": SESSION, "ids": [1, 2, 3]})
    await made(f"/v1/sessions/{SESSION}/generate", {"ids": [1], "max_tokens": 2})
    await made("/completion", {"prompt": [1, 2], "n_predict": 2, "id_slot": 1})
    submitted = await made("/v1/submit", {"ids": [1], "max_tokens": 2})
    talk = await made("/v1/conversations", {"items": [{"role": "user", "content": "Hm?"}]})
    async with http.get(f"/v1/conversations/{talk['id']}/items", headers=headers) as response:
        (item,) = (await response.json())["data"]
    response_ = await made(
        "/v1/responses", {"model": "tales", "input": "Hm?", "max_output_tokens": 2}
    )
    turn = {"ids": [7], "max_tokens": 2, "state": STATE, "save_as": STATE}
    await made("/v1/generate", {**turn, "idempotency_key": "once"})
    return {
        "states": STATE,
        "sessions": SESSION,
        "slots": "1",
        "status": submitted["id"],
        "conversations": talk["id"],
        "responses": response_["id"],
        "item": item["id"],
    }


def in_bodies(names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that name in their bodies what is anna's."""
    ask = {"model": "tales", "input": "Hm?", "max_output_tokens": 2}
    chat = {"model": "tales", "messages": [{"role": "user", "content": "Hm?"}]}
    yield "/v1/responses", {**ask, "previous_response_id": names["responses"]}
    yield "/v1/responses", {**ask, "conversation": names["conversations"]}
    yield "/v1/responses", {**ask, "input": [{"type": "item_reference", "id": names["item"]}]}
    yield "/v1/responses/input_tokens", {**ask, "previous_response_id": names["responses"]}
    yield "/v1/cancel", {"id": names["status"]}
    for path in ("/v1/generate", "/v1/stream", "/v1/submit"):
        for more in ({}, {"save_as": STATE}, {"save_as": "mine"}):
            yield path, {"ids": [1], "max_tokens": 1, "state": STATE, **more}
            yield path, {"ids": [1], "max_tokens": 1, "state": f"{STATE}@1", **more}
    yield "/v1/completions", {"model": "tales", "prompt": "a", "max_tokens": 1, "state": STATE}
    yield "/v1/chat/completions", {**chat, "max_tokens": 1, "state": STATE}
    yield "/v1/sessions", {"name": "mine", "state": STATE}
    yield "/v1/states", {"name": STATE, "ids": [1], "expected_version": 1}
    yield (
        f"/v1/states/{STATE}/mutate",
        {"operation": "blend", "others": [SESSION], "save_as": "mine"},
    )


async def answers(world: World, names: dict[str, str]) -> dict[str, Any]:
    """What bert is told of each: status, headers but for the time, and bytes."""
    found = dict[str, Any]()

    async def ask(what: str, method: str, path: str, body: Any) -> None:
        headers = world.headers("bert") | {"X-Request-Id": "mine"}
        async with world.http.request(method, path, json=body, headers=headers) as response:
            told = [one for one in response.headers.items() if one[0] not in ("Date",)]
            data = re.sub(rb"gen-[0-9a-f]{32}", b"gen-", await response.read())
            found[what] = response.status, told, data

    for route in routes_with_names():
        path = path_of(route, names)
        for method in (route.method, "HEAD") if route.method == "GET" else (route.method,):
            body = BODIES.get(route.path, {}) if route.method not in ("GET", "DELETE") else None
            await ask(f"{method} {route.path}", method, path, body)
    for number, (path, body) in enumerate(in_bodies(names)):
        await ask(f"{number} {path}", "POST", path, body)
    return found


async def everything(world: World) -> Any:
    """All that anna has, with its versions."""
    found = list[Any]()
    for path in (
        "/v1/states",
        f"/v1/states/{STATE}/versions",
        f"/v1/states/{STATE}/log",
        f"/v1/states/{STATE}/text",
    ):
        async with world.http.get(path, headers=world.headers("anna")) as response:
            assert response.status == 200
            found.append(await response.json())
    return found


async def test_what_another_tenant_has_is_answered_as_what_never_was(tmp_path: Path) -> None:
    async with world_running(tmp_path / "a", has_websockets=False) as world:
        names = await belongings(world)
        before = await everything(world)
        foreign = await answers(world, names)
        assert await everything(world) == before
    async with world_running(tmp_path / "b", has_websockets=False) as world:
        absent = await answers(world, names)
    for what, (status, headers, data) in foreign.items():
        assert (status, headers, data) == absent[what], what
        _, path = what.split(" ")
        in_path = "{" in path
        assert status in ((404,) if in_path else REFUSALS.get(path, (400, 404, 409))), what


async def test_its_owner_is_answered_by_each_of_these_routes(tmp_path: Path) -> None:
    """Or the test above would show only that bert asks in a wrong way."""
    for method in ("GET", "POST", "PATCH", "DELETE"):
        async with world_running(tmp_path / method, has_websockets=False) as world:
            names = await belongings(world)
            for route in routes_with_names():
                if route.method != method or route.path.endswith("/cancel"):
                    continue
                if method == "DELETE" and route.path.startswith("/v1/conversations/{id}/"):
                    continue  # of a conversation that is deleted by now
                body = BODIES.get(route.path, {}) if method not in ("GET", "DELETE") else None
                async with world.http.request(
                    method, path_of(route, names), json=body, headers=world.headers("anna")
                ) as response:
                    told = await response.read()
                    assert response.status != 404, (route.path, told)


async def test_a_key_of_idempotency_means_nothing_to_another_tenant(tmp_path: Path) -> None:
    async with world_running(tmp_path) as world:
        await belongings(world)
        stream = await world.clients["bert"].generate(
            [7], state=STATE, save_as=STATE, max_tokens=2, idempotency_key="once"
        )
        with pytest.raises(StateNotFoundError):
            await stream.completion()
        body = {"ids": [9, 9], "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        _, alone = await world.post("bert", "/v1/generate", body)
        named = {**body, "save_as": "mine", "idempotency_key": "once"}
        status, own = await world.post("bert", "/v1/generate", named)
        assert status == 200
        assert own["choices"] == alone["choices"]
        assert own["state"]["version"] == 1


async def test_a_llama_cpp_slot_is_the_tenants(tmp_path: Path) -> None:
    async with world_running(tmp_path) as world:
        await belongings(world)
        body = {"prompt": [1, 2], "n_predict": 2, "id_slot": 1, "temperature": 0}
        _, again = await world.post("anna", "/completion", body)
        _, foreign = await world.post("bert", "/completion", body)
        async with world_running(tmp_path / "alone") as other:
            _, alone = await other.post("bert", "/completion", body)
        assert foreign["tokens_cached"] == alone["tokens_cached"]
        assert again["content"] == foreign["content"] == alone["content"]


async def test_how_long_the_answers_take_is_told(tmp_path: Path) -> None:
    rng, n = random.Random(seed()), amount(20, 2000)
    times: dict[str, list[float]] = {STATE: [], "none": []}
    async with world_running(tmp_path) as world:
        await belongings(world)
        for _ in range(n):
            name = rng.choice(list(times))
            path = f"/v1/states/{name}"
            began_at = time.perf_counter()
            async with world.http.get(path, headers=world.headers("bert")) as response:
                assert response.status == 404
                json.loads(await response.read())
            times[name].append(time.perf_counter() - began_at)
    figures = {f"{name}_median_us": round(1e6 * statistics.median(v)) for name, v in times.items()}
    tell(11, "look-ups of what is another's and of what is not", n, "look-ups", **figures)
