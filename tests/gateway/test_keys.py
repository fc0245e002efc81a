"""The header ``Idempotency-Key``: on every route that takes a key, it says what the field says."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Running
from tests.gateway.stateful import ask, make, states_running
from tests.gateway.test_state_files import export, take
from wkvm.gateway.routes import ROUTES
from wkvm.gateway.states.fields import KEY_HEADER, KeyedFields

KEY = {KEY_HEADER: "once"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


KEPT = {"save_as": "kept", "max_tokens": 3}
ONCE: dict[str, dict[str, Any]] = {
    "/v1/states": {"name": "made", "ids": [1]},
    "/v1/states/tale/fork": {"names": ["made"]},
    "/v1/states/tale/snapshot": {},
    "/v1/states/tale/rollback": {"version": 1},
    "/v1/states/tale/mutate": {"operation": "decay", "parameters": {"factor": 0.5}},
    "/v1/sessions": {"name": "made", "ids": [1]},
    "/v1/sessions/tale/fork": {"names": ["made"]},
    "/v1/sessions/tale/append": {"ids": [5]},
    "/v1/sessions/tale/save": {"name": "made"},
    "/v1/sessions/tale/generate": {"ids": [5], "max_tokens": 3},
    "/v1/generate": {"ids": [1], **KEPT},
    "/v1/completions": {"model": "fake", "prompt": "a", **KEPT},
}


@pytest.mark.parametrize("path", ONCE)
async def test_what_is_sent_again_with_the_header_is_done_once(running: Running, path: str) -> None:
    await make(running)
    first = await ask(running, "POST", path, ONCE[path], **KEY)
    assert first[0] in (200, 201), first
    names = await ask(running, "GET", "/v1/states")
    again = await ask(running, "POST", path, ONCE[path], **KEY)
    # A turn of a session comes after what its first sending has made: that is no repetition.
    assert again[0] == (409 if path == "/v1/sessions/tale/generate" else first[0]), again
    assert (await ask(running, "GET", "/v1/states"))[1] == names[1]


async def test_a_file_that_is_sent_again_with_the_header_is_taken_once(running: Running) -> None:
    await make(running)
    data = await export(running)
    first = await take(running, data, **KEY)
    assert first[0] == 201
    assert await take(running, data, **KEY) == first
    assert (await take(running, data, query="?idempotency_key="))[0] == 400


async def test_the_field_goes_before_the_header(running: Running) -> None:
    await make(running, headers=KEY)
    await make(running, "other", idempotency_key="of the body", headers=KEY)
    status, answer = await ask(running, "POST", "/v1/states", {"name": "third", "ids": [1]}, **KEY)
    assert (status, answer["error"]["code"]) == (409, "key_reused")


@pytest.mark.parametrize("key", ["", "k" * 129])
async def test_a_header_that_is_no_key_is_refused(running: Running, key: str) -> None:
    body = {"name": "made", "ids": [1]}
    status, answer = await ask(running, "POST", "/v1/states", body, **{KEY_HEADER: key})
    assert (status, answer["error"]["param"]) == (400, "idempotency_key")
    assert (await ask(running, "GET", "/v1/states"))[1]["data"] == []


def test_every_body_with_the_field_takes_the_header() -> None:
    bodies = {kind for route in ROUTES if route.doc is not None for kind in route.doc.bodies}
    keyed = {kind for kind in bodies if "idempotency_key" in getattr(kind, "__struct_fields__", ())}
    assert keyed
    assert all(issubclass(kind, KeyedFields) for kind in keyed)


async def test_a_key_of_one_mutation_stands_for_no_other(running: Running) -> None:
    await make(running, idempotency_key="of the state")
    path, decay = "/v1/states/tale/mutate", {"operation": "decay", "parameters": {"factor": 0.5}}
    await ask(running, "POST", path, decay, **KEY)
    scale = {"operation": "scale", "parameters": {"factor": 0.5}}
    status, answer = await ask(running, "POST", path, scale, **KEY)
    assert (status, answer["error"]["code"]) == (409, "key_reused")
    assert (await ask(running, "GET", "/v1/states/tale"))[1]["version"] == 2
