"""A file system in memory that can fail, and lose power.

What was written and not synced is kept, lost, torn or reordered when power goes. A name that was
made, moved or removed is on the disk only when its folder was synced. After a sync that failed the
bytes are lost though they can be read until then, and the next sync says that all is well.

SQLite's files are real ones beside it: they hold what was committed.
"""

import errno
import os
import random
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wkvm.state.io import Entry, Folder, Kind, Space

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""For SQLite's files: how they are written is not tried here, and no disk needs to wait for it."""

SECTORS = (512, 4096)
"""What a disk writes at once, or not at all."""

TOTAL_BYTES = 2**30


class PowerCut(BaseException):
    """The machine stops. Not an Exception: no handler may go on."""


@dataclass(eq=False)
class File:
    """Bytes as they are read, and as they are on the disk."""

    cached: bytearray = field(default_factory=bytearray)
    on_disk: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    kind: Kind = Kind.FILE
    written: int = 0


@dataclass(eq=False)
class Directory:
    """Names as they are seen, and as they are on the disk, with what happened since."""

    cached: dict[str, "File | Directory"] = field(default_factory=dict)
    on_disk: dict[str, "File | Directory"] = field(default_factory=dict)
    pending: list["Change"] = field(default_factory=list)


@dataclass(eq=False)
class Change:
    """Something that happened to names. It reaches the disk whole or not at all."""

    removed: tuple[Directory, str] | None = None
    added: tuple[Directory, str, "File | Directory"] | None = None

    def apply(self, which: str) -> None:
        if self.removed is not None:
            getattr(self.removed[0], which).pop(self.removed[1], None)
        if self.added is not None:
            getattr(self.added[0], which)[self.added[1]] = self.added[2]


@dataclass
class Plan:
    """What goes wrong, and when: at the ``at``-th operation, counted from 0.

    Attributes:
        fault: an errno; None cuts the power.
        is_sticky: all operations from then on fail.
        is_short: instead, reads and writes from then on do half of what they are asked.
        only: operations that count; None for all.
    """

    at: int = 2**62
    fault: int | None = None
    is_sticky: bool = False
    is_short: bool = False
    only: frozenset[str] | None = None


class Disk:
    """What survives a loss of power."""

    def __init__(self, database: Path) -> None:
        self.root = Directory()
        self.database = database
        self.folders = [self.root]
        self.locks = set[str]()
        self.ids = random.Random(0)

    def lose_power(self, choose: random.Random | None, *, keep: bool = False) -> None:
        """Be what a disk is after power was lost.

        Args:
            choose: what of that which was not synced survives; None for all or nothing.
            keep: without ``choose``: all.
        """
        for change in dict.fromkeys(one for folder in self.folders for one in folder.pending):
            if (choose.random() < 0.5) if choose else keep:
                change.apply("on_disk")
        seen = set[int]()
        for folder in self.folders:
            folder.pending.clear()
            folder.cached = dict(folder.on_disk)
            for node in folder.cached.values():
                if isinstance(node, File) and id(node) not in seen:
                    seen.add(id(node))
                    _settle(node, choose, keep=keep)
        self.locks.clear()


def _settle(file: File, choose: random.Random | None, *, keep: bool) -> None:
    for at, data in file.pending:
        if choose is None:
            if keep:
                _put(file.on_disk, at, data)
            continue
        # The length may have reached the disk without the bytes.
        if choose.random() < 0.5:
            _put(file.on_disk, at + len(data), b"")
        sector = choose.choice(SECTORS)
        for start in range(0, len(data), sector):
            if choose.random() < 0.5:
                _put(file.on_disk, at + start, data[start : start + sector])
    file.pending.clear()
    file.cached = bytearray(file.on_disk)


