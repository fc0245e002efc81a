"""Versions made again from what their provenance says."""

import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.engine.states.rig import TENANT, running
from wkvm.core.errors import StateNotFoundError
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import Ref
from wkvm.state.lookup import Loaded

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


async def test_what_was_made_from_its_first_token_on_needs_nothing_to_be_made_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=5)
        await rig.service.rollback(TENANT, "chat", position=6)
        await rig.turn((9,), state="chat", save_as="chat", max_tokens=5)
        await rig.service.delete(TENANT, Ref("chat", 1))
        replayed = await rig.service.replay(TENANT, Ref("chat"))
    assert (replayed.equal, replayed.n_operations) == (True, 2)


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


async def test_a_replay_has_in_memory_what_it_still_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "s", limits=StoreLimits(host_bytes=0)) as rig:
        await rig.turn(PROMPT, save_as="chat")
        for at in range(8):
            await rig.turn((at,), state="chat", save_as="chat")
        loaded, n_alive, load = list["weakref.ref[Tensor]"](), list[int](), rig.store.load

        def counted(*args: Any, **keywords: Any) -> Loaded:
            rig.loop.specs.clear()  # which the fake remembers, with their starts
            found = load(*args, **keywords)
            loaded.append(weakref.ref(found.image.record))
            n_alive.append(sum(one() is not None for one in loaded))
            return found

        monkeypatch.setattr(rig.store, "load", counted)
        replayed = await rig.service.replay(TENANT, Ref("chat"))
    assert replayed.equal
    assert len(loaded) == 9
    assert max(n_alive) <= 3
