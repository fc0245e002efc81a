"""The server: it listens, hands out connections, drains and ends; and a process that serves."""

import asyncio
import gc
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import NoReturn, TypeAlias

import uvloop
from wkvm_protocol.address import TcpAddress, UnixAddress

import wkvm
from wkvm.core.config import ServerConfig
from wkvm.core.errors import EngineFailedError
from wkvm.engine.interface import EngineLike
from wkvm.engine.loop import EngineLoop
from wkvm.server.auth import ConnectionCounts, Keyring
from wkvm.server.connection import Connection
from wkvm.server.dispatch import Dispatcher
from wkvm.server.guard import Guard, Supervision
from wkvm.server.interface import Door, Loop, States, StatesLoop
from wkvm.server.listen import BACKLOG, UnixSocket, listen
from wkvm.server.pipe import join
from wkvm.server.pressure import Pressure
from wkvm.server.process import Signals, first, is_short_of_files, raise_file_limit
from wkvm.server.shared import Shared

logger = logging.getLogger("wkvm.server")

MakeStates: TypeAlias = Callable[[EngineLoop], StatesLoop]
"""Makes the durable states of an engine, over the loop that turns it."""

CLOSE_TIMEOUT_S = 1.0
"""How long the peers' sides may take to accept what is left to send at the end."""
LAST_STEP_S = 10.0
"""How long a step that is in flight at the end may take. Nobody waits for its ids any more."""
TOLD_TIMEOUT_S = 5.0
"""How long clients over HTTP have to take the news that the engine failed."""


