"""``/v1/sessions``: a conversation that is a state, turn by turn."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import fake_continuation
from tests.gateway.harness import ANNA, BERT, KEYS, TIMEOUT_S, Running
from tests.gateway.scripted import script_engine
from tests.gateway.stateful import TallModel, ask, make, states_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine

GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


async def begin(running: Running, name: str = "talk", **body: Any) -> Any:
    given = body if {"ids", "text", "messages", "state"} & body.keys() else {"ids": [1, 2, 3]}
    status, session = await ask(running, "POST", "/v1/sessions", {"name": name, **given})
    assert status == 201, session
    return session


async def turn(running: Running, name: str = "talk", **body: Any) -> Any:
    url = f"/v1/sessions/{name}/generate"
    status, answer = await ask(running, "POST", url, {**GREEDY, "max_tokens": 4, **body})
    assert status == 200, answer
    return answer


def parsed(text: str) -> list[tuple[str, Any]]:
    """Pairs of an event's id and its JSON, of a stream that ended well."""
    *found, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    pairs = list[tuple[str, Any]]()
    for event in found:
        number, data = event.split("\n")
        pairs.append((number.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
    return pairs


async def stream(running: Running, **body: Any) -> list[tuple[str, Any]]:
    url, body = "/v1/sessions/talk/generate", {**GREEDY, "stream": True, **body}
    async with running.http.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return parsed(await response.text())


async def replay(running: Running, last: str = "") -> list[tuple[str, Any]]:
    headers = {"Last-Event-ID": last} if last else {}
    async with running.http.get("/v1/sessions/talk/events", headers=headers) as response:
        assert response.status == 200, await response.text()
        return parsed(await response.text())


async def test_turns_go_on_from_each_other_as_one_text_does(running: Running) -> None:
    session = await begin(running)
    assert (session["object"], session["id"], session["turn"]) == ("session", "talk", None)
    expected = fake_continuation([1, 2, 3], 8, 256)
    first = await turn(running)
    assert first["token_ids"] == expected[:4]
    assert first["state"]["version"] == 2
    second = await turn(running)
    assert second["token_ids"] == expected[4:]
    third = await turn(running, ids=[9])
    assert third["token_ids"] == fake_continuation([1, 2, 3, *expected, 9], 4, 256)
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] == 10


async def test_minus_1_is_no_limit_to_a_turn_and_minus_2_is_refused(tmp_path: Path) -> None:
    engine = Engine(TallModel(), EngineConfig(n_slots=2, max_model_len=16))
    async with states_running(tmp_path, engine) as running:
        await begin(running)
        told = await turn(running, max_tokens=-1, ids=[1, 2])
        assert len(told["token_ids"]) == 14
        body = {**GREEDY, "ids": [1], "max_tokens": -2}
        status, answer = await ask(running, "POST", "/v1/sessions/talk/generate", body)
        assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_a_session_without_a_name_gets_one(running: Running) -> None:
    status, session = await ask(running, "POST", "/v1/sessions", {"text": "Hi"})
    assert status == 201
    assert (await ask(running, "GET", f"/v1/sessions/{session['id']}"))[0] == 200


async def test_a_session_begins_at_a_state_that_it_does_not_change(running: Running) -> None:
    tale = await make(running)
    await begin(running, state="tale")
    await turn(running)
    assert (await ask(running, "GET", "/v1/states/tale"))[1] == tale
    assert (await begin(running, "more", state="tale", ids=[4]))["state"]["tail"] == [1, 2, 3, 4]


async def test_a_name_that_is_taken_begins_no_session(running: Running) -> None:
    await make(running)
    for body in ({"ids": [1]}, {"state": "tale"}):
        status, answer = await ask(running, "POST", "/v1/sessions", {"name": "tale", **body})
        assert status == 409, answer
    assert (await ask(running, "GET", "/v1/states/tale"))[1]["version"] == 1


async def test_an_append_puts_in_without_taking_out(running: Running) -> None:
    await begin(running)
    status, session = await ask(running, "POST", "/v1/sessions/talk/append", {"ids": [4, 5]})
    assert (status, session["state"]["tail"]) == (200, [1, 2, 3, 4, 5])
    assert (await turn(running))["token_ids"] == fake_continuation([1, 2, 3, 4, 5], 4, 256)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {}, "ids"),
        ("", {"ids": [1], "state": ""}, "state"),
        ("/talk/append", {}, "ids"),
        ("/talk/append", {"ids": [1], "text": "a"}, "text"),
        ("/talk/generate", {"state": "x"}, "state"),
        ("/talk/generate", {"save_as": "x"}, "save_as"),
        ("/talk/generate", {"n": 2}, "n"),
        ("/talk/generate", {"ids": [256]}, "ids"),
        ("/talk/generate", {"temperature": -1}, "temperature"),
        ("/talk/rollback", {"turns": 0}, "turns"),
        ("/talk/rollback", {"turns": 1, "version": 1}, "version"),
    ],
)
async def test_what_is_wrong_is_named_and_changes_nothing(
    running: Running, path: str, body: dict[str, Any], param: str
) -> None:
    await begin(running)
    status, answer = await ask(running, "POST", f"/v1/sessions{path}", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert (await ask(running, "GET", "/v1/states/talk"))[1]["version"] == 1


async def test_a_session_of_a_chat_is_sent_the_new_messages_alone(tmp_path: Path) -> None:
    # after the prompt, whose length is such that the script begins there
    engine = script_engine(b"i\n H", eos_ids=(10,))
    async with states_running(tmp_path, engine) as running:
        await begin(running, messages=[{"role": "system", "content": "Be."}])
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Who?"}], "ignore_eos": False,
        }  # fmt: skip
        first = await turn(running, max_tokens=9, **body)
        assert (first["text"], first["finish_reason"]) == ("Hi", "stop")
        await turn(running, **body, max_tokens=1)
        _, state = await ask(running, "GET", "/v1/states/talk")
        log = b"Assistant: Hi\n\nUser: Who?\n\nAssistant:"
        assert bytes(state["tail"])[:-1] == log[-31:]


