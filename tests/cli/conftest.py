"""One real server for all tests of the command line, on a unix socket and HTTP, with a key."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import wkvm_client

KEY = "a key for tests"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A command that serves, in a process of its own, and what it said on being ready."""

    process: subprocess.Popen[str]
    ready_line: str
    stderr: Path | None = None

    def url(self, scheme: str = "http") -> str:
        """Where it serves a kind of address."""
        return next(one for one in self.ready_line.split() if one.startswith(f"{scheme}://"))

    @property
    def address(self) -> str:
        """Where it serves the binary protocol."""
        return self.url("unix")

    def end(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self.process.wait(timeout=300)


def environment() -> dict[str, str]:
    """For child processes: one thread, and the packages as this process sees them."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def wkvm_command(*arguments: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "wkvm", *arguments]


@contextmanager
def started(command: list[str], *, stderr: Path | None = None) -> Generator[RunningServer]:
    """A command, ready; it is gone at the end, whatever happens.

    Args:
        stderr: where it writes its log; None for where this process does.
    """
    env = environment() | {"WKVM_API_KEY": KEY}
    with open(stderr or os.devnull, "ab") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=None if stderr is None else log,
            text=True,
            env=env,
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield RunningServer(process, process.stdout.readline(), stderr)
        finally:
            process.kill()
            process.wait()


def running_server(
    folder: Path, *arguments: str, http: str = "none"
) -> AbstractContextManager[RunningServer]:
    """The bundled model on a unix socket, as ``started``. ``http`` is the port of HTTP."""
    uds = str(folder / "wkvm.sock")
    where = ("--port", http, "--binary-port", "none", "--binary-uds", uds)
    return started(wkvm_command("serve", *where, *arguments))


def wait_until_idle(server: RunningServer) -> None:
    """Return when no slot is taken; each question takes a turn of the server's loop."""
    with wkvm_client.connect(server.address, api_key=KEY) as client:
        for _ in range(10_000):
            stats = client.stats()
            if stats["n_free_slots"] == stats["n_slots"]:
                return
    raise AssertionError(stats)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--slots", "4", "--seed", "1", http="0") as running:
        yield running
        assert running.end() == 0


@pytest.fixture
def address(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the server is; its key is in the environment."""
    monkeypatch.setenv("WKVM_API_KEY", KEY)
    return server.address


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal, here and in child processes. A shell's background jobs ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
