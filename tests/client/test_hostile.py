"""Servers that break the protocol's spirit: calls end in time, memory stays bounded."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio
from wkvm_client.errors import (
    BadPeerError,
    ConnectionLostError,
    DeadlineError,
    LinkError,
    ReplyTimeoutError,
    RequestTimeoutError,
)
from wkvm_client.link_core import LinkCore
from wkvm_protocol.connection import ServerConnection
from wkvm_protocol.messages import (
    SCORE_FEATURE,
    EndReason,
    Logprobs,
    Score,
    pack_floats,
    pack_ids,
)

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.client.fake_server import PATIENCE_S, FakeServer, frame
from tests.client.scripts import connected, opened

BIG = [7] * 250_000
"""More than the buffers of a unix socket hold."""
PINGS = frame(b"\x92\x03\x05") * 4096


def hello_ok(wire: ServerConnection, ping_interval_ms: int) -> bytes:
    return wire.send_hello_ok(
        ping_interval_ms=ping_interval_ms,
        server="",
        model="",
        model_digest="",
        layout_fingerprint="",
        tokenizer_digest="",
        vocab_size=256,
        eos_ids=[],
        n_slots=1,
        max_model_len=0,
    )


class Deaf:
    """A server in a thread that reads Hello and nothing else."""

    def __init__(self, path: str) -> None:
        self.address = f"unix://{path}"
        self.ping_interval_ms = 0
        self.flood = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        with peer:
            wire = ServerConnection()
            wire.receive_data(peer.recv(65536))
            peer.sendall(hello_ok(wire, self.ping_interval_ms))
            peer.settimeout(0.05)
            while not self._over.wait(0 if self.flood else None):
                try:
                    peer.sendall(self.flood)
                except TimeoutError:
                    pass
                except OSError:
                    return


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Deaf]:
    server = Deaf(str(tmp_path / "deaf.sock"))
    yield server
    server.close()


@pytest.fixture(params=[AioDriver, BlockingDriver], ids=["aio", "blocking"])
def either(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = request.param()
    return driver


async def filled(driver: Driver, deaf: Deaf) -> None:
    """Connect, and send what the server does not read."""
    deaf.start()
    await driver.connect(deaf.address)
    if isinstance(driver, AioDriver):
        await driver.generate(BIG, timeout_s=10)
    else:
        with pytest.raises(RequestTimeoutError):
            await driver.generate(BIG, timeout_s=0.05)


@pytest.mark.parametrize("ping_interval_ms", [0, 2**63 - 1])
async def test_times_hold_while_the_server_does_not_read(
    either: Driver, deaf: Deaf, ping_interval_ms: int
) -> None:
    deaf.ping_interval_ms = ping_interval_ms
    await filled(either, deaf)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RequestTimeoutError):
            await either.generate([1], timeout_s=0.05)
        with pytest.raises(ReplyTimeoutError):
            await either.ping(timeout_s=0.05)
        with pytest.raises(ReplyTimeoutError):
            await either.stats(timeout_s=0.05)
    await either.close()


async def test_a_server_that_pings_and_does_not_read_is_left(either: Driver, deaf: Deaf) -> None:
    deaf.flood = PINGS
    deaf.start()
    await either.connect(deaf.address, reconnect=False)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BadPeerError, match="takes no answers"):
            await either.completion(await either.generate([1]))
    await either.close()


async def test_a_request_gets_past_a_server_that_never_stops_pinging(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm_client.blocking_link.PENDING_S", 0.02)
    driver = BlockingDriver()
    peer = await connected(driver, server)

    async def flood() -> None:
        while True:
            peer.raw(PINGS)
            await peer.writer.drain()

    async def drink() -> None:
        while await peer.reader.read(1 << 16):
            pass

    tasks = [asyncio.create_task(flood()), asyncio.create_task(drink())]
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RequestTimeoutError):
            await driver.completion(await driver.generate([1], timeout_s=0.1))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await driver.close()


async def test_an_interrupt_in_the_middle_of_a_message_ends_the_connection(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = BlockingDriver()
    peer = await connected(driver, server, reconnect=False)
    stream, request = await opened(driver, peer)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    def read() -> list[int] | str:
        try:
            return stream.read()  # type: ignore[no-any-return]
        except KeyboardInterrupt:
            return "interrupted"

    with monkeypatch.context() as patch:
        patch.setattr(LinkCore, "_handle", interrupted)
        peer.tokens([request.request_id], [5])
        assert await driver.call(read) == "interrupted"
    with pytest.raises(ConnectionLostError):
        await driver.read(stream)
    await driver.close()


@pytest.mark.parametrize("turns", range(10))
async def test_connecting_can_be_cancelled_at_any_turn(server: FakeServer, turns: int) -> None:
    for _ in range(5):
        connecting = asyncio.ensure_future(aio.connect(server.address).__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        done, _ = await asyncio.wait([connecting], timeout=PATIENCE_S)
        assert done


async def test_a_socket_that_cannot_be_taken_over_is_closed() -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with pytest.raises(ValueError, match=r"[Ss]tream"):
        await aio.from_socket(sock)
    assert sock.fileno() == -1


@pytest.mark.parametrize(
    ("n", "credit", "max_tokens"), [(1, 4, 100), (2, 4, 100), (1, None, 4), (2, None, 2)]
)
async def test_more_ids_than_may_come_are_a_violation(
    driver: Driver, server: FakeServer, n: int, credit: int | None, max_tokens: int
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, n=n, credit=credit, max_tokens=max_tokens)
    choices = [index % n for index in range(5)] if n > 1 else ()
    lanes = [request.request_id] * 5
    peer.tokens(lanes[:4], [5] * 4, choices[:4])
    peer.tokens(lanes[:1], [6], choices[4:])
    for choice in stream.choices:
        assert await driver.read(choice) == [5] * (4 // n)
    for choice in stream.choices:
        with pytest.raises(BadPeerError, match="may get"):
            await driver.read(choice)


LOGPROBS = {"logprobs": 1, "prompt_logprobs": 1, "max_tokens": 2}


@pytest.mark.parametrize(
    ("options", "of_prompt", "first", "n_ids", "n_top"),
    [
        ({}, False, 0, 1, 0),
        ({}, True, 1, 1, 0),
        (LOGPROBS, False, 0, 1, 2),
        (LOGPROBS, False, 0, 3, 1),
        (LOGPROBS, True, 1, 3, 1),
    ],
)
async def test_log_probabilities_beyond_what_was_asked_are_a_violation(
    driver: Driver,
    server: FakeServer,
    options: dict[str, int],
    of_prompt: bool,
    first: int,
    n_ids: int,
    n_top: int,
) -> None:
    peer = await connected(driver, server)
    stream, request = await opened(driver, peer, **options)
    peer.send(
        Logprobs(
            request_id=request.request_id,
            choice=0,
            of_prompt=of_prompt,
            first=first,
            n_top=n_top,
            ids=pack_ids([1] * n_ids),
            logprobs=pack_floats([-1.0] * n_ids),
            ranks=pack_ids([1] * n_ids),
            top_ids=pack_ids([1] * n_ids * n_top),
            top_logprobs=pack_floats([-1.0] * n_ids * n_top),
        )
    )
    with pytest.raises(BadPeerError, match="Logprobs"):
        await driver.read(stream)


@pytest.mark.parametrize(
    ("first", "n_ids", "reason"),
    [
        (1, 0, EndReason.LENGTH),
        (1, 2, EndReason.LENGTH),
        (1, 2, EndReason.STOP),
        (2, 1, EndReason.LENGTH),
        (2, 2, EndReason.CANCELLED),
    ],
)
async def test_a_text_that_is_not_scored_in_full_is_a_violation(
    driver: Driver, server: FakeServer, first: int, n_ids: int, reason: EndReason
) -> None:
    peer = await connected(driver, server, features=[SCORE_FEATURE])
    scoring = asyncio.create_task(driver.score([5, 6, 7, 8]))
    request = await peer.next(Score)
    peer.send(
        Logprobs(
            request_id=request.request_id,
            choice=0,
            of_prompt=True,
            first=first,
            n_top=0,
            ids=pack_ids([1] * n_ids),
            logprobs=pack_floats([-1.0] * n_ids),
            ranks=pack_ids([1] * n_ids),
            top_ids=b"",
            top_logprobs=b"",
        )
    )
    peer.end(request.request_id, reason=reason)
    with pytest.raises(BadPeerError, match="lacks log probabilities"):
        await scoring


async def test_a_server_that_drops_every_connection_is_not_stormed(
    driver: Driver, server: FakeServer
) -> None:
    async def play() -> None:
        while True:
            peer = await server.peer()
            await peer.hello()
            await peer.vanish()

    playing = asyncio.create_task(play())
    await driver.connect(server.address, reconnect_timeout_s=0.2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            while True:
                with contextlib.suppress(LinkError, DeadlineError):
                    await driver.completion(await driver.generate([1], timeout_s=0.2))
    assert len(server.peers) <= 8
    playing.cancel()


def test_another_event_loop_is_told_that_it_is_the_wrong_one() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.new_event_loop()

    async def connect() -> tuple[aio.Client, aio.Stream]:
        client = aio.from_socket(ours)
        connecting = asyncio.ensure_future(client.__aenter__())
        wire = ServerConnection()
        theirs.setblocking(False)
        wire.receive_data(await loop.sock_recv(theirs, 65536))
        theirs.sendall(hello_ok(wire, 0))
        await connecting
        return client, await client.generate([1])

    client, stream = loop.run_until_complete(connect())
    for call in (client.generate([1]), stream.read(), stream.completion(), client.aclose()):
        with pytest.raises(RuntimeError, match="loop"):
            asyncio.run(call)
    loop.run_until_complete(client.aclose())
    loop.close()
    theirs.close()


@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_cancelled_close_closes(server: FakeServer, turns: int) -> None:
    driver = AioDriver()
    peer = await connected(driver, server)
    closing = asyncio.create_task(driver.client.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing], timeout=PATIENCE_S)
    await peer.eof()
