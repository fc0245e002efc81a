"""Short programs over a store on a simulated disk, and what may be left of them."""

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.state.images import an_image, same
from tests.state.simulated import Directory, Disk, File, Plan, SimIO
from tests.state.stores import MEMORY, Clock, after, crash, put
from wkvm.core.errors import WkvmError
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass
from wkvm.state.store import Store

Content: TypeAlias = dict[str, dict[int, int]]
"""By name and version, the seed of the image that is there."""

Step: TypeAlias = Callable[[Store], object]

LIMITS = StoreLimits(host_bytes=2**20, disk_reserve=0.0)


def _again(store: Store) -> object:
    return put(store, "a", 5, provenance=after(store.get("t", "a")), idempotency_key="k")


STEPS: dict[str, Step] = {
    "new": lambda store: put(store, "n", 3, expected_version=0),
    "next": lambda store: put(store, "a", 4, tags={"x": "y"}),
    "checkpointed": lambda store: put(store, "a", 6, checkpoints=[an_image(7, n_tokens=1)]),
    "keyed": _again,
    "same bytes": lambda store: put(store, "s", 1),
    "newest only": lambda store: put(store, "a", 8, keep=1),
    "fork": lambda store: store.fork("t", "a", ["f", "g"]),
    "rollback": lambda store: store.rollback("t", "a", version=1),
    "rename": lambda store: store.rename("t", "b", "c"),
    "delete": lambda store: store.delete("t", "b"),
    "delete version": lambda store: store.delete("t", "a@1"),
    "memory": lambda store: put(store, "m", 9, durability=MEMORY),
    "memory on top": lambda store: put(store, "a", 9, durability=MEMORY),
    "flush": lambda store: store.flush(),
    "gc": lambda store: store.gc(),
    "load": lambda store: store.load("t", "a@1"),
}


def programs(n_steps: int) -> list[tuple[str, ...]]:
    """All programs of so many steps. What goes wrong in one goes wrong in its last step.

    What goes wrong in an earlier one, a shorter program has in its last one.
    """
    return list(itertools.product(STEPS, repeat=n_steps))


def run(store: Store, name: str) -> bool:
    """Take a step. False if it was refused."""
    try:
        STEPS[name](store)
    except WkvmError:
        return False
    return True


@dataclass
class Trace:
    """What is there after each step of a program to which nothing happens.

    Attributes:
        live: as long as the store is open.
        durable: after a crash.
        n_operations: of the file system, by each step.
        is_refused: whether the last step is an error where it stands, such as a name taken twice.
    """

    live: list[Content]
    durable: list[Content]
    n_operations: list[int]
    is_refused: bool


class Bench:
    """Makes stores that begin with the same handles, ``a`` with two versions and ``b``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n = 0
        (folder / "first").mkdir()
        self._first = Disk(folder / "first")
        store = self.open(self._first)
        put(store, "a", 1)
        put(store, "a", 2, provenance=after(store.get("t", "a")))
        put(store, "b", 2)
        store.close()

    def disk(self) -> Disk:
        """A disk with the store on it."""
        self._n += 1
        database = self._folder / f"d{self._n % 8}"
        shutil.rmtree(database, ignore_errors=True)
        shutil.copytree(self._folder / "first", database)
        disk = Disk(database)
        copies = dict[int, File | Directory]()

        def copied(node: File | Directory) -> File | Directory:
            if id(node) not in copies:
                if isinstance(node, File):
                    twin: File | Directory = File(
                        bytearray(node.cached), bytearray(node.on_disk), list(node.pending)
                    )
                else:
                    twin = Directory(
                        {name: copied(one) for name, one in node.cached.items()},
                        {name: copied(one) for name, one in node.on_disk.items()},
                    )
                    disk.folders.append(twin)
                copies[id(node)] = twin
            return copies[id(node)]

        disk.ids.setstate(self._first.ids.getstate())
        root = copied(self._first.root)
        assert isinstance(root, Directory)
        disk.root = root
        return disk

    def open(self, disk: Disk, plan: Plan | None = None) -> Store:
        """Open the store of a disk."""
        return Store.open("/sim", clock=Clock(), io=SimIO(disk, plan), limits=LIMITS)

    def trace(self, program: Sequence[str]) -> Trace:
        """Run a program to which nothing happens."""
        store = self.open(self.disk())
        io = store._io
        assert isinstance(io, SimIO)
        io.n_operations = 0
        live, durable = [content_of(store)], [content_of(store, durable=True)]
        n_operations, is_refused = list[int](), False
        for name in program:
            before = io.n_operations
            is_refused = not run(store, name)
            n_operations.append(io.n_operations - before)
            live.append(content_of(store))
            durable.append(content_of(store, durable=True))
            assert not is_refused or live[-1] == live[-2], "a step that was refused did something"
        crash(store)
        return Trace(live, durable, n_operations, is_refused)

    def prepared(self, program: Sequence[str]) -> tuple[Disk, Store]:
        """A store that is about to take the last step of a program."""
        disk = self.disk()
        store = self.open(disk)
        for name in program[:-1]:
            run(store, name)
        return disk, store

    def arm(self, store: Store, plan: Plan) -> SimIO:
        """Let a plan begin now."""
        io = store._io
        assert isinstance(io, SimIO)
        io.plan, io.n_operations = plan, 0
        return io


def content_of(store: Store, *, durable: bool = False) -> Content:
    """All that a store holds, each image compared bit for bit.

    Args:
        durable: leave out what a crash loses.
    """
    content = Content()
    for handle in store.handles("t"):
        for record in store.log("t", handle.name):
            if durable and record.ack is not AckClass.DURABLE:
                continue
            image = store.load("t", record.ref).image
            seed = image.carried.pending[0]
            assert same(image, an_image(seed, n_tokens=record.n_computed))
            content.setdefault(handle.name, {})[record.version] = seed
    return content


def check_clean(store: Store) -> None:
    """Nothing is damaged, nothing is left over, nothing is missing, no descriptor is lost."""
    assert store.check().findings == ()
    disk_files = set(store._folders.payloads.at.cached)  # type: ignore[attr-defined]
    rows = store._catalogue.read("SELECT file FROM payloads WHERE file IS NOT NULL")
    assert disk_files == {file for (file,) in rows}
    assert store.stat().n_quarantined == 0
    io = store._io
    assert isinstance(io, SimIO)
    assert io.n_open == 1, "the lock alone"


def power_choices(n_random: int, seed: int) -> list[Callable[[Disk], None]]:
    """Ways to lose power: nothing unsynced survives, all of it does, some of it."""

    def some(at: int) -> Callable[[Disk], None]:
        return lambda disk: disk.lose_power(random.Random(f"{seed} {at}"))

    return [
        lambda disk: disk.lose_power(None),
        lambda disk: disk.lose_power(None, keep=True),
        *(some(at) for at in range(n_random)),
    ]
