"""The end of a WebSocket: its client leaves or does not read, it grows old, the server drains."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import TIMEOUT_S, Running, until_stats
from tests.gateway.raw import upgraded
from tests.gateway.responses.sockets import Peer, joined, n_states, of_error, serving
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.responses.websocket import handler, session

LONG = 10**6


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path) as running:
        yield running


async def until_live(running: Running, n: int) -> None:
    """Wait until the engine has so many requests: what nobody reads may have lost its slot."""
    client = await running.gateway.engines.own()
    async with asyncio.timeout(TIMEOUT_S):
        stats = await client.stats()
        while stats["n_running"] + stats["n_queued"] != n:
            await asyncio.sleep(0.001)
            stats = await client.stats()


@pytest.mark.parametrize(
    "leave",
    [
        lambda peer: peer.socket.close(),
        lambda peer: asyncio.sleep(0, peer.socket._response.close()),
    ],
    ids=["closes", "vanishes"],
)
async def test_the_responses_of_a_client_that_is_gone_are_cancelled(
    running: Running, leave: Callable[[Peer], Any]
) -> None:
    async with joined(running) as peer:
        await peer.made()
        stored = dict[str, Any]()
        for name in ("a", "b"):
            await peer.say(
                stream_id=name, max_output_tokens=LONG, ignore_eos=True, store=name == "a"
            )
            stored[name] = await peer.until("response.created", lane=name)
        await until_live(running, 2)
        n_asked = len(running.gateway.held)
        await peer.say(stream_id="a")  # waits, and is never made
        while len(running.gateway.held) == n_asked:
            await n_states(running)
        await leave(peer)
        await until_live(running, 0)
    async with asyncio.timeout(TIMEOUT_S):
        await running.gateway.responses.over()
    assert await n_states(running) == 0
    assert len(running.gateway.held) == 0
    async with running.http.get(f"/v1/responses/{stored['a']['response']['id']}") as answer:
        assert (await answer.json())["status"] == "cancelled"


@pytest.mark.timed(0.2)
async def test_who_does_not_read_is_held_up_and_then_cut_off(tmp_path: Path) -> None:
    config = GatewayConfig(write_timeout_s=0.2)
    async with serving(tmp_path, config=config) as running:
        reader, writer = await upgraded(running.path, "/v1/responses", limit=1)
        for lane in "abcd":
            body = (
                '{"type":"response.create","model":"fake","input":"x","store":false,'
                f'"max_output_tokens":{LONG},"ignore_eos":true,"top_logprobs":20,"stream_id":"{lane}"}}'
            )
            writer.write(frame(body.encode()))
        await until_stats(running, n_running=4)
        await until_stats(running, n_running=0)
        assert len(running.gateway.held) == 0
        writer.close()
        del reader


def frame(payload: bytes) -> bytes:
    """A frame of text of a client, with a mask of zeros."""
    assert 126 <= len(payload) < 2**16
    return b"\x81\xfe" + len(payload).to_bytes(2) + bytes(4) + payload


@pytest.mark.timed(0.1)
async def test_a_client_that_answers_no_ping_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "PING_INTERVAL_S", 0.05)
    async with serving(tmp_path) as running:
        reader, writer = await upgraded(running.path, "/v1/responses")
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readexactly(2))[0] == 0x89
            await reader.read()
        writer.close()
        assert running.door.n_requests == 0


# --- age --------------------------------------------------------------------------------------


@pytest.mark.timed(0.1)
async def test_a_connection_grows_old(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_AGE_S", 0.05)
    async with joined(running) as peer:
        old = (400, "websocket_connection_limit_reached", None)
        assert of_error(await peer.hear()) == old
        assert await peer.closed() == 1001


@pytest.mark.timed(0.1)
async def test_what_is_being_made_ends_before_a_connection_that_is_too_old(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_AGE_S", 0.05)
    async with joined(running) as peer:
        await peer.say(stream_id="a", max_output_tokens=2000)
        await peer.until("error")
        await peer.say(stream_id="b")
        refused = await peer.until("error", lane="b")
        assert of_error(refused)[1] == "websocket_connection_limit_reached"
        assert (await peer.end("a"))["type"] == "response.incomplete"
        assert await peer.closed() == 1001


@pytest.mark.timed(0.2)
async def test_an_old_connection_is_not_kept_by_what_never_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_AGE_S", 0.05)
    monkeypatch.setattr(session, "LAST_S", 0.05)
    async with joined(running) as peer:
        await peer.say(max_output_tokens=LONG, ignore_eos=True)
        assert await peer.closed() == 1001
        await until_stats(running, n_running=0)


# --- drains -----------------------------------------------------------------------------------


async def test_a_drain_closes_who_asks_for_nothing(running: Running) -> None:
    async with joined(running) as peer:
        await peer.made()
        running.door.begin_drain()
        assert await peer.closed() == 1012


async def test_a_drain_lets_responses_end(running: Running) -> None:
    async with joined(running) as peer:
        await peer.say(stream_id="a", max_output_tokens=2000)
        await peer.until("response.created", lane="a")
        running.door.begin_drain()
        await peer.say(stream_id="b")
        refused = await peer.until("error", lane="b")
        assert of_error(refused) == (503, "draining", None)
        assert (await peer.end("a"))["type"] == "response.incomplete"
        assert await peer.closed() == 1012


async def test_the_end_of_the_server_ends_responses(running: Running) -> None:
    async with joined(running) as peer:
        await peer.say(max_output_tokens=LONG, ignore_eos=True)
        await peer.until("response.created")
        closing = asyncio.create_task(running.door.close())
        event = await peer.end()
        assert event["type"] == "response.failed"
        assert await peer.closed() == 1012
        await closing


async def test_while_the_server_drains_nobody_joins(running: Running) -> None:
    running.gateway.begin_drain()
    async with running.http.get("/v1/responses") as response:
        assert response.status == 503
