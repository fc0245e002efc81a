"""The HTTP door with what it stands on: bound sockets, and a way to the engine.

The engine is in the same process, behind a pipe in memory, or in another, behind an address.
Either way the gateway speaks the binary protocol to it. Needs no torch.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import uvloop
from wkvm_client import aio
from wkvm_client.errors import BadPeerError, UnauthenticatedError
from wkvm_protocol.address import TcpAddress, UnixAddress, parse_address

from wkvm.assembly.texts import check_tokenizer
from wkvm.core.config import ServerConfig, is_loopback
from wkvm.core.errors import ConfigError
from wkvm.gateway.app import build_app
from wkvm.gateway.asked import ASKED
from wkvm.gateway.calls import Gateway
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.limits import Ledger
from wkvm.gateway.door.listening import Door as Listener
from wkvm.gateway.door.listening import check_parser, tls_context
from wkvm.gateway.engines import Engines, Streams
from wkvm.gateway.monitoring.totals import numbers_of
from wkvm.gateway.peers import Peers
from wkvm.gateway.routes import ROUTES
from wkvm.gateway.texts import Texts
from wkvm.server.guard import watch_loop
from wkvm.server.interface import Door
from wkvm.server.listen import Listening, bind
from wkvm.server.notify import Notifier
from wkvm.server.process import Signals, first, is_short_of_files, raise_file_limit
from wkvm.server.serve import Server

Ready: TypeAlias = Callable[[], None]
"""Called once clients can connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process has of a port that several serve.

    Attributes:
        sockets: bound; clients come by them.
        for_peers: the unix socket, bound, by which the others come.
        inherited: what was counted by those in whose place the process was started.
        ledger: of what keys have left; None where no key has limits.
    """

    sockets: tuple[socket.socket, ...]
    for_peers: socket.socket
    peers: Peers
    inherited: Mapping[str, float]
    ledger: Ledger | None


class HttpDoor:
    """The gateway, from its sockets to its connections to the engine.

    Args:
        engines: the ways to the engine; the door's to open and close.
        hint: what to do if the engine serves a model with another tokenizer.
        share: what this process has of a port that several serve; None for all of it.

    Attributes:
        lag_s: how late the event loop was lately; set before ``start`` by who watches it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        texts: Texts,
        engines: Engines,
        *,
        hint: str,
        share: Share | None = None,
    ) -> None:
        self._config = config
        self._texts = texts
        self._engines = engines
        self._hint = hint
        self._share = share
        self.lag_s: Callable[[], float] = lambda: 0.0
        self._gateway: Gateway | None = None
        self._for_peers: Listener | None = None
        self._bound: Listening | None = None
        self._door: Listener | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect; empty before ``start``."""
        return () if self._door is None else self._door.addresses

    @property
    def max_connections(self) -> int:
        """How many connections it may have open at once."""
        return self._config.max_connections

    async def start(self) -> None:
        """Reach the engine, and let clients in.

        Raises:
            ConfigError, SettingError: an address cannot be had, or the tokenizer is not the
                engine's.
            ClientError: the engine cannot be reached.
        """
        await self._engines.open()
        check_tokenizer(self._texts.tokenizer, self._engines.info, hint=self._hint)
        share = self._share
        gateway = Gateway(
            self._config,
            self._engines,
            self._texts,
            started_at=int(time.time()),
            ledger=None if share is None else share.ledger,
        )
        gateway.lag_s = self.lag_s
        await gateway.responses.open()
        if share is None:
            self._bound = _bind(self._config, loopback_only=not self._engines.needs_key)
        else:
            self._bound = Listening(share.sockets, None)
            gateway.peers, gateway.inherited = share.peers, share.inherited
            app = build_app(gateway, (*ROUTES, ASKED), for_peers=True)
            self._for_peers = Listener(gateway, app, [share.for_peers], is_plain=True)
            await self._for_peers.start()
        self._gateway = gateway
        self._door = Listener(
            gateway,
            build_app(gateway, ROUTES),
            self._bound.sockets,
            is_full=is_short_of_files,
        )
        await self._door.start()

    @property
    def numbers(self) -> dict[str, float]:
        """What was counted; see ``wkvm.gateway.monitoring.totals``. After ``start``."""
        return {} if self._gateway is None else numbers_of(self._gateway)

    def begin_drain(self) -> None:
        """Refuse new requests; those that are open go on."""
        if self._door is not None:
            self._door.begin_drain()

    async def drained(self, timeout_s: float) -> None:
        """Return when no request is open any more, or after a time."""
        doors = [one for one in (self._door, self._for_peers) if one is not None]
        await asyncio.gather(*(one.drained(timeout_s) for one in doors))

    async def close(self) -> None:
        """End every connection, in bounded time; also what a failed start has left."""
        if self._bound is not None and self._bound.unix is not None:
            self._bound.unix.remove()
        if self._door is not None:
            await self._door.close()
        elif self._bound is not None:
            self._bound.close()
        if self._for_peers is not None:
            await self._for_peers.close()
        if self._share is not None:
            await self._share.peers.aclose()
        await self._engines.aclose()


def check_http(config: GatewayConfig, *, has_keys: bool) -> None:
    """Check what can be before a model is loaded: addresses, certificate, parser.

    Raises:
        ConfigError, SettingError: it would not do, now.
    """
    if config.port is not None and not has_keys and not is_loopback(config.host):
        why = (
            f"{config.host!r} is not a loopback address: bind one, or give a key,"
            " by --api-keys-file, --api-key or $WKVM_API_KEY"
        )
        raise ConfigError("host", why)
    check_parser()
    tls_context(config)
    _bind(config, loopback_only=not has_keys).close()


def beside(server: Server, config: GatewayConfig, texts: Texts) -> HttpDoor:
    """The HTTP door to the engine that a server of this process serves."""
    return HttpDoor(config, texts, engines_of(server), hint=HINT_BESIDE)


def engines_of(server: Server) -> Engines:
    """The ways to the engine that a server of this process serves."""

    async def connect(key: str | None) -> aio.Client:
        # Only the gateway itself is trusted; its clients are who their keys say.
        attach = partial(server.attach, is_trusted=key is None)
        return await aio.over(attach, api_key=key, follow=False)

    async def dial() -> Streams:
        sock = await server.connect_local(is_trusted=False)
        return await asyncio.open_unix_connection(sock=sock)

    return Engines(connect, dial)


def apart(config: GatewayConfig, texts: Texts, address: str, api_key: str | None) -> HttpDoor:
    """The HTTP door to an engine at an address.

    Args:
        api_key: for the gateway itself; its clients bring their own.

    Raises:
        InvalidParameterError, PlaintextKeyError: the address is none, or not one over which keys
            are sent.
    """
    engines = engines_apart(address, api_key, is_public=is_public(config))
    return HttpDoor(config, texts, engines, hint=HINT_APART)


HINT_APART = "give the right one with --model or --tokenizer"
HINT_BESIDE = "both come from the model's folder"


def is_public(config: GatewayConfig) -> bool:
    """Whether others than this machine's users can reach the door."""
    return config.port is not None and not is_loopback(config.host)


