"""Operations that meet on one handle, and turns that are disturbed while they are kept."""

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.states.rig import TENANT, Rig, running
from tests.fakes import fake_continuation
from wkvm.core.errors import (
    InvalidParameterError,
    StaleVersionError,
    StateMovedError,
    StateNotFoundError,
    WkvmError,
)
from wkvm.core.registry import Ref
from wkvm.core.request import Status
from wkvm.core.states import Moved, OnDisconnect

PROMPT = (5, 6, 7)
THERE = Moved(target="tcp://there:1", ref=Ref("chat", 7))


class Gate:
    """Holds calls of one of the store's methods back, in their threads, until it is opened.

    Args:
        part: of the store, that has the method; None for the store itself.
    """

    def __init__(self, rig: Rig, method: str, part: object = None) -> None:
        at = rig.store if part is None else part
        self._real: Callable[..., Any] = getattr(at, method)
        self._open = threading.Event()
        self.n_waiting = 0
        setattr(at, method, self._held)

    def _held(self, *arguments: Any, **keywords: Any) -> Any:
        self.n_waiting += 1
        assert self._open.wait(60)
        return self._real(*arguments, **keywords)

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            while not self.n_waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def open(self) -> None:
        self._open.set()


async def settled() -> None:
    """Let whatever can go on without what a gate holds back go on."""
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


async def streaming(rig: Rig, n: int = 3, **keywords: object) -> int:
    """A turn that has produced ``n`` of its 40 ids."""
    given = {"save_as": "chat", "max_tokens": 40, "credit": n, **keywords}
    turn = rig.submit(PROMPT, **given)
    while len(rig.ids.get(turn, ())) < n:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return turn


