"""Turns of responses: what a model reads of a conversation, and how little of it is computed."""

from pathlib import Path
from typing import Any

import pytest
from wkvm_client.aio import Client

from tests.gateway.harness import Running, gateway_running
from tests.gateway.responding import (
    ask_for,
    bundled_texts,
    cached,
    respond,
    tales_running,
    text_of,
)
from tests.gateway.stateful import ask

SUN = "What is the sun?"
MOON = "And the moon?"


class Watch:
    """What the engine is asked, in the order in which it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts = list[list[int]]()
        self.states = list[str]()
        generate = Client.generate

        async def watched(client: Client, prompt: Any, **keywords: Any) -> Any:
            self.prompts.append(list(prompt))
            self.states.append(keywords.get("state", ""))
            return await generate(client, prompt, **keywords)

        monkeypatch.setattr(Client, "generate", watched)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def whole(*turns: tuple[str, str]) -> list[int]:
    """The ids of a conversation that is written whole; an answer is opened at its end."""
    texts = bundled_texts()
    messages = [{"role": role, "content": content} for role, content in turns]
    return texts.template.encode(messages, texts.tokenizer)


async def read_of(running: Running, response: Any) -> list[int]:
    """The last ids that a response's state has read, or will read first."""
    status, state = await ask(running, "GET", f"/v1/states/{response['id']}")
    assert status == 200
    tail: list[int] = state["tail"]
    return tail


async def test_a_turn_computes_its_new_tokens_alone(tmp_path: Path, watch: Watch) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        second = await respond(running, MOON, previous_response_id=first["id"])
    assert watch.prompts[0] == whole(("user", SUN))
    told = whole(("user", SUN), ("assistant", text_of(first)), ("user", MOON))
    assert watch.states == ["", f"{first['id']}@1"]
    assert told[-len(watch.prompts[1]) :] == watch.prompts[1]
    assert second["usage"]["input_tokens"] == len(told)
    # the id that ended the answer was sampled, and is read now
    assert cached(second) == len(told) - len(watch.prompts[1]) - 1


async def test_what_a_turn_reads_is_the_conversation_written_whole(
    tmp_path: Path, watch: Watch
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        second = await respond(running, MOON, previous_response_id=first["id"])
        told = whole(("user", SUN), ("assistant", text_of(first)), ("user", MOON))
        tail = await read_of(running, second)
    n_answer = second["usage"]["output_tokens"] + 1
    assert tail[:-n_answer] == told[len(told) - len(tail) + n_answer :]


async def test_an_answer_that_was_cut_off_goes_on_as_it_would_be_written(
    tmp_path: Path, watch: Watch
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, max_output_tokens=5)
        assert first["status"] == "incomplete"
        await respond(running, MOON, previous_response_id=first["id"])
    told = whole(("user", SUN), ("assistant", text_of(first)), ("user", MOON))
    assert watch.states[1]
    assert told[-len(watch.prompts[1]) :] == watch.prompts[1]


async def test_other_instructions_are_read_from_the_beginning(tmp_path: Path, watch: Watch) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, instructions="Be kind.")
        second = await respond(running, MOON, previous_response_id=first["id"])
        third = await respond(
            running, MOON, previous_response_id=first["id"], instructions="Be short."
        )
    said = ("assistant", text_of(first))
    assert watch.states == ["", "", ""]
    assert watch.prompts[1] == whole(("user", SUN), said, ("user", MOON))
    assert watch.prompts[2] == whole(("system", "Be short."), ("user", SUN), said, ("user", MOON))
    assert cached(second) == cached(third) == 0


async def test_the_same_instructions_go_on_from_the_state(tmp_path: Path, watch: Watch) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, instructions="Be kind.")
        second = await respond(
            running, MOON, previous_response_id=first["id"], instructions="Be kind."
        )
    assert watch.states[1] == f"{first['id']}@1"
    assert cached(second) > len(whole(("system", "Be kind."), ("user", SUN)))


