"""Operations at random, beside a model that keeps lists of ids."""

import contextlib
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.states.rig import TENANT, Rig, running, serving, until
from tests.fakes import fake_continuation
from wkvm.core.errors import StateNotFoundError
from wkvm.core.registry import Durability, Ref

N_OPERATIONS = 25


class Machine:
    """A service, and what should be in it: of each handle the ids of its versions, by number."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states = dict[str, dict[int, list[int]]]()
        self.n_names = 0

    def operation(self, rig: Rig) -> Coroutine[Any, Any, None]:
        """One that can be done now."""
        later: list[Callable[[Rig], Coroutine[Any, Any, None]]]
        later = [self.turn, self.turn, self.cut, self.append, self.fork, self.snapshot]
        later += [self.roll_back_to_version, self.roll_back, self.roll_back, self.move]
        later += [self.hibernate, self.delete, self.cancel, self.export, self.replay]
        return self.random.choice([self.create, *later] if self.states else [self.create])(rig)

    async def check(self, rig: Rig) -> None:
        """Everything is as it should be."""
        page = await rig.service.handles(TENANT)
        assert {one.handle.name for one in page.states} == self.states.keys()
        for name, versions in self.states.items():
            found = await rig.service.versions(TENANT, name)
            assert {one.version.version for one in found} == versions.keys()
            for number, ids in versions.items():
                assert [*rig.tokens(Ref(name, number))] == ids
        for name, versions in self.states.items():
            more, end = await rig.turn((3,), state=name, max_tokens=2)
            assert end.error is None
            assert more == fake_continuation((*versions[max(versions)], 3), 2)

    def pick(self) -> tuple[str, int, list[int]]:
        name = self.random.choice(sorted(self.states))
        head = max(self.states[name])
        return name, head, self.states[name][head]

    def fresh(self) -> str:
        self.n_names += 1
        return f"s{self.n_names}"

    def ids(self, n: int) -> list[int]:
        return [self.random.randrange(64) for _ in range(n)]

    def durability(self) -> Durability:
        return self.random.choice(list(Durability))

    async def create(self, rig: Rig) -> None:
        name, ids = self.fresh(), self.ids(self.random.choice([1, 2, 70]))
        await rig.service.create(TENANT, name, ids, checkpoint_every=64)
        self.states[name] = {1: ids}

    async def append(self, rig: Rig) -> None:
        name, head, ids = self.pick()
        more = self.ids(self.random.choice([1, 3]))
        await rig.service.create(TENANT, name, more, state=Ref(name), durability=self.durability())
        self.states[name][head + 1] = [*ids, *more]

    async def turn(self, rig: Rig) -> None:
        name, head, ids = self.pick()
        prompt = self.ids(self.random.choice([1, 5]))
        more, end = await rig.turn(
            prompt,
            state=name,
            save_as=name,
            max_tokens=self.random.choice([1, 7, 80]),
            checkpoint_every=self.random.choice([None, 64]),
            durability=self.durability(),
        )
        assert end.error is None
        self.states[name][head + 1] = [*ids, *prompt, *more]

    async def cut(self, rig: Rig) -> None:
        name, head, ids = self.pick()
        credit = self.random.choice([3, 70])
        keep = self.random.randrange(credit + 1)
        turn = rig.submit(
            (5,), state=name, save_as=name, max_tokens=99, credit=credit, checkpoint_every=64
        )
        await until(lambda: len(rig.ids.get(turn, ())) == credit)
        rig.service.interrupt(turn, keep)
        assert (await rig.end(turn)).error is None
        self.states[name][head + 1] = [*ids, 5, *rig.ids[turn][:keep]]

    async def cancel(self, rig: Rig) -> None:
        name, _, _ = self.pick()
        turn = rig.submit((5,), state=name, save_as=name, max_tokens=99, credit=2)
        if self.random.random() < 0.5:
            await until(lambda: len(rig.ids.get(turn, ())) == 2)
        rig.service.cancel(turn)
        await rig.end(turn)

    async def move(self, rig: Rig) -> None:
        """A move that is given up, in the middle of a turn."""
        name, head, ids = self.pick()
        turn = rig.submit((5,), state=name, save_as=name, max_tokens=9, credit=4)
        await until(lambda: len(rig.ids.get(turn, ())) == 4)
        await rig.service.migrate_begin(TENANT, name)
        await rig.service.migrate_end(TENANT, name, moved=None)
        rig.service.grant(turn, 99)
        assert (await rig.end(turn)).error is None
        so_far = [*ids, 5, *rig.ids[turn]]
        self.states[name] |= {head + 1: so_far[: len(ids) + 5], head + 2: so_far}

    async def fork(self, rig: Rig) -> None:
        name, _, ids = self.pick()
        names = [self.fresh() for _ in range(self.random.choice([1, 3]))]
        await rig.service.fork(TENANT, Ref(name), names, durability=self.durability())
        self.states |= {one: {1: ids} for one in names}

    async def snapshot(self, rig: Rig) -> None:
        name, head, ids = self.pick()
        await rig.service.snapshot(TENANT, Ref(name))
        self.states[name][head + 1] = ids

    async def export(self, rig: Rig) -> None:
        name, _, ids = self.pick()
        source, new = await rig.service.export(TENANT, Ref(name)), self.fresh()
        sink = await rig.service.importing(TENANT, new, n_bytes=source.n_bytes)
        for chunk in source.chunks():
            await sink.write(bytes(chunk))
        await sink.finish()
        self.states[new] = {1: ids}

    async def replay(self, rig: Rig) -> None:
        name, _, _ = self.pick()
        with contextlib.suppress(StateNotFoundError):  # what it was made of was deleted
            assert (await rig.service.replay(TENANT, Ref(name))).first_difference is None

    async def roll_back_to_version(self, rig: Rig) -> None:
        name, head, _ = self.pick()
        version = self.random.choice(sorted(self.states[name]))
        await rig.service.rollback(TENANT, name, version=version)
        self.states[name][head + 1] = self.states[name][version]

    async def roll_back(self, rig: Rig) -> None:
        name, head, ids = self.pick()
        position = self.random.randint(1, len(ids))
        await rig.service.rollback(TENANT, name, position=position)
        self.states[name][head + 1] = ids[:position]

    async def hibernate(self, rig: Rig) -> None:
        name, _, _ = self.pick()
        await rig.service.hibernate(TENANT, Ref(name))

    async def delete(self, rig: Rig) -> None:
        name, _, _ = self.pick()
        if len(self.states) > 3:
            await rig.service.delete(TENANT, Ref(name))
            del self.states[name]


@pytest.mark.parametrize("serve", [running, serving])
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_done_states_are_what_they_should_be(
    tmp_path: Path, seed: int, serve: Callable[[Path], AbstractAsyncContextManager[Rig]]
) -> None:
    machine = Machine(seed)
    for _ in range(2):  # and after a restart
        async with serve(tmp_path / "s") as rig:
            for _ in range(N_OPERATIONS):
                await machine.operation(rig)
            await machine.check(rig)
    async with serve(tmp_path / "s") as rig:
        await machine.check(rig)