def _put(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at + len(data):
        content.extend(bytes(at + len(data) - len(content)))
    content[at : at + len(data)] = data


class SimIO:
    """The seam over a simulated disk, for as long as one process lives."""

    def __init__(self, disk: Disk, plan: Plan | None = None) -> None:
        self.disk = disk
        self.plan = plan or Plan()
        self.n_operations = 0
        self.log = list[str]()
        self.on_step: Callable[[str], None] | None = None
        self._fds = dict[int, File | str]()
        self._next_fd = 3

    # --- what goes wrong ---------------------------------------------------------------

    def step(self, name: str) -> bool:
        """Count an operation, or fail. True if it is to be cut short."""
        plan = self.plan
        if plan.only is not None and name not in plan.only:
            return False
        at, self.n_operations = self.n_operations, self.n_operations + 1
        self.log.append(name)
        if self.on_step is not None:
            self.on_step(name)
        if at < plan.at:
            return False
        if plan.is_short:
            return True
        if at == plan.at or plan.is_sticky or plan.fault is None:
            if plan.fault is None:
                raise PowerCut(name)
            raise OSError(plan.fault, os.strerror(plan.fault), name)
        return False

    # --- the seam ----------------------------------------------------------------------

    def open_root(self, path: str, *, create: bool) -> "SimFolder":
        self.step("open_root")
        return SimFolder(self, self.disk.root, path, is_root=True)

    def database_path(self, folder: Folder, name: str) -> str:
        return str(self.disk.database / name)

    def reserve(self, fd: int, n_bytes: int) -> None:
        self.step("reserve")
        file = self._file(fd)
        if len(file.cached) < n_bytes:
            _put(file.cached, n_bytes, b"")
            file.pending.append((0, bytes(n_bytes)))

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        short = self.step("write")
        file = self._file(fd)
        data = b"".join(buffers)
        if short:
            data = data[: max(1, len(data) // 2)]
        _put(file.cached, file.written, data)
        file.pending.append((file.written, data))
        file.written += len(data)
        return len(data)

    def read(self, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        short = self.step("read")
        file, n = self._file(fd), 0
        for buffer in buffers:
            piece = file.cached[at : at + len(buffer)]
            if short:
                piece = piece[: max(1, len(piece) // 2)]
            buffer[: len(piece)] = piece
            n, at = n + len(piece), at + len(piece)
            if len(piece) < len(buffer):
                break
        return n

    def size(self, fd: int) -> int:
        self.step("size")
        return len(self._file(fd).cached)

    def sync(self, fd: int) -> None:
        file = self._file(fd)
        try:
            self.step("sync")
        except OSError:
            file.pending.clear()
            raise
        for at, data in file.pending:
            _put(file.on_disk, at, data)
        file.pending.clear()

    def close(self, fd: int) -> None:
        held = self._fds.pop(fd)
        if isinstance(held, str):
            self.disk.locks.discard(held)

    def fresh_id(self) -> str:
        return f"{self.disk.ids.getrandbits(128):032x}"

    def descriptor(self, held: File | str) -> int:
        self._next_fd += 1
        self._fds[self._next_fd] = held
        return self._next_fd

    @property
    def n_open(self) -> int:
        """Descriptors that are open."""
        return len(self._fds)

    def _file(self, fd: int) -> File:
        held = self._fds[fd]
        assert isinstance(held, File)
        return held


class SimFolder:
    """A folder of the simulated disk."""

    def __init__(self, io: SimIO, at: Directory, path: str, *, is_root: bool = False) -> None:
        self._io = io
        self.at = at
        self.path = path
        self._is_root = is_root

    def folder(self, name: str) -> "SimFolder":
        self._io.step("folder")
        node = self.at.cached.get(name)
        if node is None:
            node = Directory()
            self._io.disk.folders.append(node)
            self._change(added=(self.at, name, node))
            self._sync()
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", name)
        return SimFolder(self._io, node, f"{self.path}/{name}")

    def create(self, name: str) -> int:
        self._io.step("create")
        if name in self.at.cached:
            raise FileExistsError(errno.EEXIST, "exists", name)
        file = File()
        self._change(added=(self.at, name, file))
        return self._io.descriptor(file)

    def open(self, name: str) -> int:
        self._io.step("open")
        node = self.at.cached.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "not there", name)
        if not isinstance(node, File) or node.kind is not Kind.FILE:
            raise OSError(errno.ELOOP, "not a file", name)
        return self._io.descriptor(node)

    def rename(self, name: str, target: Folder, new_name: str) -> None:
        self._io.step("rename")
        assert isinstance(target, SimFolder)
        if name not in self.at.cached:
            raise FileNotFoundError(errno.ENOENT, "not there", name)
        node = self.at.cached[name]
        self._change(removed=(self.at, name), added=(target.at, new_name, node))

    def unlink(self, name: str) -> None:
        self._io.step("unlink")
        if name not in self.at.cached:
            raise FileNotFoundError(errno.ENOENT, "not there", name)
        self._change(removed=(self.at, name))

    def names(self) -> dict[str, bool]:
        self._io.step("names")
        return {name: isinstance(node, File) for name, node in self.at.cached.items()}

    def entries(self, names: Container[str] | None = None) -> list[Entry]:
        self._io.step("entries")
        found = list[Entry]()
        for name, node in self.at.cached.items():
            if names is not None and name not in names:
                continue
            if isinstance(node, File):
                found.append(Entry(name, node.kind, len(node.cached), True))
            else:
                found.append(Entry(name, Kind.FOLDER, 0, True))
        if self._is_root:
            for path in self._io.disk.database.iterdir():
                found.append(Entry(path.name, Kind.FILE, path.stat().st_size, True))
        return found

    def sync(self) -> None:
        try:
            self._io.step("sync_folder")
        except OSError:
            self._forget()
            raise
        self._sync()

    def lock(self, name: str) -> int:
        self._io.step("lock")
        if name in self._io.disk.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", name)
        if name not in self.at.cached:
            self._change(added=(self.at, name, File()))
        self._io.disk.locks.add(name)
        return self._io.descriptor(name)

    def space(self) -> Space:
        self._io.step("space")
        used = sum(len(node.cached) for node in self.at.cached.values() if isinstance(node, File))
        return Space(TOTAL_BYTES, TOTAL_BYTES - used)

    def restrict(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _change(
        self,
        *,
        removed: tuple[Directory, str] | None = None,
        added: tuple[Directory, str, File | Directory] | None = None,
    ) -> None:
        change = Change(removed, added)
        change.apply("cached")
        for folder in {id(one[0]): one[0] for one in (removed, added) if one is not None}.values():
            folder.pending.append(change)

    def _sync(self) -> None:
        for change in self.at.pending:
            change.apply("on_disk")
        self._forget()

    def _forget(self) -> None:
        for change in list(self.at.pending):
            for folder in self._io.disk.folders:
                if change in folder.pending:
                    folder.pending.remove(change)
