"""A server in the test's own process, and a client that speaks the protocol by hand."""

import asyncio
import socket
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from wkvm_protocol.address import TcpAddress, UnixAddress, parse_address
from wkvm_protocol.connection import ClientConnection
from wkvm_protocol.messages import (
    ClientMessage,
    Embedding,
    End,
    Error,
    Failed,
    Generate,
    HelloOk,
    Logprobs,
    Sampling,
    ServerMessage,
    Stats,
    StatsReply,
    Tokens,
    pack_ids,
    unpack_ids,
)

from tests.fakes import FakeModel, fake_continuation
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.engine.engine import Engine
from wkvm.engine.interface import EngineLike
from wkvm.engine.loop import EngineLoop
from wkvm.server.serve import Server

VOCAB_SIZE = 64
TIMEOUT_S = 60.0
"""Nothing that a test waits for takes this long unless it is broken."""

MessageT = TypeVar("MessageT")


def frame(payload: bytes, length: int | None = None) -> bytes:
    """A frame, with a length that may lie."""
    return struct.pack("<I", len(payload) if length is None else length) + payload


def timers() -> set[threading.Timer]:
    """Those of this process that wait."""
    return {one for one in threading.enumerate() if isinstance(one, threading.Timer)}


async def until(fact: Callable[[], bool]) -> None:
    """Wait for something that has no event."""
    async with asyncio.timeout(TIMEOUT_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class Answer:
    """Everything that came for one lane, in order."""

    ids: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    logprobs: list[Logprobs] = field(default_factory=list[Logprobs])
    embeddings: list[Embedding] = field(default_factory=list[Embedding])
    ends: dict[int, End] = field(default_factory=dict[int, End])
    failed: Failed | None = None


class RawClient:
    """One connection to a server. Reads only when told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wire = ClientConnection()
        self.reader = reader
        self.writer = writer
        self._received = list[ServerMessage]()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, *messages: ClientMessage) -> None:
        self.write(b"".join(self.wire.send(message) for message in messages))

    async def hello(self, api_key: str = "", features: Sequence[str] = ()) -> HelloOk:
        self.write(self.wire.send_hello(api_key=api_key, features=features))
        answer = await self.next()
        assert isinstance(answer, HelloOk), answer
        return answer

    async def next(self) -> ServerMessage | None:
        """The next message; None at the end of the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self._received:
                try:
                    data = await self.reader.read(2**18)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._received += self.wire.receive_data(data)
        return self._received.pop(0)

    async def next_of(self, message_type: type[MessageT]) -> MessageT:
        """The next message of a type; others are dropped."""
        while (message := await self.next()) is not None:
            if isinstance(message, message_type):
                return message
        raise AssertionError(f"the connection ended before a {message_type.__name__}")

    async def error(self) -> Error:
        """The Error with which the server closes, and the proof that it does close."""
        error = await self.next_of(Error)
        assert await self.next() is None
        self.writer.close()
        return error

    def start(
        self,
        prompt: Sequence[int] = (1, 2, 3),
        *,
        lane: int | None = None,
        credit: int = 0,
        timeout_ms: int = 0,
        priority: int = 0,
        **sampling: Any,
    ) -> int:
        """Send a Generate, greedy unless told otherwise; its lane."""
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("max_tokens", 4)
        lane = self.wire.new_request_id() if lane is None else lane
        self.send(
            Generate(lane, pack_ids(prompt), Sampling(**sampling), credit, timeout_ms, priority)
        )
        return lane

    async def answers(self, *lanes: int) -> dict[int, Answer]:
        """What comes for lanes until all of them are closed."""
        answers = {lane: Answer() for lane in lanes}
        while any(lane in self.wire.lanes for lane in lanes):
            message = await self.next()
            assert message is not None, "the connection ended"
            note(answers, message)
        while self._received and not isinstance(self._received[0], Error):
            note(answers, self._received.pop(0))
        return answers

    async def answer(self, lane: int) -> Answer:
        return (await self.answers(lane))[lane]

    async def generate(self, prompt: Sequence[int] = (1, 2, 3), **keywords: Any) -> Answer:
        return await self.answer(self.start(prompt, **keywords))

    async def failure(self, prompt: Sequence[int] = (1, 2, 3), **keywords: Any) -> Failed:
        failed = (await self.generate(prompt, **keywords)).failed
        assert failed is not None
        return failed

    async def stats(self) -> dict[str, int]:
        self.send(Stats(self.wire.new_request_id()))
        return (await self.next_of(StatsReply)).values

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        """Vanish: what was not read or sent is lost."""
        self.writer.transport.abort()
        self.writer.close()


def note(answers: dict[int, Answer], message: ServerMessage) -> None:
    """Sort one message to its lane."""
    match message:
        case Tokens():
            lanes, ids = unpack_ids(message.lanes), unpack_ids(message.ids)
            choices = unpack_ids(message.choices) if message.choices else [0] * len(lanes)
            assert not message.counts
            for lane, choice, token_id in zip(lanes, choices, ids, strict=True):
                if lane in answers:
                    answers[lane].ids.setdefault(choice, []).append(token_id)
        case Logprobs():
            if message.request_id in answers:
                answers[message.request_id].logprobs.append(message)
        case Embedding():
            answers[message.request_id].embeddings.append(message)
        case End():
            if message.request_id in answers:
                answers[message.request_id].ends[message.choice] = message
        case Failed():
            if message.request_id in answers:
                answers[message.request_id].failed = message
        case _:
            pass


@dataclass
class Rig:
    """A server that runs, and what it runs on."""

    server: Server
    loop: EngineLoop
    stepping: asyncio.Task[None]
    clients: list[RawClient] = field(default_factory=list[RawClient])
    control: RawClient | None = None
    control_key: str = ""

    async def connect(self, address: str | None = None) -> RawClient:
        """A transport to the server; no Hello yet."""
        match parse_address(self.server.addresses[0] if address is None else address):
            case TcpAddress(host, port):
                reader, writer = await asyncio.open_connection(host, port)
            case UnixAddress(path):
                reader, writer = await asyncio.open_unix_connection(path)
        client = RawClient(reader, writer)
        self.clients.append(client)
        return client

    async def adopt(self, sock: socket.socket) -> RawClient:
        """A transport over a socket that is connected already."""
        client = RawClient(*await asyncio.open_unix_connection(sock=sock))
        self.clients.append(client)
        return client

    async def client(self, api_key: str = "", address: str | None = None) -> RawClient:
        """An open connection."""
        client = await self.connect(address)
        await client.hello(api_key)
        return client

    async def assert_alive(self) -> None:
        """A connection that was there all along still gets what the model gives."""
        assert self.control is not None
        answer = await self.control.generate((5, 6, 7), max_tokens=5)
        assert answer.ids == {0: fake_continuation((5, 6, 7), 5, VOCAB_SIZE)}

    async def assert_idle(self, n_connections: int | None = None) -> None:
        """Soon nothing is queued, running or held; and so many connections are open."""

        def is_idle() -> bool:
            stats = self.loop.stats()
            return (
                stats["n_queued"] == 0
                and stats["n_running"] == 0
                and stats["n_free_slots"] == stats["n_slots"]
                and self.server.n_requests == 0
                and n_connections in (None, self.server.n_connections)
            )

        await until(is_idle)


@asynccontextmanager
async def serving(
    config: ServerConfig | None = None,
    *,
    engine: EngineLike | None = None,
    model: FakeModel | None = None,
    engine_config: EngineConfig | None = None,
    control_key: str | None = "",
) -> AsyncIterator[Rig]:
    """A server on a unix socket, unless told otherwise, and a control connection to it."""
    with tempfile.TemporaryDirectory(prefix="wkvm") as folder:
        if config is None:
            config = local_config(folder)
        if engine is None:
            model = FakeModel(vocab_size=VOCAB_SIZE) if model is None else model
            engine_config = EngineConfig(n_slots=8) if engine_config is None else engine_config
            engine = Engine(model, engine_config)
        loop = EngineLoop(engine)
        server = Server(loop, config)
        stepping = asyncio.create_task(loop.run())
        rig = Rig(server, loop, stepping)
        try:
            await server.start()
            if control_key is not None:
                rig.control = await rig.client(control_key)
            yield rig
        finally:
            for client in rig.clients:
                client.abort()
            await server.close()
            loop.close()
            await stepping


def local_config(folder: str, **settings: Any) -> ServerConfig:
    """A unix socket in a folder and nothing else."""
    return ServerConfig(binary_port=None, binary_uds=str(Path(folder) / "s"), **settings)


def tcp_config(**settings: Any) -> ServerConfig:
    """A free port of loopback."""
    return ServerConfig(binary_port=0, **settings)


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)
