"""One real server for all tests of the command line, on a unix socket and HTTP, with a key."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY = "a key for tests"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server in a process of its own, and what it said on being ready."""

    process: subprocess.Popen[str]
    ready_line: str
    address: str


def environment() -> dict[str, str]:
    """For child processes: one thread, and the packages as this process sees them."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def wkvm_command(*arguments: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "wkvm", *arguments]


@contextmanager
def running_server(folder: Path, *arguments: str, http: str = "none") -> Generator[RunningServer]:
    """The bundled model on a unix socket, ready; it is gone at the end, whatever happens.

    ``http`` is the port of HTTP.
    """
    socket = folder / "wkvm.sock"
    process = subprocess.Popen(
        wkvm_command(
            *("serve", "--port", http, "--binary-port", "none", "--binary-uds", str(socket)),
            *arguments,
        ),
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"WKVM_API_KEY": KEY},
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield RunningServer(process, process.stdout.readline(), f"unix://{socket}")
        finally:
            process.kill()
            process.wait()


def end_server(server: RunningServer) -> int:
    """SIGTERM, and the exit status."""
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(timeout=30)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--slots", "4", "--seed", "1", http="0") as running:
        yield running
        assert end_server(running) == 0


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
