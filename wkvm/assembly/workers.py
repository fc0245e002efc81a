"""Several processes that serve one HTTP port, and the process that starts them and waits.

Each has a socket of its own that is bound to the port together with the others, so that the kernel
spreads connections over them; a unix socket is one that all accept from. To the engine they are
clients as any, over a unix socket in a folder that only this user can enter. Nothing of a request
passes through this process but the engine's part.

A worker that ends by itself is started anew: at once, and, if it ends soon again, after a pause
that grows. Its socket stays open the first time, so that whoever connects meanwhile waits; then
it is closed, and the kernel sends everybody to the others.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from wkvm_protocol.address import TcpAddress

from wkvm.assembly.reach import Find, Reach
from wkvm.assembly.worker import TELL_INTERVAL_S, Order, Report
from wkvm.core.config import API_KEY_VARIABLE, ServerConfig
from wkvm.core.errors import ConfigError
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.limits import MAX_PROCESSES, TABLE_BYTES
from wkvm.gateway.monitoring.totals import left_behind
from wkvm.gateway.texts import Texts
from wkvm.server.listen import UnixSocket, bind, bind_tcp
from wkvm.server.log import LogFormat

MAX_WORKERS = MAX_PROCESSES
LEDGER = "limits"
START_TIMEOUT_S = 60.0
"""How long a worker may take until clients can connect."""
CLOSE_TIMEOUT_S = 5.0
"""How long workers have to end at last; then they are killed."""
SILENT_S = 60.0
"""A worker that serves and says nothing for so long is stopped, or hangs: it is killed."""
STEADY_S = 10.0
"""A worker that has served for so long and ends did not fail to start."""
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before a worker is started anew, by how often it has failed one after the other."""

logger = logging.getLogger("wkvm.workers")


@dataclass(slots=True)
class _Worker:
    """One of them, over all processes that it is in turn.

    Attributes:
        for_peers: its socket for the others.
        sockets: for clients; none if they were closed.
        inherited: what its processes have counted, as far as they have said.
    """

    index: int
    for_peers: UnixSocket
    sockets: list[socket.socket]
    process: asyncio.subprocess.Process | None = None
    inherited: dict[str, float] = field(default_factory=dict[str, float])
    n_failures: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""


