"""Server-sent events: their form, errors in them, and readers that do not read."""

import asyncio
import json
import socket
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.harness import Running, gateway_running
from wkvm.gateway.calls import Call, Route
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.failures import HttpError
from wkvm.gateway.streams.sse import DONE, EventStream

ERROR = HttpError(429, "full", "rate_limit_error", code="overloaded", retry_after_s=1)


async def two_events(call: Call) -> web.StreamResponse:
    async with EventStream(call) as events:
        await events.send(b'{"n":1}')
        await events.send(b'{"n":2}', b'{"n":3}')
        await events.send_raw(b"")
        await events.finish(DONE)
    return events.response


async def fails_at_once(call: Call) -> web.StreamResponse:
    async with EventStream(call) as events:
        raise ERROR
    return events.response


async def fails_later(call: Call) -> web.StreamResponse:
    async with EventStream(call) as events:
        await events.send(b'{"n":1}')
        raise ERROR
    return events.response


async def has_a_bug(call: Call) -> web.StreamResponse:
    async with EventStream(call) as events:
        await events.send(b'{"n":1}')
        raise KeyError("secret")
    return events.response


ROUTES = [
    Route("GET", f"/{handler.__name__}", handler)
    for handler in (two_events, fails_at_once, fails_later, has_a_bug)
]


async def get(running: Running, path: str) -> tuple[int, str, Any]:
    async with running.http.get(path, headers={"X-Request-Id": "mine"}) as response:
        return response.status, await response.text(), response.headers


async def test_events_are_framed_and_proxies_asked_to_pass_them_on() -> None:
    async with gateway_running(routes=ROUTES) as running:
        status, text, headers = await get(running, "/two_events")
        assert status == 200
        assert text == 'data: {"n":1}\n\ndata: {"n":2}\n\ndata: {"n":3}\n\ndata: [DONE]\n\n'
        assert headers["Content-Type"].startswith("text/event-stream")
        assert headers["Cache-Control"] == "no-cache"
        assert headers["X-Accel-Buffering"] == "no"
        assert headers["X-Request-Id"] == "mine"


async def test_a_connection_is_used_again_after_a_stream() -> None:
    async with gateway_running(routes=ROUTES) as running:
        for _ in range(3):
            assert (await get(running, "/two_events"))[0] == 200
        assert running.http.connector is not None
        assert len(running.http.connector._conns) == 1


async def test_a_client_of_http_1_0_gets_events_without_chunks() -> None:
    async with gateway_running(routes=ROUTES) as running:
        reader, writer = await asyncio.open_unix_connection(str(running.path))
        writer.write(b"GET /two_events HTTP/1.0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body.startswith(b'data: {"n":1}\n\ndata: {"n":2}')
        writer.close()
        await writer.wait_closed()


async def test_what_fails_before_the_first_event_is_an_ordinary_error() -> None:
    async with gateway_running(routes=ROUTES) as running:
        status, text, headers = await get(running, "/fails_at_once")
        assert (status, headers["Retry-After"]) == (429, "1")
        assert json.loads(text)["error"]["code"] == "overloaded"


async def test_what_fails_later_is_an_event_with_openais_error_and_the_stream_ends() -> None:
    async with gateway_running(routes=ROUTES) as running:
        status, text, _ = await get(running, "/fails_later")
        first, error, rest = text.split("\n\n")
        assert (status, first, rest) == (200, 'data: {"n":1}', "")
        assert json.loads(error.removeprefix("data: ")) == {
            "error": {
                "message": "full",
                "type": "rate_limit_error",
                "param": None,
                "code": "overloaded",
            }
        }


async def test_a_bug_in_a_stream_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_running(routes=ROUTES) as running:
        _, text, _ = await get(running, "/has_a_bug")
        assert "secret" not in text
        assert (
            "mine" in json.loads(text.split("\n\n")[1].removeprefix("data: "))["error"]["message"]
        )
        assert "KeyError: 'secret'" in caplog.text


@pytest.mark.timed(0.2)
async def test_a_reader_that_stalls_costs_bounded_memory_and_loses_its_connection() -> None:
    n_sent, is_over = 0, asyncio.Event()
    event = b'{"x":"' + b"x" * 4096 + b'"}'

    async def endless(call: Call) -> web.StreamResponse:
        nonlocal n_sent
        events = EventStream(call)
        try:
            async with events:
                while n_sent < 4096:
                    await events.send(event)
                    n_sent += 1
        finally:
            is_over.set()
        return events.response

    config = GatewayConfig(write_timeout_s=0.2)
    routes = [*ROUTES, Route("GET", "/endless", endless)]
    async with gateway_running(routes=routes, config=config) as running:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(str(running.path))
            sock.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            # Others are served meanwhile.
            assert (await get(running, "/two_events"))[0] == 200
            await asyncio.wait_for(is_over.wait(), 60)
    assert n_sent * len(event) < 2**20