async def test_both_ways_have_the_same_answer(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        by_state = await respond(running, MOON, previous_response_id=first["id"])
        await ask(running, "DELETE", f"/v1/states/{first['id']}")
        by_text = await respond(running, MOON, previous_response_id=first["id"])
        sent = [
            {"role": "user", "content": SUN},
            *first["output"],
            {"role": "user", "content": MOON},
        ]
        by_items = await respond(running, sent)
    assert text_of(by_state) == text_of(by_text) == text_of(by_items)
    assert cached(by_state) > 0 == cached(by_text)
    assert by_state["usage"]["input_tokens"] == by_text["usage"]["input_tokens"]


async def test_a_state_that_was_damaged_is_made_anew_from_the_items(
    tmp_path: Path, watch: Watch
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        await ask(running, "POST", f"/v1/states/{first['id']}/hibernate", {"tier": "disk"})
        (payload,) = (tmp_path / "states" / "payloads").iterdir()
        payload.write_bytes(payload.read_bytes()[:-1] + b"!")
        second = await respond(running, MOON, previous_response_id=first["id"])
    assert watch.states[1:] == [f"{first['id']}@1", ""]
    assert second["status"] == "completed"


async def test_two_go_on_from_one(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        ways = [
            await respond(running, text, previous_response_id=first["id"])
            for text in (MOON, "Why?")
        ]
        assert all(cached(way) > 0 for way in ways)
        again = await respond(running, "Why?", previous_response_id=first["id"])
    assert text_of(again) == text_of(ways[1])


async def test_forty_turns_compute_what_is_new(tmp_path: Path, watch: Watch) -> None:
    async with tales_running(tmp_path) as running:
        last = await respond(running, SUN, max_output_tokens=4)
        for _ in range(39):
            before = last
            last = await respond(
                running, MOON, previous_response_id=before["id"], max_output_tokens=4
            )
            assert cached(last) == before["usage"]["total_tokens"] - (
                before["status"] == "incomplete"
            )
    assert {len(prompt) for prompt in watch.prompts[1:]} <= {13, 14, 15}


async def test_tools_that_are_the_same_are_not_read_twice(tmp_path: Path, watch: Watch) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, tools=tools)
        same = await respond(running, MOON, previous_response_id=first["id"], tools=tools)
        none = await respond(running, MOON, previous_response_id=first["id"])
    assert cached(same) > 0 == cached(none)


async def test_a_response_that_is_not_stored_is_not_gone_on_from(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, store=False)
        assert "state" not in first
        status, answer = await ask_for(running, MOON, previous_response_id=first["id"])
        assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")
        assert answer["error"]["param"] == "previous_response_id"
        assert (await ask(running, "GET", f"/v1/responses/{first['id']}"))[0] == 404
        _, states = await ask(running, "GET", "/v1/states")
        assert states["data"] == []


async def test_a_response_that_is_not_stored_goes_on_from_one_that_is(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        second = await respond(running, MOON, previous_response_id=first["id"], store=False)
        assert cached(second) > 0


async def test_a_reference_stands_for_its_item(tmp_path: Path, watch: Watch) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        _, listed = await ask(running, "GET", f"/v1/responses/{first['id']}/input_items")
        references = [
            {"type": "item_reference", "id": listed["data"][0]["id"]},
            {"id": first["output"][0]["id"]},
        ]
        await respond(running, [*references, {"role": "user", "content": MOON}])
    assert watch.prompts[1] == whole(("user", SUN), ("assistant", text_of(first)), ("user", MOON))


async def test_without_states_a_turn_reads_everything() -> None:
    async with gateway_running() as running:
        body = {"model": "fake", "input": "Who?", "max_output_tokens": 4}
        status, first = await ask(running, "POST", "/v1/responses", body)
        assert status == 200
        assert "state" not in first
        body |= {"input": "Why?", "previous_response_id": first["id"]}
        status, second = await ask(running, "POST", "/v1/responses", body)
        assert status == 200
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        assert cached(second) == 0
