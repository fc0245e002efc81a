"""Clients that give up, in every state that a request can be in, and clients that are bad."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeAlias

from wkvm_client import aio
from wkvm_client.errors import ClientError
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.framing import encode_frame

from wkvm_bench import aborts
from wkvm_bench.harness import BenchError
from wkvm_bench.http_once import http_request
from wkvm_bench.soak_server import Soaked
from wkvm_bench.soak_work import KEYS, N_HANDLES

N_AT_ONCE = 16
ANSWER_S = 30.0
KEY = KEYS["anna"]
HEADERS = {"Authorization": f"Bearer {KEY}"}
PROMPT = [5, 6, 7]
FRAME_BYTES = 2**20


class Leaver:
    """A client of the binary protocol that will not stay."""

    def __init__(self, sock: socket.socket, client: aio.Client, draw: random.Random) -> None:
        self._sock = sock
        self.client = client
        self.draw = draw

    @property
    def handle(self) -> str:
        """A state to go on from."""
        return f"left-{self.draw.randrange(N_HANDLES)}"

    async def ask(self, n: int = 200, **how: Any) -> aio.Stream:
        """A request that takes a while."""
        how.setdefault("credit", None)
        return await self.client.generate(PROMPT, max_tokens=n, ignore_eos=True, **how)

    def vanish(self) -> None:
        """The connection is lost from one moment to the next."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


Leaving: TypeAlias = Callable[[Leaver], Coroutine[Any, Any, object]]


async def _after_hello(leaver: Leaver) -> None:
    leaver.vanish()


async def _just_sent(leaver: Leaver) -> None:
    await leaver.ask()
    leaver.vanish()


async def _queued(leaver: Leaver) -> None:
    await leaver.ask()
    await asyncio.sleep(leaver.draw.random() * 0.02)
    leaver.vanish()


async def _first_id(leaver: Leaver) -> None:
    stream = await leaver.ask()
    await stream.read()
    leaver.vanish()


async def _mid_stream(leaver: Leaver) -> None:
    stream = await leaver.ask()
    for _ in range(leaver.draw.randrange(2, 10)):
        await stream.read()
    leaver.vanish()


async def _without_credit(leaver: Leaver) -> None:
    stream = await leaver.ask(credit=1)
    await leaver.client.ping()
    del stream
    leaver.vanish()


async def _cancelled_at_once(leaver: Leaver) -> None:
    stream = await leaver.ask()
    stream.cancel()
    await stream.completion()


async def _cancelled_mid_stream(leaver: Leaver) -> None:
    stream = await leaver.ask()
    await stream.read()
    await stream.aclose()


async def _interrupted(leaver: Leaver) -> None:
    stream = await leaver.ask()
    await stream.read()
    stream.interrupt()
    await stream.completion()


async def _closed_in_order(leaver: Leaver) -> None:
    await leaver.ask()
    await leaver.client.aclose()


async def _loading(leaver: Leaver) -> None:
    await leaver.ask(state=leaver.handle)
    leaver.vanish()


async def _on_a_state(leaver: Leaver) -> None:
    stream = await leaver.ask(state=leaver.handle, save_as=leaver.handle)
    await stream.read()
    leaver.vanish()


async def _hibernated(leaver: Leaver) -> None:
    how = leaver.draw.choice(("finish", "hibernate"))
    handle = leaver.handle
    stream = await leaver.ask(20, state=handle, save_as=handle, on_disconnect=how)
    await stream.read()
    leaver.vanish()


async def _committing(leaver: Leaver) -> None:
    stream = await leaver.ask(2, state=leaver.handle, save_as=leaver.handle)
    n_read = 0
    # Fewer come where somebody hibernates the handle meanwhile.
    while n_read < 2 and (ids := await stream.read()):
        n_read += len(ids)
    leaver.vanish()


async def _operating(leaver: Leaver) -> None:
    states = leaver.client.states
    operation: Coroutine[Any, Any, object] = leaver.draw.choice(
        (states.get, states.hibernate, states.resume, states.snapshot)
    )(leaver.handle)
    task = asyncio.ensure_future(operation)
    await asyncio.sleep(0)
    leaver.vanish()
    with suppress(ClientError):
        await task


async def _exporting(leaver: Leaver) -> None:
    exported = await leaver.client.states.export(leaver.handle)
    async for _ in exported:
        leaver.vanish()