class Workers:
    """The gateway processes of one port. It is a ``Door``.

    Args:
        find: finds the engine, once there is a folder for sockets.
        n: how many.
        model: where the text side is.
        texts: the same, loaded: the workers load it again and use it as this one is set.
        tokenizer: its path, or ``bytes``; None for the model's own.
        process: how long what may take in each of them.
        log_level, log_format: of the workers; they write to this process's standard error.

    Raises:
        ConfigError: so many cannot be.
    """

    def __init__(
        self,
        find: Find,
        config: GatewayConfig,
        n: int,
        *,
        model: Path,
        texts: Texts,
        tokenizer: str | None = None,
        process: ServerConfig,
        log_level: str,
        log_format: LogFormat = "text",
    ) -> None:
        check_workers(n)
        self._find = find
        self._reach: Reach | None = None
        self._config = config
        self._n = n
        self._model = model
        self._texts = texts
        self._tokenizer = str(model) if tokenizer is None else tokenizer
        self._process = process
        self._log_level = log_level
        self._log_format: LogFormat = log_format
        self._secret = secrets.token_hex(16)
        self._folder: Path | None = None
        self._unix: UnixSocket | None = None
        self._port = config.port
        self._addresses: tuple[str, ...] = ()
        self._workers = list[_Worker]()
        self._tasks = list[asyncio.Task[None]]()
        self._ending = asyncio.Event()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect; empty before ``start``."""
        return self._addresses

    @property
    def max_connections(self) -> int:
        """How many connections this process has for it: a few for each key and worker."""
        return self._n * 64

    async def start(self) -> None:
        """Start all, and wait until clients can connect to each.

        Raises:
            ConfigError: an address cannot be had, or a worker cannot serve.
            ClientError: the engine cannot be reached.
        """
        self._folder = folder = Path(tempfile.mkdtemp(prefix="wkvm-"))
        if self._config.responses_dir is None:
            # All of them have to find what one of them keeps.
            kept = str(folder / "responses")
            self._config = dataclasses.replace(self._config, responses_dir=kept)
        self._reach = await self._find(folder)
        with (folder / LEDGER).open("wb") as ledger:
            ledger.truncate(TABLE_BYTES)
        self._bind(folder)
        for worker in self._workers:
            self._tasks.append(asyncio.create_task(self._keep(worker), name="worker"))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                for worker in self._workers:
                    await worker.ready.wait()
        except TimeoutError:
            raise ConfigError("gateway-workers", "they do not come to serve in time") from None
        for worker in self._workers:
            if worker.failure:
                raise ConfigError("gateway-workers", worker.failure)

    @property
    def _needs_key(self) -> bool:
        return self._reach is not None and self._reach.has_keys

    async def drained(self, timeout_s: float) -> None:
        """Return when all have ended, or after a time. After ``begin_drain``."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def begin_drain(self) -> None:
        """Let all refuse new requests; those that are open go on."""
        self._ending.set()
        self._signal(signal.SIGTERM)

    async def close(self) -> None:
        """End all, in bounded time, and whatever a failed start has left."""
        if not self._ending.is_set():
            self.begin_drain()
        self._signal(signal.SIGTERM)  # the second one ends the wait for open requests
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
            if late:
                logger.warning("%d gateway workers did not end and are killed", len(late))
                self._signal(signal.SIGKILL)
                await asyncio.wait(late)
        for worker in self._workers:
            _close(worker.sockets)
            worker.for_peers.remove()
            worker.for_peers.socket.close()
        if self._unix is not None:
            self._unix.remove()
            self._unix.socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _bind(self, folder: Path) -> None:
        """Bind everything.

        Raises:
            ConfigError: something cannot be had.
        """
        config = self._config
        scheme = "http" if config.ssl_certfile is None else "https"
        if config.port:
            # Sockets that share a port would share it with another server's without a word.
            bind(
                config.host,
                config.port,
                None,
                loopback_only=not self._needs_key,
                settings=("port", "uds"),
            ).close()
        for index in range(self._n):
            for_peers = UnixSocket(str(folder / f"worker-{index}"), setting="gateway-workers")
            worker = _Worker(index, for_peers, [])
            self._workers.append(worker)
            self._bind_worker(worker)
            if index == 0 and worker.sockets:
                self._port = worker.sockets[0].getsockname()[1]
                self._addresses = tuple(
                    str(TcpAddress(*one.getsockname()[:2])).replace("tcp", scheme, 1)
                    for one in worker.sockets
                )
        if config.uds is not None:
            self._unix = UnixSocket(config.uds, setting="uds")
            self._addresses += (f"{scheme}+unix://{self._unix.path}",)

    def _bind_worker(self, worker: _Worker) -> None:
        if self._port is not None and not worker.sockets:
            worker.sockets = bind_tcp(
                self._config.host,
                self._port,
                loopback_only=not self._needs_key,
                setting="port",
                is_shared=True,
            )

    async def _keep(self, worker: _Worker) -> None:
        """Run a worker, and start it anew as long as it should serve."""
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            began_at = loop.time()
            status = await self._run(worker)
            if self._ending.is_set():
                return
            if not worker.ready.is_set():
                worker.failure = worker.failure or f"one ended with status {status} at its start"
                worker.ready.set()
                return
            worker.n_failures = 1 if loop.time() - began_at > STEADY_S else worker.n_failures + 1
            pause_s = PAUSES_S[min(worker.n_failures, len(PAUSES_S)) - 1]
            logger.error(
                "gateway worker %d ended with status %s%s; it is started anew in %g s",
                worker.index,
                status,
                f": {worker.failure}" if worker.failure else "",
                pause_s,
            )
            if worker.n_failures > 1:
                _close(worker.sockets)
                worker.sockets = []
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)

    async def _run(self, worker: _Worker) -> int | None:
        """One process of a worker, from its start to its end; its exit status."""
        worker.failure = ""
        try:
            self._bind_worker(worker)
        except ConfigError as error:
            worker.failure = str(error)
            return None
        ours, theirs = socket.socketpair()
        shared = [] if self._unix is None else [self._unix.socket]
        passed = [*worker.sockets, *shared]
        fds = [one.fileno() for one in passed]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "wkvm.assembly.worker",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), worker.for_peers.socket.fileno(), *fds],
                # A terminal's Ctrl-C is for this process, which then ends the workers in order.
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            ours.close()
            worker.failure = str(error)
            return None
        finally:
            theirs.close()
        worker.process = process
        if self._ending.is_set():
            process.terminate()
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=2**24)
        writer.write(msgspec.json.encode(self._order(worker, fds)) + b"\n")
        try:
            await self._listen(worker, reader)
            return await process.wait()
        finally:
            writer.close()
            worker.process = None

    async def _listen(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        """Take what a worker says, until its process is gone."""
        numbers = dict[str, float]()
        with contextlib.suppress(OSError, ValueError):
            while line := await self._line(worker, reader):
                report = msgspec.json.decode(line, type=Report)
                if report.numbers is not None:
                    numbers = report.numbers
                if report.failure:
                    worker.failure = report.failure
                if report.is_ready:
                    worker.ready.set()
        if numbers:
            worker.inherited = left_behind(numbers)

    async def _line(self, worker: _Worker, reader: asyncio.StreamReader) -> bytes:
        """The next line that a worker says; its process is killed if it says none for too long."""
        # Twice: it may be this process that was stopped, and has not read what it said meanwhile.
        for patience_s in (SILENT_S, TELL_INTERVAL_S) if worker.ready.is_set() else ():
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(reader.readline(), patience_s)
            if self._ending.is_set():
                break
        else:
            if worker.ready.is_set() and worker.process is not None:
                worker.failure = f"it stood still for {SILENT_S:g} s"
                with contextlib.suppress(ProcessLookupError):
                    worker.process.kill()
        return await reader.readline()

    def _order(self, worker: _Worker, fds: Sequence[int]) -> Order:
        assert self._folder is not None, "started"
        assert self._reach is not None, "started"
        folder = self._folder
        return Order(
            index=worker.index,
            config=dataclasses.replace(self._config, port=None, uds=None),
            model=str(self._model),
            default_max_tokens=self._texts.default_max_tokens,
            tool_parser=self._texts.tool_parser,
            reasoning_parser=self._texts.reasoning_parser,
            tokenizer=self._tokenizer,
            reach=self._reach,
            sockets=list(fds),
            for_peers=worker.for_peers.socket.fileno(),
            peers=[one.for_peers.path for one in self._workers],
            secret=self._secret,
            inherited=worker.inherited,
            ledger=str(folder / LEDGER) if self._config.has_limits else "",
            drain_timeout_s=self._process.drain_timeout_s,
            step_timeout_s=self._process.step_timeout_s,
            max_loop_lag_s=self._process.max_loop_lag_s,
            log_level=self._log_level,
            log_format=self._log_format,
        )

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.send_signal(number)


def check_workers(n: int) -> None:
    """Check how many gateway processes there are to be.

    Raises:
        ConfigError: there cannot be so many, or not here.
    """
    if not 0 <= n <= MAX_WORKERS:
        raise ConfigError("gateway-workers", f"{n} is not in [0, {MAX_WORKERS}]")
    if n and not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("gateway-workers", "this system has no ports that are shared")


def _environment() -> dict[str, str]:
    """This process's, without the key; and where its packages are, wherever it found them."""
    found = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    return found | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()
