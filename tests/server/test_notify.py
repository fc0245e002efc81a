"""A supervisor of systemd's kind is told how the process is."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wkvm.server.notify import Notifier


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "n"))
        sock.settimeout(10)
        yield sock


def test_a_supervisor_is_told_of_the_start_the_end_and_of_life(supervisor: socket.socket) -> None:
    notifier = Notifier(supervisor.getsockname(), 3.0)
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    told = [supervisor.recv(1000).decode().splitlines()[0] for _ in range(3)]
    assert told == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_an_abstract_socket_is_reached() -> None:
    name = f"wkvm-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(10)
        Notifier(f"@{name}").ready()
        assert sock.recv(1000).startswith(b"READY=1")


def test_the_environment_names_the_supervisor_for_this_process_alone(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", supervisor.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier = Notifier.of_environment()
    assert notifier.watchdog_s == 60
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
    notifier.ready()
    assert supervisor.recv(1000).startswith(b"READY=1")


def test_no_sign_of_life_is_sent_for_another_process(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", supervisor.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier.of_environment().watchdog_s is None


@pytest.mark.parametrize("address", [None, "/nowhere/at/all", "relative"])
def test_a_supervisor_that_is_not_there_disturbs_nobody(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address or "")
    Notifier.of_environment().ready()
    Notifier(address, 1.0).alive()


def test_a_supervisor_that_does_not_read_holds_nobody_up(supervisor: socket.socket) -> None:
    notifier = Notifier(supervisor.getsockname(), 3.0)
    for _ in range(10_000):
        notifier.alive()
