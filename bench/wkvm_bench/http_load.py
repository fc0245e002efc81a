"""Streams of server-sent events, read by as little Python as will do.

A load that parses events in Python costs as much as a server that writes them. Here arrivals
are counted in C and kept; what they say is looked at when the clock has stopped.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import msgspec

from wkvm_bench.harness import BenchError

EVENT = b"\ndata: "
"""Begins every event: the line before it, of the last event or of the chunk's size, has ended."""
END = b"\n0\r\n\r\n"
"""Ends every stream."""
_N_CARRIED = len(EVENT) - 1
TIMEOUT_S = 120.0


def chat_request(prompt: str, *, n_events: int) -> bytes:
    """A request for a chat completion of ``n_events`` ids, as an OpenAI client sends it."""
    body = msgspec.json.encode(
        {
            "model": "null",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": n_events,
            "temperature": 0.7,
            "stream": True,
        }
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(frozen=True, slots=True)
class Streamed:
    """One response.

    Attributes:
        first_s, total_s: from the request to its first event, and to its end.
        n_events: the one that says ``[DONE]`` included.
        data: everything that was read.
    """

    first_s: float
    total_s: float
    n_events: int
    data: bytes

    def events(self) -> list[dict[str, object]]:
        """The JSON of all events but ``[DONE]``.

        Raises:
            BenchError: the response is not a stream of events that ends as it should.
        """
        head, _, _ = self.data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 ") or b"text/event-stream" not in head.lower():
            raise BenchError(f"not a stream of events: {self.data[:500]!r}")
        *events, done = [part.partition(b"\n\n")[0] for part in self.data.split(EVENT)[1:]]
        if done != b"[DONE]":
            raise BenchError(f"the last event is {done!r}")
        return [msgspec.json.decode(event) for event in events]


class StreamReader(asyncio.Protocol):
    """A connection that sends one request after the other and counts events."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._carried = b""
        self._n_events = 0
        self._first_at: float | None = None
        self._done: asyncio.Future[None] | None = None
        self.n_read = 0

    @classmethod
    async def connect(cls, where: Path | int) -> Self:
        """A connection to the server at a path, or at a TCP port of this machine."""
        loop = asyncio.get_running_loop()
        if isinstance(where, int):
            _, protocol = await loop.create_connection(cls, "127.0.0.1", where)
        else:
            _, protocol = await loop.create_unix_connection(cls, str(where))
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not an isinstance: uvloop's unix transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Count events, and see whether the response is over."""
        self._parts.append(data)
        self.n_read += 1
        seen = self._carried + data
        self._n_events += seen.count(EVENT)
        self._carried = seen[-_N_CARRIED:]
        if self._first_at is None and self._n_events:
            self._first_at = time.perf_counter()
        is_refused = self._n_events == 0 and not self._parts[0].startswith(b"HTTP/1.1 200 ")
        if (is_refused or seen.endswith(END)) and self._done is not None:
            self._done.set_result(None)
            self._done = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the response that is under way."""
        if self._done is not None:
            so_far = b"".join(self._parts)[-500:]
            self._done.set_exception(exc or BenchError(f"the server hung up after {so_far!r}"))
            self._done = None

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def stream(self, request: bytes) -> Streamed:
        """Send a request and read its response.

        Raises:
            BenchError: the server closed the connection, sent no event, or took too long.
        """
        self._parts, self._carried, self._n_events, self._first_at = [], b"", 0, None
        self._done = done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self._transport.write(request)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await done
        except TimeoutError:
            raise BenchError(f"no end of a stream after {self._n_events} events") from None
        end = time.perf_counter()
        data = b"".join(self._parts)
        if self._first_at is None:
            raise BenchError(f"no events: {data[:500]!r}")
        return Streamed(self._first_at - start, end - start, self._n_events, data)


async def at_once(readers: Sequence[StreamReader], requests: Sequence[bytes]) -> list[Streamed]:
    """One stream of every connection, all at the same time."""
    return list(
        await asyncio.gather(
            *(one.stream(request) for one, request in zip(readers, requests, strict=True))
        )
    )
