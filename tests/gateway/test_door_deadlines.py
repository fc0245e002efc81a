"""Clients that are slow, silent or greedy: each loses its own connection, and nobody else's."""

import asyncio

import pytest
from aiohttp import web

from tests.gateway.harness import TIMEOUT_S, gateway_running
from tests.gateway.raw import GET, ROUTES, Spout, big, raw, until
from wkvm.gateway.calls import Call, Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.connection import Connection

SOON_S = 0.25
"""A deadline that passes soon, and yet not between two turns of the loop on a busy machine."""
pytestmark = pytest.mark.timed(SOON_S)
HALF = b"GET /ok HTTP/1.1\r\nHost: x\r\nX-A"
POST = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


async def test_a_connection_that_says_nothing_is_closed() -> None:
    config = GatewayConfig(header_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        assert await one.rest() == b""


@pytest.mark.parametrize("begun", [b"G", b"GET /ok HTTP/1.1\r\n", HALF])
async def test_headers_that_stop_are_answered_by_408_and_the_end(begun: bytes) -> None:
    config = GatewayConfig(header_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(begun)
        status, body = await one.answer()
        assert (status, b"header_timeout" in body) == (408, True)
        assert await one.rest() == b""


async def test_headers_that_trickle_in_gain_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, clocks = asyncio.Event(), list[asyncio.TimerHandle]()
    real = Connection.data_received

    def data_received(connection: Connection, data: bytes) -> None:
        real(connection, data)
        assert connection._header_clock is not None
        clocks.append(connection._header_clock)
        heard.set()

    monkeypatch.setattr(Connection, "data_received", data_received)
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        for part in (HALF, b"a", b"a", b"a"):
            heard.clear()
            one.send(part)
            async with asyncio.timeout(TIMEOUT_S):
                await heard.wait()
    assert len(clocks) == 4
    assert len(set(map(id, clocks))) == 1


async def test_the_next_request_of_a_connection_has_a_deadline_too() -> None:
    config = GatewayConfig(header_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET)
        assert (await one.answer())[0] == 200
        one.send(HALF)
        assert (await one.answer())[0] == 408
        assert await one.rest() == b""


async def test_half_a_request_sent_with_a_whole_one_is_given_up_as_well() -> None:
    config = GatewayConfig(keepalive_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET + HALF)
        assert (await one.answer())[0] == 200
        assert await one.rest() == b""


async def test_a_connection_may_be_idle_between_requests_for_its_time_alone() -> None:
    config = GatewayConfig(keepalive_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET)
        assert (await one.answer())[0] == 200
        assert await one.rest() == b""


async def test_an_idle_connection_has_no_deadline_for_headers() -> None:
    config = GatewayConfig(header_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(GET)
        assert (await one.answer())[0] == 200
        await asyncio.sleep(3 * SOON_S)
        one.send(GET)
        assert (await one.answer())[0] == 200


async def test_a_request_that_was_taken_may_last() -> None:
    async def slow(call: Call) -> web.StreamResponse:
        await asyncio.sleep(3 * SOON_S)
        return web.Response(text="done")

    config = GatewayConfig(
        header_timeout_s=SOON_S, keepalive_timeout_s=SOON_S, write_timeout_s=SOON_S
    )
    routes = [Route("GET", "/ok", slow, is_open=True)]
    async with gateway_running(config=config, routes=routes) as running, raw(running.path) as one:
        one.send(GET)
        assert await one.answer() == (200, b"done")


@pytest.mark.parametrize("sent", [b"", b'"abc'])
async def test_a_body_that_stops_is_answered_by_408_and_the_end(sent: bytes) -> None:
    config = GatewayConfig(body_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(POST + sent)
        status, body = await one.answer()
        assert (status, b"body_timeout" in body) == (408, True)
        assert await one.rest() == b""


async def test_a_body_that_nobody_reads_is_not_waited_for_long() -> None:
    async with gateway_running(routes=ROUTES) as running, raw(running.path) as one:
        one.send(b"POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        assert (await one.answer())[0] == 200
        assert await one.rest() == b""


async def test_a_body_after_its_answer_is_no_beginning_of_a_request() -> None:
    config = GatewayConfig(header_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(b"POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (await one.answer())[0] == 200
        one.send(b"abc")
        await asyncio.sleep(3 * SOON_S)
        one.send(GET)
        assert (await one.answer())[0] == 200


async def test_hundreds_of_half_requests_keep_nobody_else_waiting() -> None:
    config = GatewayConfig(header_timeout_s=2 * SOON_S, max_connections=1000)
    async with gateway_running(config=config, routes=ROUTES) as running:
        halves = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        for _ in range(200):
            halves.append(await asyncio.open_unix_connection(str(running.path)))
            halves[-1][1].write(HALF)
        async with running.http.get("/ok") as response:
            assert response.status == 200
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*(reader.read() for reader, _ in halves))
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
        for _, writer in halves:
            writer.close()


# --- clients that do not read ----------------------------------------------------------------


async def test_an_answer_that_is_not_read_loses_its_connection() -> None:
    config = GatewayConfig(write_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one.send(b"GET /big?n=8000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: running.door.n_requests == 1)
        await until(lambda: running.door.n_connections == 0)
        one.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await one.rest()) < 8_000_000


async def test_what_is_left_of_an_answer_keeps_no_closing_connection_open() -> None:
    # Of some of these the last bytes fit neither into the kernel's buffer nor over the transport's
    # limit, so that nothing but the end of the connection waits for the client.
    n_served = 0

    async def count(call: Call) -> web.StreamResponse:
        nonlocal n_served
        n_served += 1
        return await big(call)

    config = GatewayConfig(write_timeout_s=SOON_S)
    routes = [Route("GET", "/big", count, is_open=True)]
    async with gateway_running(config=config, routes=routes) as running:
        writers = list[asyncio.StreamWriter]()
        for n in range(100_000, 600_000, 25_000):
            _, writer = await asyncio.open_unix_connection(str(running.path))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /big?n=%d HTTP/1.0\r\nHost: x\r\n\r\n" % n)
            writers.append(writer)
        await until(lambda: n_served == len(writers))
        await until(lambda: running.door.n_connections == 0)
        for writer in writers:
            writer.transport.abort()


async def test_a_stream_that_is_not_read_is_cancelled_and_has_taken_little_memory() -> None:
    spout = Spout()
    config = GatewayConfig(write_timeout_s=SOON_S)
    async with (
        gateway_running(config=config, routes=[*ROUTES, spout.route]) as running,
        raw(running.path) as one,
    ):
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one.send(b"GET /spout HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            await spout.ended.wait()
        assert spout.n_written < 2**20
        async with running.http.get("/ok") as response:
            assert response.status == 200


async def test_who_reads_slowly_but_reads_gets_everything() -> None:
    n = 1_500_000
    config = GatewayConfig(write_timeout_s=SOON_S)
    async with gateway_running(config=config, routes=ROUTES) as running, raw(running.path) as one:
        one.send(b"GET /big?n=%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % n)
        n_read = 0
        while data := await one.reader.read(64 * 1024):
            n_read += len(data)
            await asyncio.sleep(SOON_S / 5)
        assert n_read > n


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    spout = Spout()
    async with gateway_running(routes=[spout.route]) as running:
        async with raw(running.path) as one:
            one.send(b"GET /spout HTTP/1.1\r\nHost: x\r\n\r\n")
            await one.reader.readexactly(100_000)
        async with asyncio.timeout(TIMEOUT_S):
            await spout.ended.wait()


async def test_a_client_that_leaves_cancels_a_handler_that_writes_nothing() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(call: Call) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("unreachable")

    async with gateway_running(routes=[Route("GET", "/ok", wait, is_open=True)]) as running:
        async with raw(running.path) as one, asyncio.timeout(TIMEOUT_S):
            one.send(GET)
            await begun.wait()
        async with asyncio.timeout(TIMEOUT_S):
            await ended.wait()


async def test_hundreds_of_connections_come_and_go_without_a_trace() -> None:
    async with gateway_running(routes=ROUTES) as running:
        n_tasks = len(asyncio.all_tasks())
        for _ in range(10):
            for data in (b"", HALF, GET, POST, b"\x00\x01", GET * 3):
                async with raw(running.path) as one:
                    one.send(data)
                    await asyncio.sleep(0)
        await until(lambda: running.door.n_connections == 0)
        await until(lambda: len(asyncio.all_tasks()) <= n_tasks)
