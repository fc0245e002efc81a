"""Peers that are slow, silent or stuck, over real sockets.

Limits are those of the defaults divided by a hundred or so. When exactly each of them strikes
is tested in ``test_clocks``, without a wait.
"""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Ping, Stats

from tests.server.fountain import Fountain
from tests.server.harness import (
    TIMEOUT_S,
    RawClient,
    frame,
    local_config,
    rss_bytes,
    serving,
    tcp_config,
    until,
)
from wkvm.core.config import ServerConfig

MIB = 2**20


@pytest.mark.timed(0.05)
async def test_a_client_that_does_not_say_hello_is_closed() -> None:
    async with serving(tcp_config(auth_timeout_s=0.05)) as rig:
        client = await rig.connect()
        assert (await client.error()).code == ErrorCode.AUTH_TIMEOUT
        await rig.assert_alive()


async def test_300_half_frames_are_all_closed_and_nobody_else_notices() -> None:
    async with serving(tcp_config(frame_timeout_s=0.2)) as rig:
        clients = [await rig.client() for _ in range(300)]
        before = rss_bytes()
        for client in clients:
            client.write(frame(b"\x93\x10", 1000))
        while rig.server.n_connections > 1:
            await rig.assert_alive()
        for client in clients:
            assert (await client.error()).code == ErrorCode.FRAME_TIMEOUT
        assert rss_bytes() - before < 16 * MIB
        await rig.assert_idle(n_connections=1)
        await rig.assert_alive()


@pytest.mark.timed(0.03)
async def test_a_silent_peer_is_pinged_and_given_up() -> None:
    config = tcp_config(ping_interval_s=0.03, max_missed_pings=2, idle_timeout_s=3600)
    async with serving(config, control_key=None) as rig:
        client = await rig.client()
        assert await client.next() == Ping(1)
        assert await client.next() == Ping(2)
        assert (await client.error()).code == ErrorCode.IDLE_TIMEOUT


# --- output that nobody reads -------------------------------------------------------------


def flood(client: RawClient, n: int = 8) -> None:
    """Ask for more than any buffer holds: about 1,600 bytes a step."""
    client.start(n=n, max_tokens=10**6, logprobs=20)


def stop_reading(client: RawClient) -> None:
    transport: Any = client.writer.transport
    transport.pause_reading()


def read_on(client: RawClient) -> None:
    transport: Any = client.writer.transport
    transport.resume_reading()


async def test_30_stalled_readers_cost_bounded_memory_and_are_cut_off(tmp_path: Path) -> None:
    fountain = Fountain()
    config = local_config(str(tmp_path), write_timeout_s=0.5, max_output_bytes=MIB // 4)
    async with serving(config, engine=fountain) as rig:
        assert rig.control is not None
        clients = [await rig.client() for _ in range(30)]
        gc.collect()
        before, peak = rss_bytes(), 0
        for client in clients:
            stop_reading(client)
            flood(client)
        # each has to be stalled, not only most: every one is held before it is cut off
        await until(lambda: fountain.n_holds == 30 * 8)
        async with asyncio.timeout(TIMEOUT_S):
            while rig.server.n_requests:
                # those that read are served meanwhile
                assert (await rig.control.generate(max_tokens=2)).ends
                peak = max(peak, rss_bytes() - before)
        assert fountain.n_holds == 30 * 8
        # 64 KiB each in the server, as much here, and what the allocator makes of it
        assert peak < 32 * MIB
        await rig.assert_idle(n_connections=1)
        for client in clients:
            read_on(client)
            while await client.next() is not None:
                pass  # what was sent before, then the end


async def test_a_reader_that_catches_up_gets_every_id(tmp_path: Path) -> None:
    fountain = Fountain()
    config = local_config(str(tmp_path), max_output_bytes=64 * 1024)
    async with serving(config, engine=fountain) as rig:
        client = await rig.client()
        stop_reading(client)
        lane = client.start(max_tokens=5000, logprobs=20)
        await until(lambda: fountain.n_holds == 1)
        assert rig.server.n_requests == 1
        read_on(client)
        answer = await client.answer(lane)
        assert len(answer.ids[0]) == len(answer.logprobs) == answer.ends[0].n_output == 5000


async def test_answers_are_not_piled_up_for_one_who_only_asks(tmp_path: Path) -> None:
    config = local_config(str(tmp_path), max_output_bytes=64 * 1024)
    async with serving(config) as rig:
        client = await rig.client()
        stop_reading(client)
        before = rss_bytes()
        for number in range(1000):
            # 50,000 answers of about 400 bytes, and few of them to one read
            ids = [client.wire.new_request_id() for _ in range(50)]
            client.write(b"".join(client.wire.send(Stats(one)) for one in ids))
            await asyncio.sleep(0)
            if number % 50 == 0:
                await rig.assert_alive()
        assert rss_bytes() - before < 12 * MIB
        client.abort()
        await rig.assert_idle(n_connections=1)


def test_the_defaults_are_those_that_are_documented() -> None:
    config = ServerConfig()
    assert (config.auth_timeout_s, config.frame_timeout_s, config.idle_timeout_s) == (5, 10, 75)
    assert (config.ping_interval_s, config.max_missed_pings) == (15, 2)
    assert (config.max_output_bytes, config.write_timeout_s) == (MIB, 10)
    assert (config.max_connections, config.max_connections_per_tenant) == (10_240, 1024)
    assert (config.max_lanes, config.max_frame_bytes) == (1024, MIB)
    assert config.drain_timeout_s == 30
