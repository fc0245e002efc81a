"""Connections by the thousand: half open, one after another, and such as nobody reads."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio
from wkvm_protocol.codec import Codec
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import Error, Generate, Sampling, pack_ids

from tests.hostile.crowd import HELLO, WAIT_S, One, Served, connect, served
from tests.soak import amount, seed, tell
from wkvm.server.process import raise_file_limit

MIB = 2**20
DEADLINE_S = 2.0
ROOM_S = 20.0
"""Beyond a deadline, for a busy machine. What is aimed at is two seconds, which is told."""
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
STREAM = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
RESPONSE = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
ENDLESS = Generate(1, pack_ids([1]), Sampling(temperature=0, max_tokens=10**6, ignore_eos=True))
ANY = {"max_connections": 20_000}


def settings(**more: float) -> dict[str, Any]:
    """Short deadlines, and room for everybody."""
    http = {"header_timeout_s": DEADLINE_S, "body_timeout_s": DEADLINE_S, **ANY, **more}
    binary = {"auth_timeout_s": DEADLINE_S, "frame_timeout_s": DEADLINE_S, **ANY, **more}
    return {"http": http, "binary": {**binary, "max_connections_per_tenant": 20_000}}


HALVES = (
    ("binary", b"", b""),
    ("binary", b"", HELLO[:-1]),
    ("binary", HELLO, b"\x64\x00\x00\x00\x93"),
    ("http", b"", b""),
    ("http", b"", GET[:-3]),
    ("http", b"", POST + b"{"),
)
"""The door; what is answered first; and what is begun and never ended."""


async def half_open(server: Served, door: str, first: bytes, rest: bytes) -> One:
    """A connection that stops in the middle."""
    one = await connect(getattr(server, door))
    if first:
        one.say(first)
        async with asyncio.timeout(WAIT_S):
            await one.answered.wait()
    one.say(rest)
    return one


async def test_connections_that_stop_are_ended_by_their_deadline(tmp_path: Path) -> None:
    raise_file_limit(15_000)
    n = amount(600, 10_000)
    async with served(tmp_path, **settings()) as server:
        before = server.rss_bytes
        kinds = [HALVES[number % len(HALVES)] for number in range(n)]
        random.Random(seed()).shuffle(kinds)
        began, ones = time.monotonic(), list[One]()
        for number in range(0, n, 200):
            some = kinds[number : number + 200]
            ones += await asyncio.gather(*(half_open(server, *kind) for kind in some))
        opened_s, at_most = time.monotonic() - began, server.rss_bytes
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(one.over for one in ones))
        latest = max(one.closed_after_s or 0.0 for one in ones)
        silent = [kind for one, kind in zip(ones, kinds, strict=True) if not one.heard]
    # A connection that has said nothing to HTTP is ended without a word.
    assert {kind[:2] for kind in silent} <= {("http", b"")}
    assert all(kind[2] == b"" for kind in silent)
    assert latest < DEADLINE_S + ROOM_S
    assert at_most - before < 64 * MIB + 16 * 1024 * n
    tell(
        8,
        "connections that stop in the middle",
        n,
        "connections",
        opened_s=opened_s,
        latest_s=latest,
        growth_mib=round((at_most - before) / MIB, 1),
        control_p99_ms=server.wait_p99_ms,
    )


async def test_connections_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    n, chance = amount(1_500, 20_000), random.Random(seed())
    async with served(tmp_path, **settings()) as server:
        n_files, sizes = server.n_files, list[int]()

        async def come_and_go() -> None:
            door, first, rest = chance.choice(HALVES)
            one = await half_open(server, door, first, rest)
            if not rest and chance.random() < 0.7:
                one.say(HELLO if door == "binary" else GET)
                async with asyncio.timeout(WAIT_S):
                    await one.answered.wait()
            if chance.random() < 0.5:
                one.transport.abort()
            else:
                one.transport.close()
            async with asyncio.timeout(WAIT_S):
                await one.over

        for number in range(0, n, 50):
            await asyncio.gather(*(come_and_go() for _ in range(50)))
            if number == n // 5 // 50 * 50:
                sizes.append(server.rss_bytes)
        sizes.append(server.rss_bytes)
        async with asyncio.timeout(WAIT_S):
            while server.n_files > n_files:  # noqa: ASYNC110  (of another process)
                await asyncio.sleep(0.05)
    assert sizes[-1] - sizes[0] < 16 * MIB
    tell(
        8,
        "connections that come and go",
        n,
        "connections",
        growth_mib=round((sizes[-1] - sizes[0]) / MIB, 1),
        control_p99_ms=server.wait_p99_ms,
    )


async def stalled_binary(server: Served) -> One:
    """Ask for a stream without an end, and read nothing more."""
    one = await connect(server.binary)
    one.say(HELLO)
    async with asyncio.timeout(WAIT_S):
        await one.answered.wait()
    one.transport.pause_reading()
    one.say(encode_frame(Codec(Generate).encode(ENDLESS), 2**20))
    return one


async def stalled_http(server: Served) -> One:
    """Likewise, as one answer of HTTP."""
    body = (
        b'{"model": "fake", "prompt": [1], "max_tokens": 1000000, "temperature": 0, '
        b'"ignore_eos": true, "stream": true}'
    )
    return await stalled_on(server, STREAM % len(body) + body)


async def stalled_response(server: Served) -> One:
    """Likewise, of the answer that most is told and kept of."""
    body = (
        b'{"model": "fake", "input": "a", "max_output_tokens": 1000000, "temperature": 0, '
        b'"ignore_eos": true, "stream": true, "top_logprobs": 20, "store": false}'
    )
    return await stalled_on(server, RESPONSE % len(body) + body)


async def stalled_on(server: Served, request: bytes) -> One:
    """Send a request over HTTP, and read nothing of its answer."""
    one = await connect(server.http)
    one.transport.pause_reading()
    one.say(request)
    return one


async def read_some(server: Served) -> None:
    """A stream over HTTP that is read to its end."""
    body = (
        b'{"model": "%s", "prompt": [1], "max_tokens": 40, "ignore_eos": true, '
        b'"stream": true}' % (b"fountain" if server.is_endless else b"fake")
    )
    one = await connect(server.http)
    one.say(STREAM % len(body) + body)
    async with asyncio.timeout(WAIT_S):
        while b"[DONE]" not in one.heard:
            one.answered.clear()
            await one.answered.wait()
    one.transport.abort()


@pytest.mark.parametrize(
    ("door", "stalled", "most_bytes"),
    [
        ("binary", stalled_binary, 64 * MIB),
        ("http", stalled_http, 64 * MIB),
        ("responses", stalled_response, amount(20, 100) * 64 * MIB // 100),
    ],
    ids=["binary", "http", "responses"],
)
async def test_readers_that_stall_cost_bounded_memory_and_lose_their_slots(
    tmp_path: Path, door: str, stalled: Callable[[Served], Awaitable[One]], most_bytes: int
) -> None:
    n = amount(20, 100)
    # Who is to be stalled soon by twenty bytes at a time needs an engine without a limit.
    how = settings(write_timeout_s=DEADLINE_S)
    async with served(tmp_path, endless=door == "binary", **how) as server:
        # What so many readers need that do read is there already.
        await asyncio.gather(*(read_some(server) for _ in range(n)))
        before, at_most = server.rss_bytes, 0
        async with aio.connect(f"unix://{server.binary}") as client:
            ones = await asyncio.gather(*(stalled(server) for _ in range(n)))
            began, n_most = time.monotonic(), 0
            async with asyncio.timeout(WAIT_S):
                while True:
                    at_most = max(at_most, server.rss_bytes)
                    stats = await client.stats()
                    n_most = max(n_most, stats["n_lanes"])
                    if n_most > n and stats["n_lanes"] <= 1:  # of the control client
                        break
                    await asyncio.sleep(0.02)
            freed_s = time.monotonic() - began
            assert stats["n_free_slots"] >= stats["n_slots"] - 1
        for one in ones:
            one.transport.abort()
    assert at_most - before < most_bytes
    tell(
        8,
        f"readers that stall, {door}",
        n,
        "readers",
        over_s=freed_s,
        growth_mib=round((at_most - before) / MIB, 1),
        control_p99_ms=server.wait_p99_ms,
    )


async def test_beyond_the_cap_each_connection_is_refused_by_name(tmp_path: Path) -> None:
    cap, n = 20, 60
    async with served(
        tmp_path,
        binary={"max_connections": cap + 1},  # the control client has a place
        http={"max_connections": cap},
    ) as server:
        refusals = {
            "binary": await refused(server.binary, HELLO, cap, n),
            "http": await refused(server.http, GET, cap, n),
        }
    assert all(one.startswith(b"HTTP/1.1 503 ") for one in refusals["http"])
    codes = {Codec(Error).decode(one[4:]).code for one in refusals["binary"]}
    assert codes == {ErrorCode.TOO_MANY_CONNECTIONS}


async def refused(path: str, greeting: bytes, cap: int, n: int) -> list[bytes]:
    """Connect more often than one may; what those beyond the cap hear. The others are served."""
    ones = [await connect(path) for _ in range(n)]
    for one in ones:
        if not one.transport.is_closing():
            one.say(greeting)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(one.over for one in ones[cap:]))
        await asyncio.gather(*(one.answered.wait() for one in ones[:cap]))
    for one in ones:
        one.transport.abort()
    return [bytes(one.heard) for one in ones[cap:]]