class Server:
    """Serves one engine to any number of connections. All methods belong to the loop's thread.

    Args:
        loop: what carries the requests out. Its ``deliver`` is taken over.
        states: the same, where it knows of states; None serves none.
    """

    def __init__(self, loop: Loop, config: ServerConfig, states: States | None = None) -> None:
        self._loop = loop
        self._config = config
        self._dispatcher = Dispatcher(loop, states)
        loop.deliver = self._dispatcher.deliver
        self._shared = Shared(
            config=config,
            info=loop.info,
            server=f"wkvm/{wkvm.__version__}",
            dispatcher=self._dispatcher,
            keyring=Keyring(config.api_keys),
            counts=ConnectionCounts(
                config.max_connections,
                config.max_connections_per_tenant,
                is_full=is_short_of_files,
            ),
        )
        self._listeners = list[asyncio.Server]()
        self._unix: UnixSocket | None = None
        self._addresses: tuple[str, ...] = ()

    def watched(self, lag: Callable[[], tuple[float, int]]) -> None:
        """Tell clients who ask for counters how late the event loop is: see ``Dispatcher.lag``."""
        self._dispatcher.lag = lag

    def sheds(self, pressure: Pressure) -> None:
        """Take less, and then nothing new, when memory or disk are short."""
        self._dispatcher.pressure = pressure

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect, such as ``tcp://127.0.0.1:8001``; empty before ``start``."""
        return self._addresses

    @property
    def n_connections(self) -> int:
        """How many transports there are, those that are about to close included."""
        return len(self._shared.connections)

    @property
    def n_requests(self) -> int:
        """How many of the engine's requests belong to open lanes."""
        return self._dispatcher.n_requests

    @property
    def n_operations(self) -> int:
        """How many operations on states are under way."""
        return self._dispatcher.n_operations

    async def start(self) -> None:
        """Listen on everything that the settings name.

        Raises:
            ConfigError: an address cannot be had; then nothing listens.
        """
        bound = listen(self._config)
        self._unix = bound.unix
        addresses = [str(TcpAddress(*one.getsockname()[:2])) for one in bound.tcp]
        loop = asyncio.get_running_loop()
        for one in bound.tcp:
            self._listeners.append(
                await loop.create_server(self._connection, sock=one, backlog=BACKLOG)
            )
        if self._unix is not None:
            self._listeners.append(
                await loop.create_unix_server(
                    self._connection, sock=self._unix.socket, backlog=BACKLOG
                )
            )
            addresses.append(str(UnixAddress(self._unix.path)))
        self._addresses = tuple(addresses)

    async def listen_beside(self, path: str, *, is_trusted: bool) -> None:
        """Listen on a further unix socket, for processes that belong to this one.

        Args:
            path: where only this user can reach it. The file is the caller's to remove.
            is_trusted: as for ``connect_local``.

        Raises:
            ConfigError: the socket cannot be made.
        """
        sock = UnixSocket(path, setting="gateway-workers").socket
        self._listeners.append(
            await asyncio.get_running_loop().create_unix_server(
                lambda: Connection(self._shared, is_trusted=is_trusted), sock=sock, backlog=BACKLOG
            )
        )

    def attach(self, protocol: asyncio.BaseProtocol, *, is_trusted: bool = True) -> None:
        """Connect a protocol of this event loop, in memory.

        Args:
            protocol: the client's side; it has its transport when this returns.
            is_trusted: as for ``connect_local``.
        """
        join(Connection(self._shared, is_trusted=is_trusted), protocol)

    async def connect_local(self, *, is_trusted: bool = True) -> socket.socket:
        """Connect from within this process.

        Args:
            is_trusted: whether the connection needs no key, has the local tenant and counts for
                no limit of connections. Otherwise it is one like any other.

        Returns:
            One end of a pair of sockets, not blocking; the other end is served.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        made = loop.create_task(
            loop.connect_accepted_socket(
                lambda: Connection(self._shared, is_trusted=is_trusted), ours
            )
        )
        try:
            # Cut off halfway, uvloop would never tell the connection of its end.
            await asyncio.shield(made)
        except BaseException:
            theirs.close()
            raise
        return theirs

    async def drain(self) -> None:
        """Refuse new connections and lanes, and wait for the ends of the lanes that are open.

        What is left after the settings' ``drain_timeout_s`` is cancelled and has its end too.
        New clients can still connect, and are told why they are refused.
        """
        self._shared.is_draining = True
        for connection in list(self._shared.connections):
            connection.go_away("the server is draining")
        grace_s = self._config.drain_timeout_s
        await asyncio.gather(self._loop.drain(grace_s), self._dispatcher.close(grace_s))

    async def close(self) -> None:
        """Close every connection, once what was written is sent or soon after, and all files."""
        self._stop_listening()
        self._shared.is_draining = True
        for connection in list(self._shared.connections):
            connection.close()
        if not await self._none_left():
            for connection in list(self._shared.connections):
                connection.abort()
            await self._none_left()
        await self._dispatcher.close()

    async def _none_left(self) -> bool:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._shared.none_left.wait()
        except TimeoutError:
            return False
        return True

    def _connection(self) -> Connection:
        return Connection(self._shared)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._unix is not None:
            self._unix.remove()
            self._unix = None


async def serve(
    engine: EngineLike,
    config: ServerConfig,
    *,
    ready: Callable[[Server], Awaitable[None] | None],
    doors: Callable[[Server], Sequence[Door]] = lambda _: (),
    states: MakeStates | None = None,
    supervision: Supervision | None = None,
) -> None:
    """Serve an engine until SIGTERM or SIGINT, then drain and return.

    A second signal ends the wait for open lanes; they are cancelled.

    Args:
        doors: makes further ways in; they are opened after the server and closed before it.
        ready: called once clients can connect. What it returns is awaited while the
            server serves; an exception from it ends the server.
        states: makes the durable states of the engine, over its loop; None serves none.
        supervision: who is told of the process.

    Raises:
        ConfigError: an address cannot be had.
        EngineFailedError: the engine failed, or a step did not end; everybody was told. The cause
            is what broke it.
        Exception: what ``ready`` or a door's start raised.
    """
    with ExitStack() as at_end:
        await _serve(engine, config, ready, doors, states, supervision or Supervision(), at_end)


async def _serve(
    engine: EngineLike,
    config: ServerConfig,
    ready: Callable[[Server], Awaitable[None] | None],
    doors: Callable[[Server], Sequence[Door]],
    states: MakeStates | None,
    supervision: Supervision,
    at_end: ExitStack,
) -> None:
    """As ``serve``; what bounds the end of the process does so until that of ``at_end``."""
    engine_loop = EngineLoop(engine)
    service = None if states is None else states(engine_loop)
    server = Server(engine_loop if service is None else service, config, service)
    others = doors(server)
    raise_file_limit(config.max_connections + sum(door.max_connections for door in others))
    signals = Signals()
    guard = Guard(engine_loop, config, supervision)
    at_end.callback(guard.ended)
    server.watched(guard.lag)
    stepping = asyncio.create_task(engine_loop.run(), name="steps")
    try:
        await server.start()
        for door in others:
            await door.start()
        signals.catch()
        # what was made up to here stays: the collector need not look at it again
        gc.collect()
        gc.freeze()
        guard.watchdog.start()
        supervision.notifier.ready()
        await first(signals.wait(1), stepping, _greet(ready, server))
        if not stepping.done():
            logger.info("draining")
            supervision.notifier.stopping()
            for door in others:
                door.begin_drain()
            await first(signals.wait(2), stepping, server.drain())
        if stepping.done():
            await _tell_of_failure(stepping, guard, others)
    finally:
        # Signals stay caught: one more must not cut off what is being saved.
        with signals.held():
            engine_loop.close()
            if not (await asyncio.wait([stepping], timeout=LAST_STEP_S))[0]:
                engine_loop.give_up()
                await asyncio.wait([stepping])
            for door in others:
                await door.close()
            await server.close()
            if service is not None:
                await service.close()
            guard.watchdog.stop()
    error = stepping.exception()
    if error is not None:
        stalled = isinstance(error, EngineFailedError) and error.stalled
        raise EngineFailedError(stalled=stalled) from error


async def _tell_of_failure(
    stepping: "asyncio.Task[None]", guard: Guard, doors: Sequence[Door]
) -> None:
    """The engine has ended, and with it all requests: let their clients hear of it."""
    error = stepping.exception()
    # Beside the loop: the disk of the report may not answer, and the clients need the loop.
    reporting = [] if error is None else [asyncio.to_thread(guard.failed, error)]
    for door in doors:
        door.begin_drain()
    await asyncio.gather(*reporting, *(door.drained(TOLD_TIMEOUT_S) for door in doors))


def run(
    engine: EngineLike,
    config: ServerConfig,
    *,
    ready: Callable[[Server], Awaitable[None] | None],
    doors: Callable[[Server], Sequence[Door]] = lambda _: (),
    states: MakeStates | None = None,
    supervision: Supervision | None = None,
) -> None:
    """Serve on an event loop of its own; see ``serve``."""
    with ExitStack() as at_end, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        supervision = supervision or Supervision()
        runner.run(_serve(engine, config, ready, doors, states, supervision, at_end))


async def _greet(ready: Callable[[Server], Awaitable[None] | None], server: Server) -> NoReturn:
    """Call ``ready``; its return is no reason to stop serving."""
    greeting = ready(server)
    if inspect.isawaitable(greeting):
        await greeting
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
