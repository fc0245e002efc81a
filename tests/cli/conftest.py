"""One real server for all tests of the command line, on a unix socket, with a key."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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


def start_server(folder: Path, *arguments: str) -> RunningServer:
    """Start the bundled model on a unix socket and wait until it is ready."""
    socket = folder / "wkvm.sock"
    process = subprocess.Popen(
        wkvm_command("serve", "--binary-port", "none", "--binary-uds", str(socket), *arguments),
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"WKVM_API_KEY": KEY},
    )
    assert process.stdout is not None
    return RunningServer(process, process.stdout.readline(), f"unix://{socket}")


def stop_server(server: RunningServer) -> int:
    """SIGTERM, and the exit status."""
    server.process.send_signal(signal.SIGTERM)
    try:
        return server.process.wait(timeout=30)
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = start_server(tmp_path_factory.mktemp("server"), "--slots", "4", "--seed", "1")
    yield running
    assert stop_server(running) == 0


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
