"""The HTTP door: sockets to connections to the application, and their end.

The sockets are bound by the caller, so that all doors of a process are bound in one way. The
limits on what comes in through them, and the deadlines, are in ``connection``.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from aiohttp import StreamReader, http_parser, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from wkvm_protocol.address import TcpAddress

from wkvm.gateway.calls import Gateway
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.connection import Connection, Refusal, Shared
from wkvm.gateway.errors import SettingError

BACKLOG = 1024
"""Connections that the kernel takes before the door does."""
CLOSE_TIMEOUT_S = 1.0
"""How long what is open has to come to its end by itself, and then what is left."""


class Door:
    """Serves an application to HTTP clients. All methods belong to the loop's thread.

    Args:
        gateway: what the application's requests share. Its connections to the engine are the
            door's to close.
        app: made by ``build_app``.
        sockets: bound, TCP or unix; the door's from now on.
        is_plain: whether HTTP is spoken without TLS whatever the settings say.
        is_full: whether there is no room for another connection whatever the settings say.

    Raises:
        SettingError: aiohttp's parser is not here, or the certificate cannot be loaded.
    """

    def __init__(
        self,
        gateway: Gateway,
        app: web.Application,
        sockets: Sequence[socket.socket],
        *,
        is_plain: bool = False,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        check_parser()
        self._tls = None if is_plain else tls_context(gateway.config)
        self._is_full = is_full
        self._gateway = gateway
        self._shared = Shared(gateway)
        self._sockets = tuple(sockets)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        self._listeners = list[asyncio.Server]()
        self._addresses = tuple(_address(one, self._tls is not None) for one in sockets)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect, such as ``http://127.0.0.1:8000``."""
        return self._addresses

    @property
    def n_connections(self) -> int:
        """How many connections are open, those that are about to close included."""
        return len(self._shared.connections)

    @property
    def n_requests(self) -> int:
        """How many requests were taken whose answers are not written yet."""
        return sum(one.in_request for one in self._shared.connections)

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        _tell_of_requests(server)
        lingering = set[Refusal]()

        def connect() -> asyncio.Protocol:
            is_full = self.n_connections >= self._gateway.config.max_connections
            return (
                Refusal(lingering)
                if is_full or self._is_full()
                else Connection(self._shared, server)
            )

        # asyncio takes these with TLS alone
        handshake_s = None if self._tls is None else self._gateway.config.header_timeout_s
        shutdown_s = None if self._tls is None else CLOSE_TIMEOUT_S
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            is_unix = one.family == socket.AF_UNIX
            create = loop.create_unix_server if is_unix else loop.create_server
            self._listeners.append(
                await create(
                    connect,
                    sock=one,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=handshake_s,
                    ssl_shutdown_timeout=shutdown_s,
                )
            )

    def begin_drain(self) -> None:
        """Answer new requests by 503. Connections close with the answers that are under way."""
        if not self._gateway.is_draining:
            self._gateway.begin_drain()

    async def drained(self, timeout_s: float) -> None:
        """Return when no request is open any more, nor one that goes on unwatched; or after a time.

        Where stop strings are, only the gateway finds them.
        """
        gateway = self._gateway
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(lambda: self.n_requests == 0, timeout_s)
                await gateway.turns.ended()
                await gateway.responses.over()
                await gateway.unwatched.ended()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Listen no more and end every connection, in 4 * CLOSE_TIMEOUT_S at most.

        Requests that are still open lose their engine, which their clients are told of.
        """
        self.begin_drain()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for connection in list(self._shared.connections):
            if not connection.in_request:
                connection.force_close()
        await self._until(lambda: not self._shared.connections, CLOSE_TIMEOUT_S)
        await self._gateway.engines.aclose()
        await self._until(lambda: not self._shared.connections, CLOSE_TIMEOUT_S)
        for connection in list(self._shared.connections):
            connection.abort()
        await self._until(lambda: not self._shared.connections, CLOSE_TIMEOUT_S)
        await self._runner.cleanup()
        await self._gateway.responses.aclose(CLOSE_TIMEOUT_S)

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._shared.changed.clear()
                    await self._shared.changed.wait()
        except TimeoutError:
            return


def check_parser() -> None:
    """Check that aiohttp parses HTTP with its own C code, not with its slower Python code.

    The two differ in what they let pass, and what a proxy in front and the server behind it read
    differently is how requests are smuggled.

    Raises:
        SettingError: it would not.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        why = "aiohttp is here without its C parser; install a build that has it"
        raise SettingError("port", why)


def tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """The certificate that is served; None for none.

    Raises:
        SettingError: it cannot be loaded.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
    except (OSError, ValueError) as error:
        why = f"{config.ssl_certfile}, {config.ssl_keyfile}: {error.args[-1]}"
        raise SettingError("ssl-certfile", why) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _address(sock: socket.socket, is_tls: bool) -> str:
    scheme = "https" if is_tls else "http"
    if sock.family == socket.AF_UNIX:
        return f"{scheme}+unix://{sock.getsockname()}"
    return str(TcpAddress(*sock.getsockname()[:2])).replace("tcp", scheme, 1)


def _tell_of_requests(server: web.Server) -> None:
    """Let connections know when a request of theirs has begun."""
    make_request = server.request_factory

    def begin(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        assert isinstance(protocol, Connection)
        protocol.request_begun(payload)
        return make_request(message, payload, protocol, writer, task)

    server.request_factory = begin
