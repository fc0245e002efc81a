"""The asyncio side of one connection: transport, keepalive, deadlines. No policy.

Reads go into one buffer that lives as long as the connection; writes are whole frames.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeAlias, cast

from wkvm_protocol.address import TcpAddress, UnixAddress

from wkvm_client.addresses import Reachable
from wkvm_client.aio_websocket import connect_websocket
from wkvm_client.drafts import Draft
from wkvm_client.errors import (
    ClientClosedError,
    ConnectFailedError,
    ConnectTimeoutError,
    RequestTimeoutError,
)
from wkvm_client.lanes import Lane
from wkvm_client.link_core import LinkCore
from wkvm_client.websocket import WebSocketAddress

Attach: TypeAlias = Callable[[asyncio.BufferedProtocol], None]
"""Gives a protocol its transport, by the time it returns."""
Where: TypeAlias = Reachable | socket.socket | Attach

READ_BYTES = 64 * 1024
WRITE_HIGH_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 1.0
"""How long a close waits for the peer to read what was written."""


class Link(asyncio.BufferedProtocol):
    """One connection of a client.

    Args:
        on_going_away: called once, when the server said that it takes no new lanes.
        grace_s: how long after a request's own timeout the server may take to say so.
    """

    def __init__(self, *, on_going_away: Callable[["Link"], None], grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_going_away: Callable[[Link], None] | None = on_going_away
        self._grace_s = grace_s
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()
        self._tick_timer: asyncio.TimerHandle | None = None
        self.core = LinkCore(self._write, self._is_behind)

    # --- called by the client -------------------------------------------------------------

    async def handshake(self, api_key: str) -> None:
        """Say HELLO and wait for the answer.

        Raises:
            ClientError: the server refused, vanished or broke the protocol.
        """
        self.core.start(api_key)
        await self._opened.wait()
        if self.core.error is not None:
            raise self.core.error.again()

    @property
    def is_ready(self) -> bool:
        """Whether a request can be sent without waiting for anything.

        Raises:
            RuntimeError: as ``writable``.
        """
        self._check_loop()
        return self.core.takes_lanes and self._may_write.is_set()

    async def writable(self) -> None:
        """Wait until the peer has read enough of what was written.

        Raises:
            RuntimeError: the running event loop is not the connection's.
        """
        self._check_loop()
        # of many who wait, the first to go on may write enough to hold the others back
        while not self._may_write.is_set():
            await self._may_write.wait()

    def open(self, draft: Draft) -> Lane:
        """Send a request, and watch its deadline.

        Raises:
            ClientError: as ``LinkCore.open``.
        """
        lane = self.core.open(draft)
        if draft.timeout_s is not None:
            timer = self._loop.call_later(
                draft.timeout_s + self._grace_s, self._expire, lane, draft.timeout_s
            )
            lane.on_over = timer.cancel
        return lane

    async def aclose(self) -> None:
        """Close, and return when the transport is closed. What was written still goes out.

        Raises:
            RuntimeError: as ``writable``.
        """
        self._check_loop()
        self.core.close(ClientClosedError("the client was closed"))
        self._after()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._closed.wait()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Close, and return when the transport is closed. What was written may be lost."""
        self.drop()
        if self._transport is not None:
            await self._closed.wait()

    def drop(self) -> None:
        """Close without waiting. What was written may be lost."""
        self.core.close(ClientClosedError("the client was closed"))
        # asyncio's transport cannot be aborted once it has closed behind what was written
        if self._transport is not None and not self._closed.is_set():
            self._transport.abort()

    @property
    def is_closed(self) -> bool:
        """Whether the transport is gone."""
        return self._closed.is_set()

    # --- called by the transport ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what is read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what was read."""
        self.core.receive(self._buffer[:nbytes])
        self._after()

    def eof_received(self) -> bool:
        """There is no half-open use of a connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that is open."""
        self.core.end_of_stream(exc)
        self._after()
        self._may_write.set()
        self._closed.set()

    def pause_writing(self) -> None:
        """Hold new requests back."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let new requests through."""
        self._may_write.set()

    # --- inside ---------------------------------------------------------------------------

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a client belongs to the event loop that connected it")

    def _is_behind(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _after(self) -> None:
        """Follow up on what the core was told."""
        core = self.core
        if core.is_drained:
            core.close(core.gone())
        if core.error is not None:
            self._opened.set()
            if self._tick_timer is not None:
                self._tick_timer.cancel()
                self._tick_timer = None
            if self._transport is not None:
                self._transport.close()
        elif core.hello is not None and not self._opened.is_set():
            self._opened.set()
            self._tick_later()
        if core.going_away is not None and self._on_going_away is not None:
            callback, self._on_going_away = self._on_going_away, None
            callback(self)

    def _tick_later(self) -> None:
        interval_s = self.core.ping_interval_s
        if interval_s > 0:
            self._tick_timer = self._loop.call_later(interval_s, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        self.core.tick()
        if self.core.error is None:
            self._tick_later()
        else:
            # a peer that is silent will not read the rest either
            assert self._transport is not None
            self._transport.abort()
            self._after()

    def _expire(self, lane: Lane, timeout_s: float) -> None:
        lane.home.give_up(lane, RequestTimeoutError(timeout_s + self._grace_s))


async def open_link(
    where: Where,
    *,
    api_key: str,
    timeout_s: float,
    on_going_away: Callable[[Link], None],
    grace_s: float,
) -> Link:
    """Connect, or take over a connected socket, and shake hands.

    Raises:
        ConnectFailedError: nobody answers there.
        ConnectTimeoutError: not all of it was done within ``timeout_s``.
        ClientError: as ``Link.handshake``.
    """
    link = Link(on_going_away=on_going_away, grace_s=grace_s)
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(link, where, api_key)
            try:
                await link.handshake(api_key)
            except BaseException:
                await link.abort()
                raise
    except TimeoutError as error:
        raise ConnectTimeoutError(timeout_s) from error
    except OSError as error:
        raise ConnectFailedError(f"{where}: {error.strerror or error}") from error
    return link


async def _connect(link: Link, where: Where, api_key: str) -> None:
    loop = asyncio.get_running_loop()
    try:
        match where:
            case socket.socket(family=socket.AF_UNIX):
                await loop.create_unix_connection(lambda: link, sock=where)
            case socket.socket():
                await loop.create_connection(lambda: link, sock=where)
            case TcpAddress(host, port):
                await loop.create_connection(lambda: link, host, port)
            case UnixAddress(path):
                await loop.create_unix_connection(lambda: link, path)
            case WebSocketAddress():
                await connect_websocket(link, where, api_key)
            case _:
                where(link)
    except BaseException:
        # The loop closes what it did not hand over. Of that close there may be no word, so
        # nobody can wait for it. A socket that was given is closed by nobody else.
        if isinstance(where, socket.socket):
            where.close()
        raise