async def test_two_turns_on_a_handle_are_both_stopped_before_it_hibernates(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turns = [await streaming(rig), await streaming(rig)]
        hibernating = asyncio.create_task(rig.service.hibernate(TENANT, Ref("chat")))
        rig.service.cancel(turns[1])
        await hibernating
        assert {(await rig.end(turn)).status for turn in turns} == {Status.CANCELLED}


async def test_a_snapshot_that_nobody_waits_for_does_not_fail_its_request(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        snapshot = asyncio.create_task(rig.service.snapshot_running(TENANT, turn))
        await gate.reached()
        snapshot.cancel()
        await asyncio.wait([snapshot])
        gate.open()
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        assert end.error is None
        assert end.state is not None
        assert end.state.ref == Ref("chat", 2)


async def test_a_snapshot_that_is_refused_once_nobody_waits_for_it_is_no_noise_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        snapshot = asyncio.create_task(
            rig.service.snapshot_running(TENANT, turn, save_as="other", expected_version=7)
        )
        await gate.reached()
        snapshot.cancel()
        await asyncio.wait([snapshot])
        gate.open()
        # Of a request one is committed after the other.
        await rig.service.snapshot_running(TENANT, turn, save_as="third")
        gc.collect()
        assert [one.message for one in caplog.records] == []
        with pytest.raises(StateNotFoundError):
            await rig.service.get(TENANT, Ref("other"))


async def test_a_snapshot_of_a_request_that_ends_is_not_newer_than_its_end(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        first = asyncio.create_task(rig.service.snapshot_running(TENANT, turn, save_as="other"))
        await gate.reached()  # holds what commits of this turn
        second = asyncio.create_task(rig.service.snapshot_running(TENANT, turn))
        await settled()
        rig.service.grant(turn, 100)
        await settled()
        gate.open()
        await asyncio.wait([first, second])
        end = await rig.end(turn)
        assert end.error is None
        assert end.state is not None
        head = await rig.service.get(TENANT, Ref("chat"))
        assert head.version.ref == end.state.ref


async def test_a_snapshot_whose_request_is_parked_meanwhile_is_of_one_moment(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        first = asyncio.create_task(rig.service.snapshot_running(TENANT, turn, save_as="other"))
        await gate.reached()
        second = asyncio.create_task(rig.service.snapshot_running(TENANT, turn, save_as="third"))
        await settled()
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await settled()
        gate.open()
        await asyncio.wait([first, second, begin])
        assert second.exception() is None
        loaded = rig.store.load(TENANT, Ref("third"))
        assert len(loaded.image.ids()) == loaded.image.carried.n_computed
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        assert (await rig.end(turn)).error is None


async def test_a_turn_with_checkpoints_is_committed_after_a_move_that_was_given_up(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, n=80, checkpoint_every=64, max_tokens=140)
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        assert end.error is None
        ids = [*PROMPT, *rig.ids[turn]]
        assert rig.store.checkpoints(TENANT, "chat") == [64, 82, 128, 142]
        for position in (1, 3, 4, 63, 64, 65, 81, 82, 83, 84, 127, 128, 129, 142, 143):
            await rig.service.rollback(TENANT, "chat", version=2)
            info = await rig.service.rollback(TENANT, "chat", position=position)
            fed = () if info.version.n_pending else (9,)
            more, _ = await rig.turn(fed, state="chat", max_tokens=2)
            assert more == fake_continuation([*ids[:position], *fed], 2), position


async def test_a_cancel_while_a_turn_is_being_parked_is_heeded(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await gate.reached()
        rig.service.cancel(turn)
        gate.open()
        await asyncio.wait([begin])
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        assert (end.status, end.n_output) == (Status.CANCELLED, 3)


async def test_a_turn_whose_client_goes_while_it_is_being_parked_ends(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, credit=None)
        gate = Gate(rig, "commit")
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await gate.reached()
        rig.service.disconnected(turn)
        gate.open()
        await asyncio.wait([begin])
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        assert (await rig.end(turn)).status is Status.CANCELLED


async def test_an_interrupt_while_a_turn_is_being_parked_is_heeded(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await gate.reached()
        rig.service.interrupt(turn)
        gate.open()
        await asyncio.wait([begin])
        end = await rig.end(turn)
        assert end.status is Status.CANCELLED
        assert end.state is not None
        assert end.state.ref == Ref("chat", 1)


async def test_nothing_is_acknowledged_on_a_handle_that_has_moved(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.migrate_begin(TENANT, "chat")
        late = rig.submit((9,), state="chat", save_as="chat", max_tokens=40, credit=3)
        await settled()
        try:
            await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        except WkvmError:
            return
        rig.service.grant(late, 100)
        end = await rig.end(late)
        assert isinstance(end.error, StateMovedError)


async def test_a_turn_that_is_being_committed_moves_with_its_handle(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        rig.service.grant(turn, 100)
        await gate.reached()
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await settled()
        gate.open()
        end = await rig.end(turn)
        assert end.state is not None
        assert (await begin).version.ref == end.state.ref


async def test_a_turn_that_is_loaded_until_its_handle_has_moved_does_not_begin(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        rig.store.cool(TENANT, "chat")
        gate = Gate(rig, "load")
        turn = rig.submit((9,), state="chat", save_as="chat", max_tokens=40)
        await gate.reached()
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        gate.open()
        end = await rig.end(turn)
        assert isinstance(end.error, StateMovedError)
        assert turn not in rig.ids
        assert rig.store.get(TENANT, Ref("chat")).version == 1


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "snapshot": ("commit", lambda s: s.snapshot(TENANT, Ref("chat"))),
    "snapshot there": ("commit", lambda s: s.snapshot(TENANT, Ref("other"), save_as="chat")),
    "mutate": ("commit", lambda s: s.mutate(TENANT, "same", {}, [Ref("chat")], save_as="chat")),
    "rollback": ("rollback", lambda s: s.rollback(TENANT, "chat", version=1)),
    "rollback to a token": ("commit", lambda s: s.rollback(TENANT, "chat", position=4)),
    "import": ("commit", lambda s: put_in(s, "chat")),
    "fork": ("fork", lambda s: s.fork(TENANT, Ref("chat"), ["third"])),
    "tags": ("set_tags", lambda s: s.set_tags(TENANT, "chat", {"a": "b"})),
    "expiry": ("set_expiry", lambda s: s.set_expiry(TENANT, "chat", 4e9)),
    "rename": ("rename", lambda s: s.rename(TENANT, "chat", "third")),
}
"""Of each kind one: what it is held at, and what is asked."""


async def put_in(service: Any, name: str) -> None:
    source = await service.export(TENANT, Ref("other"))
    sink = await service.importing(TENANT, name, n_bytes=source.n_bytes)
    for chunk in source.chunks():
        await sink.write(bytes(chunk))
    await sink.finish()


async def begun(rig: Rig, kind: str) -> tuple[Gate, "asyncio.Task[Any]"]:
    """Two states, and a change of one that has passed every check and does not come to the store.

    Others do.
    """
    for name in ("chat", "other"):
        await rig.turn(PROMPT, save_as=name)
    method, change = CHANGES[kind]
    real = getattr(rig.store, method)
    gate = Gate(rig, method)
    task = asyncio.create_task(change(rig.service))
    await gate.reached()
    setattr(rig.store, method, real)
    return gate, task


@pytest.mark.parametrize("kind", CHANGES)
async def test_no_change_is_made_to_what_has_moved_meanwhile(tmp_path: Path, kind: str) -> None:
    async with running(tmp_path / "s") as rig:
        gate, task = await begun(rig, kind)
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        before = rig.store.handle(TENANT, "chat")
        gate.open()
        with pytest.raises(StateMovedError):
            await task
        assert rig.store.handle(TENANT, "chat") == before
        with pytest.raises(StateNotFoundError):
            rig.store.handle(TENANT, "third")


@pytest.mark.parametrize("kind", [kind for kind in CHANGES if kind not in ("fork", "rename")])
async def test_what_was_changed_while_it_was_on_its_way_has_not_moved(
    tmp_path: Path, kind: str
) -> None:
    async with running(tmp_path / "s") as rig:
        gate, task = await begun(rig, kind)
        await rig.service.migrate_begin(TENANT, "chat")
        gate.open()
        await task
        changed = rig.store.handle(TENANT, "chat")
        with pytest.raises(StaleVersionError):
            await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        assert rig.store.handle(TENANT, "chat") == changed
        await rig.service.get(TENANT, Ref("chat"))


@pytest.mark.parametrize("kind", ["tags", "expiry", "snapshot"])
async def test_a_change_right_before_a_handle_is_marked_as_moved_is_not_lost(
    tmp_path: Path, kind: str
) -> None:
    async with running(tmp_path / "s") as rig:
        gate, task = await begun(rig, kind)
        await rig.service.migrate_begin(TENANT, "chat")
        writer = rig.store._writer
        real, marking = writer.edit, Gate(rig, "edit", writer)
        end = asyncio.create_task(rig.service.migrate_end(TENANT, "chat", moved=THERE))
        await marking.reached()
        writer.edit = real  # type: ignore[method-assign]
        gate.open()
        await task
        changed = rig.store.handle(TENANT, "chat")
        marking.open()
        with pytest.raises(StaleVersionError):
            await end
        assert rig.store.handle(TENANT, "chat") == changed


async def test_a_turn_that_is_being_loaded_moves_with_its_handle(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        rig.store.cool(TENANT, "chat")
        gate = Gate(rig, "load")
        turn = rig.submit((9,), state="chat", save_as="chat", max_tokens=40, credit=3)
        await gate.reached()
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await settled()
        gate.open()
        await begin
        try:
            await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        except StaleVersionError:
            return
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        moved = isinstance(end.error, StateMovedError) or (
            end.state is not None and end.state.moved is not None
        )
        assert moved, end


async def test_a_move_whose_end_nobody_waits_for_is_over_or_is_not(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        await rig.service.migrate_begin(TENANT, "chat")
        gate = Gate(rig, "mark_moved")
        done = asyncio.create_task(rig.service.migrate_end(TENANT, "chat", moved=THERE))
        await gate.reached()
        done.cancel()
        await asyncio.wait([done], timeout=0.05)
        gate.open()
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        assert end.state is not None
        assert end.state.moved is not None
        with pytest.raises(StateMovedError):
            await rig.service.get(TENANT, Ref("chat"))


async def test_what_has_moved_is_refused_to_all_operations_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=THERE)
    async with running(tmp_path / "s") as rig:
        s, chat = rig.service, Ref("chat")
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: s.get(TENANT, chat),
            "fork": lambda: s.fork(TENANT, chat, ["other"]),
            "rename": lambda: s.rename(TENANT, "chat", "other"),
            "tags": lambda: s.set_tags(TENANT, "chat", {}),
            "expiry": lambda: s.set_expiry(TENANT, "chat", None),
            "snapshot": lambda: s.snapshot(TENANT, chat),
            "resume": lambda: s.resume(TENANT, chat),
            "hibernate": lambda: s.hibernate(TENANT, chat),
            "rollback": lambda: s.rollback(TENANT, "chat", version=1),
            "mutate": lambda: s.mutate(TENANT, "scale", {"factor": 1}, [chat], save_as="chat"),
            "export": lambda: s.export(TENANT, chat),
            "log": lambda: s.log(TENANT, "chat"),
            "replay": lambda: s.replay(TENANT, chat),
            "difference": lambda: s.difference(TENANT, chat, chat),
            "importing": lambda: s.importing(TENANT, "chat", n_bytes=1000),
            "migrate": lambda: s.migrate_begin(TENANT, "chat"),
        }
        went = set[str]()
        for name, call in calls.items():
            try:
                await call()
            except StateMovedError:
                continue
            except WkvmError as error:
                went.add(f"{name}: {error}")
                continue
            went.add(name)
        assert not went


async def test_a_key_on_several_choices_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        with pytest.raises(InvalidParameterError):
            rig.submit((1,), state="chat", n=2, idempotency_key="k")


async def test_who_creates_twice_with_one_key_and_leaves_once_has_the_state(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        gate = Gate(rig, "commit")

        def create() -> "asyncio.Task[Any]":
            work = rig.service.create(TENANT, "new", PROMPT, idempotency_key="k")
            return asyncio.create_task(work)

        first, second = create(), create()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        gate.open()
        await asyncio.wait([first, second])
        assert (await second).version.ref == Ref("new", 1)


async def test_the_first_of_two_interrupts_says_how_much_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, n=6, on_disconnect=OnDisconnect.HIBERNATE)
        rig.service.interrupt(turn, 2)
        rig.service.disconnected(turn)
        end = await rig.end(turn)
        assert end.state is not None
        assert end.n_output == 2


async def test_a_page_goes_on_although_a_handle_on_it_was_deleted(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        for name in ("a", "b", "c", "d"):
            await rig.turn(PROMPT, save_as=name)
        real = rig.store.tier

        def tier(tenant: str, ref: Ref) -> Any:
            if ref.name == "b":
                raise StateNotFoundError("b")
            return real(tenant, ref)

        setattr(rig.store, "tier", tier)  # noqa: B010
        names, after = list[str](), ""
        while True:
            page = await rig.service.handles(TENANT, after=after, limit=2)
            names += [one.handle.name for one in page.states]
            if page.next_after is None:
                break
            after = page.next_after
        assert names == ["a", "c", "d"]


async def test_a_turn_under_a_key_is_not_run_again_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids, first = await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
    async with running(tmp_path / "s") as rig:
        again, second = await rig.turn(PROMPT, save_as="chat", idempotency_key="k")
        assert second.error is None
        assert first.state is not None
        assert second.state is not None
        assert second.state.ref == first.state.ref
        assert again == ids


async def test_a_turn_on_its_own_handle_under_a_key_is_the_same_after_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        ids, first = await rig.turn((9,), state="chat", save_as="chat", idempotency_key="k")
        assert first.error is None
    async with running(tmp_path / "s") as rig:
        again, second = await rig.turn((9,), state="chat", save_as="chat", idempotency_key="k")
        assert first.state is not None
        assert second.state is not None, second
        assert second.state.ref == first.state.ref
        assert again == ids


async def test_a_replay_does_not_go_by_the_clock(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        now = [2000.0]
        rig.store._clock = lambda: now[0]
        await rig.turn(PROMPT, save_as="chat")
        now[0] = 1000.0
        await rig.turn((9,), state="chat", save_as="chat")
        replayed = await rig.service.replay(TENANT, Ref("chat"))
        assert replayed.n_operations == 2
        assert replayed.equal


async def test_a_turn_that_absorbed_all_and_sampled_nothing_is_replayed(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=0)
        await rig.turn((9,), state="chat", save_as="chat", max_tokens=0)
        replayed = await rig.service.replay(TENANT, Ref("chat"))
        assert replayed.n_operations == 2
        assert replayed.equal


async def test_a_rollback_to_a_checkpoint_of_what_it_was_forked_from_says_so(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=100, checkpoint_every=64)
        await rig.service.fork(TENANT, Ref("chat"), ["other"])
        info = await rig.service.rollback(TENANT, "other", position=64)
        (parent,) = info.version.provenance.parents
        made = await rig.service.get(TENANT, Ref("chat", 1))
        assert (parent.ref, parent.content_id) == ("chat@1", made.version.content_id)
        assert (await rig.service.replay(TENANT, Ref("other"))).equal


async def test_a_stream_goes_on_if_who_begins_to_move_it_is_gone_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        gate = Gate(rig, "commit")
        begin = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await gate.reached()
        begin.cancel()
        await asyncio.wait([begin])
        again = asyncio.create_task(rig.service.migrate_begin(TENANT, "chat"))
        await settled()
        gate.open()
        assert (await again).version.ref == Ref("chat", 2)
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        assert (await rig.end(turn)).error is None
        assert rig.ids[turn] == fake_continuation(PROMPT, 40)


async def test_who_has_ids_of_a_turn_that_is_not_known_gets_no_others(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids, end = await rig.turn(PROMPT, save_as="chat", idempotency_key="k", received=2)
        assert isinstance(end.error, StateNotFoundError)
        assert not ids


async def test_an_append_is_whole_although_its_handle_hibernates(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=1)
        gate = Gate(rig, "load")
        append = asyncio.create_task(
            rig.service.create(TENANT, "chat", (9, 8), state=Ref("chat", 1))
        )
        await gate.reached()
        hibernating = asyncio.create_task(rig.service.hibernate(TENANT, Ref("chat")))
        await settled()
        gate.open()
        await hibernating
        assert (await append).version.ref == Ref("chat", 2)
