"""Each system call on a store's files fails, does half, or is the last one, SQLite's included.

A process works on a store meanwhile; whatever it acknowledged is there afterwards, and what it
refused is as it was.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.soak import SOAKING, seed, tell
from tests.state.simulated import IN_MEMORY
from tests.state.syscalls import ERRORS, Fault, How, Outcome, workers

pytestmark = pytest.mark.long

Run = Callable[[Path, Fault], Outcome]

N_PARTS = 8
"""Parts in which a soak goes through all of it."""
CAN_BE_SHORT = frozenset({"read", "pread", "preadv", "write", "pwrite", "writev"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with workers(tmp_path_factory.mktemp("library")) as running:
        yield running


@pytest.fixture(scope="module")
def calls(run: Run, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All calls of the script to which nothing happens, in order."""
    outcome = run(tmp_path_factory.mktemp("stores") / "store", Fault())
    assert outcome.refusals == []
    assert outcome.status == 0
    return outcome.calls


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory: what a disk has after a kill, its cache has too."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


def some(faults: list[Fault], n: int) -> list[Fault]:
    """Some of them, other ones in each run; of a soak this part of all."""
    if SOAKING:
        return faults[(seed() - 1) % N_PARTS :: N_PARTS]
    return random.Random(seed()).sample(faults, n)


def check(run: Run, folder: Path, fault: Fault) -> Outcome:
    """Run a worker under a fault. What is wrong afterwards fails the test."""
    store = folder / "store"
    outcome = run(store, fault)
    wrong = outcome.losses(store)
    assert wrong == [], (fault, outcome)
    shutil.rmtree(store)
    return outcome


def test_a_call_that_fails_is_a_typed_error_and_loses_nothing(
    run: Run, calls: list[str], scratch: Path
) -> None:
    faults = [
        Fault(at, How.FAIL, error, is_sticky)
        for at in range(len(calls))
        for error in ERRORS.values()
        for is_sticky in (False, True)
    ]
    chosen = some(faults, 40)
    for fault in chosen:
        outcome = check(run, scratch, fault)
        assert outcome.status == 0, (fault, "the process ended")
    tell(1, "system calls fail, each with 6 errors, once and for ever", len(chosen), "runs")


def test_a_call_that_does_half_of_what_it_is_asked_for_changes_nothing(
    run: Run, calls: list[str], scratch: Path
) -> None:
    faults = [
        Fault(at, How.HALVE, is_sticky=is_sticky)
        for at, name in enumerate(calls)
        for is_sticky in (False, True)
        if name in CAN_BE_SHORT
    ]
    chosen = some(faults, 8)
    for fault in chosen:
        outcome = check(run, scratch, fault)
        assert outcome.status == 0, (fault, "the process ended")
        assert outcome.refusals == [], (fault, outcome)
    tell(1, "reads and writes are short", len(chosen), "runs")


def test_a_kill_before_or_after_any_call_loses_nothing_that_was_acknowledged(
    run: Run, calls: list[str], scratch: Path
) -> None:
    faults = [
        Fault(at, how) for at in range(len(calls)) for how in (How.KILL_BEFORE, How.KILL_AFTER)
    ]
    chosen = some(faults, 12)
    for fault in chosen:
        outcome = check(run, scratch, fault)
        assert outcome.status == signal.SIGKILL, (fault, outcome)
    tell(1, "a kill before and after each system call", len(chosen), "kills")


def test_no_call_on_the_stores_files_is_overlooked(
    run: Run, calls: list[str], tmp_path: Path
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace counts what the kernel is asked for")
    kinds = Counter(name for name in calls if name != "mmap")
    program = (
        "import os, sys\n"
        "from tests.state.syscalls import Script\n"
        "from tests.state.crashes import LIMITS\n"
        "from tests.state.stores import Clock\n"
        "from wkvm.state.store import Store\n"
        "Script(Store.open(sys.argv[1], clock=Clock(), limits=LIMITS)).run()\n"
        "os._exit(0)\n"
    )
    store, log = tmp_path / "store", tmp_path / "log"
    traced = "openat,open,read,write,pread64,pwrite64,preadv,preadv2,writev,pwritev,pwritev2"
    traced += ",fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat"
    traced += ",mkdir,mkdirat,sync_file_range,msync"
    command = ["strace", "-f", "-y", "-qq", "-o", str(log), "-e", f"trace={traced}"]
    subprocess.run(
        [*command, sys.executable, "-c", program, str(store)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    same = {"openat": "open", "mkdirat": "mkdir", "unlinkat": "unlink", "renameat": "rename"}
    same |= {"renameat2": "rename", "pread64": "pread", "pwrite64": "pwrite", "preadv2": "preadv"}
    seen = Counter[str]()
    for line in log.read_text().splitlines():
        call = line.split(maxsplit=1)[1].partition("(")[0]
        if str(store) in line:
            seen[same.get(call, call)] += 1
    assert seen == kinds
