"""Requests that go on from states and keep them: completions and native ones."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio

from tests.fakes import GuestModel, fake_continuation
from tests.gateway.bridge import over_websocket
from tests.gateway.harness import ANNA, BERT, KEYS, TIMEOUT_S, Running, until_stats
from tests.gateway.raw import until
from tests.gateway.scripted import script_engine
from tests.gateway.stateful import TallModel, ask, make, states_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


async def generate(running: Running, path: str = "/v1/generate", **body: Any) -> Any:
    """An answer that has to be one."""
    headers = body.pop("headers", {})
    status, answer = await ask(running, "POST", path, {**GREEDY, **body}, **headers)
    assert status == 200, answer
    return answer


async def complete(running: Running, **body: Any) -> Any:
    body = {"model": "fake", "return_token_ids": True, **body}
    return await generate(running, "/v1/completions", **body)


async def events(running: Running, path: str, **body: Any) -> list[Any]:
    async with running.http.post(path, json={**GREEDY, **body}) as response:
        assert response.status == 200, await response.text()
        *found, done, rest = (await response.text()).split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.partition("data: ")[2]) for event in found]


async def head(running: Running, name: str = "tale") -> Any:
    return (await ask(running, "GET", f"/v1/states/{name}"))[1]


async def test_who_asks_again_by_the_same_key_goes_on_and_the_first_is_told_so(
    tmp_path: Path,
) -> None:
    model = TallModel()
    async with states_running(tmp_path, Engine(model, EngineConfig(n_slots=8))) as running:
        await make(running)
        body = {**GREEDY, "state": "tale", "save_as": "next", "max_tokens": 2000}
        body["idempotency_key"] = "k"
        first = asyncio.create_task(ask(running, "POST", "/v1/generate", body))
        await until_stats(running, n_states_running=1)
        status, answer = await ask(running, "POST", "/v1/generate", body)
        assert (status, answer["state"]["version"]) == (200, 1)
        status, answer = await first
        assert (status, answer["error"]["code"]) == (499, "cancelled")


EXPECTED = fake_continuation([1, 2, 3], 12, 256)


async def test_an_empty_continuation_goes_on_from_the_end_of_the_prompt(running: Running) -> None:
    await make(running)
    for _ in range(2):
        answer = await generate(running, state="tale", max_tokens=4)
        assert answer["choices"][0]["ids"] == EXPECTED[:4]
    assert "state" not in answer


async def test_what_was_sampled_last_is_fed_once(running: Running) -> None:
    await make(running)
    answer = await generate(running, state="tale", save_as="tale", max_tokens=4)
    assert answer["state"] == {
        "name": "tale", "version": 2, "ack": "durable", "n_computed": 6, "pending": [EXPECTED[3]],
    }  # fmt: skip
    more = await generate(running, state="tale", save_as="tale", max_tokens=4)
    last = await generate(running, state="tale", ids=[7], max_tokens=4)
    assert more["choices"][0]["ids"] == EXPECTED[4:8]
    prompt = [1, 2, 3, *EXPECTED[:8], 7]
    assert last["choices"][0]["ids"] == fake_continuation(prompt, 4, 256)


async def test_what_a_state_had_absorbed_is_told_and_not_computed_again(running: Running) -> None:
    await make(running)
    client = await running.gateway.engines.own()
    before = await client.stats()
    answer = await generate(running, state="tale", ids=[4, 5], max_tokens=1)
    assert answer["usage"] == {"n_prompt": 2, "n_output": 1, "n_cached": 2}
    after = await client.stats()
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] <= 3
    answer = await complete(running, state="tale", prompt=[4, 5], max_tokens=1)
    assert answer["usage"] == {
        "prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip


async def test_a_completion_keeps_its_state_and_another_goes_on(running: Running) -> None:
    first = await complete(running, prompt=[1, 2, 3], save_as="tale", max_tokens=3)
    assert first["state"]["version"] == 1
    second = await complete(running, state="tale@1", save_as="other", max_tokens=3)
    assert second["choices"][0]["token_ids"] == EXPECTED[3:6]
    assert (second["state"]["name"], (await head(running))["version"]) == ("other", 1)


async def test_a_stream_tells_the_state_after_its_choices(running: Running) -> None:
    body = {"model": "fake", "prompt": [1, 2, 3], "save_as": "tale", "max_tokens": 3}
    plain = await events(running, "/v1/completions", stream=True, **body)
    assert (plain[-1]["choices"], plain[-1]["state"]["version"]) == ([], 1)
    assert "usage" not in plain[-1]
    options = {"include_usage": True}
    costed = await events(running, "/v1/completions", stream=True, stream_options=options, **body)
    assert costed[-1]["usage"]["completion_tokens"] == 3
    assert costed[-1]["state"]["version"] == 2
    assert sum("state" in event for event in costed) == 1


async def test_a_native_stream_tells_it_with_the_end(running: Running) -> None:
    found = await events(running, "/v1/stream", ids=[1, 2, 3], save_as="tale", max_tokens=3)
    assert (found[-1]["reason"], found[-1]["state"]["version"]) == ("length", 1)


async def test_a_submitted_request_keeps_its_state(running: Running) -> None:
    body = {"ids": [1, 2, 3], "save_as": "tale", "max_tokens": 3, **GREEDY}
    _, accepted = await ask(running, "POST", "/v1/submit", body)
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            _, answer = await ask(running, "GET", f"/v1/status/{accepted['id']}")
            if answer["status"] != "running":
                break
            await asyncio.sleep(0.005)
    assert answer["state"]["version"] == 1


async def test_several_choices_go_on_from_one_state_and_keep_none(running: Running) -> None:
    await make(running)
    body: dict[str, Any] = {"state": "tale", "n": 3, "max_tokens": 4, "temperature": 1, "seed": 1}
    answer = await generate(running, **body)
    assert len({tuple(choice["ids"]) for choice in answer["choices"]}) == 3
    status, refusal = await ask(running, "POST", "/v1/generate", {**body, "save_as": "x"})
    assert (status, refusal["error"]["param"]) == (400, "save_as")
    body = {"model": "fake", "prompt": [[1], [2]], "return_state": True}
    status, refusal = await ask(running, "POST", "/v1/completions", body)
    assert (status, refusal["error"]["param"]) == (400, "return_state")


async def test_the_bytes_of_a_state_go_out_and_come_in_and_nothing_is_kept(
    running: Running,
) -> None:
    first = await complete(running, prompt=[1, 2, 3], return_state=True, max_tokens=3)
    assert (first["state"]["name"], first["state"]["ack"]) == (None, None)
    data = first["state"]["bytes"]
    assert base64.b64decode(data)
    second = await complete(running, state_bytes=data, max_tokens=3)
    assert second["choices"][0]["token_ids"] == EXPECTED[3:6]
    assert (await ask(running, "GET", "/v1/states"))[1]["data"] == []


DEFAULT_LENGTHS = [
    ("/v1/completions", {"state": "tale", "prompt": [4, 5]}),
    ("/v1/chat/completions", {"state": "tale"}),
    ("/v1/sessions/tale/generate", {"ids": [4, 5]}),
]


def with_guest(n_tokens: int) -> Engine:
    """An engine whose states may have so many tokens."""
    return Engine(GuestModel(vocab_size=256), EngineConfig(n_slots=2, guest_tokens=n_tokens))


@pytest.mark.parametrize(("path", "body"), DEFAULT_LENGTHS)
async def test_a_default_length_leaves_room_for_what_a_state_had_absorbed(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    """Of a model with attention layers, which keep something of every token."""
    async with states_running(tmp_path, with_guest(64)) as running:
        await make(running, ids=list(range(50)))
        status, answer = await ask(running, "POST", path, {"model": "fake", **body})
        assert status == 200, answer
        assert answer["usage"]["total_tokens"] == 63  # and the id that was pending
        status, answer = await ask(
            running, "POST", path, {"model": "fake", "max_tokens": 15, **body}
        )
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_default_length_leaves_room_for_a_state_that_comes_with_the_request(
    tmp_path: Path,
) -> None:
    async with states_running(tmp_path, with_guest(64)) as running:
        whole = await generate(running, ids=list(range(50)), max_tokens=1, return_state=True)
        answer = await complete(running, state_bytes=whole["state"]["bytes"])
        assert answer["usage"]["total_tokens"] == 63


@pytest.mark.parametrize(("path", "body"), DEFAULT_LENGTHS)
async def test_without_attention_a_default_length_does_not_depend_on_the_state(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    config = EngineConfig(n_slots=2, max_model_len=60)
    async with states_running(tmp_path, Engine(TallModel(), config)) as running:
        await make(running, ids=list(range(50)))
        status, answer = await ask(running, "POST", path, {"model": "fake", **body})
        assert status == 200, answer
        n_more = len(body.get("prompt", body.get("ids", ())))
        assert answer["usage"]["completion_tokens"] == 60 - n_more


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions", "/v1/chat/completions"])
async def test_no_state_is_never_a_prefill_of_the_rest(running: Running, path: str) -> None:
    body: dict[str, Any] = {"model": "fake", "state": "tale", "max_tokens": 1}
    if path == "/v1/generate":
        body["ids"] = [1]
    elif path == "/v1/completions":
        body["prompt"] = [1]
    else:
        body["messages"] = [{"role": "user", "content": "Hi"}]
    client = await running.gateway.engines.own()
    before = (await client.stats())["prompt_tokens_total"]
    status, answer = await ask(running, "POST", path, body)
    assert (status, answer["error"]["code"]) == (404, "state_not_found")
    assert (await client.stats())["prompt_tokens_total"] == before


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "ids"),
        ({"ids": [1], "state": "a/b"}, "state"),
        ({"ids": [1], "state": ""}, "state"),
        ({"ids": [1], "state_bytes": ""}, "state_bytes"),
        ({"ids": [1], "save_as": ""}, "save_as"),
        ({"ids": [1], "idempotency_key": ""}, "idempotency_key"),
        ({"ids": [1], "state": "a@0"}, "state"),
        ({"ids": [1], "state_bytes": "?"}, "state_bytes"),
        ({"ids": [1], "state": "a", "state_bytes": "AAAA"}, "state_bytes"),
        ({"ids": [1], "save_as": "a@1"}, "save_as"),
        ({"ids": [1], "save_as": "a", "on_disconnect": "sleep"}, "on_disconnect"),
        ({"ids": [1], "save_as": "a", "durability": "tape"}, "durability"),
        ({"ids": [1], "save_as": "a", "checkpoint_every": 1}, "checkpoint_every"),
        ({"ids": [1], "save_as": "a", "expected_version": -1}, "expected_version"),
        ({"ids": [1], "expected_version": 1}, "expected_version"),
        ({"ids": [1], "save_as": "a", "checkpoint_every": True}, "checkpoint_every"),
    ],
)
async def test_what_is_wrong_with_the_use_of_a_state_is_named(
    running: Running, body: dict[str, Any], param: str
) -> None:
    status, answer = await ask(running, "POST", "/v1/generate", {"max_tokens": 1, **body})
    assert (status, answer["error"]["param"]) == (400, param), answer


async def test_bytes_that_are_no_state_are_refused(running: Running) -> None:
    body = {"ids": [1], "max_tokens": 1, "state_bytes": base64.b64encode(b"x" * 600).decode()}
    status, answer = await ask(running, "POST", "/v1/generate", body)
    assert (status, answer["error"]["code"]) == (422, "bad_state_file")


async def test_a_state_that_moved_on_is_a_conflict_and_keeps_nothing(running: Running) -> None:
    await make(running)
    await make(running, state="tale", ids=[4])
    for more in ({"expected_version": 1}, {"state": "tale@1"}):
        body = {"state": "tale", "ids": [5], "save_as": "tale", "max_tokens": 1, **more}
        status, answer = await ask(running, "POST", "/v1/generate", body)
        assert (status, answer["error"]["code"]) == (409, "stale_version")
    assert (await head(running))["version"] == 2


async def test_anothers_state_is_not_gone_on_from(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        await make(running, headers=ANNA)
        body = {"state": "tale", "ids": [1], "max_tokens": 1}
        status, answer = await ask(running, "POST", "/v1/generate", body, **BERT)
        assert (status, answer["error"]["code"]) == (404, "state_not_found")
        await generate(running, ids=[9], save_as="tale", max_tokens=1, headers=BERT)
        _, state = await ask(running, "GET", "/v1/states/tale", **ANNA)
        assert (state["version"], state["tail"]) == (1, [1, 2, 3])


# --- stop strings -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_state_ends_where_its_text_does(tmp_path: Path, stream: bool) -> None:
    """The ids of a stop string, and what was generated after them, are not in the state."""
    engine = script_engine(b"one two END three four five six ")
    body: dict[str, Any] = {
        "model": "fake", "prompt": [9], "save_as": "tale", "stop": "END", "max_tokens": 30,
    }  # fmt: skip
    async with states_running(tmp_path, engine) as running:
        if stream:
            *_, told = await events(running, "/v1/completions", stream=True, **body)
        else:
            told = await complete(running, **body)
            assert told["choices"][0]["text"] == "one two "
        assert told["state"]["pending"] == [ord(" ")]
        state = await head(running)
        assert (bytes(state["tail"]), state["version"]) == (b"\tone two ", told["state"]["version"])
        more = await complete(running, state="tale", max_tokens=3)
        assert more["choices"][0]["text"] == "END"


async def test_a_state_ends_there_too_if_the_limit_was_reached_first(tmp_path: Path) -> None:
    """It was committed with the stop string in it, and taken back."""
    engine = script_engine(b"one two END three ")
    body = {"prompt": [9], "save_as": "tale", "stop": "END", "max_tokens": 11}
    async with states_running(tmp_path, engine) as running:
        told = await complete(running, **body)
        assert told["choices"][0]["finish_reason"] == "stop"
        state = await head(running)
        assert bytes(state["tail"]) == b"\tone two "
        assert told["state"]["version"] == state["version"]
        assert told["state"]["pending"] == [ord(" ")]
        assert told["state"]["n_computed"] == state["n_computed"]


async def test_a_stop_string_in_the_output_is_in_the_state(tmp_path: Path) -> None:
    engine = script_engine(b"one two END three four ")
    body: dict[str, Any] = {
        "prompt": [9], "save_as": "tale", "stop": "END", "max_tokens": 30,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    async with states_running(tmp_path, engine) as running:
        await complete(running, **body)
        assert bytes((await head(running))["tail"]) == b"\tone two END"


async def test_a_stop_string_at_the_very_beginning_leaves_the_prompt(tmp_path: Path) -> None:
    engine = script_engine(b"END three four ")
    body: dict[str, Any] = {"prompt": [9], "save_as": "tale", "stop": "END", "max_tokens": 30}
    async with states_running(tmp_path, engine) as running:
        await complete(running, **body)
        assert (await head(running))["tail"] == [9]


# --- clients that leave -------------------------------------------------------------------------

LONG = {"ids": [1, 2, 3], "save_as": "tale", "max_tokens": 400, "temperature": 0}


async def leave(running: Running, path: str, **body: Any) -> None:
    """Ask for a stream, read a little of it, and be gone."""
    async with running.http.post(path, json={**LONG, "ignore_eos": True, **body}) as response:
        assert response.status == 200, await response.text()
        await response.content.readany()
        response.close()


async def until_saved(running: Running) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        while (await ask(running, "GET", "/v1/states/tale"))[0] == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return await head(running)


PATHS = [
    ("/v1/stream", {}),
    ("/v1/completions", {"model": "fake", "stream": True, "prompt": [1, 2, 3]}),
]


@pytest.mark.parametrize(("path", "more"), PATHS)
async def test_a_request_whose_client_leaves_is_finished_if_it_says_so(
    running: Running, path: str, more: dict[str, Any]
) -> None:
    await leave(running, path, on_disconnect="finish", **more)
    state = await until_saved(running)
    assert state["n_computed"] + state["n_pending"] == 403


@pytest.mark.parametrize(("path", "more"), PATHS)
async def test_or_kept_as_far_as_it_came(running: Running, path: str, more: dict[str, Any]) -> None:
    await leave(running, path, on_disconnect="hibernate", **more, max_tokens=100_000)
    state = await until_saved(running)
    n_output = state["n_computed"] + state["n_pending"] - 3
    assert 0 < n_output < 100_000
    assert state["tail"][-1] == fake_continuation([1, 2, 3], n_output, 256)[-1]


@pytest.mark.parametrize(("path", "more"), PATHS)
async def test_or_else_nothing_of_it_is_kept(
    running: Running, path: str, more: dict[str, Any]
) -> None:
    await leave(running, path, **more, max_tokens=100_000)
    await until_stats(running, n_free_slots=8)
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 404


@pytest.mark.parametrize(("path", "more"), PATHS)
async def test_a_request_whose_client_left_is_cancelled_by_its_name(
    running: Running, path: str, more: dict[str, Any]
) -> None:
    body = {**LONG, "ignore_eos": True, "max_tokens": 1_000_000, "on_disconnect": "finish", **more}
    headers = {"X-Request-Id": "mine"}
    async with running.http.post(path, json=body, headers=headers) as response:
        await response.content.readany()
        response.close()
    await until(lambda: len(running.gateway.unwatched) == 1)
    _, answer = await ask(running, "POST", "/v1/cancel", {"id": "mine"})
    assert answer["cancelled"] is True
    await until(lambda: not running.gateway.unwatched)
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 404


async def test_a_request_that_is_cancelled_keeps_nothing(running: Running) -> None:
    body = {**LONG, "max_tokens": 100_000, "on_disconnect": "finish", "ignore_eos": True}
    headers = {"X-Request-Id": "mine"}
    async with running.http.post("/v1/stream", json=body, headers=headers) as response:
        await response.content.readany()
        await ask(running, "POST", "/v1/cancel", {"id": "mine"})
        await response.read()
    await until_stats(running, n_free_slots=8)
    assert (await ask(running, "GET", "/v1/states/tale"))[0] == 404


# --- over WebSocket -----------------------------------------------------------------------------


async def test_states_are_used_over_a_websocket_as_over_the_binary_door(running: Running) -> None:
    async with (
        over_websocket(running.http) as socket,
        aio.from_socket(socket) as client,
    ):
        await client.states.create("tale", [1, 2, 3])
        stream = await client.generate(
            [], state="tale", save_as="tale", max_tokens=4, temperature=0
        )
        completion = await stream.completion()
        assert completion.ids == EXPECTED[:4]
        export = await client.states.export("tale")
        data = b"".join([part async for part in export])
        assert (await client.states.import_from("copy", data)).tail == (1, 2, 3, *EXPECTED[:4])
    assert (await generate(running, state="copy", max_tokens=4))["choices"][0]["ids"] == EXPECTED[
        4:8
    ]
