"""A process that works on a store while one of its system calls fails, does half, or is the last.

``python -m tests.state.syscalls``, with the library of ``syscalls.c`` loaded before all others,
waits for lines on standard input and forks a worker for each, so that torch is imported once. The
worker says on standard output what was acknowledged, which is checked by whoever reads that: it
has the acknowledgements outside of what crashes.
"""

import contextlib
import ctypes
import enum
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.state.crashes import LAYOUT, LIMITS
from tests.state.images import an_image, same
from tests.state.programs import Content
from tests.state.stores import CREATE, MEMORY, Clock
from wkvm.core.errors import WkvmError
from wkvm.core.registry import AckClass, VersionRecord
from wkvm.state.store import Store

SOURCE = Path(__file__).with_suffix(".c")
ERRORS = {
    name: int(getattr(errno, name))
    for name in ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EROFS", "ENOMEM")
}
PATIENCE_S = 120
"""After which a worker that hangs is killed, and fails its test."""


class How(enum.IntEnum):
    """What becomes of the call, as ``syscalls.c`` numbers it."""

    FAIL = 0
    HALVE = 1
    KILL_BEFORE = 2
    KILL_AFTER = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at which call, counted from 0. ``at`` -1 is never.

    Attributes:
        error: an errno, where it fails.
        is_sticky: each one after it fails as well.
    """

    at: int = -1
    how: How = How.FAIL
    error: int = 0
    is_sticky: bool = False


# --- the worker ---------------------------------------------------------------------------


def say(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


class Script:
    """Some operations of each kind, and a model of what they have come to.

    Attributes:
        on_disk, in_memory: by name and version the seed of an image, as acknowledged.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.on_disk, self.in_memory = Content(), Content()

    def steps(self) -> dict[str, tuple[list[str], Callable[[], object]]]:
        """What is done: by what it is called, the handles that it concerns."""
        store = self._store
        return {
            "new": (["a"], lambda: self._put("a", 1)),
            "next": (["a"], lambda: self._put("a", 2)),
            "other": (["b"], lambda: self._put("b", 3)),
            "fork": (["f"], lambda: self._note(store.fork("t", "a", ["f"])[0], 2)),
            "memory": (["m"], lambda: self._put("m", 4, durability=MEMORY)),
            "flush": (["m"], self._flush),
            "rollback": (["a"], lambda: self._note(store.rollback("t", "a", version=1), 1)),
            "rename": (["b", "c"], self._rename),
            "delete version": (["a"], self._delete_version),
            "newest": (["a"], lambda: self._put("a", 5, keep=1)),
            "delete": (["f"], self._delete),
            "gc": ([], store.gc),
        }

    def _put(self, name: str, seed: int, **options: Any) -> None:
        image = an_image(seed, layout=LAYOUT)
        self._note(self._store.commit("t", name, image, provenance=CREATE, **options), seed)
        if "keep" in options:
            versions = self.on_disk[name]
            self.on_disk[name] = {max(versions): versions[max(versions)]}

    def _note(self, record: VersionRecord, seed: int) -> None:
        kept = self.on_disk if record.ack is AckClass.DURABLE else self.in_memory
        kept.setdefault(record.name, {})[record.version] = seed

    def _flush(self) -> None:
        self._store.flush()
        for name, versions in self.in_memory.items():
            self.on_disk.setdefault(name, {}).update(versions)
        self.in_memory.clear()

    def _rename(self) -> None:
        self._store.rename("t", "b", "c")
        self.on_disk["c"] = self.on_disk.pop("b")

    def _delete_version(self) -> None:
        self._store.delete("t", "a@1")
        self.on_disk["a"].pop(1)

    def _delete(self) -> None:
        self._store.delete("t", "f")
        self.on_disk.pop("f")

    def run(self) -> None:
        """Take all steps, whatever they are answered, and say it."""
        for what, (names, step) in self.steps().items():
            say(about=names)
            try:
                step()
            except WkvmError as error:
                is_open = self._store._catalogue.is_failed
                say(refused=what, error=type(error).__name__, doubtful=names if is_open else [])
                continue
            say(done=what, on_disk=self.on_disk, in_memory=self.in_memory)
        for content in (self.on_disk, self.in_memory):
            for name, versions in content.items():
                for version, seed in versions.items():
                    self._load(f"{name}@{version}", seed)

    def _load(self, ref: str, seed: int) -> None:
        try:
            image = self._store.load("t", ref).image
        except WkvmError as error:
            say(unread=ref, error=type(error).__name__)
        else:
            assert same(image, an_image(seed, layout=LAYOUT)), f"{ref}: other bytes"


