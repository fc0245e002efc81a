"""What a side of the comparison of gateway processes measures."""

import asyncio
import os
from typing import cast

import wkvm_client.aio
from wkvm_bench.http_load import Streamed, StreamReader
from wkvm_bench.workers import _Side

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n1\r"
EVENTS = b'\ndata: {"choices": [{"text": "a"}]}\n\n\r\n1\r\ndata: [DONE]\n\n'


class Reader:
    """A stream that is there at once."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    async def stream(self, request: bytes) -> Streamed:
        self._over.set()
        return Streamed(0.001, 0.001, 2, HEAD + EVENTS)


class Engine:
    """Answers pings once the streams are over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def ping(self) -> None:
        await self.over.wait()
        for _ in range(10):  # turns of the loop, which the streams' end takes too
            await asyncio.sleep(0)


async def test_a_ping_counts_that_is_answered_after_the_streams_are_over() -> None:
    engine = Engine()
    side = _Side(0, os.getpid(), ["a"], 1, cast(wkvm_client.aio.Client, engine))
    side.readers = [cast(StreamReader, Reader(engine.over))]
    assert await side.run() > 0
    assert len(side.pings) == 1
    assert side.pings[0] > 0
