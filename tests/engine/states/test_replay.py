"""Versions made again from what their provenance says."""

from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, running
from wkvm.core.errors import StateNotFoundError
from wkvm.core.registry import Ref

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)


async def test_all_that_made_a_version_is_repeated_to_the_bit(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        await rig.turn((8,), state="chat", save_as="chat", max_tokens=5)
        await rig.service.fork(TENANT, Ref("chat"), ["other"])
        await rig.turn((9,), state="other", save_as="other", max_tokens=5)
        await rig.service.rollback(TENANT, "other", position=12)
        await rig.turn((9,), state="other", save_as="other", max_tokens=5)
        replayed = await rig.service.replay(TENANT, Ref("other"))
    assert replayed.first_difference is None
    assert replayed.equal
    assert replayed.n_operations == 5  # what was gone back from is no part of it


async def test_a_version_that_is_not_what_its_record_says_shows(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=5)
        rig.loop.forgets = True
        replayed = await rig.service.replay(TENANT, Ref("chat"))
    assert not replayed.equal
    assert replayed.first_difference == "fake.hash"


async def test_a_version_whose_parent_was_deleted_cannot_be_replayed(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.turn((1,), state="chat", save_as="chat")
        await rig.service.delete(TENANT, Ref("chat", 1))
        with pytest.raises(StateNotFoundError):
            await rig.service.replay(TENANT, Ref("chat"))
