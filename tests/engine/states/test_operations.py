"""Operations on handles and versions."""

import asyncio
from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, Rig, running, until
from tests.fakes import fake_continuation
from wkvm.core.errors import (
    InvalidParameterError,
    StaleVersionError,
    StateExistsError,
    StateNotFoundError,
)
from wkvm.core.registry import Ref

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)


async def names(rig: Rig, tenant: str = TENANT) -> list[str]:
    return [info.handle.name for info in (await rig.service.handles(tenant)).states]


async def test_what_is_created_has_exactly_the_prompt_and_the_last_id_pending(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        info = await rig.service.create(TENANT, "chat", PROMPT, tags={"a": "b"})
        tokens = rig.tokens("chat")
        more, _ = await rig.turn((), state="chat")
    assert (info.version.n_computed, tokens) == (2, PROMPT)
    assert dict(info.handle.tags) == {"a": "b"}
    assert info.version.provenance.operation == "create"
    assert more == fake_continuation(PROMPT, 4)


async def test_a_name_that_is_taken_is_not_created_again(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        with pytest.raises(StateExistsError):
            await rig.service.create(TENANT, "chat", (1,))
        info = await rig.service.create(TENANT, "chat", (1,), expected_version=1)
        assert info.version.version == 2
        with pytest.raises(StaleVersionError):
            await rig.service.create(TENANT, "chat", (1,), expected_version=1)


async def test_a_creation_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        for n_turns in (0, 1, 3):
            creating = asyncio.create_task(rig.service.create(TENANT, "chat", PROMPT))
            for _ in range(n_turns):
                await asyncio.sleep(0)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        for _ in range(3):
            await asyncio.sleep(0)
        assert rig.loop.n_live == 0
        assert await names(rig) == []


async def test_forks_go_on_apart(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        infos = await rig.service.fork(TENANT, Ref("chat"), ["a", "b"])
        a, _ = await rig.turn((1,), state="a", save_as="a")
        b, _ = await rig.turn((2,), state="b", save_as="b")
        assert len({info.version.content_id for info in infos}) == 1
        assert await names(rig) == ["a", "b", "chat"]
        with pytest.raises(StateExistsError):
            await rig.service.fork(TENANT, Ref("chat"), ["c", "a"])
        assert await names(rig) == ["a", "b", "chat"]
    assert a == fake_continuation((*PROMPT, 1), 4)
    assert b == fake_continuation((*PROMPT, 2), 4)


async def test_a_snapshot_of_a_turn_is_a_version_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = rig.submit(PROMPT, save_as="chat", max_tokens=6, credit=3)
        await until(lambda: len(rig.ids.get(turn, ())) >= 3)
        own = await rig.service.snapshot_running(TENANT, turn)
        other = await rig.service.snapshot_running(TENANT, turn, save_as="other")
        rig.service.grant(turn, 9)
        end = await rig.end(turn)
        more, _ = await rig.turn((), state="other", max_tokens=3)
    assert (own.version.ref, other.version.ref) == (Ref("chat", 1), Ref("other", 1))
    assert end.state is not None
    assert end.state.ref == Ref("chat", 2)
    assert more == rig.ids[turn][3:]


async def test_a_snapshot_that_comes_again_is_told_again_while_its_turn_runs_and_after(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        turn = rig.submit(PROMPT, save_as="chat", max_tokens=8, credit=3)
        await until(lambda: len(rig.ids.get(turn, ())) >= 3)

        async def ask() -> Ref:
            info = await rig.service.snapshot(TENANT, Ref("chat"), idempotency_key="once")
            return info.version.ref

        first = await ask()
        assert await ask() == first
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
        assert end.state is not None
        assert end.state.ref == Ref("chat", 2)
        assert await ask() == first
        assert rig.store.handle(TENANT, "chat").head.version == 2


async def test_a_turn_that_does_not_run_has_no_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = rig.submit(PROMPT, save_as="chat")
        await rig.end(turn)
        with pytest.raises(StateNotFoundError):
            await rig.service.snapshot_running(TENANT, turn)


async def test_a_snapshot_equals_its_state(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        info = await rig.service.snapshot(TENANT, Ref("chat"), save_as="copy")
        same = await rig.service.snapshot(TENANT, Ref("chat"))
        original = await rig.service.get(TENANT, Ref("chat", 1))
    assert info.version.content_id == original.version.content_id == same.version.content_id
    assert same.version.ref == Ref("chat", 2)


async def test_a_mutation_on_a_handle_that_moved_on_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        await rig.service.create(TENANT, "chat", (1,), state=Ref("chat"))
        with pytest.raises(StaleVersionError):
            await rig.service.mutate(TENANT, "same", {}, [Ref("chat", 1)], save_as="chat")
        with pytest.raises(InvalidParameterError):
            await rig.service.mutate(TENANT, "no-such", {}, [Ref("chat")], save_as="chat")
        assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 2
        info = await rig.service.mutate(TENANT, "same", {}, [Ref("chat")], save_as="chat")
        assert (info.version.version, info.version.provenance.operation) == (3, "same")


async def test_handles_and_versions_come_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "a", PROMPT)
        await rig.service.fork(TENANT, Ref("a"), ["b", "c"])
        first = await rig.service.handles(TENANT, limit=2)
        second = await rig.service.handles(TENANT, limit=2, after=first.next_after or "")
        for _ in range(3):
            await rig.service.snapshot(TENANT, Ref("a"))
        await rig.service.delete(TENANT, Ref("a", 3))
        newest = await rig.service.versions(TENANT, "a", limit=2)
        older = await rig.service.versions(TENANT, "a", limit=2, before=2)
        log = await rig.service.log(TENANT, "a", before=4)
    assert [one.handle.name for one in first.states] == ["a", "b"]
    assert [one.handle.name for one in second.states] == ["c"]
    assert second.next_after is None
    assert [one.version.version for one in newest] == [4, 2]
    assert [one.version.version for one in older] == [1]
    assert [one.version for one in log] == [2, 1]


async def test_a_handle_is_renamed_tagged_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        await rig.service.rename(TENANT, "chat", "talk")
        info = await rig.service.set_tags(TENANT, "talk", {"x": "y"}, expected_version=1)
        assert dict(info.handle.tags) == {"x": "y"}
        with pytest.raises(StaleVersionError):
            await rig.service.set_expiry(TENANT, "talk", None, expected_version=2)
        await rig.service.delete(TENANT, Ref("talk"))
        assert await names(rig) == []


async def test_a_handle_that_a_request_will_be_committed_to_keeps_its_name(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        turn = rig.submit((1,), state="chat", save_as="chat", credit=0)
        with pytest.raises(StateExistsError):
            await rig.service.rename(TENANT, "chat", "talk")
        rig.service.cancel(turn)


async def test_nothing_of_another_tenant_is_found(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        service, ref = rig.service, Ref("chat")
        for asking in (
            service.get("eve", ref),
            service.fork("eve", ref, ["mine"]),
            service.snapshot("eve", ref, save_as="mine"),
            service.mutate("eve", "reset", {}, [ref], save_as="mine"),
            service.difference("eve", ref, ref),
            service.export("eve", ref),
            service.rollback("eve", "chat", version=1),
            service.replay("eve", ref),
            service.hibernate("eve", ref),
            service.delete("eve", ref),
            service.migrate_begin("eve", "chat"),
        ):
            with pytest.raises(StateNotFoundError):
                await asking
        assert await names(rig, "eve") == []
        assert await names(rig) == ["chat"]
