"""Responses over a WebSocket: one after the other, and what a connection remembers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.gateway.harness import ANNA, BERT, KEYS, TIMEOUT_S, Running, lose_engine
from tests.gateway.responses.sockets import (
    HELLO,
    NOT_FOUND,
    PATH,
    Peer,
    joined,
    n_cached,
    n_read,
    n_states,
    of_error,
    serving,
    text_of,
)
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.gateway.responses.websocket import handler, memory


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def peer(running: Running) -> AsyncIterator[Peer]:
    async with joined(running) as peer:
        yield peer


async def streamed(running: Running, **fields: Any) -> list[dict[str, Any]]:
    """The events of a response over HTTP."""
    body = {**HELLO, **fields, "stream": True}
    del body["type"]
    async with running.http.post(PATH, json=body) as response:
        text = await response.text()
    frames = [frame.split("data: ")[1] for frame in text.split("\n\n") if frame]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]


async def until_states(running: Running, n: int) -> None:
    """Wait until there are so many states."""
    async with asyncio.timeout(TIMEOUT_S):
        while await n_states(running) != n:
            pass


async def test_a_response_has_the_events_that_it_has_over_http(
    running: Running, peer: Peer
) -> None:
    response = await peer.made()
    over_http = await streamed(running)
    assert [event["type"] for event in peer.heard] == [event["type"] for event in over_http]
    assert [event["sequence_number"] for event in peer.heard] == list(range(len(over_http)))
    assert text_of(response) == text_of(over_http[-1]["response"])
    assert not any("stream_id" in event for event in peer.heard)


async def test_a_response_that_is_not_stored_is_gone_on_with(running: Running, peer: Peer) -> None:
    first = await peer.made()
    second = await peer.made(previous_response_id=first["id"], input="And?")
    whole = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "And?"},
    ]
    at_once = await peer.made(input=whole)
    assert text_of(second) == text_of(at_once)
    assert n_cached(second) == n_read(first)
    assert second["usage"]["input_tokens"] == at_once["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]


async def test_what_is_not_stored_is_of_its_connection_alone(running: Running, peer: Peer) -> None:
    first = await peer.made()
    async with running.http.get(f"{PATH}/{first['id']}") as answer:
        assert answer.status == 404
    async with joined(running) as other:
        assert await other.refused(previous_response_id=first["id"]) == NOT_FOUND


async def test_what_is_stored_outlives_its_connection(running: Running) -> None:
    async with joined(running) as peer:
        first = await peer.made(store=True)
    async with joined(running) as peer:
        second = await peer.made(previous_response_id=first["id"], input="And?")
    assert n_cached(second) == n_read(first)


async def test_a_chain_may_be_stored_in_part(running: Running, peer: Peer) -> None:
    first = await peer.made()
    second = await peer.made(previous_response_id=first["id"], input="And?")
    third = await peer.made(previous_response_id=second["id"], input="So?", store=True)
    assert n_cached(third) == n_read(second)
    fourth = await peer.made(previous_response_id=third["id"], input="Then?", store=True)
    assert n_cached(fourth) == n_read(third)


async def test_the_states_of_a_connection_are_gone_with_it(running: Running) -> None:
    async with joined(running) as peer:
        await peer.made()
        await peer.made()
        assert await n_states(running) == 2
    await until_states(running, 0)


async def test_what_was_used_last_is_remembered(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_RESPONSES", 2)
    one, two = await peer.made(), await peer.made()
    three = await peer.made(previous_response_id=one["id"])
    await until_states(running, 2)
    assert await peer.refused(previous_response_id=two["id"]) == NOT_FOUND
    await peer.made(previous_response_id=one["id"])
    assert await peer.refused(previous_response_id=three["id"]) == NOT_FOUND


async def test_what_is_too_large_is_not_remembered(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = await peer.made()
    monkeypatch.setattr(memory, "MAX_BYTES", 1000)
    large = await peer.made(input="x" * 1000)
    await until_states(running, 0)
    for gone in (small, large):
        assert await peer.refused(previous_response_id=gone["id"]) == NOT_FOUND


@pytest.mark.parametrize(
    "failing",
    [{"temperature": -1}, {"input": [{"type": "x"}]}, {"model": "other"}, {"input": 7}],
)
async def test_a_continuation_that_fails_takes_what_it_went_on_with(
    running: Running, peer: Peer, failing: dict[str, Any]
) -> None:
    first, other = await peer.made(), await peer.made()
    status, _, _ = await peer.refused(previous_response_id=first["id"], **failing)
    assert status in (400, 404)
    assert await peer.refused(previous_response_id=first["id"]) == NOT_FOUND
    await peer.made(previous_response_id=other["id"])


async def test_a_failed_continuation_leaves_what_is_stored(peer: Peer) -> None:
    first = await peer.made(store=True)
    await peer.refused(previous_response_id=first["id"], temperature=-1)
    await peer.made(previous_response_id=first["id"])


async def test_a_state_that_is_lost_is_read_anew(running: Running, peer: Peer) -> None:
    first = await peer.made()
    async with running.http.delete(f"/v1/states/{first['id']}") as answer:
        assert answer.status == 200
    second = await peer.made(previous_response_id=first["id"], input="And?")
    assert n_cached(second) == 0
    again = await peer.made()
    same = await peer.made(previous_response_id=again["id"], input="And?")
    assert text_of(same) == text_of(second)


# --- warming up -------------------------------------------------------------------------------


async def test_a_response_may_read_alone(running: Running, peer: Peer) -> None:
    warm = await peer.made(generate=False, instructions="Be kind.")
    assert (warm["status"], warm["output"]) == ("completed", [])
    assert warm["usage"]["output_tokens"] == 0
    answer = await peer.made(previous_response_id=warm["id"], instructions="Be kind.", input="And?")
    assert n_cached(answer) == warm["usage"]["input_tokens"] > 0
    whole = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "And?"}]
    cold = await peer.made(instructions="Be kind.", input=whole)
    assert text_of(answer) == text_of(cold)


async def test_what_was_read_may_be_answered(peer: Peer) -> None:
    warm = await peer.made(generate=False)
    answer = await peer.made(previous_response_id=warm["id"], input=...)
    assert n_cached(answer) == warm["usage"]["input_tokens"]
    assert text_of(answer) == text_of(await peer.made())


async def test_what_was_only_read_may_be_stored(running: Running) -> None:
    async with joined(running) as peer:
        warm = await peer.made(generate=False, store=True)
    async with joined(running) as peer:
        answer = await peer.made(previous_response_id=warm["id"], input="And?")
    assert n_cached(answer) == warm["usage"]["input_tokens"]


# --- who may come -----------------------------------------------------------------------------


async def test_what_is_no_upgrade_is_refused(running: Running) -> None:
    async with running.http.get(PATH) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "upgrade_missing"


async def test_an_upgrade_needs_a_key_and_an_origin(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=KEYS) as running:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({**ANNA, "Origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with joined(running, **headers):
                    pass
            assert caught.value.status == status


async def test_a_page_brings_its_key_by_a_subprotocol(tmp_path: Path) -> None:
    key = "wkvm.key." + "YWFhYWFhYWFhYWFhYWFhYWFhYWE"
    async with (
        serving(tmp_path, keys=KEYS) as running,
        joined(running, key, handler.PROTOCOL) as peer,
    ):
        assert peer.socket.protocol == handler.PROTOCOL
        await peer.made()


async def test_nobody_goes_on_with_what_is_anothers(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=KEYS) as running:
        async with joined(running, **ANNA) as peer:
            first = await peer.made(store=True)
            hidden = await peer.made()
        async with joined(running, **BERT) as peer:
            for name in (first["id"], hidden["id"], "resp_none"):
                assert await peer.refused(previous_response_id=name) == NOT_FOUND


# --- frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "status", "code", "param"),
    [
        ("{", 400, "invalid_event", None),
        ("[]", 400, "invalid_event", None),
        ("{}", 400, "invalid_event", "type"),
        ('{"type": 1}', 400, "invalid_event", "type"),
        ('{"type": "response.cancel"}', 400, "invalid_event", "type"),
        ('{"type": "response.create", "stream_id": ""}', 400, None, "stream_id"),
        ('{"type": "response.create", "stream_id": "%s"}' % ("x" * 129), 400, None, "stream_id"),
        ('{"type": "response.create", "stream_id": 1}', 400, "invalid_event", "stream_id"),
        ('{"type": "response.create"}', 400, None, "model"),
        ('{"type": "response.create", "model": "fake"}', 400, None, "input"),
        (
            '{"type": "response.create", "model": "x", "input": "x"}',
            404,
            "model_not_found",
            "model",
        ),
        ('{"type": "response.create", "background": true}', 400, None, "background"),
        ('{"type": "response.create", "input": 7}', 400, None, "input"),
        ('{"type": "response.steer"}', 400, None, "previous_response_id"),
    ],
)
async def test_a_bad_frame_is_answered_by_an_error(
    peer: Peer, frame: str, status: int, code: str | None, param: str | None
) -> None:
    await peer.socket.send_str(frame)
    assert of_error(await peer.hear()) == (status, code, param)
    await peer.made()


async def test_what_is_binary_is_no_event(peer: Peer) -> None:
    await peer.socket.send_bytes(json.dumps(HELLO).encode())
    assert of_error(await peer.hear()) == (400, "invalid_event", None)
    await peer.made()


async def test_an_error_says_of_which_lane_it_is(peer: Peer) -> None:
    await peer.say(stream_id="a", temperature=-1)
    event = await peer.hear()
    assert of_error(event) == (400, None, "temperature")
    assert event["stream_id"] == "a"


async def test_what_is_implied_may_be_said(peer: Peer) -> None:
    await peer.made(stream=True, background=False)


@pytest.mark.parametrize(("n_bytes", "is_taken"), [(2000, True), (2001, False)])
async def test_a_frame_has_the_limit_of_a_body(
    tmp_path: Path, n_bytes: int, is_taken: bool
) -> None:
    config = GatewayConfig(max_body_bytes=2000)
    async with serving(tmp_path, config=config) as running, joined(running) as peer:
        frame = json.dumps(HELLO | {"input": ""})
        await peer.socket.send_str(
            frame.replace('"input": "', '"input": "' + "x" * (n_bytes - len(frame)))
        )
        if is_taken:
            assert (await peer.end())["type"] == "response.incomplete"
        else:
            assert await peer.closed() == 1009


async def test_nothing_is_held_of_frames_that_are_done_with(running: Running) -> None:
    async with joined(running) as peer:
        first = await peer.made()
        await peer.refused(previous_response_id=first["id"], temperature=-1)
        await peer.made(stream_id="a")
    assert len(running.gateway.held) == 0


# --- limits and losses ------------------------------------------------------------------------


async def test_a_response_counts_for_its_key_and_a_refusal_takes_nothing(tmp_path: Path) -> None:
    config = GatewayConfig(limits=Limits(requests=2))
    async with (
        serving(tmp_path, config=config, keys=KEYS) as running,
        joined(running, **ANNA) as peer,
    ):
        await peer.made()
        first = await peer.made(stream_id="a")
        for _ in range(2):
            refused = await peer.refused(previous_response_id=first["id"])
            assert refused == (429, "rate_limit_exceeded", None)
        assert await n_states(running, ANNA) == 2
        async with joined(running, **BERT) as other:
            await other.made()


async def test_a_response_costs_its_key_its_tokens(tmp_path: Path) -> None:
    config = GatewayConfig(limits=Limits(tokens=20))
    async with (
        serving(tmp_path, config=config, keys=KEYS) as running,
        joined(running, **ANNA) as peer,
    ):
        await peer.made()
        assert (await peer.refused())[1] == "rate_limit_exceeded"


async def test_responses_of_one_key_at_once_are_limited_over_lanes(tmp_path: Path) -> None:
    config = GatewayConfig(limits=Limits(concurrent=1))
    async with (
        serving(tmp_path, config=config, keys=KEYS) as running,
        joined(running, **ANNA) as peer,
    ):
        await peer.say(stream_id="a", max_output_tokens=10**6)
        await peer.until("response.created", lane="a")
        assert (await peer.refused(stream_id="b"))[1] == "rate_limit_exceeded"


async def test_a_connection_outlives_the_engine(running: Running, peer: Peer) -> None:
    await peer.made()
    await lose_engine(running)
    assert await peer.refused() == (503, "engine_unavailable", None)
