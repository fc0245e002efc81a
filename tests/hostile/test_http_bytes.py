"""HTTP that is not quite HTTP: each connection ends, with no more answers than it had requests."""

import asyncio
import random
import re
from pathlib import Path

from tests.gateway.stateful import states_running
from tests.hostile.crowd import WAIT_S, connect
from tests.hostile.grammar import mutated
from tests.hostile.watch import watched
from tests.soak import amount, seed, tell
from wkvm.gateway.config import GatewayConfig

AT_ONCE = 16
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"ids": [1, 2], "max_tokens": 1}'
POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"8\r\n" + BODY[:8] + b"\r\n%x\r\n" % (len(BODY) - 8) + BODY[8:] + b"\r\n0\r\n\r\n"
WHOLE = (GET, POST + LENGTH + b"\r\n" + BODY, POST + CHUNKED + b"\r\n" + CHUNKS)
HEADERS = (
    LENGTH,
    CHUNKED,
    b"Content-Length: 0\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length : 5\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: x, chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Host: y\r\n",
    b" folded\r\n",
    b"X-A: a\x00b\r\n",
    b"X-A: a\rb\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"X-A: " + b"a" * 9000 + b"\r\n",
)
_ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def attempt(chance: random.Random) -> bytes:
    """Two or three requests behind each other, of which some are no good."""
    parts = list[bytes]()
    for _ in range(chance.randrange(1, 3)):
        one = chance.choice(WHOLE)
        for _ in range(chance.randrange(3)):
            at = one.index(b"\r\n") + 2
            one = one[:at] + chance.choice(HEADERS) + one[at:]
        if chance.random() < 0.5:
            one = mutated(chance, one, chance.choice(WHOLE))
        parts.append(one)
    return b"".join([*parts, GET])


async def test_bytes_that_are_not_quite_http_end_their_connection(tmp_path: Path) -> None:
    n, chance = amount(400, 10_000), random.Random(seed())
    config = GatewayConfig(header_timeout_s=0.3, body_timeout_s=0.3, keepalive_timeout_s=0.3)
    faults, statuses, left = list[str](), dict[int, int](), iter(range(n))
    async with states_running(tmp_path, config=config) as running, watched(running):

        async def go_on() -> None:
            for _ in left:
                data = attempt(chance)
                one = await connect(str(running.path))
                size = chance.choice((len(data), chance.randrange(1, 60)))
                for at in range(0, len(data), size):
                    if one.over.done() or one.transport.is_closing():
                        break
                    one.say(data[at : at + size])
                    await asyncio.sleep(0)
                async with asyncio.timeout(WAIT_S):
                    await one.over
                heard = bytes(one.heard)
                found = [int(status) for status in _ANSWER.findall(heard)]
                for status in found:
                    statuses[status] = statuses.get(status, 0) + 1
                # What is not read as one request more cannot be answered as one.
                if len([status for status in found if status >= 200]) > data.count(b"HTTP/") + 1:
                    faults.append(f"{found} for {data!r}")
                if any(status >= 500 and status not in (503, 505, 507) for status in found):
                    faults.append(f"{found} for {data!r}")

        await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    assert faults == []
    assert statuses[400] > n // 20
    assert statuses[200] > n // 20
    told = " ".join(f"{status}:{count}" for status, count in sorted(statuses.items()))
    tell(7, "bytes that are not quite HTTP", n, "connections", statuses=told)
