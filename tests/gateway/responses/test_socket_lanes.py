"""Lanes of a WebSocket: side by side, each in its order, forked from one another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.harness import TIMEOUT_S, Running, until_stats
from tests.gateway.responses.sockets import (
    FINAL,
    Peer,
    joined,
    n_cached,
    n_read,
    of_error,
    serving,
    text_of,
)
from wkvm.gateway.responses.websocket import lanes

LONG = 10**6
"""Letters of an answer that nobody waits for."""


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def peer(running: Running) -> AsyncIterator[Peer]:
    async with joined(running) as peer:
        yield peer


async def test_every_event_names_the_lane_of_its_response(peer: Peer) -> None:
    for name in ("a", "b", None):
        fields = {} if name is None else {"stream_id": name}
        await peer.say(**fields)
    for name in ("a", "b", None):
        while not any(one["type"] in FINAL and one.get("stream_id") == name for one in peer.heard):
            await peer.hear()
    ids = {
        name: {
            one["response"]["id"]
            for one in peer.heard
            if one.get("stream_id") == name and "response" in one
        }
        for name in ("a", "b", None)
    }
    assert all(len(found) == 1 for found in ids.values())
    assert len(set.union(*ids.values())) == 3


async def test_a_lane_does_not_wait_for_another(peer: Peer) -> None:
    await peer.say(stream_id="slow", max_output_tokens=LONG)
    await peer.until("response.output_text.delta", lane="slow")
    await peer.made(stream_id="quick")
    await peer.made()
    assert not any(one["type"] in FINAL and one.get("stream_id") == "slow" for one in peer.heard)


async def test_what_is_asked_for_in_a_lane_comes_in_its_order(peer: Peer) -> None:
    for n_tokens in (9, 3, 5):
        await peer.say(stream_id="a", max_output_tokens=n_tokens)
    for _ in range(3):
        await peer.end("a")
    asked = [one["response"]["max_output_tokens"] for one in peer.heard if "response" in one]
    assert asked == sorted(asked, key=[9, 3, 5].index)
    starts = [one["sequence_number"] for one in peer.heard].count(0)
    assert starts == 3


async def test_a_response_may_go_on_with_the_one_before_it_in_the_lane(peer: Peer) -> None:
    await peer.say(stream_id="a", max_output_tokens=400)
    created = await peer.until("response.created", lane="a")
    name = created["response"]["id"]
    await peer.say(stream_id="a", previous_response_id=name, input="And?")
    first, second = (await peer.end("a"))["response"], (await peer.end("a"))["response"]
    assert n_cached(second) == n_read(first)


async def test_a_new_lane_forks_a_response_of_another(peer: Peer) -> None:
    root = await peer.made(stream_id="main")
    words = ("left", "right", "left")
    for index, word in enumerate(words):
        await peer.say(stream_id=f"{index}", previous_response_id=root["id"], input=word)
    found = dict[str, str]()
    while len(found) < len(words):
        event = await peer.hear()
        if event["type"] in FINAL:
            response = event["response"]
            assert n_cached(response) == n_read(root)
            found[event["stream_id"]] = text_of(response)
    assert found["0"] == found["2"] != found["1"]
    again = await peer.made(stream_id="main", previous_response_id=root["id"], input="left")
    assert text_of(again) == found["0"]


async def test_an_error_in_a_lane_leaves_the_others(peer: Peer) -> None:
    await peer.say(stream_id="a", max_output_tokens=200)
    await peer.until("response.created", lane="a")
    for frame in ("{", '{"type": "x", "stream_id": "a"}', '{"type": "response.create"}'):
        await peer.socket.send_str(frame)
    await peer.say(stream_id="b", temperature=-1)
    errors = [await peer.until("error"), await peer.until("error", lane="a")]
    errors += [await peer.until("error"), await peer.until("error", lane="b")]
    assert {of_error(one)[0] for one in errors} == {400}
    assert (await peer.end("a"))["type"] == "response.incomplete"


async def test_there_is_a_limit_on_lanes(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_LANES", 2)
    for name in ("a", "b"):
        await peer.say(stream_id=name, max_output_tokens=LONG)
    await until_stats(running, n_running=2)
    assert await peer.refused(stream_id="c") == (429, "too_many_lanes", None)
    last = peer.heard[-1]
    assert last["error"]["headers"] == {"retry-after": "1"}
    async with joined(running) as other:
        await other.made(stream_id="c")


async def test_a_lane_that_is_done_with_makes_room(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_LANES", 1)
    for name in ("a", "b", "c"):
        await peer.made(stream_id=name)


async def test_there_is_a_limit_on_what_waits_in_a_lane(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_WAITING", 2)
    await peer.say(max_output_tokens=LONG)
    await until_stats(running, n_running=1)
    await peer.until("response.created")
    await peer.say()
    await peer.say()
    assert await peer.refused() == (429, "lane_full", None)
    await peer.made(stream_id="other")


async def test_a_refusal_takes_nothing_from_what_is_remembered(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await peer.made()
    monkeypatch.setattr(lanes, "MAX_LANES", 0)
    status, _, _ = await peer.refused(previous_response_id=first["id"])
    assert status == 429
    monkeypatch.setattr(lanes, "MAX_LANES", 1)
    await peer.made(previous_response_id=first["id"])


async def test_responses_of_many_lanes_are_made_side_by_side(running: Running, peer: Peer) -> None:
    for index in range(8):
        await peer.say(stream_id=f"{index}", max_output_tokens=LONG)
    async with asyncio.timeout(TIMEOUT_S):
        await until_stats(running, n_running=8)
