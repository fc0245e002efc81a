"""A connection that breaks off within the request or within the answer, wherever."""

import json
import socket
import struct
from typing import Any

import pytest

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import MODEL, complete
from tests.gateway.raw import raw
from tests.gateway.test_disconnects import engine, nothing_left, tasks

BROKEN = struct.pack("ii", 1, 0)
"""For SO_LINGER: the peer sees the connection broken, not ended."""

STRIDE = 7
"""Bytes by which each answer is cut off later than the one before."""

MANY: dict[str, Any] = {"model": MODEL, "max_tokens": 10**7, "temperature": 1}
MESSAGES = [{"role": "user", "content": "x"}]
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", MANY | {"prompt": "x", "stream": True}),
    "chat": ("/v1/chat/completions", MANY | {"messages": MESSAGES, "stream": True}),
    "messages": ("/v1/messages", MANY | {"messages": MESSAGES, "stream": True}),
    "native": ("/v1/stream", MANY | {"ids": [1]}),
}


def request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        len(data),
        data,
    )


async def is_as_before(running: Running, before: dict[str, Any]) -> bool:
    """Whether a request is answered as one was that came first."""
    answer = await complete(running, prompt="x", max_tokens=8, temperature=0)
    return bool(answer["choices"] == before["choices"] and answer["usage"] == before["usage"])


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "broken"])
async def test_a_request_that_is_cut_off_after_any_byte_leaves_nothing(ends: bool) -> None:
    whole = request(*ROUTES["completions"])
    async with gateway_running(engine()) as running:
        first = await complete(running, prompt="x", max_tokens=8, temperature=0)
        before = tasks()
        for n_bytes in range(len(whole)):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(running.path))
                sock.sendall(whole[:n_bytes])
                if not ends:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BROKEN)
        await nothing_left(running, before)
        assert await is_as_before(running, first)
        assert running.engine_loop.stats()["requests_total"] == 2


@pytest.mark.parametrize("route", ROUTES)
async def test_a_stream_that_is_cut_off_anywhere_frees_its_slot(route: str) -> None:
    path, body = ROUTES[route]
    whole = request(path, body)
    async with gateway_running(engine()) as running:
        first = await complete(running, prompt="x", max_tokens=8, temperature=0)
        before = tasks()
        n_bytes, n_events = 0, 0
        while n_events < 2:
            async with raw(running.path) as connection:
                connection.send(whole)
                n_events = (await connection.reader.readexactly(n_bytes)).count(b"\n\n")
            n_bytes += STRIDE
        await nothing_left(running, before)
        assert await is_as_before(running, first)
