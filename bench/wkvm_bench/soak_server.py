"""``wkvm serve`` in a process of its own, and a window into that process.

``python -m wkvm_bench.soak_server PATH serve ...`` is ``wkvm serve ...``, with a thread beside it
that answers at PATH: each line of ``Ask`` brings a line of JSON, ``Inside``.
"""

import asyncio
import ctypes
import functools
import gc
import os
import shutil
import signal
import socket
import sqlite3
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import torch

from wkvm.assembly.models import BUNDLED
from wkvm_bench.harness import BenchError
from wkvm_bench.random_model import Size, write_random

READY_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 120.0
CACHE_KIB = 128
"""Of each of SQLite's connections in the server."""
N_LINES = 12
"""Lines of code that are named where memory grew."""
MODEL = Size(n_layers=1, width=64, vocab_size=4096, ranks=(8, 8, 8, 8))
"""As small as a model can be that has the bundled tokenizer."""
TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    "generation_config.json",
)


class Ask(StrEnum):
    """What can be asked of the window.

    ``LOOK`` collects garbage first. ``MARK`` notes what objects there are, and if memory is traced
    who allocated it; ``GROWTH`` says of what and where there is more since.
    """

    LOOK = "look"
    MARK = "mark"
    GROWTH = "growth"


class Inside(msgspec.Struct):
    """What the process holds, after its garbage was collected.

    Attributes:
        n_tasks: of asyncio that are not done.
        n_blocks: pieces of memory of Python objects.
        malloc_bytes: what the C library has given out and not got back; 0 where it does not tell.
            Where this stays and the resident memory grows, memory is only fragmented.
        traced_bytes: of all that Python has allocated; 0 where that is not traced.
        growth: types of which there are more objects, and lines of code that hold more memory.
    """

    n_tasks: int
    n_files: int
    n_threads: int
    rss_bytes: int
    n_blocks: int
    malloc_bytes: int
    traced_bytes: int
    growth: list[str]


@dataclass(frozen=True, slots=True)
class Soaked:
    """A server that runs.

    Attributes:
        pid: of its process.
        binary, http: paths of its sockets.
        port: of HTTP over TCP.
        temporary: its folder of temporary files.
        store: its folder of states.
        log: what it wrote to standard error.
    """

    pid: int
    window: "Window"
    binary: Path
    http: Path
    port: int
    temporary: Path
    store: Path
    log: Path


class Window:
    """Looks into the server's process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, what: Ask = Ask.LOOK) -> Inside:
        """What the process holds now.

        Raises:
            BenchError: the server ended, or does not answer.
        """
        self._writer.write(f"{what}\n".encode())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await self._reader.readline()
        except TimeoutError:
            raise BenchError("the server's process does not answer") from None
        if not line:
            raise BenchError("the server ended")
        return msgspec.json.decode(line, type=Inside)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


@asynccontextmanager
async def soaked(folder: Path, flags: Sequence[str], *, traced: bool) -> AsyncIterator[Soaked]:
    """Run a server of a tiny model for the length of a block.

    Args:
        folder: for its files. Its path is short: there are sockets in it.
        flags: of ``wkvm serve``, besides those of model, sockets and store.
        traced: whether memory is traced, which takes time and memory.

    Raises:
        BenchError: it is not ready in time, or does not end with status 0.
    """
    model, temporary = folder / "model", folder / "tmp"
    model.mkdir()
    temporary.mkdir()
    weights = model / "tiny.pth"
    write_random(weights, MODEL, dtype=torch.float32, device="cpu")
    for name in TEXT_FILES:
        shutil.copy(BUNDLED / name, model / name)
    watch, binary, http = folder / "w", folder / "b", folder / "h"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "wkvm_bench.soak_server", str(watch), "serve", str(weights)),
            *("--binary-port", "none", "--binary-uds", str(binary), "--uds", str(http)),
            *("--port", "0", "--state-dir", str(folder / "store"), "--device", "cpu", *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=os.environ
            | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
            | ({"PYTHONTRACEMALLOC": "1"} if traced else {}),
        )
    try:
        port = await _port(process, folder / "log")
        window = Window(*await asyncio.open_unix_connection(watch, limit=2**20))
        yield Soaked(
            process.pid, window, binary, http, port, temporary, folder / "store", folder / "log"
        )
        window.close()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            if await process.wait():
                raise BenchError(f"the server ended with status {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _port(process: asyncio.subprocess.Process, log: Path) -> int:
    """Where it serves HTTP over TCP, once it is ready."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await process.stdout.readline() if process.stdout is not None else b""
    except TimeoutError:
        raise BenchError(f"the server is not ready after {READY_TIMEOUT_S:g} s") from None
    for word in line.decode().split():
        if word.startswith("http://"):
            return int(word.rpartition(":")[2])
    why = await asyncio.to_thread(log.read_text, errors="replace")
    raise BenchError(f"the server is not ready: {why[-1000:]}")


# --- in the server's process --------------------------------------------------------------


class _Watcher(threading.Thread):
    """Answers, one client at a time, until the process ends."""

    def __init__(self, path: str) -> None:
        super().__init__(name="window", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._marked: tracemalloc.Snapshot | None = None
        self._types = Counter[str]()

    def run(self) -> None:
        """Answer."""
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as lines:
                for line in lines:
                    lines.write(msgspec.json.encode(self._look(Ask(line.strip()))).decode() + "\n")
                    lines.flush()

    def _look(self, what: Ask) -> Inside:
        gc.collect()
        growth = self._growth(what) if what is not Ask.LOOK else []
        return Inside(
            n_tasks=sum(1 for one in gc.get_objects() if _is_open_task(one)),
            n_files=len(os.listdir("/proc/self/fd")),
            n_threads=len(os.listdir("/proc/self/task")),
            rss_bytes=rss_bytes("self"),
            n_blocks=sys.getallocatedblocks(),
            malloc_bytes=malloc_bytes(),
            traced_bytes=tracemalloc.get_traced_memory()[0],
            growth=growth,
        )

    def _growth(self, what: Ask) -> list[str]:
        types = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.get_objects())
        snapshot = tracemalloc.take_snapshot() if tracemalloc.is_tracing() else None
        if what is Ask.MARK:
            self._types, self._marked = types, snapshot
            return []
        more = (types - self._types).most_common(N_LINES)
        growth = [f"{n} more of {name}" for name, n in more]
        if snapshot is not None and self._marked is not None:
            growth += map(str, snapshot.compare_to(self._marked, "lineno")[:N_LINES])
        return growth


def _is_open_task(one: object) -> bool:
    return isinstance(one, asyncio.Task) and not one.done()


def rss_bytes(pid: int | str) -> int:
    """Resident memory of a process. Linux alone says it."""
    n_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_bytes() -> int:
    """What glibc's malloc has given out in all arenas, mapped pieces too; 0 with another one."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = _Mallinfo2
    told = mallinfo2()
    return int(told.uordblks) + int(told.hblkhd)


class _SmallCaches(sqlite3.Connection):
    """Connections whose cache of pages, of 2 MiB else, is full within the warm-up."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute(f"PRAGMA cache_size=-{CACHE_KIB}")


def _main(watch: str, *argv: str) -> int:
    from wkvm.cli import main

    connect = sqlite3.connect
    sqlite3.connect = functools.partial(connect, factory=_SmallCaches)  # type: ignore[assignment]
    _Watcher(watch).start()
    return main(list(argv))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
