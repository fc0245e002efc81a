"""The account of the kill trials sees what it is for, over a server that is a few dictionaries."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.states.book import History
from tests.states.doors import Door, Gone, Known, Refused, Turn
from tests.states.kills import Account, Trial, run_and_kill


class Shelf:
    """States that survive a crash as far as they were said to, unless a fault is planted."""

    def __init__(self, fault: str) -> None:
        self.durable = dict[str, dict[int, History]]()
        self.visible = dict[str, dict[int, History]]()
        self.fault = fault
        self.is_up = True

    async def some_written(self) -> None:
        """Return when there is enough to lose."""
        n_before = sum(map(len, self.durable.values()))
        while sum(map(len, self.durable.values())) < n_before + 160:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def crash(self) -> None:
        self.is_up = False
        self.visible = {name: dict(versions) for name, versions in self.durable.items()}
        names = [name for name, versions in self.durable.items() if len(versions) > 2]
        name = names[0]
        head = max(self.visible[name])
        match self.fault:
            case "lost head":
                # Two of them: the newest may be one that nobody was told of. Their numbers need
                # not be next to each other: what lay between may have been visible alone.
                for version in sorted(self.visible[name])[-2:]:
                    del self.visible[name][version]
            case "lost handle":
                del self.visible[name]
            case "lost old version":
                self.visible[name] = {head: self.visible[name][head]}
            case "stale":
                # Of one that has not just been rolled back to it.
                name = next(one for one in names if self._head_of(one) != self._first_of(one))
                self.visible[name][max(self.visible[name])] = self._first_of(name)
            case "foreign":
                other = next(one for one in names if self._head_of(one) != self._head_of(name))
                self.visible[name][head] = self._head_of(other)
            case "doubled token":
                self.visible[name][head] = self.visible[name][head].after([1])
            case "ghost":
                self.visible["nobody"] = {1: History()}
            case "one version too many":
                self.visible[name][head + 1] = History().after([5])
            case _:
                pass
        self.durable = {one: dict(versions) for one, versions in self.visible.items()}

    def _first_of(self, name: str) -> History:
        return self.visible[name][min(self.visible[name])]

    def _head_of(self, name: str) -> History:
        return self.visible[name][max(self.visible[name])]

    def put(self, name: str, history: History, durable: bool) -> Known:
        versions = self.visible.setdefault(name, {})
        version = max(versions, default=0) + 1
        versions[version] = history
        if durable:
            self.durable.setdefault(name, {})[version] = history
        return known(name, version, history, "durable" if durable else "visible")


def known(name: str, version: int, history: History, ack: str) -> Known:
    return Known(
        name=name,
        version=version,
        content_id=f"{history.state:x}",
        n_computed=history.n - 1,
        n_pending=1,
        ack=ack,
    )


class ShelfDoor:
    """What the trial asks of a door, over a shelf. A crash may come before and after each act."""

    def __init__(self, shelf: Shelf, rng: random.Random) -> None:
        self._shelf = shelf
        self._rng = rng

    async def _pass(self) -> None:
        await asyncio.sleep(self._rng.random() * 0.001)
        if not self._shelf.is_up:
            raise Gone

    def _find(self, ref: str) -> tuple[str, int, History]:
        name, _, digits = ref.partition("@")
        versions = self._shelf.visible.get(name, {})
        version = int(digits or max(versions, default=0))
        if version not in versions:
            raise Refused("STATE_NOT_FOUND", ref)
        return name, version, versions[version]

    async def generate(
        self, prompt: Sequence[int], n: int, *, state: str = "", save_as: str = "", **how: Any
    ) -> Turn:
        await self._pass()
        history = self._find(state)[2] if state else History()
        ids, after = history.generated(prompt, n)
        name, version, ack = "", 0, ""
        if save_as:
            done = self._shelf.put(save_as, after, how["durability"] == "disk")
            name, version, ack = done.name, done.version, done.ack
        await self._pass()
        cached = max(history.n - 1, 0)
        return Turn(
            ids=ids, reason="length", name=name, version=version, ack=ack, cached_tokens=cached
        )

    async def create(self, name: str, prompt: Sequence[int]) -> Known:
        await self._pass()
        done = self._shelf.put(name, History().after(prompt), durable=True)
        await self._pass()
        return done

    async def fork(self, ref: str, names: Sequence[str]) -> list[Known]:
        await self._pass()
        history = self._find(ref)[2]
        done = [self._shelf.put(name, history, durable=True) for name in names]
        await self._pass()
        return done

    async def rollback(self, name: str, *, version: int, expected_version: int) -> Known:
        await self._pass()
        done = self._shelf.put(name, self._find(f"{name}@{version}")[2], durable=True)
        assert done.version == expected_version + 1
        await self._pass()
        return done

    async def delete(self, ref: str) -> None:
        await self._pass()
        self._shelf.visible.pop(ref)
        self._shelf.durable.pop(ref, None)
        await self._pass()

    async def handles(self) -> list[Known]:
        await self._pass()
        heads = [(*self._find(name), "durable") for name in self._shelf.visible]
        return [known(*head) for head in heads]

    async def hibernate(self, ref: str) -> Known:
        await self._pass()
        name, version, history = self._find(ref)
        self._shelf.durable.setdefault(name, {})[version] = history
        await self._pass()
        return known(name, version, history, "durable")

    async def resume(self, ref: str) -> Known:
        return await self.hibernate(ref)


async def account_of(fault: str) -> Account:
    shelf, trial, rng = Shelf(fault), Trial(seed=3), random.Random(4)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Door]:
        yield ShelfDoor(shelf, rng)  # type: ignore[misc]

    for _ in range(2):
        await run_and_kill(trial, connect, shelf.crash, shelf.some_written())
        shelf.is_up = True
        await trial.check(connect, all_versions=True)
        if not trial.account.is_clean:
            break
    assert trial.account.n_resumed > 30
    assert trial.book.n_acked > 30
    return trial.account


async def test_nothing_is_found_where_all_promises_are_kept() -> None:
    account = await account_of("")
    assert account.is_clean, account
    assert account.n_doubtful["made"] > 0
    assert account.n_doubtful["not made"] > 0


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("lost head", "lost"),
        ("lost handle", "lost"),
        ("lost old version", "lost"),
        ("stale", "corrupt"),
        ("foreign", "corrupt"),
        ("doubled token", "corrupt"),
        ("one version too many", "corrupt"),
        ("ghost", "ghosts"),
    ],
)
async def test_a_fault_is_found(fault: str, where: str) -> None:
    account = await account_of(fault)
    assert getattr(account, where), account
