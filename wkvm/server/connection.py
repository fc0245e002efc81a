"""One connection: a transport on one side, the protocol without I/O on the other.

Here are the deadlines and the flow control. What a message means is in ``dispatch``.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from wkvm_protocol.connection import Refused, ServerConnection
from wkvm_protocol.errors import ErrorCode, RemoteProtocolError
from wkvm_protocol.messages import (
    PREFIX_FEATURE,
    GoAway,
    Hello,
    Ping,
    Pong,
    ServerMessage,
)

from wkvm.core.api_keys import LOCAL_TENANT
from wkvm.server.clocks import Clocks, Overdue
from wkvm.server.errors import INTERNAL_MESSAGE
from wkvm.server.lanes import Lane, Outbox, n_more
from wkvm.server.output import Output
from wkvm.server.pacing import room_behind
from wkvm.server.shared import Shared

logger = logging.getLogger("wkvm.server")

MESSAGES_PER_TURN = 64
"""Messages of one connection that are carried out before other connections have their turn.

One that concerns several choices counts as so many: it is as much work."""
LITTLE_BYTES = 16 * 1024
LINGER_S = 1.0
"""How long a connection that is at fault may take to read the reason and close its side."""


class Connection(asyncio.Protocol):
    """Serves one transport, TCP or unix socket, from its first byte to its last.

    Output: once too much waits to be sent, the connection's requests are held in the engine and
    nothing is read, so that no more waits than that and what a step had already produced. A peer
    that keeps it so for too long is cut off.

    Input: one read at most is stored beyond an unfinished frame; a turn carries few messages out.

    Args:
        is_trusted: the peer is this process: it needs no key and counts for no limit.
    """

    def __init__(self, shared: Shared, *, is_trusted: bool = False) -> None:
        config = shared.config
        self.tenant = LOCAL_TENANT
        self.lanes: dict[int, Lane] = {}
        self.box = Outbox()
        self._shared = shared
        self._config = config
        self._is_trusted = is_trusted
        self._loop = asyncio.get_running_loop()
        self._wire = ServerConnection(
            max_frame_bytes=config.max_frame_bytes,
            max_lanes=config.max_lanes,
            features=shared.features(),
        )
        self._transport: asyncio.Transport | None = None
        self._is_counted = False
        self._is_tenant_counted = False
        self._is_open = False
        self._is_closing = False
        self._output: Output | None = None
        self._clocks = Clocks(config, self._tick)

    @property
    def takes_reused(self) -> bool:
        """Whether the peer is to be told what of its prompts was not computed."""
        return PREFIX_FEATURE in self._wire.features

    # --- the transport's side -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._output = Output(
            self._transport,
            high=self._config.max_output_bytes // 4,
            on_full=self._hold,
            on_free=self._release,
        )
        self._shared.connections.add(self)
        self._shared.none_left.clear()
        self._clocks.starts()
        if self._is_trusted:
            return
        self._is_counted = self._shared.counts.open()
        if self._is_counted:
            logger.info("connection opened, %d open", self._shared.counts.total)
        else:
            self._refuse(ErrorCode.TOO_MANY_CONNECTIONS, "the server has too many connections")

    def data_received(self, data: bytes) -> None:
        """Take bytes, and carry out the messages that they complete."""
        if self._is_closing:
            return
        self._clocks.hears()
        self._wire.feed(data)
        self._turn()

    def eof_received(self) -> bool:
        """The peer will send no more: it is gone, and so are its requests."""
        self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what was asked for, and forget the connection."""
        self._is_closing = True
        self._wire.close()
        self._let_go()
        self._clocks.stop()
        self._shared.connections.discard(self)
        if not self._shared.connections:
            self._shared.none_left.set()
        if self._is_counted:
            self._shared.counts.close(self.tenant if self._is_tenant_counted else None)
            logger.info("connection ended, %d open", self._shared.counts.total)
        self._transport = self._output = None

    def pause_writing(self) -> None:
        """The transport has something left to send."""
        if self._output is not None:
            self._output.stops()

    def resume_writing(self) -> None:
        """It has sent it."""
        if self._output is not None:
            self._output.goes_on()

    def _hold(self) -> None:
        """Too much waits to be sent: produce nothing more, and read nothing more."""
        if self._is_closing:
            return
        self._clocks.is_blocked()
        if self._is_open:
            self._shared.dispatcher.hold(self)
        self._live_transport().pause_reading()

    def _release(self) -> None:
        """The peer has caught up."""
        self._clocks.is_free()
        if self._is_closing:
            return
        self._clocks.may_speak()
        if self._is_open:
            self._shared.dispatcher.release(self)
        self._loop.call_soon(self._go_on)

    # --- the server's side ----------------------------------------------------------------

    def send(self, messages: Sequence[ServerMessage]) -> None:
        """Send messages with one write. Does nothing once the connection closes."""
        if self._is_closing:
            return
        send = self._wire.send
        try:
            data = b"".join([send(message) for message in messages])
        except Exception:
            # a bug of ours must not reach those who called for other connections too
            logger.exception("internal error in sending")
            self._fail(ErrorCode.INTERNAL, INTERNAL_MESSAGE)
            return
        self._write(data)
        if self._wire.peer_going_away and self._wire.is_drained:
            self.close()

    def go_away(self, message: str) -> None:
        """Tell the peer to open no more lanes; those that are open go on."""
        if self._is_open and not self._is_closing:
            self.send([GoAway(message=message)])

    def close(self) -> None:
        """Close once what was written is sent; what was asked for is cancelled without a word."""
        self._is_closing = True
        self._wire.close()
        if self._output is not None:
            self._output.flush()
        transport = self._transport
        if transport is not None and not self._clocks.is_ending:
            transport.close()
            # what is left to send is not waited for without end
            self._clocks.ends(self._config.write_timeout_s)
        self._let_go()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._let_go()
        if self._transport is not None:
            self._transport.abort()

    # --- bytes of states ------------------------------------------------------------------

    @property
    def max_frame_bytes(self) -> int:
        """Longest message that the peer takes."""
        return self._wire.max_frame_bytes

    @property
    def is_held(self) -> bool:
        """Whether too much waits to be sent, so that nothing more is to be produced."""
        return self._output is not None and self._output.is_full

    @property
    def is_behind(self) -> bool:
        """Whether more than a little waits to be sent."""
        return self._output is None or self._output.n_unsent > LITTLE_BYTES

    def room(self, request_id: int) -> int:
        """How many bytes of a state may be sent on a lane, as the peer granted them."""
        return self._wire.room(request_id)

    async def output_room(self) -> int:
        """How many bytes of states may be written now, once that is one at least.

        A peer that takes nothing for as long as it may keep a connection waiting is cut off.
        """
        room = await room_behind(
            lambda: 0 if self._output is None else self._output.n_before_full,
            most=self._config.max_output_bytes // 8,
            timeout_s=self._config.write_timeout_s,
        )
        if room is None:
            self._cut_off()
            raise asyncio.CancelledError
        return room

    # --- messages -------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Read on after a pause."""
        if self._is_closing or self.is_held:
            return
        self._live_transport().resume_reading()
        self._turn()

    def _turn(self) -> None:
        """Carry out stored messages, but not too many, and send the answers with one write."""
        output = self._output
        assert output is not None
        output.cork()
        try:
            is_done = self._carry_out()
        except RemoteProtocolError as error:
            self._fail(error.code, str(error))
            return
        except Exception:
            logger.exception("internal error on a connection")
            self._fail(ErrorCode.INTERNAL, INTERNAL_MESSAGE)
            return
        output.uncork()
        if self._is_closing or is_done:
            return
        self._live_transport().pause_reading()
        self._loop.call_soon(self._go_on)

    def _carry_out(self) -> bool:
        """Carry out messages. False if there may be more."""
        next_message = self._wire.next_message
        n_left = MESSAGES_PER_TURN
        while n_left > 0:
            n_left -= 1
            message = next_message()
            if message is None:
                if self._wire.mid_frame:
                    self._clocks.begins_frame()
                return True
            self._clocks.ends_frame()
            match message:
                case Ping(nonce=nonce):
                    self._write(self._wire.send(Pong(nonce)))
                case Hello():
                    self._hello(message)
                case Refused(answer=answer):
                    self.send([answer])
                case GoAway():
                    self._shared.dispatcher.leaves(self)
                    if self._wire.is_drained:
                        self.close()
                case _:
                    n_left -= n_more(self.lanes, message)
                    self._shared.dispatcher.handle(self, message)
            if self._is_closing or not self._wire.mid_frame:
                return True
        return False

    def _hello(self, hello: Hello) -> None:
        shared = self._shared
        tenant = LOCAL_TENANT if self._is_trusted else shared.keyring.tenant_of(hello.api_key)
        if tenant is None:
            self._fail(ErrorCode.UNAUTHENTICATED, "no such key")
            return
        if shared.is_draining:
            self._fail(ErrorCode.DRAINING, "the server is draining")
            return
        if self._is_counted:
            self._is_tenant_counted = shared.counts.assign(tenant)
            if not self._is_tenant_counted:
                why = "the tenant has too many connections"
                self._fail(ErrorCode.TOO_MANY_CONNECTIONS, why)
                return
        self.tenant = tenant
        self._write(shared.hello_ok(self._wire, tenant))
        self._is_open = True
        shared.dispatcher.opened(self)
        self._clocks.opens()

    def _write(self, data: bytes) -> None:
        if self._output is not None:
            self._output.write(data)

    # --- ends -----------------------------------------------------------------------------

    def _fail(self, code: ErrorCode, why: str) -> None:
        """Say what is wrong, and close. Input that still comes is read and dropped for a while.

        To close at once would reset the connection, and the peer would lose the reason.
        """
        if self._is_closing:
            return
        logger.info("connection closed: %s", code.name)
        self._write(self._wire.send_error(code, why))
        self._is_closing = True
        transport = self._live_transport()
        if self._output is not None:
            self._output.flush()
        if not transport.is_closing():
            if transport.can_write_eof():
                transport.write_eof()
            transport.resume_reading()
            self._clocks.ends(LINGER_S)
        self._let_go()

    def _refuse(self, code: ErrorCode, why: str) -> None:
        """Say what is wrong, and close at once: there is no room to wait for the peer."""
        logger.info("connection refused: %s", code.name)
        self._write(self._wire.send_error(code, why))
        self.close()

    def _let_go(self) -> None:
        if self._is_open:
            self._is_open = False
            self._shared.dispatcher.lost(self)

    def _live_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("the connection has no transport")
        return self._transport

    # --- clocks ---------------------------------------------------------------------------

    def _tick(self) -> None:
        match self._clocks.overdue(
            is_closing=self._is_closing, counts_silence=self._counts_silence()
        ):
            case Overdue.CLOSE:
                self.abort()
                return
            case Overdue.READER:
                self._cut_off()
                return
            case Overdue.HELLO:
                self._fail(ErrorCode.AUTH_TIMEOUT, "no Hello came in time")
            case Overdue.FRAME:
                self._fail(ErrorCode.FRAME_TIMEOUT, "a frame was not finished in time")
            case Overdue.SOUND:
                self._fail(ErrorCode.IDLE_TIMEOUT, "nothing came for too long")
            case Overdue.PONG:
                self._fail(ErrorCode.IDLE_TIMEOUT, "pings were not answered")
            case Overdue.PING:
                self.send([Ping(self._clocks.pings())])
            case None:
                pass
        self._clocks.arm_next(is_closing=self._is_closing, counts_silence=self._counts_silence())

    def _counts_silence(self) -> bool:
        """Whether the peer is open and could be heard."""
        return self._is_open and not self.is_held

    def _cut_off(self) -> None:
        """End what is not read: the reason would only queue up behind the rest."""
        logger.info("connection closed: %s", ErrorCode.SLOW_CONSUMER.name)
        self.abort()
