"""A WebSocket as a transport, for asyncio: what is read and written is the stream of frames."""

import asyncio
import ssl
from typing import Any, cast

from wkvm_client.websocket import (
    WebSocketAddress,
    WebSocketError,
    WebSocketTunnel,
    close_frame,
)


class _Transport(asyncio.Transport):
    """What a connection sees of a WebSocket."""

    def __init__(self, below: asyncio.Transport, tunnel: WebSocketTunnel) -> None:
        super().__init__()
        self._below = below
        self._tunnel = tunnel

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes of the stream of frames."""
        self._below.write(self._tunnel.wrap(bytes(data)))

    def close(self) -> None:
        """Send what was written, and close."""
        if not self._below.is_closing() and not self._tunnel.is_over:
            self._below.write(close_frame())
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self._below.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the transport below."""
        return self._below.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """As of the transport below."""
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As of the transport below."""
        self._below.set_write_buffer_limits(high, low)


class _Below(asyncio.Protocol):
    """The WebSocket's own transport, below a connection."""

    def __init__(
        self, above: asyncio.BufferedProtocol, address: WebSocketAddress, api_key: str
    ) -> None:
        self._above = above
        self._tunnel = WebSocketTunnel(address, api_key)
        self._transport: asyncio.Transport | None = None
        self._was_handed_over = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._tunnel.upgrade())

    def data_received(self, data: bytes) -> None:
        """Pass on what comes; the connection above begins with the answer to the upgrade."""
        assert self._transport is not None
        try:
            stream = self._tunnel.feed(data)
        except WebSocketError as error:
            self._fail(ConnectionError(str(error)))
            return
        if self._tunnel.is_open and not self._was_handed_over:
            self._was_handed_over = True
            self._above.connection_made(_Transport(self._transport, self._tunnel))
            if not self.opened.done():
                self.opened.set_result(None)
        if self._tunnel.replies:
            self._transport.write(bytes(self._tunnel.replies))
            self._tunnel.replies.clear()
        left = memoryview(stream)
        while left:
            buffer = memoryview(self._above.get_buffer(len(left))).cast("B")
            part = left[: len(buffer)]
            buffer[: len(part)] = part
            self._above.buffer_updated(len(part))
            left = left[len(part) :]
        if self._tunnel.is_over:
            self._transport.close()

    def pause_writing(self) -> None:
        """The peer does not read."""
        if self._was_handed_over:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._was_handed_over:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("closed before the upgrade"))
        if self._was_handed_over:
            self._above.connection_lost(exc)

    def _fail(self, error: ConnectionError) -> None:
        assert self._transport is not None
        if not self.opened.done():
            self.opened.set_exception(error)
        self._transport.abort()


async def connect_websocket(
    above: asyncio.BufferedProtocol, address: WebSocketAddress, api_key: str
) -> None:
    """Connect, upgrade, and give a protocol its transport.

    Raises:
        OSError: nobody answers there, or not as a WebSocket.
    """
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if address.is_encrypted else None
    transport, below = await loop.create_connection(
        lambda: _Below(above, address, api_key), address.host, address.port, ssl=context
    )
    try:
        await below.opened
    except BaseException:
        transport.abort()
        raise