def work(folder: str, fault: Fault, library: ctypes.CDLL) -> None:
    """Open a store, run the script under a fault, and go on without it."""
    library.wkvm_arm(folder.encode(), fault.at, int(fault.how), fault.error, int(fault.is_sticky))
    try:
        store = Store.open(folder, clock=Clock(), limits=LIMITS)
    except WkvmError as error:
        library.wkvm_disarm()
        say(not_opened=type(error).__name__)
        store = Store.open(folder, clock=Clock(), limits=LIMITS)
    script = Script(store)
    say(opened=True)
    script.run()
    library.wkvm_disarm()
    library.wkvm_names.restype = ctypes.c_char_p
    say(calls=library.wkvm_names().decode().split())
    if store.stat().is_writable:
        # What failed is over, and nothing is left of it.
        script._put("after", 9)
        say(done="after", on_disk=script.on_disk, in_memory=script.in_memory)
        assert store.check().findings == (), store.check().findings
        for name in [one.name for one in store.handles("t")]:
            store.get("t", name)
    say(end=True)


def nursery() -> None:
    """Fork a worker for each line: a folder and a fault, as JSON."""
    library = ctypes.CDLL(None)
    library.wkvm_arm.argtypes = [
        ctypes.c_char_p,
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ]
    for line in sys.stdin:
        folder, fault = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(PATIENCE_S)
                work(folder, Fault(**fault), library)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        say(ended=os.waitpid(pid, 0)[1])


# --- from outside -------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a worker said, and how it ended."""

    on_disk: Content = field(default_factory=Content)
    in_memory: Content = field(default_factory=Content)
    doubtful: set[str] = field(default_factory=set[str])
    refusals: list[str] = field(default_factory=list[str])
    calls: list[str] = field(default_factory=list[str])
    status: int = 0

    def hear(self, message: dict[str, Any]) -> None:
        match message:
            case {"about": names}:
                self._about = set[str](names)
            case {"done": _, "on_disk": on_disk, "in_memory": in_memory}:
                self.on_disk, self.in_memory = _content(on_disk), _content(in_memory)
                self._about = set[str]()
            case {"refused": what, "error": error, "doubtful": names}:
                self.refusals.append(f"{what}: {error}")
                self.doubtful |= set(names)
                self._about = set[str]()
            case {"unread": what, "error": error} | {"not_opened": error, **what}:
                self.refusals.append(f"{what}: {error}")
            case {"calls": calls}:
                self.calls = calls
            case {"ended": status}:
                self.status = status
                self.doubtful |= self._about
            case _:
                pass

    _about: set[str] = field(default_factory=set[str])

    def losses(self, folder: Path) -> list[str]:
        """What a store that is opened now has, and should not; or has not, and should."""
        with contextlib.closing(Store.open(str(folder), clock=Clock(), limits=LIMITS)) as store:
            found, wrong = Content(), [str(one) for one in store.check().findings]
            for handle in store.handles("t"):
                for record in store.log("t", handle.name):
                    image = store.load("t", record.ref).image
                    seed = image.carried.pending[0]
                    if not same(image, an_image(seed, layout=LAYOUT)):
                        wrong.append(f"{record.ref}: other bytes")
                    found.setdefault(handle.name, {})[record.version] = seed
            for name in found.keys() | self.on_disk.keys():
                must, there = self.on_disk.get(name, {}), found.get(name, {})
                may = must | self.in_memory.get(name, {})
                if name in self.doubtful:
                    # It is as it was, or as it was to be; no version has other bytes.
                    common = there.keys() & must.keys()
                    is_right = all(there[one] == must[one] for one in common)
                else:
                    is_right = must.items() <= there.items() <= may.items()
                if not is_right:
                    wrong.append(f"{name}: {there} in place of {must}")
            stat = store.stat()
            if stat.n_damaged or stat.n_quarantined:
                wrong.append("something was taken for damaged")
            rows = store._catalogue.read("SELECT file FROM payloads WHERE file IS NOT NULL")
            if {file for (file,) in rows} != set(os.listdir(folder / "payloads")):
                wrong.append("files that nobody knows, or rows without a file")
            return wrong


def _content(said: dict[str, dict[str, int]]) -> Content:
    return {
        name: {int(version): seed for version, seed in versions.items()}
        for name, versions in said.items()
    }


@contextlib.contextmanager
def workers(folder: Path) -> Iterator[Callable[[Path, Fault], Outcome]]:
    """Something that runs a worker on a store, under a fault. ``folder`` is for the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed to make system calls fail")
    library = folder / "syscalls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.state.syscalls"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(store: Path, fault: Fault) -> Outcome:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(store), asdict(fault)]) + "\n")
        process.stdin.flush()
        outcome = Outcome()
        for line in process.stdout:
            message = json.loads(line)
            outcome.hear(message)
            if "ended" in message:
                return outcome
        raise AssertionError("the workers' parent has died")

    try:
        yield run
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


if __name__ == "__main__":
    nursery()
