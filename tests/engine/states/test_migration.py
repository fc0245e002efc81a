"""States that go to another engine, and streams that wait for it."""

from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, Rig, running, until
from tests.fakes import fake_continuation
from wkvm.core.errors import StateExistsError, StateMovedError, StateNotFoundError
from wkvm.core.registry import Ref
from wkvm.core.request import Status
from wkvm.core.states import Moved

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)
THERE = Moved(target="tcp://there:1", ref=Ref("chat", 7))


async def streaming(rig: Rig, n: int = 3, **keywords: object) -> int:
    """A turn that has produced ``n`` of its 40 ids."""
    turn = rig.submit(PROMPT, save_as="chat", **{"max_tokens": 40, "credit": n, **keywords})
    await until(lambda: len(rig.ids.get(turn, ())) >= n)
    return turn


async def test_a_stream_goes_on_by_itself_after_a_move_that_was_given_up(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        info = await rig.service.migrate_begin(TENANT, "chat")
        assert info.version.ref == Ref("chat", 1)
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert rig.ids[turn] + more == fake_continuation(PROMPT, 42)
    assert (end.status, end.n_output, end.n_prompt) == (Status.LENGTH, 40, 3)
    assert end.state is not None
    assert end.state.ref == Ref("chat", 2)
    assert end.state.cached_tokens == 0


async def test_a_move_that_nobody_ends_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig, credit=None)
        await rig.service.migrate_begin(TENANT, "chat", timeout_s=0.01)
        await rig.end(turn)
    assert rig.ids[turn] == fake_continuation(PROMPT, 40)


async def test_a_stream_that_moved_goes_on_there_without_a_lost_or_doubled_id(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a") as here, running(tmp_path / "b") as there:
        turn = await streaming(here)
        await here.service.migrate_begin(TENANT, "chat")
        source = await here.service.export(TENANT, Ref("chat"))
        sink = await there.service.importing(TENANT, "chat", n_bytes=source.n_bytes)
        for chunk in source.chunks():
            await sink.write(bytes(chunk))
        info = await sink.finish()
        moved = Moved(target="tcp://there:1", ref=info.version.ref)
        assert await here.service.migrate_end(TENANT, "chat", moved=moved) is None
        end = await here.end(turn)
        assert end.state is not None
        assert end.state.moved is not None
        rest, _ = await there.turn(
            (), state="chat", save_as="chat", max_tokens=end.state.moved.n_left
        )
    assert here.ids[turn] + rest == fake_continuation(PROMPT, 40)
    assert end.state.moved == Moved(target="tcp://there:1", ref=Ref("chat", 1), n_left=37)


async def test_what_has_moved_is_refused_here_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        with pytest.raises(StateMovedError):
            rig.submit((1,), state="chat")
        with pytest.raises(StateMovedError):
            await rig.service.get(TENANT, Ref("chat"))
    async with running(tmp_path / "s") as rig:
        with pytest.raises(StateMovedError) as refused:
            rig.submit((1,), state="chat")
        assert (refused.value.target, refused.value.moved_to) == ("tcp://there:1", "chat@7")
        await rig.service.delete(TENANT, Ref("chat"))
        assert (await rig.turn(PROMPT, save_as="chat"))[1].error is None


async def test_a_state_is_moved_once_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.migrate_begin(TENANT, "chat")
        with pytest.raises(StateExistsError):
            await rig.service.migrate_begin(TENANT, "chat")


async def test_a_move_that_was_not_begun_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        with pytest.raises(StateNotFoundError):
            await rig.service.migrate_end(TENANT, "chat", moved=THERE)
        with pytest.raises(StateNotFoundError):
            await rig.service.migrate_begin(TENANT, "chat")


@pytest.mark.parametrize("how", ["cancel", "interrupt", "disconnected"])
async def test_a_stream_that_waits_can_be_ended(tmp_path: Path, how: str) -> None:
    async with running(tmp_path / "s") as rig:
        turn = await streaming(rig)
        await rig.service.migrate_begin(TENANT, "chat")
        {
            "cancel": rig.service.cancel,
            "interrupt": rig.service.interrupt,
            "disconnected": rig.service.disconnected,
        }[how](turn)
        end = await rig.end(turn)
        await rig.service.migrate_end(TENANT, "chat", moved=None)
    assert end.status is Status.CANCELLED
    assert (end.n_output, end.n_prompt) == (3, 3)
    assert end.state is not None
    assert end.state.ref == (Ref("chat", 1) if how == "interrupt" else None)


async def test_a_handle_whose_move_was_forgotten_is_told_by_its_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("backing", "origins"):
        monkeypatch.setattr(f"wkvm.engine.states.{module}.MAX_MOVED", 1)
    async with running(tmp_path / "s") as rig:
        for name in ("chat", "other"):
            await rig.turn(PROMPT, save_as=name)
            await rig.service.migrate_begin(TENANT, name)
            await rig.service.migrate_end(TENANT, name, moved=THERE)
        _, end = await rig.turn((1,), state="chat")
    assert isinstance(end.error, StateMovedError)
