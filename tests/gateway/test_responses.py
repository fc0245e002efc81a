"""Responses over HTTP: what they say, their events, what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from wkvm_protocol.messages import HelloOk

from tests.gateway.harness import ANNA, BERT, KEYS, Running
from tests.gateway.responding import (
    MODEL,
    ask_for,
    bundled_texts,
    events_of,
    refused,
    respond,
    stream,
    tales_running,
    text_of,
)
from tests.gateway.stateful import ask
from wkvm.gateway.door.limits import KeyLimits

SUN = "What is the sun?"
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"at": {"enum": ["sun", "moon"]}},
        "required": ["at"],
    },
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with tales_running(tmp_path_factory.mktemp("tales")) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_response_is_kept_as_it_was_answered(running: Running) -> None:
    made = await respond(running, SUN, metadata={"of": "tests"}, user="me")
    assert (made["status"], made["metadata"], made["user"]) == ("completed", {"of": "tests"}, "me")
    status, kept = await ask(running, "GET", f"/v1/responses/{made['id']}")
    assert status == 200
    assert kept == made


async def test_its_id_is_the_name_of_its_state(running: Running) -> None:
    made = await respond(running, SUN)
    assert made["state"] == {"name": made["id"], "version": 1, "ack": "durable"}
    status, state = await ask(running, "GET", f"/v1/states/{made['id']}")
    assert status == 200
    assert state["n_computed"] + state["n_pending"] == made["usage"]["total_tokens"] + 1


async def test_the_events_of_a_text_come_in_their_order(running: Running) -> None:
    events = await stream(running, SUN)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 0
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_what_is_streamed_adds_up_to_what_is_not(running: Running) -> None:
    whole, events = await respond(running, SUN), await stream(running, SUN)
    final = events[-1]["response"]
    text = "".join(event.get("delta", "") for event in events)
    assert text == text_of(whole) == text_of(final)
    for name in ("id", "created_at", "completed_at", "output", "state"):
        del whole[name], final[name]
    assert whole == final


async def test_an_answer_that_is_cut_off_is_incomplete(running: Running) -> None:
    events = await stream(running, SUN, max_output_tokens=3)
    last = events[-1]
    assert last["type"] == "response.incomplete"
    made = last["response"]
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["output"][0]["status"] == "incomplete"
    assert made["usage"]["output_tokens"] == 3


async def test_the_events_of_a_call_come_in_their_order(running: Running) -> None:
    events = await stream(running, SUN, tools=[LOOK], tool_choice="required", max_output_tokens=64)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("function_call_arguments.delta")
    assert kinds == [
        *("created", "in_progress", "output_item.added"),
        *["function_call_arguments.delta"] * deltas,
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    (call,) = events[-1]["response"]["output"]
    assert call["name"] == "look"
    assert "".join(event.get("delta", "") for event in events) == call["arguments"]
    assert call["arguments"] in ('{"at":"sun"}', '{"at":"moon"}')
    assert events[-1]["response"]["tools"][0]["parameters"] == LOOK["parameters"]


async def test_a_text_of_a_schema_is_of_it(running: Running) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"enum": ["sun"]}, "strict": True}
    made = await respond(running, SUN, text={"format": form})
    assert text_of(made) == '"sun"'
    assert made["text"]["format"]["schema"] == {"enum": ["sun"]}


async def test_log_probabilities_are_those_of_the_ids(running: Running) -> None:
    asked = {"top_logprobs": 2, "max_output_tokens": 4}
    whole = await respond(running, SUN, **asked)
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 4
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    events = await stream(running, SUN, **asked)
    told = [one for event in events if "delta" in event for one in event["logprobs"]]
    assert told == entries


async def test_ids_and_times_are_told_if_they_are_asked_for(running: Running) -> None:
    made = await respond(running, SUN, return_token_ids=True, return_metrics=True)
    texts = bundled_texts()
    assert made["prompt_token_ids"] == texts.template.encode(
        [{"role": "user", "content": SUN}], texts.tokenizer
    )
    assert len(made["token_ids"]) == made["usage"]["output_tokens"]
    assert texts.tokenizer.decode(made["token_ids"]).strip() == text_of(made)
    assert made["metrics"]["e2e_latency_ms"] > 0
    plain = await respond(running, SUN)
    assert not {"token_ids", "prompt_token_ids", "metrics"} & plain.keys()


async def test_an_event_has_as_many_tokens_as_were_asked_for(running: Running) -> None:
    asked = {"top_logprobs": 1, "max_output_tokens": 12, "ignore_eos": True}
    events = await stream(running, SUN, stream_interval=5, **asked)
    counts = [len(one["logprobs"]) for one in events if "delta" in one]
    assert sum(counts) == 12
    assert all(n >= 5 for n in counts[1:-1])
    assert text_of(events[-1]["response"]) == "".join(one.get("delta", "") for one in events)


async def test_the_items_of_an_input_are_listed_in_parts(running: Running) -> None:
    given = [{"role": "user", "content": f"{n}"} for n in range(5)]
    made = await respond(running, given, max_output_tokens=1)
    path = f"/v1/responses/{made['id']}/input_items"
    _, first = await ask(running, "GET", f"{path}?limit=2")
    assert [one["content"][0]["text"] for one in first["data"]] == ["4", "3"]
    assert first["has_more"]
    _, rest = await ask(running, "GET", f"{path}?limit=3&after={first['last_id']}")
    assert [one["content"][0]["text"] for one in rest["data"]] == ["2", "1", "0"]
    assert not rest["has_more"]
    _, forward = await ask(running, "GET", f"{path}?order=asc&after={rest['last_id']}")
    assert [one["content"][0]["text"] for one in forward["data"]] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("limit=0", 400, "limit"),
        ("limit=101", 400, "limit"),
        ("limit=x", 400, "limit"),
        ("order=up", 400, "order"),
        ("after=msg_none", 404, "after"),
    ],
)
async def test_a_part_that_is_none_is_refused(
    running: Running, query: str, status: int, field: str
) -> None:
    made = await respond(running, SUN, max_output_tokens=1)
    found, answer = await ask(running, "GET", f"/v1/responses/{made['id']}/input_items?{query}")
    assert (found, answer["error"]["param"]) == (status, field)


async def test_what_was_deleted_was_never_there(running: Running) -> None:
    made = await respond(running, SUN)
    path = f"/v1/responses/{made['id']}"
    status, answer = await ask(running, "DELETE", path)
    assert (status, answer) == (200, {"id": made["id"], "object": "response", "deleted": True})
    never = await ask(running, "GET", "/v1/responses/resp_never")
    for method, part in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, answer = await ask(running, method, path + part)
        assert (status, answer["error"]["code"]) == (404, "response_not_found")
        told = answer["error"]["message"].replace(made["id"], "resp_never")
        assert told == never[1]["error"]["message"]
    assert (await ask(running, "GET", f"/v1/states/{made['id']}"))[0] == 404


async def test_what_others_went_on_from_stays_a_part_of_them(running: Running) -> None:
    first = await respond(running, "My name is Tom.")
    second = await respond(running, "Why?", previous_response_id=first["id"])
    third = await respond(running, "And?", previous_response_id=second["id"])
    for one in (first, second):
        assert (await ask(running, "DELETE", f"/v1/responses/{one['id']}"))[0] == 200
    last = await respond(running, "So?", previous_response_id=third["id"])
    assert last["usage"]["input_tokens"] > third["usage"]["total_tokens"]


async def test_tokens_are_counted_as_they_are_read(running: Running) -> None:
    asked = {"instructions": "Be kind.", "tools": [LOOK]}
    made = await respond(running, SUN, max_output_tokens=1, **asked)
    status, counted = await ask(
        running, "POST", "/v1/responses/input_tokens", {"input": SUN, "model": MODEL, **asked}
    )
    assert status == 200
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": made["usage"]["input_tokens"],
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": ...}, "model"),
        ({"input": ...}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_never"}]}, "input[0].id"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [LOOK, LOOK]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"metadata": {"x" * 65: "y"}}, "metadata"),
        ({"metadata": {"x": "y" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"background": True, "store": False}, "background"),
        ({"state": "x"}, "state"),
        ({"save_as": "x"}, "save_as"),
        ({"n": 2}, "n"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"previous_response_id": "resp_never"}, "previous_response_id"),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, "conversation"),
        ({"truncation": "perhaps"}, "truncation"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_field(
    running: Running, body: dict[str, Any], field: str
) -> None:
    error = await refused(running, body.pop("input", SUN), **body)
    assert error["param"] == field


async def test_metadata_at_its_limits_is_taken(running: Running) -> None:
    metadata = {"x" * 62 + f"{n:02}": "y" * 512 for n in range(16)}
    made = await respond(running, SUN, metadata=metadata, max_output_tokens=1)
    assert made["metadata"] == metadata


async def test_another_model_is_not_found(running: Running) -> None:
    status, answer = await ask_for(running, SUN, model="other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_what_is_refused_is_not_kept(running: Running) -> None:
    before = await ask(running, "GET", "/v1/states?limit=256")
    error = await refused(running, SUN, temperature=-1, stream=True)
    assert error["param"] == "temperature"
    assert await ask(running, "GET", "/v1/states?limit=256") == before
    assert not running.gateway.responses.database.making


async def test_a_compaction_is_not_there(running: Running) -> None:
    status, answer = await ask(running, "POST", "/v1/responses/compact", {})
    assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_another_tenant_sees_nothing(tmp_path: Path) -> None:
    async with tales_running(tmp_path, keys=KEYS) as running:
        made = await respond(running, SUN, max_output_tokens=2, headers=ANNA)
        path = f"/v1/responses/{made['id']}"
        for method, part in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            theirs = await ask(running, method, path + part, **BERT)
            none = await ask(running, method, "/v1/responses/resp_never" + part, **BERT)
            assert theirs[0] == none[0] == 404
            message = theirs[1]["error"]["message"].replace(made["id"], "resp_never")
            assert message == none[1]["error"]["message"]
        item = made["output"][0]["id"]
        for given in ({"previous_response_id": made["id"]}, {"input": [{"id": item}]}):
            body = {"input": "Why?", **given}
            status, _ = await ask_for(running, body.pop("input"), **body, headers=BERT)
            assert status == 400
        assert (await ask(running, "GET", path, **ANNA))[0] == 200


async def test_a_note_stands_for_a_picture_where_that_is_allowed(tmp_path: Path) -> None:
    part = {"type": "input_image", "image_url": "data:,x"}
    async with tales_running(tmp_path, omit_media=True) as running:
        made = await respond(running, [{"role": "user", "content": [part]}], max_output_tokens=1)
        _, listed = await ask(running, "GET", f"/v1/responses/{made['id']}/input_items")
    assert "image was left out" in listed["data"][0]["content"][0]["text"]


async def test_a_conversation_that_is_too_long_loses_its_beginning(tmp_path: Path) -> None:
    said = [{"role": "user", "content": f"Tell me of the {word}."} for word in ("sun", "moon")]
    async with tales_running(tmp_path) as running:
        long = await respond(running, [{"role": "system", "content": "Be."}, *said * 20])
        n_tokens = long["usage"]["input_tokens"]
        assert n_tokens > 300
        running.gateway.engines._info = _limited(running, 100)
        cut = await respond(
            running, [{"role": "system", "content": "Be."}, *said * 20], truncation="auto"
        )
        assert 60 < cut["usage"]["input_tokens"] <= 76


def _limited(running: Running, max_model_len: int) -> HelloOk:
    return msgspec.structs.replace(running.gateway.engines.info, max_model_len=max_model_len)


async def test_events_of_what_was_not_in_the_background_are_not_there(running: Running) -> None:
    made = await respond(running, SUN, max_output_tokens=1)
    for query, field in (
        ("stream=true", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=perhaps", "stream"),
    ):
        status, answer = await ask(running, "GET", f"/v1/responses/{made['id']}?{query}")
        assert (status, answer["error"]["param"]) == (400, field)


async def test_a_stream_of_a_bad_body_is_no_stream(running: Running) -> None:
    async with running.http.post("/v1/responses", json={"stream": True}) as response:
        assert response.status == 400
        assert response.content_type == "application/json"


async def test_a_key_pays_for_the_tokens_of_a_response(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = list[int]()
    monkeypatch.setattr(KeyLimits, "spend", lambda _self, _key, n: spent.append(n))
    first = await respond(running, SUN, max_output_tokens=4)
    assert sum(spent) == first["usage"]["total_tokens"]
    spent.clear()
    second = await respond(running, "Why?", previous_response_id=first["id"], max_output_tokens=4)
    # what the state had read is not paid again; the id that was pending is no part of the prompt
    assert sum(spent) == second["usage"]["total_tokens"] - first["usage"]["total_tokens"]


async def test_events_are_named_by_their_types(running: Running) -> None:
    found = await events_of(
        running, "POST", "/v1/responses", {"model": MODEL, "input": SUN, "stream": True}
    )
    assert found