LEAVING: Final[tuple[Leaving, ...]] = (
    *(_after_hello, _just_sent, _queued, _first_id, _mid_stream, _without_credit),
    *(_cancelled_at_once, _cancelled_mid_stream, _interrupted, _closed_in_order),
    *(_loading, _on_a_state, _hibernated, _committing, _operating, _exporting),
)
"""Where a request over the binary protocol is when its client leaves."""


def _frame(payload: bytes) -> bytes:
    return encode_frame(payload, limit=FRAME_BYTES)


def _hello(key: str = KEY) -> bytes:
    return ClientConnection().send_hello(api_key=key, features=("states",))


def bad_bytes(draw: random.Random) -> bytes:
    """What a bad client of the binary protocol sends."""
    noise = draw.randbytes(draw.randrange(1, 2000))
    return draw.choice(
        (
            noise,
            (2**32 - 1).to_bytes(4, "little"),
            _frame(noise),
            _hello()[: draw.randrange(1, 20)],
            _hello(f"wrong-{noise.hex()[:40]}"),
            _hello() + (2**31).to_bytes(4, "little"),
            _hello() + _frame(noise),
            _hello() + _frame(b"\x91" * 5000),
            _hello() + _frame(noise)[: draw.randrange(1, 5)],
            _hello() + _hello(),
        )
    )


def bad_request(draw: random.Random) -> bytes:
    """What a bad client of HTTP sends."""
    noise = draw.randbytes(draw.randrange(1, 2000))
    path = "/v1/completions"
    good = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    return draw.choice(
        (
            noise,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
            http_request("POST", path, good, HEADERS)[: -draw.randrange(1, 60)],
            http_request("POST", path, good),
            http_request("POST", path, good, {"Authorization": f"Bearer {noise.hex()[:40]}"}),
            http_request("POST", path, {"prompt": [2**40]}, HEADERS),
            http_request("POST", path, good | {noise.hex()[:9]: 1}, HEADERS),
            http_request("POST", path, [[[[]]]], HEADERS),
            http_request("GET", f"/v1/states/none-{noise.hex()[:20]}", None, HEADERS),
            http_request("GET", f"/no/{noise.hex()[:20]}", None, HEADERS),
            http_request("POST", path, good, HEADERS) * 40,
        )
    )


class Crowds:
    """Those who give up, and those who are bad.

    Attributes:
        counts: how many there were, by name.
    """

    def __init__(self, server: Soaked, seed: int) -> None:
        self._server = server
        self._draw = random.Random(seed)
        self._http = aborts.Crowd(server.http, server.port, seed=seed, headers=HEADERS)
        self._n_begun = 0
        self.counts = Counter[str]()

    async def aborts(self, n: int) -> None:
        """Requests that are given up, half of them over each door.

        Raises:
            BenchError: what a client waits for does not come.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._http.give_up(n // 2))
            tasks.create_task(self._each(n - n // 2, self._leave))
        self.counts["aborts"] += n

    async def bad_clients(self, n: int) -> None:
        """Clients that send what nobody should, half of them over each door."""
        await self._each(n, self._misbehave)
        self.counts["bad clients"] += n

    async def _each(self, n: int, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        left = iter(range(n))

        async def some() -> None:
            for _ in left:
                await do()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(N_AT_ONCE):
                tasks.create_task(some())

    async def _leave(self) -> None:
        leaving = LEAVING[self._n_begun % len(LEAVING)]
        self._n_begun += 1
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(self._server.binary))
        # Not the client's own, which it closes.
        with sock.dup() as other:
            try:
                async with asyncio.timeout(ANSWER_S), aio.from_socket(sock, api_key=KEY) as client:
                    with suppress(ClientError):
                        await leaving(Leaver(other, client, self._draw))
                    # One that was told to stay connected leaves now, with what it has open.
            except TimeoutError:
                raise BenchError(f"{leaving.__name__}: nothing comes") from None

    async def _misbehave(self) -> None:
        """Send, and read until the server closes, or for a moment: then leave."""
        if is_http := self._draw.random() < 0.5:
            data = bad_request(self._draw)
        else:
            data = bad_bytes(self._draw)
        path = self._server.http if is_http else self._server.binary
        reader, writer = await asyncio.open_unix_connection(path)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(self._draw.choice((0.01, 0.1))):
                writer.write(data)
                await writer.drain()
                while await reader.read(65536):
                    pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
