"""Going back to versions and to token positions."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.states.rig import TENANT, Rig, running
from tests.fakes import fake_continuation
from wkvm.core.errors import KeyReusedError, StaleVersionError, StateNotFoundError
from wkvm.core.registry import NOTHING, Parent, Ref

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)


async def two_turns(rig: Rig, **use: object) -> list[int]:
    """Two turns on the handle ``chat``; all ids of the sequence: 3 given, 6 produced, 1, 6."""
    first, _ = await rig.turn(PROMPT, save_as="chat", max_tokens=6, **use)
    second, _ = await rig.turn((9,), state="chat", save_as="chat", max_tokens=6, **use)
    return [*PROMPT, *first, 9, *second]


async def test_a_version_can_be_gone_back_to(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids = await two_turns(rig)
        info = await rig.service.rollback(TENANT, "chat", version=1)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert info.version.ref == Ref("chat", 3)
    assert more == fake_continuation(ids[:9], 2)


@pytest.mark.parametrize("position", range(1, 17))
async def test_every_position_can_be_gone_back_to(tmp_path: Path, position: int) -> None:
    async with running(tmp_path / "s") as rig:
        ids = await two_turns(rig)
        await rig.service.rollback(TENANT, "chat", position=position)
        tokens = rig.tokens("chat")
        more, _ = await rig.turn((8,), state="chat", max_tokens=2)
    assert more == fake_continuation((*ids[:position], 8), 2)
    assert len(tokens) == position


async def test_what_is_made_again_goes_on_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids = await two_turns(rig)
        await rig.service.rollback(TENANT, "chat", position=13)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert more == fake_continuation(ids[:13], 2)


async def test_only_what_follows_the_nearest_state_is_computed_again(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        before = rig.loop.n_fed
        await rig.service.rollback(TENANT, "chat", position=12)
        assert rig.loop.n_fed - before == 3  # 8 had been absorbed, and the last is pending
        await rig.service.rollback(TENANT, "chat", position=8)
        assert rig.loop.n_fed - before == 3


async def test_a_checkpoint_is_gone_back_to_without_a_step(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        prompt = [token % 60 for token in range(150)]
        await rig.turn(prompt, save_as="long", checkpoint_every=64)
        before = rig.loop.n_fed
        info = await rig.service.rollback(TENANT, "long", position=128)
        more, _ = await rig.turn((8,), state="long", max_tokens=2)
    assert (info.version.n_computed, info.version.n_pending) == (128, 0)
    assert more == fake_continuation((*prompt[:128], 8), 2)
    assert rig.loop.n_fed - before == 2


@pytest.mark.parametrize("position", [5, 8, 12])
async def test_a_rollback_that_comes_again_is_told_again(tmp_path: Path, position: int) -> None:
    again: dict[str, Any] = {"expected_version": 2, "idempotency_key": "once"}
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        first = await rig.service.rollback(TENANT, "chat", position=position, **again)
        assert (await rig.service.rollback(TENANT, "chat", position=position, **again)) == first
        await rig.service.rollback(TENANT, "chat", position=1)
        told = await rig.service.rollback(TENANT, "chat", position=position, **again)
        assert told.version == first.version
        with pytest.raises(KeyReusedError):
            await rig.service.rollback(TENANT, "chat", position=2, **again)
        assert rig.store.handle(TENANT, "chat").head.version == 4


@pytest.mark.parametrize(("position", "is_kept_before"), [(1, False), (5, False), (12, True)])
async def test_the_origin_of_what_was_gone_back_to_is_known(
    tmp_path: Path, position: int, is_kept_before: bool
) -> None:
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        first, left = (rig.store.get(TENANT, f"chat@{version}") for version in (1, 2))
        made = (await rig.service.rollback(TENANT, "chat", position=position)).version
        before = Parent(ref="chat@1", content_id=first.content_id)
        after = Parent(ref="chat@2", content_id=left.content_id)
        assert made.provenance.parents == ((before,) if is_kept_before else (NOTHING, after))
        assert rig.store.get(TENANT, "chat").provenance.parents == made.provenance.parents


async def test_what_was_gone_back_from_is_no_part_of_what_follows(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        await rig.service.rollback(TENANT, "chat", position=12)
        with pytest.raises(StateNotFoundError):
            await rig.service.rollback(TENANT, "chat", position=13)
        assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 3


async def test_a_rollback_of_a_handle_that_moved_on_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        with pytest.raises(StaleVersionError):
            await rig.service.rollback(TENANT, "chat", position=5, expected_version=1)
        with pytest.raises(StaleVersionError):
            await rig.service.rollback(TENANT, "chat", version=1, expected_version=1)


@pytest.mark.parametrize("position", [0, 17])
async def test_a_position_that_is_not_there_is_not_found(tmp_path: Path, position: int) -> None:
    async with running(tmp_path / "s") as rig:
        await two_turns(rig)
        with pytest.raises(StateNotFoundError):
            await rig.service.rollback(TENANT, "chat", position=position)


async def test_ids_take_the_path_again_that_they_took(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids = await two_turns(rig)
        await rig.service.rollback(TENANT, "chat", position=12)
        spec = rig.loop.specs[max(rig.loop.specs)]
    assert spec.start.pending == (ids[8],)
    assert list(spec.prompt) == [9]
    assert list(spec.forced) == ids[10:12]