def engines_apart(address: str, api_key: str | None, *, is_public: bool) -> Engines:
    """The ways to an engine at an address.

    Args:
        api_key: for the gateway itself.
        is_public: whether an engine that asks for no keys will not do.

    Raises:
        InvalidParameterError, PlaintextKeyError: as ``apart``.
    """

    def client(key: str | None) -> aio.Client:
        # Where states have moved to, tenants say: to follow would be to connect wherever they want.
        return aio.connect(address, api_key=key, reconnect=False, follow=False)

    # Keys of clients go that way too, whether or not the gateway has one.
    client("any")

    async def connect(key: str | None) -> aio.Client:
        if key is None:
            return await client(api_key)
        if is_public:
            await _check_asks_for_keys(client)
        return await client(key)

    return Engines(connect, partial(_dial, address))


def engines_at(own: str, clients: str) -> Engines:
    """The ways to an engine whose process this one belongs to.

    Args:
        own: the address where whoever connects is trusted: for the gateway itself.
        clients: the address where clients are who their keys say.
    """

    async def connect(key: str | None) -> aio.Client:
        address = own if key is None else clients
        return await aio.connect(address, api_key=key, reconnect=False, follow=False)

    return Engines(connect, partial(_dial, clients))


async def _dial(address: str) -> Streams:
    match parse_address(address):
        case TcpAddress(host, port):
            return await asyncio.open_connection(host, port)
        case UnixAddress(path):
            return await asyncio.open_unix_connection(path)


async def _check_asks_for_keys(client: Callable[[str | None], Awaitable[aio.Client]]) -> None:
    """Check that not everybody may use the engine: one without keys takes any key for good.

    Raises:
        BadPeerError: everybody may.
    """
    try:
        anybody = await client(None)
    except UnauthenticatedError:
        return
    await anybody.aclose()
    raise BadPeerError("the engine asks for no key, and so is not served beyond loopback")


def run_apart(
    door: Door, config: ServerConfig, *, ready: Ready, notifier: Notifier | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then let open requests end for some time, and return.

    A second signal ends the wait.

    Args:
        config: of the process: how long what may take.
        notifier: the supervisor; None for nobody.

    Raises:
        ConfigError, SettingError, ClientError: as ``HttpDoor.start``.
    """
    notifier = Notifier() if notifier is None else notifier
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_apart(door, config, ready, notifier))


async def _serve_apart(door: Door, config: ServerConfig, ready: Ready, notifier: Notifier) -> None:
    raise_file_limit(door.max_connections)
    signals = Signals()
    watchdog = watch_loop(
        max_lag_s=config.max_loop_lag_s,
        step_timeout_s=config.step_timeout_s,
        notifier=notifier,
    )
    if isinstance(door, HttpDoor):
        door.lag_s = lambda: watchdog.lag_s
    try:
        await door.start()
        signals.catch()
        watchdog.start()
        notifier.ready()
        ready()
        await signals.wait(1)
        notifier.stopping()
        door.begin_drain()
        await first(signals.wait(2), door.drained(config.drain_timeout_s))
    finally:
        with signals.held():
            await door.close()
            watchdog.stop()


def _bind(config: GatewayConfig, *, loopback_only: bool) -> Listening:
    return bind(
        config.host,
        config.port,
        config.uds,
        loopback_only=loopback_only,
        settings=("port", "uds"),
    )
