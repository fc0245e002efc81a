"""Peers that are slow, silent or stuck: rows 5 and 6 of the threat table.

Limits are those of the defaults divided by a hundred or so; what is compared is the shape.
"""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Ping, Pong, Stats

from tests.server.fountain import Fountain
from tests.server.harness import (
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


async def seconds_to_end(client: RawClient) -> tuple[ErrorCode, float]:
    start = time.perf_counter()
    error = await client.error()
    return ErrorCode(error.code), time.perf_counter() - start


@pytest.mark.parametrize("sent", [b"", b"\x40", frame(b"\x97\x01\xa4wkvm", 60)])
async def test_a_client_that_does_not_say_hello_is_closed(sent: bytes) -> None:
    async with serving(tcp_config(auth_timeout_s=0.05, frame_timeout_s=5)) as rig:
        client = await rig.connect()
        client.write(sent)
        code, seconds = await seconds_to_end(client)
        assert code == ErrorCode.AUTH_TIMEOUT
        assert 0.03 < seconds < 1.0
        await rig.assert_alive()


async def test_a_hello_in_time_ends_that_deadline() -> None:
    async with serving(tcp_config(auth_timeout_s=0.03)) as rig:
        client = await rig.client()
        await asyncio.sleep(0.06)
        assert (await client.generate()).ends


async def test_300_half_frames_are_all_closed_in_time_and_nobody_else_notices() -> None:
    async with serving(tcp_config(frame_timeout_s=0.2)) as rig:
        clients = [await rig.client() for _ in range(300)]
        before, start = rss_bytes(), time.perf_counter()
        for client in clients:
            client.write(frame(b"\x93\x10", 1000))
        while time.perf_counter() - start < 0.15:
            await rig.assert_alive()
        for client in clients:
            assert (await client.error()).code == ErrorCode.FRAME_TIMEOUT
        assert 0.15 < time.perf_counter() - start < 2.2
        assert rss_bytes() - before < 16 * MIB
        await rig.assert_idle(n_connections=1)
        await rig.assert_alive()


async def test_a_frame_that_drips_is_not_given_more_time() -> None:
    async with serving(tcp_config(frame_timeout_s=0.1)) as rig:
        client = await rig.client()
        client.write(frame(b"", 1000))

        async def drip() -> None:
            while True:
                client.write(b"\x90")
                await asyncio.sleep(0.005)

        dripping = asyncio.create_task(drip())
        code, seconds = await seconds_to_end(client)
        dripping.cancel()
        assert code == ErrorCode.FRAME_TIMEOUT
        assert seconds < 1.0


async def test_each_frame_has_a_deadline_of_its_own() -> None:
    """A peer whose reads always end in mid-frame is served for longer than one deadline."""
    async with serving(tcp_config(frame_timeout_s=0.08)) as rig:
        client = await rig.client()
        ping = client.wire.send(Ping(1))
        client.write(ping[:2])
        for _ in range(8):
            client.write(ping[2:] + ping[:2])
            assert isinstance(await client.next(), Pong)
            await asyncio.sleep(0.02)
        client.write(ping[2:])
        assert isinstance(await client.next(), Pong)


async def test_a_silent_peer_is_pinged_and_given_up_after_two_misses() -> None:
    config = tcp_config(ping_interval_s=0.03, max_missed_pings=2, idle_timeout_s=5)
    async with serving(config, control_key=None) as rig:
        client = await rig.client()
        assert await client.next() == Ping(1)
        assert await client.next() == Ping(2)
        code, seconds = await seconds_to_end(client)
        assert code == ErrorCode.IDLE_TIMEOUT
        assert seconds < 1.0


async def test_a_peer_that_answers_pings_is_kept() -> None:
    config = tcp_config(ping_interval_s=0.02, max_missed_pings=20, idle_timeout_s=0.4)
    async with serving(config, control_key=None) as rig:
        client = await rig.client()
        for _ in range(25):
            ping = await client.next()
            assert isinstance(ping, Ping)
            client.send(Pong(ping.nonce))
        assert (await client.generate()).ends


async def test_without_pings_silence_has_its_own_limit() -> None:
    config = tcp_config(ping_interval_s=0, idle_timeout_s=0.05)
    async with serving(config, control_key=None) as rig:
        client = await rig.client()
        code, seconds = await seconds_to_end(client)
        assert code == ErrorCode.IDLE_TIMEOUT
        assert 0.03 < seconds < 1.0


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
        await until(lambda: rig.server.n_requests == 30 * 8)
        async with asyncio.timeout(15):
            while rig.server.n_requests:
                # those that read are served meanwhile
                assert (await rig.control.generate(max_tokens=2)).ends
                peak = max(peak, rss_bytes() - before)
        # each has to be stalled, not only most: every one was held before it was cut off
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
