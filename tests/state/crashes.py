"""A process that works on a store until it is killed, and what must be there afterwards.

``python -m tests.state.crashes`` waits for lines on standard input, and forks a worker for each:
so torch is imported once. A worker says on standard output what it is about to do, and what was
acknowledged. Whoever reads that has the acknowledgements outside of what crashes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.state.images import an_image, same
from tests.state.stores import CREATE, MEMORY
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass
from wkvm.state.catalogue import Catalogue
from wkvm.state.io import SystemFolder, SystemIO
from wkvm.state.store import Store

LAYOUT = StateLayout((TensorSpec("toy.matrix", (50, 1000), "float32"),))
NAMES = [f"s{at}" for at in range(6)]
LIMITS = StoreLimits(disk_reserve=0.0)
FORMS = ("honest", "files are not synced", "the catalogue is not synced")

Content = dict[str, dict[int, int]]


# --- the worker ---------------------------------------------------------------------------


def work(folder: str, seed: int, form: str) -> None:
    """Change the store for ever, telling each intention and each acknowledgement."""
    choose = random.Random(seed)
    io = SystemIO()
    if form == "files are not synced":
        _let_files_lie()
    elif form == "the catalogue is not synced":
        _let_catalogue_lie()
    store = Store.open(folder, clock=time.time, limits=LIMITS, io=io)
    for at in range(10**6):
        one = seed * 1000 + at % 1000
        name = choose.choice(NAMES)
        say({"about": name})
        say({"done": name, **_change(store, choose, name, one)})


def _change(store: Store, choose: random.Random, name: str, seed: int) -> dict[str, Any]:
    kind = choose.choice(["put"] * 5 + ["memory", "delete", "fork", "keep", "persist"])
    names = [one.name for one in store.handles("t")]
    if kind == "fork" and name in names:
        kind = "put"
    if kind in ("fork", "delete", "persist") and not names:
        kind = "put"
    match kind:
        case "put" | "keep" | "memory":
            image = an_image(seed, layout=LAYOUT)
            options: dict[str, Any] = {"keep": 2} if kind == "keep" else {}
            if kind == "memory":
                options["durability"] = MEMORY
            store.commit("t", name, image, provenance=CREATE, **options)
        case "fork":
            store.fork("t", choose.choice(names), [name])
        case "delete":
            if name in names:
                store.delete("t", name)
        case _:
            if name in names:
                store.persist("t", name)
    versions, in_memory = dict[int, int](), dict[int, int]()
    if name in [one.name for one in store.handles("t")]:
        for record in store.log("t", name):
            kept = versions if record.ack is AckClass.DURABLE else in_memory
            kept[record.version] = store.load("t", record.ref).image.carried.pending[0]
    return {"versions": versions, "in_memory": in_memory}


def say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _let_files_lie() -> None:
    SystemIO.sync = lambda self, fd: None  # type: ignore[method-assign]
    SystemFolder.sync = lambda self: None  # type: ignore[method-assign]


def _let_catalogue_lie() -> None:
    def off(self: Catalogue, writer: Any, level: str) -> None:
        writer.execute("PRAGMA synchronous=OFF")

    Catalogue._choose_synchronous = off  # type: ignore[method-assign]


def nursery() -> None:
    """Fork a worker for each line: a folder, a seed and a form, as JSON."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(*json.loads(line))
        say({"pid": pid})
        os.waitpid(pid, 0)
        say({"dead": pid})


# --- from outside -------------------------------------------------------------------------


@dataclass
class Ledger:
    """What was acknowledged, and what was under way.

    Attributes:
        content: what must be there.
        in_memory: what may be there: a fork of it, for one, puts it on disk.
    """

    content: Content = field(default_factory=dict)
    in_memory: Content = field(default_factory=dict)
    about: str | None = None
    n_acks: int = 0

    def hear(self, message: dict[str, Any]) -> None:
        if "about" in message:
            self.about = message["about"]
        if "done" in message:
            self.about, self.n_acks = None, self.n_acks + 1
            name = message["done"]
            for content, said in (
                (self.content, message["versions"]),
                (self.in_memory, message["in_memory"]),
            ):
                content.pop(name, None)
                if said:
                    content[name] = {int(version): seed for version, seed in said.items()}

    def losses(self, store: Store) -> list[str]:
        """What is not as it was acknowledged. Then the ledger says what is there."""
        found, lost = content_of(store)
        for name in NAMES:
            must, may = self.content.get(name, {}), self.in_memory.get(name, {})
            there = found.get(name, {})
            is_right = must.items() <= there.items() <= {**must, **may}.items()
            if name != self.about and not is_right:
                lost.append(f"{name}: {there} in place of {must} and perhaps {may}")
        if self.about is not None:
            # Whatever was under way added a version, or took some away; it changed none.
            before, now = self.content.get(self.about, {}), found.get(self.about, {})
            if any(now[one] != before[one] for one in now.keys() & before.keys()):
                lost.append(f"{self.about}: a version has other bytes")
        self.content, self.in_memory, self.about = found, {}, None
        return lost


def content_of(store: Store) -> tuple[Content, list[str]]:
    """All versions, read from disk and compared bit for bit; and what cannot be read."""
    content, lost = Content(), list[str]()
    for handle in store.handles("t"):
        for record in store.log("t", handle.name):
            try:
                image = store.load("t", record.ref).image
            except Exception as error:
                lost.append(f"{record.ref}: {error}")
                continue
            seed = image.carried.pending[0]
            if not same(image, an_image(seed, layout=LAYOUT)):
                lost.append(f"{record.ref}: other bytes")
            content.setdefault(handle.name, {})[record.version] = seed
    return content, lost


class Nursery:
    """Workers that can be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.state.crashes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run_and_kill(
        self, folder: Path, seed: int, ledger: Ledger, *, after_acks: int, form: str = "honest"
    ) -> None:
        """Let a worker work until so many acknowledgements came, and kill it at any moment then."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(folder), seed, form]) + "\n")
        process.stdin.flush()
        pid, delay = None, random.Random(seed).random() * 0.02
        for line in process.stdout:
            message = json.loads(line)
            ledger.hear(message)
            pid = message.get("pid", pid)
            if pid is not None and after_acks is not None and ledger.n_acks >= after_acks:
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
                after_acks = 10**9
            if "dead" in message:
                break
        else:
            raise AssertionError("the workers' parent has died")
        ledger.n_acks = 0

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


if __name__ == "__main__":
    nursery()
