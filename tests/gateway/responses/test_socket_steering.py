"""Input that is put in while a response is being made."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import Running
from tests.gateway.responses.sockets import (
    Peer,
    joined,
    n_cached,
    n_read,
    of_error,
    serving,
    text_of,
)
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.gateway.responses.websocket import steering

LENGTH = 400
"""Letters of an answer that is long enough to be steered."""
WAIT = {"type": "function", "name": "wait", "parameters": {"type": "object", "properties": {}}}


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def peer(running: Running) -> AsyncIterator[Peer]:
    async with joined(running) as peer:
        yield peer


async def begun(peer: Peer, **fields: Any) -> str:
    """The name of a response that is being made."""
    await peer.say(**{"max_output_tokens": LENGTH} | fields)
    created = await peer.until("response.created", lane=fields.get("stream_id"))
    name: str = created["response"]["id"]
    return name


async def failure(peer: Peer, response_id: str, given: Any, **fields: Any) -> str:
    """The code with which steering has to fail."""
    await peer.steer(response_id, given, **fields)
    event = await peer.until("response.steer.failed")
    assert event["steer"] == {"previous_response_id": response_id, "input": given}
    assert event["error"]["type"] == "invalid_request_error"
    code: str = event["error"]["code"]
    return code


async def test_what_is_put_in_is_answered_after_the_answer(peer: Peer) -> None:
    name = await begun(peer, stream_id="a")
    await peer.steer(name, "And?")
    accepted = await peer.until("response.steer.accepted", lane="a")
    assert accepted["steer"]["previous_response_id"] == name
    first = (await peer.end("a"))["response"]
    after = (await peer.until("response.created", lane="a"))["response"]
    assert (after["previous_response_id"], after["max_output_tokens"]) == (name, LENGTH)
    second = (await peer.end("a"))["response"]
    assert n_cached(second) == n_read(first)
    asked = await peer.made(previous_response_id=name, input="And?", max_output_tokens=LENGTH)
    assert text_of(asked) == text_of(second)


async def test_events_of_steering_are_numbered_among_those_of_the_response(peer: Peer) -> None:
    name = await begun(peer)
    await peer.steer(name, "And?")
    await peer.end()
    assert [one["sequence_number"] for one in peer.heard] == list(range(len(peer.heard)))


async def test_several_inputs_come_in_their_order(peer: Peer) -> None:
    name = await begun(peer)
    parts = [{"type": "input_text", "text": "two"}]
    await peer.steer(name, "one")
    await peer.steer(name, [{"type": "message", "role": "user", "content": parts}])
    await peer.end()
    second = (await peer.end())["response"]
    both = [{"role": "user", "content": word} for word in ("one", "two")]
    asked = await peer.made(previous_response_id=name, input=both, max_output_tokens=LENGTH)
    assert text_of(asked) == text_of(second)


async def test_what_is_put_in_goes_before_what_waits_in_the_lane(peer: Peer) -> None:
    name = await begun(peer)
    await peer.say(max_output_tokens=3)
    await peer.steer(name, "And?")
    await peer.end()
    assert (await peer.end())["response"]["previous_response_id"] == name
    assert (await peer.end())["response"]["max_output_tokens"] == 3


async def test_what_comes_after_may_be_steered_again(peer: Peer) -> None:
    name = await begun(peer)
    await peer.steer(name, "And?")
    await peer.end()
    after = (await peer.until("response.created"))["response"]["id"]
    await peer.steer(after, "So?")
    await peer.end()
    assert (await peer.until("response.created"))["response"]["previous_response_id"] == after


async def test_a_stored_response_may_be_steered(peer: Peer, running: Running) -> None:
    name = await begun(peer, store=True)
    await peer.steer(name, "And?")
    await peer.end()
    after = (await peer.end())["response"]
    async with running.http.get(f"/v1/responses/{after['id']}/input_items") as answer:
        [item] = (await answer.json())["data"]
    assert item["content"] == [{"type": "input_text", "text": "And?"}]


# --- calls ------------------------------------------------------------------------------------


def constrained() -> Engine:
    from tests.gateway.stateful import TallModel

    grammars = GrammarCompiler([bytes((byte,)) for byte in range(256)], vocab_size=256)
    return Engine(TallModel(), EngineConfig(n_slots=8), grammars=grammars)


CALLS: dict[str, Any] = {
    "tools": [WAIT],
    "tool_choice": "required",
    "allowed_token_ids": ...,
    "ignore_eos": False,
}


async def test_input_waits_for_the_results_of_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, constrained()) as running, joined(running) as peer:
        name = await begun(peer, stream_id="a", **CALLS)
        await peer.steer(name, "And?")
        end = (await peer.until("response.completed", lane="a"))["response"]
        [call] = end["output"]
        pending = await peer.until("response.steer.pending", lane="a")
        assert pending["reason"] == "waiting_for_required_input"
        stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "wait"}
        assert pending["required_input"] == [stub]
        # another lane does not take it
        result = [{k: v for k, v in stub.items() if k != "name"} | {"output": "done"}]
        plain = await peer.made(stream_id="b", previous_response_id=name, input=result)
        answer = await peer.made(stream_id="a", previous_response_id=name, input=result)
        both = [{"role": "user", "content": "And?"}, *result]
        same = await peer.made(stream_id="a", previous_response_id=name, input=both)
        assert text_of(answer) == text_of(same) != text_of(plain)


async def test_input_that_cannot_be_committed_goes_back(tmp_path: Path) -> None:
    async with serving(tmp_path, constrained()) as running, joined(running) as peer:
        name = await begun(peer, **CALLS)
        await peer.steer(name, "And?")
        accepted = await peer.until("response.steer.accepted")
        await peer.until("response.steer.pending")
        await peer.say(previous_response_id=name, temperature=-1)
        of_error(await peer.until("error"))
        failed = await peer.until("response.steer.failed")
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"] == {**accepted["steer"], "input": "And?"}
    assert len(running.gateway.held) == 0


# --- refusals ---------------------------------------------------------------------------------


async def test_what_is_not_being_made_cannot_be_steered(peer: Peer) -> None:
    assert await failure(peer, "resp_none", "And?") == "response_not_found"
    done = await peer.made()
    assert await failure(peer, done["id"], "And?") == "response_already_completed"


async def test_a_response_of_another_connection_cannot_be_steered(
    running: Running, peer: Peer
) -> None:
    name = await begun(peer)
    async with joined(running) as other:
        assert await failure(other, name, "And?") == "response_not_found"


@pytest.mark.parametrize(
    "given",
    [
        [],
        7,
        [{"role": "assistant", "content": "x"}],
        [{"role": "user"}],
        [{"type": "function_call_output", "call_id": "x", "output": "y"}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
    ],
)
async def test_only_what_a_user_says_can_be_put_in(peer: Peer, given: Any) -> None:
    name = await begun(peer, max_output_tokens=10**6)
    assert await failure(peer, name, given) == "invalid_input"


async def test_the_response_says_which_lane(peer: Peer) -> None:
    name = await begun(peer, max_output_tokens=10**6)
    assert await failure(peer, name, "And?", stream_id="a") == "invalid_input"


async def test_a_response_of_a_conversation_cannot_be_steered(running: Running, peer: Peer) -> None:
    async with running.http.post("/v1/conversations", json={}) as answer:
        conversation = (await answer.json())["id"]
    name = await begun(peer, conversation=conversation, store=True, max_output_tokens=10**6)
    assert await failure(peer, name, "And?") == "steering_not_supported"


async def test_there_is_a_limit_on_what_is_put_in(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "MAX_STEERS", 2)
    name = await begun(peer, max_output_tokens=10**6)
    for _ in range(2):
        await peer.steer(name, "And?")
        await peer.until("response.steer.accepted")
    assert await failure(peer, name, "And?") == "too_many_pending_steers"


async def test_nothing_is_held_of_what_was_put_in(running: Running) -> None:
    async with joined(running) as peer:
        name = await begun(peer)
        await peer.steer(name, "And?")
        await peer.end()
        await peer.end()
        await peer.made()
        assert json.dumps(len(running.gateway.held)) == "0"
