"""``GET /v1/ws``: the binary protocol over WebSocket. One message of a WebSocket is one payload.

Each WebSocket has a connection of its own to the engine, and messages pass through as they are:
whose a key is, what may be asked, and how long silence may last, the engine decides as at its own
door. Only the first message of a client is opened, since the key may have come by the upgrade.

Neither side is read while the other does not take what was passed on, so what is stored is what
the sockets' buffers hold and a message each way. A client that does not read is cut off by the
deadline of its HTTP connection.
"""

import asyncio
import contextlib
import logging
from typing import get_args

import msgspec
from aiohttp import WSMsgType, web
from wkvm_protocol.codec import Codec
from wkvm_protocol.errors import ErrorCode, ProtocolError
from wkvm_protocol.framing import HEADER_BYTES
from wkvm_protocol.messages import (
    MAX_FRAME_BYTES,
    Error,
    Failed,
    GoAway,
    Hello,
    HelloOk,
    Opening,
)

from wkvm.gateway.calls import Call
from wkvm.gateway.door.keys import offered_protocols, request_key
from wkvm.gateway.door.origins import check_origin
from wkvm.gateway.door.upgrades import websocket_for
from wkvm.gateway.failures import HttpError, invalid

logger = logging.getLogger("wkvm.gateway")

PROTOCOL = "wkvm.v1"

OK, UNSUPPORTED_DATA, TOO_BIG = 1000, 1003, 1009
PROTOCOL_ERROR, POLICY, INTERNAL, RESTART, TRY_LATER = 1002, 1008, 1011, 1012, 1013

CLOSE_CODES: dict[int, int] = {
    ErrorCode.PROTOCOL_VIOLATION: PROTOCOL_ERROR,
    ErrorCode.FRAME_TOO_LARGE: TOO_BIG,
    ErrorCode.UNSUPPORTED_VERSION: PROTOCOL_ERROR,
    ErrorCode.UNAUTHENTICATED: POLICY,
    ErrorCode.AUTH_TIMEOUT: POLICY,
    ErrorCode.FRAME_TIMEOUT: POLICY,
    ErrorCode.IDLE_TIMEOUT: POLICY,
    ErrorCode.SLOW_CONSUMER: POLICY,
    ErrorCode.TOO_MANY_CONNECTIONS: TRY_LATER,
    ErrorCode.DRAINING: RESTART,
}
"""With what a WebSocket is closed after an Error; INTERNAL after any other."""

DRAINING = "the server is draining"

_hello = Codec(Hello)
_telling = Codec(HelloOk, GoAway, Error)
_opening = Codec(*get_args(Opening))
_go_away = Codec(GoAway)
_failed = Codec(Failed)


async def websocket(call: Call) -> web.StreamResponse:
    """``GET /v1/ws``: become a connection of the binary protocol."""
    gateway, request = call.gateway, call.request
    check_origin(request, gateway.config, needs_key=gateway.engines.needs_key)
    if gateway.limits.of(call.whose.key) is not None:
        why = "not for keys with limits: what they use is counted on the other routes alone"
        raise HttpError(403, why, "permission_error", code="key_has_limits")
    if PROTOCOL not in offered_protocols(request):
        raise invalid(
            None, f"offer the WebSocket subprotocol {PROTOCOL}", code="subprotocol_missing"
        )
    socket = websocket_for(request, PROTOCOL, max_bytes=MAX_FRAME_BYTES)
    async with gateway.engines.dialled() as (reader, writer):
        await socket.prepare(request)
        await _Proxy(call, socket, reader, writer).run()
    return socket


