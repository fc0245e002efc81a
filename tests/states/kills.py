"""Sessions that generate while their server is killed, and the account of it afterwards."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.hash_model import VOCAB_SIZE
from tests.states.book import Book, History, Page
from tests.states.doors import Door, Gone, Known, Refused

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Door]]

N_SESSIONS = 32
LENGTHS = (0, 1, 3, 63, 64, 65, 130)
"""Of prompts."""
MAX_HANDLES = 96
N_OLD_ONES = 64
"""Versions that are not heads and are resumed after each kill; after the last one, all are."""
N_AT_ONCE = 128


@dataclass
class Account:
    """What was found wrong. All of it must stay empty."""

    lost: list[str] = field(default_factory=list[str])
    corrupt: list[str] = field(default_factory=list[str])
    ghosts: list[str] = field(default_factory=list[str])
    n_kills: int = 0
    n_resumed: int = 0
    n_doubtful: Counter[str] = field(default_factory=Counter[str])

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.corrupt or self.ghosts)


class Trial:
    """The sessions, what they know, and the account."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._n_names = 0
        self.book = Book()
        self.account = Account()
        self.done = Counter[str]()
        self.n_refused = 0

    async def work(self, connect: Connect, until_killed: asyncio.Event) -> None:
        """Have all sessions go on until the server is gone."""
        try:
            async with connect() as door:
                sessions = [
                    asyncio.create_task(self._session(door, f"session-{at}", until_killed))
                    for at in range(N_SESSIONS)
                ]
                await asyncio.gather(*sessions)
        except Gone:
            assert until_killed.is_set(), "the server could not be reached before it was killed"

    async def _session(self, door: Door, name: str, until_killed: asyncio.Event) -> None:
        try:
            while True:
                await self._step(door, name)
        except Gone:
            assert until_killed.is_set(), "the connection broke before the server was killed"
        except Refused as refused:  # by one that ends in order
            if refused.code != "DRAINING" or not until_killed.is_set():
                raise
            self.n_refused += 1

    async def _step(self, door: Door, name: str) -> None:
        page, rng = self.book.page(name), self._rng
        what = rng.choices(
            ["turn", "visible turn", "fork", "create", "delete", "sleep", "rollback"],
            [70, 5, 8, 4, 6, 4, 3],
        )[0]
        if not page.head:
            what = "turn"
        self.done[what] += 1
        match what:
            case "turn":
                await self._turn(door, name, "disk")
            case "visible turn":
                await self._turn(door, name, "memory")
            case "fork" if len(self.book.pages) < MAX_HANDLES:
                await self._fork(door, name)
            case "create" if len(self.book.pages) < MAX_HANDLES:
                await self._create(door)
            case "delete":
                await self._delete(door)
            case "sleep":
                known = await door.hibernate(name)
                if known.ack == "durable":
                    self.book.saved(name, known.version)
                await door.resume(name)
            case "rollback":
                await self._rollback(door, name)
            case _:
                await asyncio.sleep(0)

    async def _turn(self, door: Door, name: str, durability: str) -> None:
        page, rng = self.book.page(name), self._rng
        head, history = page.head, page.history
        length = rng.choice(LENGTHS[1:] if not head else LENGTHS)
        prompt = rng.choices(range(VOCAB_SIZE), k=length)
        n = rng.randint(1, 24)
        expected, after = history.generated(prompt, n)
        self.book.asked(name, after)
        turn = await door.generate(
            prompt,
            n,
            state=name if head else "",
            save_as=name,
            expected_version=head,
            durability=durability,
        )
        assert turn.ids == expected, f"{name}: a wrong id from {name}@{head}"
        # What is asked for in memory may be on the disk already, as the bytes of another version.
        assert turn.ack == "durable" or (durability, turn.ack) == ("memory", "visible")
        assert turn.cached_tokens == max(history.n - 1, 0)
        self.book.answered(name, turn.version, turn.ack)

    async def _fork(self, door: Door, name: str) -> None:
        history = self.book.page(name).history
        head = self.book.page(name).head
        names = [self._new_name("fork") for _ in range(self._rng.randint(1, 3))]
        for one in names:
            self.book.asked(one, history)
        for known in await door.fork(f"{name}@{head}", names):
            self.book.answered(known.name, known.version, known.ack)

    async def _create(self, door: Door) -> None:
        name = self._new_name("created")
        prompt = self._rng.choices(range(VOCAB_SIZE), k=self._rng.randint(1, 100))
        self.book.asked(name, History().after(prompt))
        known = await door.create(name, prompt)
        assert known.n_tokens == len(prompt)
        self.book.answered(name, known.version, known.ack)

    async def _delete(self, door: Door) -> None:
        others = [
            name
            for name, page in self.book.pages.items()
            if page.acked and not name.startswith("session") and not page.may_be_gone
        ]
        if others:
            name = self._rng.choice(others)
            self.book.page(name).may_be_gone = True
            await door.delete(name)
            del self.book.pages[name]

    async def _rollback(self, door: Door, name: str) -> None:
        page = self.book.page(name)
        version = self._rng.choice(list(page.acked or page.visible))
        history = (page.visible | page.acked)[version]
        self.book.asked(name, history)
        known = await door.rollback(name, version=version, expected_version=page.head)
        self.book.answered(name, known.version, known.ack)

    def _new_name(self, kind: str) -> str:
        self._n_names += 1
        return f"{kind}-{self._n_names}"

    async def check(self, connect: Connect, *, all_versions: bool) -> None:
        """After a restart: is what was promised there, whole, and nothing that nobody made?"""
        self.account.n_kills += 1
        async with connect() as door:
            heads = {known.name: known async for known in _all(door)}
            for name in heads.keys() - self.book.pages.keys():
                self.account.ghosts.append(name)
            for name, page in list(self.book.pages.items()):
                await self._settle(door, name, page, heads.get(name))
            promises = list(self.book.promises())
            if not all_versions:
                heads_only = [one for one in promises if one[1] == self.book.page(one[0]).head]
                others = self._rng.sample(promises, min(N_OLD_ONES, len(promises)))
                promises = heads_only + others
            for at in range(0, len(promises), N_AT_ONCE):
                some = promises[at : at + N_AT_ONCE]
                await asyncio.gather(*(self._resume(door, *one) for one in some))

    async def _settle(self, door: Door, name: str, page: Page, head: Known | None) -> None:
        """Find out how what was cut off ended."""
        if head is None:
            if page.acked and not page.may_be_gone:
                self.account.lost.append(f"{name}: the handle, at {page.head}")
            self.account.n_doubtful["gone" if page.acked else "not made"] += 1
            del self.book.pages[name]
            return
        page.may_be_gone = False
        if head.version in page.visible:  # a crash may lose it, and need not
            page.acked[head.version] = page.visible[head.version]
        newest_promise = max(page.acked, default=0)
        if head.version < newest_promise:
            self.account.lost.append(f"{name}@{newest_promise}: the head is {head.version}")
            page.acked = {at: one for at, one in page.acked.items() if at <= head.version}
        elif head.version > page.head:
            if page.open is None:
                self.account.corrupt.append(f"{name}@{head.version}: nobody asked for it")
            else:
                self.account.n_doubtful["made"] += 1
                page.acked[head.version] = page.open
        elif page.open is not None:
            self.account.n_doubtful["not made"] += 1
        page.open = None
        page.visible.clear()

    async def _resume(self, door: Door, name: str, version: int, history: History) -> None:
        probe = [self._rng.randrange(VOCAB_SIZE)]
        expected, _ = history.generated(probe, 2)
        ref = f"{name}@{version}"
        try:
            turn = await door.generate(probe, 2, state=ref)
        except Refused as refused:
            kind = self.account.lost if refused.code == "STATE_NOT_FOUND" else self.account.corrupt
            kind.append(f"{ref}: {refused}")
            return
        self.account.n_resumed += 1
        if turn.ids != expected:
            self.account.corrupt.append(f"{ref}: {turn.ids} and not {expected}")


async def _all(door: Door) -> AsyncIterator[Known]:
    for known in await door.handles():
        yield known


async def run_and_kill(
    trial: Trial, connect: Connect, kill: Callable[[], None], moment: Coroutine[Any, Any, None]
) -> None:
    """Have the sessions go on, and kill the server at a moment."""
    killed = asyncio.Event()
    working = asyncio.create_task(trial.work(connect, killed))
    waiting = asyncio.create_task(moment)
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
        raise AssertionError("all sessions ended")
    killed.set()
    kill()
    await working
