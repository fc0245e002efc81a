"""Every operation of the file system fails, once or for ever, or is the last one before dark."""

import contextlib
import errno
import itertools
from collections.abc import Sequence

import pytest

from tests.state.programs import STEPS, Bench, check_clean, content_of, power_choices
from tests.state.simulated import Disk, Plan, PowerCut, SimIO
from tests.state.stores import crash
from wkvm.core.errors import (
    StateDamagedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    WkvmError,
)
from wkvm.state.reading import payload_of
from wkvm.state.store import Store

pytestmark = pytest.mark.long

SINGLES = [(name,) for name in STEPS]
PAIRS = [
    ("memory", "flush"),
    ("memory on top", "next"),
    ("memory on top", "rollback"),
    ("fork", "delete version"),
    ("same bytes", "delete version"),
    ("keyed", "keyed"),
    ("rename", "new"),
]
FEW = ("new", "next", "same bytes", "fork", "rollback", "delete version", "memory", "flush")
ALL = [
    program
    for program in (*itertools.product(STEPS, repeat=2), *itertools.product(FEW, repeat=3))
    # the second time there is nothing to do, or the name is taken
    if not any(
        program.count(one) > 1 for one in ("new", "fork", "rename", "delete", "delete version")
    )
    and not {"rename", "delete"} <= set(program)
]
ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def named(program: Sequence[str]) -> str:
    return ", ".join(program)


def run(store: Store, program: Sequence[str]) -> int:
    """Run a program until a step raises. How many steps did not."""
    for at, name in enumerate(program):
        try:
            STEPS[name](store)
        except WkvmError:
            return at
        except PowerCut as cut:
            raise PowerCut(*cut.args, at) from cut
    return len(program)


def cut_everywhere(bench: Bench, program: Sequence[str], n_random: int) -> None:
    trace = bench.trace(program)
    for at in range(trace.n_operations):
        for lose in power_choices(n_random, at):
            disk = bench.disk()
            store = bench.open(disk)
            bench.arm(store, Plan(at=at))
            with pytest.raises(PowerCut) as cut:
                run(store, program)
            n_done = int(cut.value.args[1])
            crash(store)
            lose(disk)
            reopened = bench.open(disk)
            found = content_of(reopened)
            # What was acknowledged is there. What was under way is there whole, or not at all.
            assert found in trace.durable[n_done : n_done + 2], (program, at)
            check_clean(reopened)
            reopened.close()


def fail_everywhere(bench: Bench, program: Sequence[str], errors: Sequence[int]) -> None:
    trace = bench.trace(program)
    for at, fault, is_sticky in itertools.product(range(trace.n_operations), errors, (False, True)):
        disk = bench.disk()
        store = bench.open(disk)
        bench.arm(store, Plan(at=at, fault=fault, is_sticky=is_sticky))
        n_done = run(store, program)
        bench.arm(store, Plan())
        # A step that raised changed nothing, and the store goes on.
        assert content_of(store) == trace.live[n_done], (program, at, fault)
        if n_done < len(program):
            if not store.stat().is_writable:
                crash(store)
                disk.lose_power(None)
                store = bench.open(disk)
                assert content_of(store) == trace.durable[n_done]
            else:
                STEPS[program[n_done]](store)
                assert content_of(store) == trace.live[n_done + 1]
        crash(store)
        disk.lose_power(None)
        reopened = bench.open(disk)
        check_clean(reopened)
        reopened.close()


@pytest.mark.parametrize("program", [*SINGLES, *PAIRS], ids=named)
def test_power_may_go_at_any_operation(bench: Bench, program: Sequence[str]) -> None:
    cut_everywhere(bench, program, n_random=1)


@pytest.mark.parametrize("program", SINGLES, ids=named)
def test_any_operation_may_fail(bench: Bench, program: Sequence[str]) -> None:
    fail_everywhere(bench, program, ERRORS[:2])


@pytest.mark.slow
@pytest.mark.parametrize("first", STEPS)
def test_power_may_go_at_any_operation_of_any_program(bench: Bench, first: str) -> None:
    for program in ALL:
        if program[0] == first:
            cut_everywhere(bench, program, n_random=2)


@pytest.mark.slow
@pytest.mark.parametrize("first", STEPS)
def test_any_operation_of_any_program_may_fail(bench: Bench, first: str) -> None:
    for program in ALL:
        if program[0] == first:
            fail_everywhere(bench, program, ERRORS)


@pytest.mark.parametrize("program", SINGLES, ids=named)
def test_short_reads_and_writes_make_no_difference(bench: Bench, program: Sequence[str]) -> None:
    trace = bench.trace(program)
    disk = bench.disk()
    store = bench.open(disk)
    bench.arm(store, Plan(at=0, is_short=True))
    assert run(store, program) == len(program)
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
    bench.arm(store, Plan(at=bench.trace(["new"]).n_operations - 1))
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
