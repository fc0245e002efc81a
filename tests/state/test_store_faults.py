"""Every operation of the file system fails, once or for ever, or is the last one before dark."""

import contextlib
import errno
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.soak import SOAKING, seed, tell
from tests.state.programs import (
    STEPS,
    Bench,
    check_clean,
    content_of,
    power_choices,
    programs,
    run,
)
from tests.state.simulated import IN_MEMORY, Disk, Plan, PowerCut, SimIO
from tests.state.stores import crash
from wkvm.core.errors import (
    StateDamagedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from wkvm.state.reading import payload_of
from wkvm.state.store import Store

pytestmark = pytest.mark.long

PAIRS = [
    ("memory", "flush"),
    ("memory on top", "next"),
    ("memory on top", "rollback"),
    ("fork", "delete version"),
    ("same bytes", "delete version"),
    ("keyed", "keyed"),
    ("rename", "new"),
]
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT, errno.EINTR)

N_PARTS = 16
"""Parts in which a soak goes through all programs."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Bench(Path(folder))


def chosen() -> list[tuple[str, ...]]:
    """Programs of one step and some of two; of a soak this part of all of up to three."""
    if not SOAKING:
        return [*programs(1), *PAIRS]
    everything = [*programs(1), *programs(2), *programs(3)]
    return everything[(seed() - 1) % N_PARTS :: N_PARTS]


def cut_everywhere(bench: Bench, program: Sequence[str]) -> int:
    """Cut power at each operation of the last step. How often that was."""
    trace, n_cuts = bench.trace(program), 0
    # Nothing that was not synced survives, or all of it, or some.
    choices = power_choices(n_random=1, seed=seed())
    for at in range(trace.n_operations[-1]):
        for lose in choices if len(program) < 3 else choices[::2]:
            disk, store = bench.prepared(program)
            bench.arm(store, Plan(at=at))
            with pytest.raises(PowerCut):
                run(store, program[-1])
            crash(store)
            lose(disk)
            reopened = bench.open(disk)
            # What was acknowledged is there. What was under way is there whole, or not at all.
            assert content_of(reopened) in trace.durable[-2:], (program, at)
            check_clean(reopened)
            reopened.close()
            n_cuts += 1
    return n_cuts


def fail_everywhere(bench: Bench, program: Sequence[str]) -> int:
    """Let each operation of the last step fail, once and for ever. How often that was."""
    trace, n_faults = bench.trace(program), 0
    ways = list(itertools.product(ERRORS if SOAKING else ERRORS[:2], (False, True)))
    if len(program) == 3:
        ways = [(errno.EIO, False), (errno.ENOSPC, True)]
    for (fault, is_sticky), at in itertools.product(ways, range(trace.n_operations[-1])):
        disk, store = bench.prepared(program)
        bench.arm(store, Plan(at=at, fault=fault, is_sticky=is_sticky))
        is_done = run(store, program[-1])
        bench.arm(store, Plan())
        # A step that raised changed nothing, and the store goes on.
        assert content_of(store) == trace.live[-1 if is_done else -2], (program, at, fault)
        if not is_done and not store.stat().is_writable:
            crash(store)
            disk.lose_power(None)
            store = bench.open(disk)
            assert content_of(store) == trace.durable[-2]
        elif not is_done:
            assert run(store, program[-1]) != trace.is_refused
            assert content_of(store) == trace.live[-1]
        crash(store)
        disk.lose_power(None)
        reopened = bench.open(disk)
        check_clean(reopened)
        reopened.close()
        n_faults += 1
    return n_faults


def test_power_may_go_at_any_operation(bench: Bench) -> None:
    n_cuts = sum(cut_everywhere(bench, program) for program in chosen())
    tell(0, "power goes at each operation of all programs", n_cuts, "cuts", n=len(chosen()))


def test_any_operation_may_fail(bench: Bench) -> None:
    singles = programs(1)
    some = chosen() if SOAKING else singles
    n_faults = sum(fail_everywhere(bench, program) for program in some)
    tell(0, "each operation of all programs fails", n_faults, "failures", n=len(some))


@pytest.mark.parametrize("program", programs(1), ids=lambda program: program[0])
def test_short_reads_and_writes_make_no_difference(bench: Bench, program: Sequence[str]) -> None:
    trace = bench.trace(program)
    disk = bench.disk()
    store = bench.open(disk)
    bench.arm(store, Plan(at=0, is_short=True))
    assert run(store, program[0])
    assert content_of(store) == trace.live[-1]
    crash(store)
    disk.lose_power(None)
    reopened = bench.open(disk)
    assert content_of(reopened) == trace.durable[-1]
    reopened.close()


def left_by_a_crash(bench: Bench) -> Disk:
    """A disk with a payload file that the catalogue does not know."""
    disk = bench.disk()
    store = bench.open(disk)
    bench.arm(store, Plan(at=bench.trace(["new"]).n_operations[-1] - 1))
    with pytest.raises(PowerCut):
        STEPS["new"](store)
    crash(store)
    disk.lose_power(None, keep=True)
    return disk


def test_opening_may_fail_or_lose_power_at_any_operation(bench: Bench) -> None:
    store = bench.open(left_by_a_crash(bench))
    n_operations = store._io.n_operations  # type: ignore[attr-defined]
    store.close()
    expected = bench.trace(["gc"]).durable[0]
    for at in range(n_operations):
        for fault in (errno.EIO, errno.ENOSPC, errno.EMFILE, None):
            for is_sticky in (False, True):
                disk = left_by_a_crash(bench)
                plan = Plan(at=at, fault=fault, is_sticky=is_sticky)
                with contextlib.suppress(StoreError, StoreFailedError, StoreFullError, PowerCut):
                    crash(bench.open(disk, plan))
                disk.lose_power(None)
                reopened = bench.open(disk)
                assert content_of(reopened) == expected
                check_clean(reopened)
                reopened.close()


def test_a_sync_that_failed_is_not_asked_again(bench: Bench) -> None:
    disk = bench.disk()
    store = bench.open(disk)
    io = bench.arm(store, Plan(at=0, fault=errno.EIO, only=frozenset({"sync"})))
    assert STEPS["new"](store)
    # Another file was written, and synced; the bytes of the first are lost, and it is gone.
    assert io.log[-2:] == ["sync", "sync"]
    crash(store)
    disk.lose_power(None)
    reopened = bench.open(disk)
    assert content_of(reopened)["n"] == {1: 3}
    check_clean(reopened)
    reopened.close()


def test_after_a_folder_that_could_not_be_synced_nothing_is_promised(bench: Bench) -> None:
    disk = bench.disk()
    store = bench.open(disk)
    bench.arm(store, Plan(at=0, fault=errno.EIO, only=frozenset({"sync_folder"})))
    with pytest.raises(StoreFailedError):
        STEPS["new"](store)
    with pytest.raises(StoreFailedError, match="reopen"):
        STEPS["next"](store)
    assert not store.stat().is_writable
    assert STEPS["memory"](store)
    store.load("t", "a")
    crash(store)
    disk.lose_power(None)
    reopened = bench.open(disk)
    assert STEPS["new"](reopened)
    check_clean(reopened)
    reopened.close()


def test_a_damaged_file_is_kept_wherever_power_goes(bench: Bench) -> None:
    def damage(store: Store) -> bytes:
        payload = payload_of(store._catalogue, "t", store.get("t", "a@1").content_id)
        assert payload is not None
        assert payload.file is not None
        node = store._folders.payloads.at.cached[payload.file]  # type: ignore[attr-defined]
        node.cached[-1] ^= 1
        node.on_disk[:] = node.cached
        return bytes(node.cached)

    for at in range(40):
        disk = bench.disk()
        store = bench.open(disk)
        damaged = damage(store)
        bench.arm(store, Plan(at=at))
        was_cut = False
        try:
            store.load("t", "a@1")
        except StateDamagedError:
            pass
        except PowerCut:
            was_cut = True
        crash(store)
        disk.lose_power(None)
        reopened = bench.open(disk)
        with pytest.raises(StateDamagedError):
            reopened.load("t", "a@1")
        kept = reopened._folders.quarantine.at.cached.values()  # type: ignore[attr-defined]
        assert [bytes(one.cached) for one in kept] == [damaged]
        crash(reopened)
        if not was_cut:
            return
    raise AssertionError("the load did not end")


def test_the_folder_is_synced_when_the_catalogue_has_its_files(bench: Bench) -> None:
    disk = bench.disk()
    store = bench.open(disk)
    io = store._io
    assert isinstance(io, SimIO)
    assert io.log[-1] == "sync_folder"
    crash(store)
    disk.locks.clear()
    plan = Plan(at=len(io.log) - 1, fault=errno.EIO)
    with pytest.raises(StoreFailedError):
        bench.open(disk, plan)
