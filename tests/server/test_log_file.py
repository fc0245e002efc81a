"""What becomes of standard error holds up nobody, breaks nothing, and what was lost is counted."""

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wkvm.server.log_file import PATIENCE_S, PAUSE_S, LogFile

SIZE = 4 * select.PIPE_BUF


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe of four pages."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SIZE)
    try:
        yield reader, writer
    finally:
        os.close(writer)
        with contextlib.suppress(OSError):  # a test has closed it
            os.close(reader)


def read(fd: int) -> str:
    os.set_blocking(fd, False)
    found = b""
    while True:
        try:
            more = os.read(fd, 1 << 16)
        except BlockingIOError:
            return found.decode()
        if not more:
            return found.decode()
        found += more


def test_lines_are_written_as_they_are() -> None:
    with pipe() as (reader, writer):
        file = LogFile(writer)
        assert file.write("one \u00e9\n") == 6
        assert read(reader) == "one \u00e9\n"
        assert os.get_blocking(writer)


def test_a_disk_without_room_raises_nothing() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        file = LogFile(full.fileno())
        assert file.write("a line\n") == 7
        assert file.n_lost == 1


def test_a_reader_that_has_gone_raises_nothing() -> None:
    with pipe() as (reader, writer):
        file = LogFile(writer)
        os.close(reader)
        file.write("a line\n")
        assert file.n_lost == 1
    with pipe() as (reader, writer):
        os.close(reader)
        file = LogFile(writer)
        file.write("a line\n")
        assert file.n_lost == 1


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_reader_that_stops_holds_up_nobody_and_hears_how_much_it_lost(
    is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = 0.0, list[float]()

    def wait(file: LogFile, seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(path, flags)

    monkeypatch.setattr(LogFile, "_wait", wait)
    if not is_ours:
        monkeypatch.setattr(os, "open", refuse)
    with pipe() as (reader, writer):
        file = LogFile(writer, lost=lambda n: f"lost {n}\n", clock=lambda: now)
        file.write("x" * (SIZE - 1) + "\n")
        for _ in range(5):
            file.write("more\n")
        assert (file.n_lost, waited) == (5, [PATIENCE_S])
        now += PAUSE_S + PATIENCE_S
        file.write("more\n")
        assert file.n_lost == 6
        assert waited == pytest.approx([PATIENCE_S] * 2)
        assert read(reader) == "x" * (SIZE - 1) + "\n"
        file.write("again\n")
        assert read(reader) == "lost 6\nagain\n"
        assert file.n_lost == 0


def test_a_line_that_was_cut_off_is_ended_before_the_next_one() -> None:
    with pipe() as (reader, writer):
        file = LogFile(writer, lost=lambda n: f"lost {n}\n")
        file.write("x" * (2 * SIZE) + "\n")
        assert read(reader) == "x" * SIZE
        file.write("again\n")
        assert read(reader) == "\nlost 1\nagain\n"


def test_a_socket_that_nobody_reads_holds_up_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        file = LogFile(ours.fileno())
        for _ in range(1000):
            file.write("x" * 1000 + "\n")
            if file.n_lost:
                break
        assert file.n_lost
        assert os.get_blocking(ours.fileno())


def test_what_is_no_text_of_utf_8_is_written_in_escapes() -> None:
    with pipe() as (reader, writer):
        LogFile(writer).write("\udcff\n")
        assert read(reader) == "\\udcff\n"


PROGRAM = """
import logging, sys
from wkvm.server.log import start_log
start_log("info", "json", "serve")
for _ in range(50):
    logging.info("a line")
    sys.stderr.write("x" * 10_000)
print("on", flush=True)
"""


@pytest.mark.parametrize("where", ["a full disk", "a reader that has gone", "one that stops"])
def test_a_process_with_a_log_goes_on_whatever_becomes_of_standard_error(where: str) -> None:
    with pipe() as (reader, writer), open("/dev/full", "wb", buffering=0) as full:
        if where == "a reader that has gone":
            os.close(reader)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=full if where == "a full disk" else writer,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, b"on\n")