async def test_a_turn_of_no_messages_goes_on_with_the_answer_to_where_the_template_ends_it(
    tmp_path: Path,
) -> None:
    # The script begins after ten ids, and says what the template ends answers by.
    async with states_running(tmp_path, script_engine(b"Hi\n\nUser:")) as running:
        await begin(running, ids=list(b"Is it? Yes"))
        going_on: dict[str, Any] = {"messages": [], "ignore_eos": False}
        answer = await turn(running, max_tokens=20, **going_on)
        assert (answer["text"], answer["finish_reason"]) == ("Hi", "stop")


async def test_nothing_is_absorbed_where_there_are_no_messages(running: Running) -> None:
    await begin(running)
    url = "/v1/sessions/talk/append"
    status, error = await ask(running, "POST", url, {"messages": []})
    assert (status, error["error"]["param"]) == (400, "messages")


async def test_a_streamed_turn_adds_up_to_the_whole_one(running: Running) -> None:
    await begin(running)
    await begin(running, "twin")
    found = await stream(running, max_tokens=6)
    whole = await turn(running, "twin", max_tokens=6)
    assert "".join(event["text"] for _, event in found) == whole["text"]
    assert [i for _, event in found for i in event["token_ids"]] == whole["token_ids"]
    last = found[-1][1]
    assert (last["finish_reason"], last["usage"]) == ("length", whole["usage"])
    assert last["state"]["name"] == "talk"


# --- connections that are lost ------------------------------------------------------------------


async def test_what_was_missed_comes_again(running: Running) -> None:
    await begin(running)
    found = await stream(running, max_tokens=6)
    assert await replay(running) == found
    assert await replay(running, found[2][0]) == found[3:]
    assert await replay(running, found[-1][0]) == []


async def test_a_turn_goes_on_without_its_client_and_is_kept(running: Running) -> None:
    await begin(running)
    body = {**GREEDY, "stream": True, "max_tokens": 300}
    async with running.http.post("/v1/sessions/talk/generate", json=body) as response:
        first = await response.content.readuntil(b"\n\n")
        response.close()
    last = first.decode().split("\n")[0].removeprefix("id: ")
    rest = await replay(running, last)
    number = int(last.partition(":")[2])
    assert [int(one.partition(":")[2]) for one, _ in rest][:2] == [number + 1, number + 2]
    assert rest[-1][1]["usage"]["completion_tokens"] == 300
    _, session = await ask(running, "GET", "/v1/sessions/talk")
    assert (session["turn"]["status"], session["state"]["version"]) == ("done", 2)


