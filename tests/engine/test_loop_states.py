"""States and the loop: what it does of itself, on a clock, and what wakes it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.engine.test_states import greedy, hash_of, start_of, with_guest_on_gpu
from tests.fakes import FakeModel, fake_continuation, state_of
from wkvm.core.config import EngineConfig
from wkvm.core.request import EndEvent, Event, RequestSpec, SavedEvent, Status, TokensEvent
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop

PROMPT = (5, 6, 7)
PATIENCE_S = 60.0


class Told:
    """What a loop tells, and a way to wait for it."""

    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop
        self.ids = dict[int, list[int]]()
        self.saved = dict[int, SavedEvent]()
        self.ends = dict[int, EndEvent]()
        self._changed = asyncio.Event()
        loop.deliver = self._take

    def _take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TokensEvent():
                    pairs = zip(event.request_ids, event.token_ids, strict=True)
                    for request_id, token_id in pairs:
                        self.ids.setdefault(request_id, []).append(token_id)
                case SavedEvent():
                    self.saved[event.request_id] = event
                case EndEvent():
                    self.ends[event.request_id] = event
                case _:
                    raise AssertionError(event)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def end(self, request_id: int) -> EndEvent:
        await self.until(lambda: request_id in self.ends)
        return self.ends[request_id]

    async def n_ids(self, request_id: int, n: int) -> None:
        await self.until(lambda: len(self.ids.get(request_id, ())) >= n)


@asynccontextmanager
async def running(n_slots: int, engine: Engine | None = None) -> AsyncIterator[Told]:
    config = EngineConfig(n_slots=n_slots, n_threads=1, poison_freed_slots=True)
    told = Told(EngineLoop(engine or Engine(FakeModel(), config)))
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(told.loop.run())
        try:
            yield told
        finally:
            told.loop.close()
            await task


async def test_a_loop_that_sleeps_takes_the_slot_of_a_request_without_credit_by_itself() -> None:
    async with running(n_slots=1) as told:
        (paused,) = told.loop.submit(RequestSpec(prompt=PROMPT, params=greedy(6), credit=2))
        await told.n_ids(paused, 2)
        (other,) = told.loop.submit(RequestSpec(prompt=(9,), params=greedy(4)))
        await told.end(other)
        assert told.loop.stats()["n_hibernated"] == 1
        told.loop.grant(paused, 9)
        await told.end(paused)
    assert told.ids[paused] == fake_continuation(PROMPT, 6)
    assert told.ids[other] == fake_continuation((9,), 4)


async def test_an_interrupt_wakes_a_loop_that_sleeps() -> None:
    async with running(n_slots=1) as told:
        spec = RequestSpec(prompt=PROMPT, params=greedy(6), credit=2, save=True)
        (paused,) = told.loop.submit(spec)
        await told.n_ids(paused, 2)
        told.loop.interrupt(paused)
        end = await told.end(paused)
    assert end.status is Status.CANCELLED
    assert end.saved is not None
    assert [*end.saved.absorbed, *end.saved.pending] == [*PROMPT, *told.ids[paused]]
    assert hash_of(end.saved) == state_of(end.saved.absorbed)


async def test_a_snapshot_wakes_a_loop_that_sleeps() -> None:
    async with running(n_slots=1) as told:
        spec = RequestSpec(prompt=PROMPT, params=greedy(6), credit=2, save=True)
        (paused,) = told.loop.submit(spec)
        await told.n_ids(paused, 2)
        assert told.loop.snapshot(paused)
        await told.until(lambda: paused in told.saved)
        told.loop.grant(paused, 9)
        await told.end(paused)
    saved = told.saved[paused].saved
    assert saved is not None
    assert hash_of(saved) == state_of(saved.absorbed)
    assert told.ids[paused] == fake_continuation(PROMPT, 6)


async def test_ids_that_were_reserved_are_those_of_the_request_and_of_no_other() -> None:
    async with running(n_slots=2) as told:
        (reserved,) = told.loop.reserve(1)
        (other,) = told.loop.submit(RequestSpec(prompt=(9,), params=greedy(2)))
        spec = RequestSpec(prompt=PROMPT, params=greedy(3))
        assert told.loop.submit(spec, (reserved,)) == (reserved,)
        assert other != reserved
        await told.end(reserved)
        await told.end(other)
    assert told.ids[reserved] == fake_continuation(PROMPT, 3)


async def test_what_is_late_is_told_though_nothing_else_is_to_be_run() -> None:
    """A loop that slept until it had something to do would sleep for ever."""
    prompt = tuple(range(60)) * 3
    engine = with_guest_on_gpu(n_slots=2).engine
    async with running(2, engine) as told:
        (first,) = told.loop.submit(RequestSpec(prompt=prompt, params=greedy(2), save=True))
        saved = (await told.end(first)).saved
        assert saved is not None
        assert hash_of(saved) == state_of(saved.absorbed)
        start = start_of(saved)
        (second,) = told.loop.submit(RequestSpec(prompt=(), params=greedy(3), start=start))
        assert (await told.end(second)).status is Status.LENGTH
        ids = told.ids[first] + told.ids[second]
        assert ids == fake_continuation(prompt, 5)
        assert told.loop.stats()["n_free_pages"] == told.loop.stats()["n_pages"]
