"""The gateway's connections to the engine: one for each key that its clients bring.

Whose a key is, and whether it is anybody's, the engine decides: there is one table of keys
for both doors, and the gateway has none.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from wkvm_client import aio
from wkvm_client.errors import (
    BadPeerError,
    ClientClosedError,
    ClientError,
    ConnectFailedError,
    InvalidParameterError,
    UnauthenticatedError,
)
from wkvm_protocol.messages import HelloOk

logger = logging.getLogger("wkvm.gateway")

Connect: TypeAlias = Callable[[str | None], Awaitable[aio.Client]]
"""Makes a connected client that presents a key, or, with None, is the gateway's own and presents
what the gateway was given for itself. It does not reconnect by itself."""

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial: TypeAlias = Callable[[], Awaitable[Streams]]
"""Makes a connection on which nothing was said yet, and which is trusted with nothing. Raises
OSError if there is none to be had."""

MAX_HANDSHAKES = 16
"""Connections that may be in the making at once: wrong keys cost a handshake each."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose a call is.

    Attributes:
        key: a digest of the key, which tells nothing of it. Where no keys are needed, everybody
            has the same. Empty of routes that let everybody in.
        tenant: what to keep a tenant's things under: the same for all its keys. Of an engine
            that does not name tenants, each key is a tenant of its own.
        name: the tenant's; empty if the engine does not say it.
    """

    key: bytes = b""
    tenant: bytes = b""
    name: str = ""

    @staticmethod
    def of(key: bytes, name: str) -> "Whose":
        """Whose a key is, by the tenant's name."""
        tenant = hashlib.sha256(b"tenant\0" + name.encode()).digest() if name else key
        return Whose(key, tenant, name)


NOBODY = Whose()


class Engines:
    """Connections by key. Belongs to one event loop.

    A connection that was lost, or that takes no new requests, is replaced when it is next
    asked for. The gateway's own is for what belongs to no client: readiness, counters, and what
    the engine says of itself.

    Args:
        connect: makes them.
        dial: makes those of ``dialled``.
    """

    def __init__(self, connect: Connect, dial: Dial) -> None:
        self._connect = connect
        self._dial = dial
        self._dialled = set[asyncio.StreamWriter]()
        self._clients: dict[bytes, aio.Client] = {}
        self._pending: dict[bytes, asyncio.Task[aio.Client]] = {}
        self._handshakes = asyncio.Semaphore(MAX_HANDSHAKES)
        self._is_open = False
        self._is_reached = True
        self._info: HelloOk | None = None
        self._closed = False

    @property
    def info(self) -> HelloOk:
        """What the engine says of itself. After ``open``."""
        assert self._info is not None, "not opened"
        return self._info

    @property
    def needs_key(self) -> bool:
        """Whether clients need a key. After ``open``."""
        return not self._is_open

    async def open(self) -> None:
        """Connect, and find out whether clients need a key.

        Raises:
            UnauthenticatedError: the engine does not know the gateway's own key.
            ClientError: the engine cannot be reached.
        """
        client = await self._client(None)
        try:
            await self._client("")
            self._is_open = True
        except UnauthenticatedError:
            self._is_open = False
        if self._info is None:
            self._info = client.server

    async def own(self) -> aio.Client:
        """The gateway's own connection.

        Raises:
            ClientError: there is none to be had.
        """
        client = self._clients.get(_name(None))
        if client is None or not client.is_connected:
            # The engine may have been started anew, with keys or without.
            await self.open()
        return await self._client(None)

    async def client(self, key: str) -> aio.Client:
        """The connection of whoever has a key.

        Raises:
            UnauthenticatedError: nobody has it.
            ClientError: there is none to be had.
        """
        if self._is_open:
            try:
                return await self._client("")
            except UnauthenticatedError:
                self._is_open = False
        if not key:
            return await self._without_key()
        try:
            return await self._client(key)
        except InvalidParameterError as error:
            raise UnauthenticatedError("no such key") from error

    async def _without_key(self) -> aio.Client:
        """The connection of who has no key, if the engine was started anew and asks for none."""
        with suppress(ClientError):
            await self.own()
        if self._is_open:
            return await self._client("")
        raise UnauthenticatedError("a key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY")

    def whose(self, key: str) -> Whose:
        """Whose a key is, as the engine last said. After ``client``."""
        name = _name("" if self._is_open else key)
        client = self._clients.get(name)
        return Whose.of(name, "" if client is None else client.server.tenant)

    def has_let_in(self, key: str) -> bool:
        """Whether a key was somebody's when the engine was last asked."""
        return self._is_open or _name(key) in self._clients

    @asynccontextmanager
    async def dialled(self) -> AsyncGenerator[Streams]:
        """A connection for somebody who speaks the protocol: nothing was said on it yet.

        Raises:
            ConnectFailedError: there is none to be had.
        """
        if self._closed:
            raise ClientClosedError("the gateway is closing")
        try:
            reader, writer = await self._dial()
        except OSError as error:
            raise ConnectFailedError(f"the engine cannot be reached: {error}") from error
        self._dialled.add(writer)
        try:
            yield reader, writer
        finally:
            self._dialled.discard(writer)
            writer.transport.abort()

    async def aclose(self) -> None:
        """Close all connections; what is open on them fails."""
        self._closed = True
        for writer in self._dialled:
            writer.transport.abort()
        for task in self._pending.values():
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        clients = list(self._clients.values())
        self._clients.clear()
        await asyncio.gather(*(client.aclose() for client in clients))

    async def _client(self, key: str | None) -> aio.Client:
        name = _name(key)
        client = self._clients.get(name)
        if client is not None and client.is_connected:
            return client
        task = self._pending.get(name)
        if task is None:
            task = self._pending[name] = asyncio.create_task(self._make(name, key))
            task.add_done_callback(lambda done: self._made(name, done))
        # Several requests may wait for one connection, and one of them may be given up.
        return await asyncio.shield(task)

    def _made(self, name: bytes, task: "asyncio.Task[aio.Client]") -> None:
        self._pending.pop(name, None)
        if not task.cancelled():
            # Whoever waits is told of it. If all have left, it is no news: anybody can try keys.
            task.exception()

    async def _make(self, name: bytes, key: str | None) -> aio.Client:
        async with self._handshakes:
            if self._closed:
                raise ClientClosedError("the gateway is closing")
            try:
                client = await self._connect(key)
            except ConnectFailedError as error:
                self._note_failure(error)
                raise
            self._is_reached = True
        try:
            self._check(client.server)
        except ClientError:
            await client.aclose()
            raise
        # One that this replaces closes by itself, with the last of its requests.
        self._clients[name] = client
        return client

    def _note_failure(self, error: ConnectFailedError) -> None:
        """Say why in the log, once for as long as it lasts: clients are told nothing of it."""
        if self._is_reached:
            cause = error.__cause__
            why = cause.strerror if isinstance(cause, OSError) else None
            logger.warning("the engine cannot be reached: %s", why or type(error).__name__)
        self._is_reached = False

    def _check(self, info: HelloOk) -> None:
        if self._info is not None and (
            info.tokenizer_digest != self._info.tokenizer_digest
            or info.vocab_size != self._info.vocab_size
        ):
            raise BadPeerError("the engine serves another model now: start the gateway anew")


def _name(key: str | None) -> bytes:
    # By digest: how long a look-up takes says nothing about the keys that are there.
    if key is None:
        return b"own"
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