@pytest.mark.parametrize(("policy", "version"), [("hibernate", 2), ("cancel", 1)])
async def test_or_ends_if_it_says_so(running: Running, policy: str, version: int) -> None:
    await begin(running)
    body = {**GREEDY, "stream": True, "max_tokens": 100_000, "on_disconnect": policy}
    async with running.http.post("/v1/sessions/talk/generate", json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            _, session = await ask(running, "GET", "/v1/sessions/talk")
            if session["turn"]["status"] != "running":
                break
            await asyncio.sleep(0.005)
    assert session["state"]["version"] == version


async def test_a_drain_waits_for_turns_without_a_client(running: Running) -> None:
    await begin(running)
    body = {**GREEDY, "stream": True, "max_tokens": 300}
    async with running.http.post("/v1/sessions/talk/generate", json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    running.door.begin_drain()
    await running.door.drained(TIMEOUT_S)
    assert len(running.gateway.turns) == 0
    client = await running.gateway.engines.own()
    assert (await client.states.get("talk")).version == 2


async def test_a_drain_does_not_wait_for_ever(running: Running) -> None:
    await begin(running)
    body = {**GREEDY, "stream": True, "max_tokens": 1_000_000}
    async with running.http.post("/v1/sessions/talk/generate", json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    running.door.begin_drain()
    async with asyncio.timeout(TIMEOUT_S):
        await running.door.drained(0.05)


async def test_head_of_the_events_has_no_body(running: Running) -> None:
    await begin(running)
    await turn(running)
    async with running.http.head("/v1/sessions/talk/events") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
    assert (await ask(running, "GET", "/v1/sessions/talk"))[0] == 200


async def test_events_of_another_turn_and_of_none_are_gone(running: Running) -> None:
    await begin(running)
    url = "/v1/sessions/talk/events"
    status, answer = await ask(running, "GET", url)
    assert (status, answer["error"]["code"]) == (410, "events_gone")
    await turn(running)
    for last in ("other:1", "x", "", "1"):
        wanted = 410 if last else 200
        headers = {"Last-Event-ID": last} if last else {}
        async with running.http.get(url, headers=headers) as response:
            assert response.status == wanted
    status, answer = await ask(running, "GET", "/v1/sessions/none/events")
    assert (status, answer["error"]["code"]) == (404, "state_not_found")


async def test_while_a_turn_runs_nothing_else_moves_the_session(running: Running) -> None:
    await begin(running)
    body = {**GREEDY, "stream": True, "max_tokens": 100_000}
    async with running.http.post("/v1/sessions/talk/generate", json=body) as response:
        await response.content.readuntil(b"\n\n")
        for path in ("generate", "append", "rollback"):
            url = f"/v1/sessions/talk/{path}"
            status, answer = await ask(
                running, "POST", url, {"ids": [1]} if path != "rollback" else {}
            )
            assert (status, answer["error"]["code"]) == (409, "session_busy")
        status, session = await ask(running, "POST", "/v1/sessions/talk/interrupt")
        assert (status, session["state"]["version"]) == (200, 2)
        assert session["turn"]["status"] == "done"
        *_, (_, last) = parsed("".join((await response.text()).partition("id: ")[1:]))
        assert last["finish_reason"] == "interrupted"
        assert last["state"]["version"] == 2


# --- branches and ways back ---------------------------------------------------------------------


async def test_a_branch_goes_its_own_way(running: Running) -> None:
    await begin(running)
    await turn(running)
    status, answer = await ask(running, "POST", "/v1/sessions/talk/fork", {"names": ["a", "b"]})
    assert status == 201
    assert [session["id"] for session in answer["data"]] == ["a", "b"]
    one, other = await turn(running, "a", ids=[7]), await turn(running, "b", ids=[8])
    assert one["token_ids"] != other["token_ids"]
    assert (await ask(running, "GET", "/v1/states/talk"))[1]["version"] == 2


async def test_a_turn_is_rolled_back_with_what_was_put_in_for_it(running: Running) -> None:
    session = await begin(running)
    await turn(running, ids=[7])
    first = (await ask(running, "GET", "/v1/states/talk"))[1]
    await ask(running, "POST", "/v1/sessions/talk/append", {"ids": [8]})
    await ask(running, "POST", "/v1/sessions/talk/append", {"ids": [9]})
    await turn(running)

    async def back(**body: Any) -> str:
        status, answer = await ask(running, "POST", "/v1/sessions/talk/rollback", body)
        assert status == 200, answer
        return str(answer["state"]["content_id"])

    assert await back() == first["content_id"]
    assert await back() == session["state"]["content_id"]
    status, answer = await ask(running, "POST", "/v1/sessions/talk/rollback")
    assert (status, answer["error"]["code"]) == (409, "no_turn")
    assert await back(version=2) == first["content_id"]
    await turn(running)
    assert await back(turns=2) == session["state"]["content_id"]


async def test_what_a_rollback_left_is_no_turn_before_it(running: Running) -> None:
    await begin(running)
    await turn(running)
    url = "/v1/sessions/talk/rollback"
    status, answer = await ask(running, "POST", url, {"position": 1})
    assert status == 200, answer
    assert answer["state"]["parents"] == ["", "talk@2"]
    status, answer = await ask(running, "POST", url)
    assert (status, answer["error"]["code"]) == (409, "no_turn")


async def test_a_session_is_saved_as_a_state_that_stays(running: Running) -> None:
    await begin(running)
    await turn(running)
    status, state = await ask(running, "POST", "/v1/sessions/talk/save", {"name": "kept"})
    assert status == 201
    await turn(running)
    assert (await ask(running, "GET", "/v1/states/kept"))[1]["content_id"] == state["content_id"]
    assert (await turn(running, "kept"))["token_ids"] == fake_continuation([1, 2, 3], 8, 256)[4:]


async def test_a_session_is_deleted(running: Running) -> None:
    await begin(running)
    status, answer = await ask(running, "DELETE", "/v1/sessions/talk")
    assert (status, answer["session"]) == (200, "talk")
    assert (await ask(running, "GET", "/v1/sessions/talk"))[0] == 404


async def test_every_answer_that_is_the_session_tells_its_last_turn(running: Running) -> None:
    made = await begin(running)
    assert made["turn"] is None
    assert (await ask(running, "GET", "/v1/sessions/talk"))[1] == made
    last = (await turn(running))["turn"]
    for method, path, body in (
        ("GET", "", None),
        ("POST", "/append", {"ids": [4]}),
        ("POST", "/interrupt", None),
        ("POST", "/rollback", {"version": 1}),
        ("GET", "", None),
    ):
        status, session = await ask(running, method, f"/v1/sessions/talk{path}", body)
        assert (status, session["object"]) == (200, "session")
        assert (session["turn"]["id"], session["turn"]["status"]) == (last, "done"), path


@pytest.mark.parametrize("how", ["create", "fork"])
async def test_a_new_session_has_no_turn_of_the_one_that_had_its_name(
    running: Running, how: str
) -> None:
    await begin(running, "other")
    await begin(running)
    await turn(running)
    # As a state it is deleted as well, without a word to the sessions.
    await ask(running, "DELETE", "/v1/states/talk")
    if how == "create":
        made = await begin(running)
    else:
        forks = {"names": ["talk"]}
        made = (await ask(running, "POST", "/v1/sessions/other/fork", forks))[1]["data"][0]
    assert made["turn"] is None
    assert (await ask(running, "GET", "/v1/sessions/talk"))[1]["turn"] is None
    status, answer = await ask(running, "GET", "/v1/sessions/talk/events")
    assert (status, answer["error"]["code"]) == (410, "events_gone")


@pytest.mark.parametrize("what", ["sessions", "states"])
async def test_the_turn_of_a_deleted_session_is_forgotten(running: Running, what: str) -> None:
    await begin(running)
    await turn(running)
    await ask(running, "DELETE", f"/v1/{what}/talk")
    assert (await ask(running, "GET", "/v1/sessions/talk/events"))[0] == 404


async def test_a_session_outlives_the_server(tmp_path: Path) -> None:
    expected = fake_continuation([1, 2, 3], 8, 256)
    async with states_running(tmp_path) as running:
        await begin(running)
        await turn(running)
    async with states_running(tmp_path) as running:
        assert (await turn(running))["token_ids"] == expected[4:]


async def test_each_tenant_has_sessions_of_its_own(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        body = {"name": "talk", "ids": [1, 2, 3]}
        for headers in (ANNA, BERT):
            assert (await ask(running, "POST", "/v1/sessions", body, **headers))[0] == 201
        url = "/v1/sessions/talk/generate"
        await ask(running, "POST", url, {**GREEDY, "max_tokens": 2}, **ANNA)
        _, anna = await ask(running, "GET", "/v1/sessions/talk", **ANNA)
        _, bert = await ask(running, "GET", "/v1/sessions/talk", **BERT)
        assert (anna["state"]["version"], anna["turn"]["status"]) == (2, "done")
        assert (bert["state"]["version"], bert["turn"]) == (1, None)
        assert (await ask(running, "GET", "/v1/sessions/talk/events", **BERT))[0] == 410
