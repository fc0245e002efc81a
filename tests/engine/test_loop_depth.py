"""The step coroutine with two steps in flight, over a device that keeps its ids."""

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.core.device import FakeDevice, continuation
from wkvm.core.config import EngineConfig
from wkvm.core.errors import StepFailedError, WkvmError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import (
    EndEvent,
    Event,
    RequestSpec,
    Status,
    TokenEvent,
    by_request,
)
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler
from wkvm.engine.interface import EngineInfo
from wkvm.engine.loop import EngineLoop

VOCAB_SIZE = 64
PATIENCE_S = 60.0


class DeviceEngine:
    """A scheduler over a fake device, in which a step runs when it is collected.

    Attributes:
        calls: what was called in which order, and with which plan, counted from 0.
        gate: passed by each collect; open unless a test closes it.
        may_launch, may_collect: called with the plan's number; may raise.
        on_collect: called when a collect begins, in its thread.
    """

    def __init__(self, config: EngineConfig, depth: int) -> None:
        self._scheduler = Scheduler(config, vocab_size=VOCAB_SIZE, eos_ids=(), depth=depth)
        self._device = FakeDevice(VOCAB_SIZE)
        self._numbers = dict[int, int]()
        self._n_submitted = 0
        self.plans = list[StepPlan]()
        self.depth = depth
        self.calls = list[tuple[str, int]]()
        self.gate: threading.Semaphore | None = None
        self.may_launch: Callable[[int], None] = lambda number: None
        self.may_collect: Callable[[int], None] = lambda number: None
        self.on_collect: Callable[[], object] = lambda: None
        self.info = EngineInfo(
            model="fake",
            model_digest="",
            layout_fingerprint="",
            tokenizer_digest="",
            vocab_size=VOCAB_SIZE,
            eos_ids=(),
            n_slots=config.n_slots,
            max_model_len=None,
        )

    @property
    def blocks(self) -> bool:
        return True

    def reserve(self, n: int) -> tuple[int, ...]:
        assert n == 1
        self._n_submitted += 1
        return (self._n_submitted,)

    def submit(
        self, spec: RequestSpec, now: float, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        request_ids = request_ids or self.reserve(1)
        self._scheduler.submit(request_ids, spec, seed=0, branches=request_ids, now=now)
        return request_ids

    def cancel(self, request_id: int, now: float) -> None:
        self._scheduler.cancel(request_id, now)

    def interrupt(self, request_id: int, now: float) -> None:
        self._scheduler.interrupt(request_id, now)

    def snapshot(self, request_id: int) -> bool:
        return self._scheduler.snapshot(request_id)

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        self._scheduler.grant(request_id, n_tokens, now)

    def hold(self, request_id: int, now: float) -> None:
        self._scheduler.hold(request_id, now)

    def release(self, request_id: int, now: float) -> None:
        self._scheduler.release(request_id, now)

    def plan(self, now: float) -> StepPlan | None:
        plan = self._scheduler.plan(now)
        if plan is not None:
            self._note("plan", len(self.plans))
            self.plans.append(plan)
        return plan

    def launch(self, plan: StepPlan) -> None:
        self._note("launch", self._number(plan))
        self.may_launch(self._number(plan))

    def collect(self, plan: StepPlan) -> StepResult:
        number = self._number(plan)
        self._note("collect", number)
        self.on_collect()
        if self.gate is not None:
            assert self.gate.acquire(timeout=PATIENCE_S)
        result = StepResult(tuple(self._device.run(plan)))
        self.may_collect(number)
        return result

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self._note("commit", self._number(plan))
        self._scheduler.commit(plan, result, now)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        self._note("fail", self._number(plan))
        self._scheduler.fail(plan, error, now)

    def take_events(self) -> list[Event]:
        return self._scheduler.take_events()

    def next_deadline(self) -> float | None:
        return self._scheduler.next_deadline()

    def set_wake(self, wake: Callable[[], None]) -> None:
        del wake

    def drain(self) -> None:
        self._scheduler.drain()

    def stats(self) -> Mapping[str, int]:
        return self._scheduler.stats()

    def _note(self, call: str, number: int) -> None:
        self.calls.append((call, number))

    def _number(self, plan: StepPlan) -> int:
        return next(number for number, one in enumerate(self.plans) if one is plan)


class Rig:
    """A loop over it, and what it delivered."""

    def __init__(self, depth: int = 2, *, n_slots: int = 4) -> None:
        self.engine = DeviceEngine(EngineConfig(n_slots=n_slots), depth)
        self.loop = EngineLoop(self.engine)
        self.loop.deliver = self.take
        self.ids = dict[int, list[int]]()
        self.ends = dict[int, EndEvent]()
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.engine.on_collect = lambda: loop.call_soon_threadsafe(self._changed.set)

    def take(self, events: list[Event]) -> None:
        for event in by_request(events):
            if isinstance(event, EndEvent):
                assert event.request_id not in self.ends
                self.ends[event.request_id] = event
            elif isinstance(event, TokenEvent):
                self.ids.setdefault(event.request_id, []).append(event.token_id)
        self._changed.set()

    def submit(
        self, prompt: tuple[int, ...], params: SamplingParams, credit: int | None = None
    ) -> int:
        spec = RequestSpec(prompt=prompt, params=params, credit=credit)
        (request_id,) = self.loop.submit(spec)
        return request_id

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def end(self, *request_ids: int) -> None:
        await self.until(lambda: all(request_id in self.ends for request_id in request_ids))

    async def collecting(self, number: int) -> None:
        await self.until(lambda: ("collect", number) in self.engine.calls)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(rig.loop.run())
        yield
        rig.loop.close()
        await task


def alone(
    request_id: int, prompt: tuple[int, ...], params: SamplingParams
) -> tuple[list[int], int | None]:
    return continuation(
        request_id,
        prompt,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stops=set(params.stop_ids),
        vocab_size=VOCAB_SIZE,
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_every_depth_gives_what_each_request_gives_alone(depth: int) -> None:
    rig = Rig(depth)
    asked = [
        (
            tuple((i + j) % VOCAB_SIZE for j in range(1 + 40 * i)),
            SamplingParams(max_tokens=40, min_tokens=i, stop_ids=tuple(range(0, 8 * i, 2))),
        )
        for i in range(9)
    ]
    async with running(rig):
        request_ids = [rig.submit(*one) for one in asked]
        await rig.end(*request_ids)
    for request_id, one in zip(request_ids, asked, strict=True):
        end = rig.ends[request_id]
        assert (rig.ids.get(request_id, []), end.stop_id) == alone(request_id, *one)
    assert {end.status for end in rig.ends.values()} == {Status.LENGTH, Status.STOPPED}


async def test_a_step_is_launched_before_the_one_before_it_is_collected() -> None:
    rig = Rig()
    async with running(rig):
        await rig.end(rig.submit((1,), SamplingParams(max_tokens=4)))
    assert rig.engine.calls == [
        *[("plan", 0), ("launch", 0), ("plan", 1), ("launch", 1), ("collect", 0), ("commit", 0)],
        *[("plan", 2), ("launch", 2), ("collect", 1), ("commit", 1)],
        *[("plan", 3), ("launch", 3), ("collect", 2), ("commit", 2)],
        *[("collect", 3), ("commit", 3)],
    ]


async def test_ids_are_delivered_while_the_next_step_is_in_flight() -> None:
    rig = Rig()
    rig.engine.gate = threading.Semaphore(1)
    async with running(rig):
        request_id = rig.submit((1,), SamplingParams(max_tokens=3))
        await rig.until(lambda: request_id in rig.ids)
        await rig.collecting(1)
        assert ("commit", 1) not in rig.engine.calls
        assert rig.ids[request_id] == alone(request_id, (1,), SamplingParams(max_tokens=1))[0]
        rig.engine.gate.release(2)
        await rig.end(request_id)


async def test_a_slot_freed_with_a_row_in_flight_is_clean_for_the_next() -> None:
    rig = Rig(n_slots=1)
    params = SamplingParams(max_tokens=2)
    async with running(rig):
        for i in range(20):
            rig.engine.gate = gate = threading.Semaphore(0)
            n_before = len(rig.engine.plans)
            cancelled = rig.submit((i,), SamplingParams(max_tokens=9))
            await rig.collecting(n_before)
            rig.loop.cancel(cancelled)
            following = rig.submit((i, i), params)
            gate.release(100)
            await rig.end(cancelled, following)
            assert rig.ids[following] == alone(following, (i, i), params)[0]


async def test_a_failed_launch_ends_its_requests_after_what_came_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("out of luck")

    rig.engine.may_launch = fail
    with caplog.at_level(logging.ERROR):
        async with running(rig):
            failed = rig.submit((1,), SamplingParams(max_tokens=9))
            await rig.end(failed)
            following = rig.submit((2,), SamplingParams(max_tokens=3))
            await rig.end(following)
    assert isinstance(rig.ends[failed].error, StepFailedError)
    assert rig.ids[failed] == alone(failed, (1,), SamplingParams(max_tokens=1))[0]
    assert rig.ids[following] == alone(following, (2,), SamplingParams(max_tokens=3))[0]
    calls = rig.engine.calls
    assert ("collect", 1) not in calls
    assert calls.index(("commit", 0)) < calls.index(("fail", 1)) < calls.index(("plan", 2))
    assert "out of luck" in caplog.text


async def test_no_plan_is_made_on_top_of_a_first_launch_that_failed() -> None:
    rig = Rig()

    def fail(number: int) -> None:
        if number == 0:
            raise RuntimeError("out of luck")

    rig.engine.may_launch = fail
    async with running(rig):
        await rig.end(rig.submit((1,), SamplingParams(max_tokens=9)))
    assert rig.engine.calls == [("plan", 0), ("launch", 0), ("fail", 0)]


async def test_a_step_launched_before_another_failed_counts_for_its_other_requests() -> None:
    rig = Rig()
    rig.engine.gate = threading.Semaphore(0)

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("out of luck")

    rig.engine.may_collect = fail
    params = SamplingParams(max_tokens=3)
    async with running(rig):
        failed = rig.submit((1,), SamplingParams(max_tokens=9))
        await rig.collecting(0)
        other = rig.submit((2,), params)
        rig.engine.gate.release(100)
        await rig.end(failed, other)
    assert [row.request_id for row in rig.engine.plans[1].rows] == [failed]
    assert {row.request_id for row in rig.engine.plans[2].rows} == {failed, other}
    assert isinstance(rig.ends[failed].error, StepFailedError)
    assert len(rig.ids[failed]) == 1
    assert rig.ids[other] == alone(other, (2,), params)[0]


async def test_close_collects_what_is_in_flight_and_plans_nothing_more() -> None:
    rig = Rig()
    rig.engine.gate = threading.Semaphore(0)
    async with running(rig):
        request_id = rig.submit((1,), SamplingParams(max_tokens=99))
        await rig.collecting(0)
        rig.loop.close()
        rig.engine.gate.release(2)
    assert rig.engine.calls[-4:] == [
        ("collect", 0),
        ("commit", 0),
        ("collect", 1),
        ("commit", 1),
    ]
    assert rig.ends[request_id].status is Status.CANCELLED
    assert len(rig.ids[request_id]) == 2


async def test_a_run_cancelled_with_two_in_flight_ends_every_request() -> None:
    rig = Rig()
    rig.engine.gate = threading.Semaphore(0)
    task = asyncio.create_task(rig.loop.run())
    request_id = rig.submit((1,), SamplingParams(max_tokens=99))
    await rig.collecting(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.ends[request_id].status is Status.CANCELLED
    rig.engine.gate.release(2)


async def test_drain_lets_what_is_in_flight_finish() -> None:
    rig = Rig()
    async with running(rig):
        request_ids = [rig.submit((i,), SamplingParams(max_tokens=20)) for i in range(6)]
        await rig.until(lambda: len(rig.ids) == 4)
        await rig.loop.drain(PATIENCE_S)
        assert [rig.ends[i].status for i in request_ids] == [Status.LENGTH] * 6


@pytest.mark.parametrize("depth", [1, 2])
async def test_requests_that_are_disturbed_at_random_get_a_beginning_of_what_they_get_alone(
    depth: int,
) -> None:
    rng = random.Random(depth)
    rig = Rig(depth, n_slots=5)
    asked = dict[int, tuple[tuple[int, ...], SamplingParams]]()
    async with running(rig):
        for i in range(200):
            prompt = tuple(rng.choices(range(VOCAB_SIZE), k=rng.choice([1, 3, 64, 150])))
            params = SamplingParams(
                max_tokens=rng.randint(1, 12), stop_ids=(rng.randrange(VOCAB_SIZE),)
            )
            request_id = rig.submit(prompt, params, credit=rng.choice([None, 1, 3]))
            asked[request_id] = prompt, params
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            one = rng.choice(list(asked))
            match rng.randrange(8):
                case 0:
                    rig.loop.cancel(one)
                case 1 | 2:
                    rig.loop.hold(one)
                    rig.loop.grant(one, 2)
                case _:
                    rig.loop.release(one)
            if i % 20 == 19:
                await asyncio.sleep(0.002)
        for request_id in asked:
            rig.loop.release(request_id)
            rig.loop.grant(request_id, 100)
        await rig.end(*asked)
        assert rig.loop.stats()["n_free_slots"] == 5
    for request_id, (prompt, params) in asked.items():
        ids, stop_id = alone(request_id, prompt, params)
        came, end = rig.ids.get(request_id, []), rig.ends[request_id]
        assert came == ids[: len(came)]
        if end.status is not Status.CANCELLED:
            assert (came, end.stop_id) == (ids, stop_id)
    assert sum(end.status is Status.CANCELLED for end in rig.ends.values()) >= 5