class _Proxy:
    """One WebSocket and its connection to the engine."""

    def __init__(
        self,
        call: Call,
        socket: "web.WebSocketResponse[bool]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        gateway = call.gateway
        self._gateway = gateway
        self._socket = socket
        self._reader = reader
        self._writer = writer
        # Without keys a key means nothing: what is not needed is not passed on.
        self._key = request_key(call.request) if gateway.engines.needs_key else ""
        self._is_open = False
        self._is_leaving = False
        """The engine was sent a GoAway: by the client, or, if ``_has_left``, for it."""
        self._has_left = False
        self._is_going = False
        """The client was sent a GoAway."""
        self._close: tuple[int, str] | None = None
        self._farewell: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Pass messages both ways until one side ends, and close the other."""
        upwards = asyncio.create_task(self._upwards())
        self._gateway.on_drain.add(self._drain)
        if self._gateway.is_draining:
            self._drain()
        try:
            await self._downwards()
        except Exception:
            logger.exception("internal error on a WebSocket")
            self._end(INTERNAL, "internal error")
        finally:
            self._gateway.on_drain.discard(self._drain)
            upwards.cancel()
            if self._farewell is not None:
                self._farewell.cancel()
            await asyncio.wait([upwards])
        code, why = self._close or self._last_word()
        await self._socket.close(code=code, message=why.encode())

    # --- from the client ------------------------------------------------------------------

    async def _upwards(self) -> None:
        """Pass on what the client sends. The end of it ends the engine's connection."""
        try:
            await self._pass_up()
        except ConnectionError:
            pass
        except Exception:
            logger.exception("internal error on a WebSocket")
            self._end(INTERNAL, "internal error")
        finally:
            self._writer.transport.abort()

    async def _pass_up(self) -> None:
        is_first = True
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.TEXT:
                self._end(UNSUPPORTED_DATA, "messages are binary")
                return
            if message.type is not WSMsgType.BINARY:
                return
            payload: bytes = message.data
            if is_first:
                payload = self._opened(payload)
                is_first = False
            elif _go_away.recognizes(payload):
                self._is_leaving = True
            elif self._has_left and (refusal := _refusal(payload)) is not None:
                await self._socket.send_bytes(refusal)
                continue
            self._write(payload)
            await self._writer.drain()

    def _write(self, payload: bytes) -> None:
        # An empty one too, and one that is too long: what is wrong with it the engine says.
        self._writer.write(len(payload).to_bytes(HEADER_BYTES, "little") + payload)

    def _opened(self, payload: bytes) -> bytes:
        """The first message, with what the gateway has to say in it."""
        try:
            hello = _hello.decode(payload)
            return _hello.encode(
                msgspec.structs.replace(
                    hello,
                    api_key=hello.api_key or self._key,
                    max_frame_bytes=min(hello.max_frame_bytes, MAX_FRAME_BYTES),
                )
            )
        except ProtocolError:
            # What is wrong with it the engine says.
            return payload

    # --- from the engine ------------------------------------------------------------------

    async def _downwards(self) -> None:
        """Pass on what the engine sends, until it ends the connection or the client is gone."""
        reader, send = self._reader, self._socket.send_bytes
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await reader.readexactly(HEADER_BYTES)
                n_bytes = int.from_bytes(header, "little")
                if not 0 < n_bytes <= MAX_FRAME_BYTES:
                    self._end(INTERNAL, "the engine broke the protocol")
                    return
                payload = await reader.readexactly(n_bytes)
                is_telling = not self._is_open or _telling.recognizes(payload)
                if not is_telling or self._may_pass(payload):
                    await send(payload)

    def _may_pass(self, payload: bytes) -> bool:
        """Take note of what the engine says of the connection."""
        try:
            message = _telling.decode(payload)
        except ProtocolError:
            return True
        match message:
            case HelloOk():
                self._is_open = True
            case GoAway():
                was_going, self._is_going = self._is_going, True
                return not was_going
            case Error():
                self._end(CLOSE_CODES.get(message.code, INTERNAL), "see the Error")
            case _:
                pass
        return True

    # --- ends -----------------------------------------------------------------------------

    def _drain(self) -> None:
        """Tell the client to open no more lanes, and the engine to end with the last of them."""
        if not self._is_open:
            self._writer.transport.abort()
            return
        if not self._is_going:
            self._is_going = True
            self._farewell = asyncio.create_task(self._say_farewell())
        if not self._is_leaving:
            self._is_leaving = self._has_left = True
            # An engine that has failed is gone already, and its end is about to be read.
            if not self._writer.is_closing():
                self._write(_go_away.encode(GoAway()))

    async def _say_farewell(self) -> None:
        # If the client is gone, others see it too.
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(_go_away.encode(GoAway(DRAINING)))

    def _end(self, code: int, why: str) -> None:
        """Note why the WebSocket is closed. The first reason counts."""
        if self._close is None:
            self._close = code, why

    def _last_word(self) -> tuple[int, str]:
        """Why the connection ended, where nobody said so."""
        if self._is_going or self._gateway.is_draining:
            return RESTART, "the server is going away"
        if self._is_leaving:
            return OK, ""
        return INTERNAL, "the engine ended the connection"


def _refusal(payload: bytes) -> bytes | None:
    """The answer to a message that opens a lane too late; None for another message."""
    if not _opening.recognizes(payload):
        return None
    try:
        message = _opening.decode(payload)
    except ProtocolError:
        return None
    assert isinstance(message, Opening)
    return _failed.encode(
        Failed(message.request_id, ErrorCode.DRAINING, ErrorCode.DRAINING.retryable, DRAINING)
    )
