"""Chats that go on from a state: only the new messages are sent, and nothing is fed twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from wkvm_client.aio_states import States
from wkvm_client.states import StateInfo

from tests.gateway.harness import Running
from tests.gateway.scripted import script_engine
from tests.gateway.stateful import TallModel, ask, make, states_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler

BOB = [{"role": "user", "content": "I am Bob."}]
WHO = [{"role": "user", "content": "Who?"}]


NONE: list[Any] = [[], None]
BOB_PROMPT = b"User: I am Bob.\n\nAssistant:"


def saying(text: bytes, prompt: bytes = BOB_PROMPT, eos_ids: tuple[int, ...] = ()) -> Engine:
    """An engine that says a text after prompts of that length, and then again."""
    turn = (len(prompt) - 1) % len(text)
    return script_engine(text[len(text) - turn :] + text[: len(text) - turn], eos_ids=eos_ids)


async def chat(running: Running, messages: Any, **body: Any) -> Any:
    """A chat that has to be answered, by a model that says a script."""
    asked = {"model": "fake", "messages": messages, "temperature": 0, **body}
    status, answer = await ask(running, "POST", "/v1/chat/completions", asked)
    assert status == 200, answer
    return answer


async def log_of(running: Running, name: str = "bob") -> bytes:
    """All that a state has absorbed or is about to, of up to 32 ids."""
    return bytes((await ask(running, "GET", f"/v1/states/{name}"))[1]["tail"])


async def test_the_next_turn_is_sent_alone_and_continues_the_text(tmp_path: Path) -> None:
    async with states_running(tmp_path, saying(b" Hello")) as running:
        first = await chat(running, BOB, max_tokens=6, save_as="bob")
        assert first["choices"][0]["message"]["content"] == "Hello"
        assert await log_of(running) == (BOB_PROMPT + b" Hello")[-32:]
        second = await chat(running, WHO, max_tokens=6, state="bob", save_as="bob")
        assert (await log_of(running))[:-6].endswith(b"o\n\nUser: Who?\n\nAssistant:")
        usage = second["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 32
        assert usage["prompt_tokens"] == 32 + len(b"\n\nUser: Who?\n\nAssistant:")


async def test_a_chat_after_a_stop_string_closes_the_answer_once(tmp_path: Path) -> None:
    """The template's stop string was generated, and is not in the state."""
    engine = saying(b" Hi.\n\nUser: I")
    async with states_running(tmp_path, engine) as running:
        answer = await chat(running, BOB, max_tokens=40, save_as="bob")
        assert answer["choices"][0]["message"]["content"] == "Hi."
        assert (await log_of(running)).endswith(b"Assistant: Hi.")
        await chat(running, WHO, max_tokens=1, state="bob", save_as="bob")
        assert (await log_of(running))[:-1].endswith(b" Hi.\n\nUser: Who?\n\nAssistant:")


async def test_a_stop_id_that_waits_is_fed_once_and_not_written_again(tmp_path: Path) -> None:
    """The stop id is the first character of what closes an answer."""
    engine = saying(b" Hi\n", eos_ids=(10,))
    async with states_running(tmp_path, engine) as running:
        answer = await chat(running, BOB, save_as="bob")
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["state"]["pending"] == [10]
        await chat(running, WHO, max_tokens=1, state="bob", save_as="bob")
        assert (await log_of(running))[:-1].endswith(b" Hi\n\nUser: Who?\n\nAssistant:")


async def test_a_state_of_messages_is_the_beginning_of_a_chat(tmp_path: Path) -> None:
    async with states_running(tmp_path, saying(b" Hello")) as running:
        await make(running, "kind", messages=[{"role": "system", "content": "Be."}])
        await chat(running, WHO, max_tokens=1, state="kind", save_as="kind")
        log = b"System: Be.\n\nUser: Who?\n\nAssistant:"
        assert (await log_of(running, "kind"))[:-1] == log[-31:]


async def test_without_messages_the_answer_goes_on(tmp_path: Path) -> None:
    async with states_running(tmp_path, saying(b" Hello, Bob.")) as running:
        await chat(running, BOB, max_tokens=6, save_as="bob")
        for messages in NONE:
            more = await chat(running, messages, max_tokens=5, state="bob@1")
            assert len(more["choices"][0]["message"]["content"]) == 5
        assert await log_of(running) == (BOB_PROMPT + b" Hello")[-32:]


async def test_the_bytes_of_a_chat_go_on_as_its_state_does(tmp_path: Path) -> None:
    async with states_running(tmp_path, saying(b" Hi\n", eos_ids=(10,))) as running:
        first = await chat(running, BOB, save_as="bob", return_state=True)
        by_name = await chat(running, WHO, state="bob", return_token_ids=True)
        by_bytes = await chat(
            running, WHO, state_bytes=first["state"]["bytes"], return_token_ids=True
        )
        assert by_bytes["prompt_token_ids"] == by_name["prompt_token_ids"]
        assert bytes(by_bytes["prompt_token_ids"]).startswith(b"\nUser: ")


async def test_a_turn_is_of_the_state_that_it_was_written_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever moves the state on between the two makes the turn a conflict, not another turn."""
    look = States.get

    async def look_and_lose(self: States, state: str) -> StateInfo:
        found = await look(self, state)
        await self.create("bob", [65], state="bob")
        return found

    async with states_running(tmp_path, saying(b" Hello")) as running:
        await chat(running, BOB, max_tokens=6, save_as="bob")
        monkeypatch.setattr(States, "get", look_and_lose)
        body = {"model": "fake", "messages": WHO, "state": "bob", "save_as": "bob"}
        status, answer = await ask(running, "POST", "/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (409, "stale_version")


async def test_a_streamed_chat_tells_its_state(tmp_path: Path) -> None:
    body = {"model": "fake", "messages": BOB, "max_tokens": 6, "save_as": "bob", "stream": True}
    async with (
        states_running(tmp_path, saying(b" Hello")) as running,
        running.http.post("/v1/chat/completions", json=body) as response,
    ):
        *found, done, _ = (await response.text()).split("\n\n")
        assert done == "data: [DONE]"
        last = json.loads(found[-1].removeprefix("data: "))
        assert (last["choices"], last["state"]["name"]) == ([], "bob")


async def test_messages_without_a_state_are_needed(tmp_path: Path) -> None:
    async with states_running(tmp_path) as running:
        for messages in NONE:
            body = {"model": "fake", "messages": messages}
            status, answer = await ask(running, "POST", "/v1/chat/completions", body)
            assert (status, answer["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("k", [1, 7, 15])
async def test_an_answer_in_json_goes_on_from_its_state(tmp_path: Path, k: int) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["north", "south"]}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    fields: dict[str, Any] = {"response_format": form, "temperature": 1}
    grammars = GrammarCompiler([bytes((one,)) for one in range(256)], vocab_size=256)
    engine = Engine(TallModel(), EngineConfig(n_slots=8), grammars=grammars)
    async with states_running(tmp_path, engine) as running:
        whole = await chat(running, BOB, seed=3, max_tokens=200, **fields)
        first = await chat(running, BOB, seed=3, max_tokens=k, save_as="bob", **fields)
        rest = await chat(running, None, state="bob", save_as="bob", max_tokens=200, **fields)
        texts = [one["choices"][0]["message"]["content"] for one in (whole, first, rest)]
    assert texts[0] == texts[1] + texts[2]
    assert set(json.loads(texts[0])) == {"a", "b"}
    assert rest["choices"][0]["finish_reason"] == "stop"
