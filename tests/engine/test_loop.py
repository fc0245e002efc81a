"""The step coroutine: who is told what, when it sleeps, and what it does about failures."""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import torch

from tests.engine.driver import greedy
from tests.fakes import FakeModel, fake_continuation
from wkvm.core.config import EngineConfig
from wkvm.core.errors import (
    DrainingError,
    EngineFailedError,
    StepFailedError,
    StepMemoryError,
)
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import (
    EndEvent,
    Event,
    RequestSpec,
    Status,
    TokenEvent,
    TokensEvent,
    by_request,
)
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.models.base import Batch

LONG = 10**6
PATIENCE_S = 60.0
"""Longer than anything here takes; a test that hangs fails instead."""


class Gate:
    """Lets forward passes through one by one: a step is in flight for as long as a test likes."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._opened = threading.Semaphore(0)

    def __call__(self, batch: Batch) -> None:
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._opened.acquire(timeout=PATIENCE_S)

    async def step_in_flight(self) -> None:
        await self.entered.wait()
        self.entered.clear()

    def open(self, n: int = 1) -> None:
        self._opened.release(n)


class CountingEngine(Engine):
    """Counts how often it is asked for a plan."""

    n_plans = 0

    def plan(self, now: float) -> StepPlan | None:
        self.n_plans += 1
        return super().plan(now)


class Setup:
    """A running loop over the fake model, and what it delivered."""

    def __init__(
        self,
        model: FakeModel | None = None,
        config: EngineConfig | None = None,
        engine: type[CountingEngine] = CountingEngine,
    ) -> None:
        self.model = model or FakeModel()
        self.engine = engine(self.model, config or EngineConfig(n_slots=4, poison_freed_slots=True))
        self.loop = EngineLoop(self.engine)
        self.loop.deliver = self.take
        self.batches = list[list[Event]]()
        self.ends = dict[int, EndEvent]()
        self._changed = asyncio.Event()
        self.faults = list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: self.faults.append(fault))

    def take(self, events: list[Event]) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert events
        self.batches.append(events)
        for event in events:
            if isinstance(event, EndEvent):
                assert event.request_id not in self.ends
                self.ends[event.request_id] = event
        self._changed.set()

    def submit(self, prompt: tuple[int, ...], params: SamplingParams) -> int:
        return self.submit_spec(RequestSpec(prompt=prompt, params=params))

    def submit_spec(self, spec: RequestSpec) -> int:
        (request_id,) = self.loop.submit(spec)
        return request_id

    def ids(self, request_id: int) -> list[int]:
        return [
            event.token_id
            for events in self.batches
            for event in by_request(events)
            if isinstance(event, TokenEvent) and event.request_id == request_id
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def end(self, request_id: int) -> EndEvent:
        await self.until(lambda: request_id in self.ends)
        return self.ends[request_id]


@asynccontextmanager
async def running(setup: Setup) -> AsyncIterator[asyncio.Task[None]]:
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(setup.loop.run())
        yield task
        setup.loop.close()
        await task
        assert not setup.faults


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_requests_stream_their_ids_and_end() -> None:
    setup = Setup()
    async with running(setup):
        requests = [setup.submit((i, 2), greedy(5 + i)) for i in range(6)]
        for i, request_id in enumerate(requests):
            assert (await setup.end(request_id)).status is Status.LENGTH
            assert setup.ids(request_id) == fake_continuation((i, 2), 5 + i)


async def test_events_are_delivered_once_per_step_for_all_requests() -> None:
    setup = Setup()
    async with running(setup):
        for i in range(3):
            setup.submit((i,), greedy(7))
        await setup.until(lambda: len(setup.ends) == 3)
    tokens, ends = [TokensEvent], [EndEvent] * 3
    assert [[type(event) for event in events] for events in setup.batches] == [
        *[tokens] * 6,
        tokens + ends,
    ]
    for events in setup.batches:
        assert len([e for e in by_request(events) if isinstance(e, TokenEvent)]) == 3


async def test_an_idle_loop_never_turns() -> None:
    setup = Setup()
    async with running(setup):
        await setup.end(setup.submit((1,), greedy(2)))
        await turns()
        before = setup.engine.n_plans
        await asyncio.sleep(0.05)
        assert setup.engine.n_plans == before
        assert setup.loop.tick_age_s == 0


async def test_an_idle_loop_wakes_at_the_next_deadline() -> None:
    setup = Setup(config=EngineConfig(stall_timeout_s=0.02))
    async with running(setup):
        spec = RequestSpec(prompt=(1,), params=greedy(5), credit=1)
        request_id = setup.submit_spec(spec)
        end = await setup.end(request_id)
        assert end.status is Status.FINISHED_ERROR
        assert setup.ids(request_id) == fake_continuation((1,), 1)
        # Woken by the submission, after its step, and by the deadline; by nothing else.
        assert setup.engine.n_plans <= 4


async def test_credit_and_release_wake_a_sleeping_loop() -> None:
    setup = Setup()
    async with running(setup):
        spec = RequestSpec(prompt=(1,), params=greedy(3), credit=1)
        request_id = setup.submit_spec(spec)
        await setup.until(lambda: len(setup.ids(request_id)) == 1)
        await turns()
        setup.loop.hold(request_id)
        setup.loop.grant(request_id, 2)
        await turns()
        assert len(setup.ids(request_id)) == 1
        setup.loop.release(request_id)
        assert (await setup.end(request_id)).n_output == 3


async def test_credit_alone_wakes_a_sleeping_loop_even_if_the_deadline_is_never() -> None:
    setup = Setup(config=EngineConfig(stall_timeout_s=2.0**31))
    async with running(setup):
        spec = RequestSpec(prompt=(1,), params=greedy(3), credit=1, timeout_s=2.0**63)
        request_id = setup.submit_spec(spec)
        await setup.until(lambda: len(setup.ids(request_id)) == 1)
        await turns()
        setup.loop.grant(request_id, 2)
        assert (await setup.end(request_id)).n_output == 3


async def test_the_loop_stays_alive_during_a_step() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate))
    async with running(setup):
        request_id = setup.submit((1,), greedy(1))
        await gate.step_in_flight()
        await turns()
        assert not setup.ends
        assert 0 < setup.loop.tick_age_s < PATIENCE_S
        gate.open()
        await setup.end(request_id)


async def test_a_cancel_is_answered_while_the_step_is_still_in_flight() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate))
    async with running(setup):
        cancelled, other = setup.submit((1,), greedy(5)), setup.submit((2,), greedy(2))
        await gate.step_in_flight()
        setup.loop.cancel(cancelled)
        assert not setup.ends, "never from within the call"
        assert (await setup.end(cancelled)).status is Status.CANCELLED
        gate.open(2)
        await setup.end(other)
    assert setup.ids(cancelled) == []
    assert setup.ids(other) == fake_continuation((2,), 2)


async def test_a_cancel_is_answered_when_the_loop_is_idle_or_has_not_started() -> None:
    setup = Setup()
    early = setup.submit((1,), greedy(5))
    setup.loop.cancel(early)
    assert (await setup.end(early)).status is Status.CANCELLED
    async with running(setup):
        spec = RequestSpec(prompt=(1,), params=greedy(5), credit=0)
        late = setup.submit_spec(spec)
        await turns(20)
        setup.loop.cancel(late)
        assert (await setup.end(late)).status is Status.CANCELLED


async def test_a_slot_of_a_request_cancelled_in_flight_is_clean_for_the_next() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate), EngineConfig(n_slots=1, poison_freed_slots=True))
    async with running(setup):
        for i in range(20):
            cancelled = setup.submit((i,), greedy(5))
            await gate.step_in_flight()
            setup.loop.cancel(cancelled)
            following = setup.submit((i, i), greedy(1))
            gate.open()
            await gate.step_in_flight()
            gate.open()
            await setup.end(following)
            assert setup.ids(following) == fake_continuation((i, i), 1)


async def test_a_thousand_cancels_in_any_state_leave_nothing_behind() -> None:
    setup = Setup(config=EngineConfig(n_slots=4, max_completed_requests=10))
    async with running(setup):
        for i in range(1000):
            request_id = setup.submit((i % 64,), greedy(LONG))
            if i % 3:
                await turns(i % 7)
            setup.loop.cancel(request_id)
            setup.loop.cancel(request_id)
            if i % 10 == 9:
                await setup.end(request_id)
                assert len(setup.ends) == i + 1
        stats = setup.loop.stats()
        assert stats["cancelled_total"] == 1000
        assert (stats["n_running"], stats["n_queued"]) == (0, 0)
        assert stats["n_free_slots"] == 4
        assert setup.loop.n_live == 0
        last = setup.submit((1, 2), greedy(3))
        await setup.end(last)
        assert setup.ids(last) == fake_continuation((1, 2), 3)


async def test_a_step_that_raises_ends_its_requests_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A future cannot hold a StopIteration; a model may raise one all the same.
    for cause in (RuntimeError("out of luck"), StopIteration("out of luck")):

        def fail(batch: Batch, cause: Exception = cause) -> None:
            raise cause

        setup = Setup(FakeModel(before_forward=fail))
        with caplog.at_level(logging.ERROR):
            async with running(setup):
                failed = setup.submit((1,), greedy(2))
                assert isinstance((await setup.end(failed)).error, StepFailedError)
                setup.model.before_forward = None
                following = setup.submit((1,), greedy(2))
                await setup.end(following)
        assert setup.ids(following) == fake_continuation((1,), 2)
        assert "out of luck" in caplog.text
        caplog.clear()


class BrokenEngine(CountingEngine):
    """Its second commit raises."""

    n_commits = 0

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self.n_commits += 1
        if self.n_commits == 2:
            raise ZeroDivisionError
        super().commit(plan, result, now)


async def test_broken_bookkeeping_ends_every_request_and_comes_out_of_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    setup.engine = BrokenEngine(setup.model, EngineConfig(n_slots=1))
    setup.loop = EngineLoop(setup.engine)
    setup.loop.deliver = setup.take
    running_one, queued = setup.submit((1, 2, 3), greedy(9)), setup.submit((2,), greedy(9))
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(PATIENCE_S):
            await setup.loop.run()
    assert [setup.ends[i].status for i in (running_one, queued)] == [Status.FINISHED_ERROR] * 2
    end = setup.ends[running_one]
    assert isinstance(end.error, EngineFailedError)
    assert (end.n_prompt, end.n_output) == (3, 1)
    with pytest.raises(DrainingError):
        setup.submit((1,), greedy(1))
    setup.loop.cancel(queued)
    await turns()
    await setup.loop.drain(0)
    assert not setup.faults
    assert setup.loop.tick_age_s == math.inf


LOST = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("error", [LOST, SystemExit(), KeyboardInterrupt()], ids=repr)
async def test_what_the_engine_cannot_outlive_ends_every_request_and_comes_out_of_run(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: Batch) -> None:
        raise error

    setup = Setup(FakeModel(before_forward=fail))
    running_one, queued = setup.submit((1, 2, 3), greedy(9)), setup.submit((2,), greedy(9))
    with caplog.at_level(logging.ERROR), pytest.raises(EngineFailedError):
        async with asyncio.timeout(PATIENCE_S):
            await setup.loop.run()
    for one in (running_one, queued):
        assert setup.ends[one].status is Status.FINISHED_ERROR
        assert isinstance(setup.ends[one].error, EngineFailedError)
    with pytest.raises(DrainingError):
        setup.submit((1,), greedy(1))
    failed = setup.loop.steps_told()["failed_last"]
    assert isinstance(failed, dict)
    assert (failed["n_tokens"], len(failed["rows"])) == (4, 2)


class LeavingEngine(CountingEngine):
    """Its steps end the thread that runs them."""

    def collect(self, plan: StepPlan) -> StepResult:
        raise SystemExit


async def test_a_thread_that_is_to_end_ends_no_interpreter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    setup.engine = LeavingEngine(setup.model, EngineConfig(n_slots=1))
    setup.loop = EngineLoop(setup.engine)
    setup.loop.deliver = setup.take
    request_id = setup.submit((1,), greedy(9))
    with caplog.at_level(logging.ERROR), pytest.raises(EngineFailedError):
        async with asyncio.timeout(PATIENCE_S):
            await setup.loop.run()
    assert isinstance(setup.ends[request_id].error, EngineFailedError)


async def test_a_step_without_memory_ends_its_requests_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(FakeModel(before_forward=Once(MemoryError())))
    async with running(setup):
        failed = setup.submit((1,), greedy(2))
        with caplog.at_level(logging.ERROR):
            assert isinstance((await setup.end(failed)).error, StepMemoryError)
        following = setup.submit((1,), greedy(2))
        await setup.end(following)
    assert setup.ids(following) == fake_continuation((1,), 2)
    caplog.clear()


class Once:
    """Raises once."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def __call__(self, batch: Batch) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


async def test_a_loop_that_is_given_up_ends_though_its_step_does_not() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate))
    request_id = setup.submit((1,), greedy(3))
    stepping = asyncio.create_task(setup.loop.run())
    await gate.step_in_flight()
    assert setup.loop.busy_since is not None
    in_flight = setup.loop.steps_told()["in_flight"]
    assert isinstance(in_flight, list)
    assert [one["n_rows"] for one in in_flight] == [1]
    setup.loop.give_up()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(EngineFailedError) as raised:
            await stepping
    assert raised.value.stalled
    assert isinstance(setup.ends[request_id].error, EngineFailedError)
    assert setup.loop.busy_since is None
    gate.open(3)


async def test_drain_lets_requests_finish_and_takes_no_new_ones() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate))
    async with running(setup):
        request_id = setup.submit((1,), greedy(3))
        await gate.step_in_flight()
        draining = asyncio.create_task(setup.loop.drain(PATIENCE_S))
        await turns()
        with pytest.raises(DrainingError):
            setup.submit((2,), greedy(1))
        assert not draining.done()
        assert setup.loop.stats()["draining"] == 1
        gate.open(3)
        await draining
        assert setup.ends[request_id].status is Status.LENGTH


async def test_drain_cancels_what_is_left_after_the_grace() -> None:
    setup = Setup(config=EngineConfig(n_slots=1))
    async with running(setup):
        requests = [setup.submit((i,), greedy(LONG)) for i in range(3)]
        await setup.loop.drain(0.02)
        assert [setup.ends[i].status for i in requests] == [Status.CANCELLED] * 3


async def test_drain_of_an_idle_loop_returns_at_once() -> None:
    setup = Setup()
    async with running(setup):
        await setup.loop.drain(math.inf)


async def test_close_ends_run_and_every_request() -> None:
    setup = Setup()
    async with running(setup):
        requests = [setup.submit((i,), greedy(LONG)) for i in range(6)]
        await setup.until(lambda: len(setup.batches) >= 2)
    assert [setup.ends[i].status for i in requests] == [Status.CANCELLED] * 6


async def test_a_cancelled_run_ends_every_request() -> None:
    gate = Gate()
    setup = Setup(FakeModel(before_forward=gate))
    task = asyncio.create_task(setup.loop.run())
    request_id = setup.submit((1,), greedy(5))
    await gate.step_in_flight()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setup.ends[request_id].status is Status.CANCELLED
    gate.open()


@pytest.mark.parametrize(("n_threads", "expected"), [(3, 3), (None, 1)])
async def test_the_worker_has_the_configured_threads_and_for_a_small_model_one(
    n_threads: int | None, expected: int
) -> None:
    seen = list[int]()
    before = torch.get_num_threads()
    model = FakeModel(before_forward=lambda batch: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        setup = Setup(model, EngineConfig(n_threads=n_threads))
        async with running(setup):
            await setup.end(setup.submit((1,), greedy(1)))
    finally:
        torch.set_num_threads(before)
    assert seen == [expected]


class InstantEngine(CountingEngine):
    """Says that it need not be waited for."""

    @property
    def blocks(self) -> bool:
        return False


@pytest.mark.parametrize(("engine", "on_loop"), [(CountingEngine, False), (InstantEngine, True)])
async def test_only_an_engine_that_blocks_runs_off_the_loop_thread(
    engine: type[CountingEngine], on_loop: bool
) -> None:
    seen = list[bool]()

    def note(batch: Batch) -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    setup = Setup(FakeModel(before_forward=note), engine=engine)
    async with running(setup):
        await setup.end(setup.submit((1,), greedy(2)))
    assert seen == [on_loop] * 2


async def test_the_worker_thread_ends_with_run() -> None:
    setup = Setup()
    before = set(threading.enumerate())
    async with running(setup):
        await setup.end(setup.submit((1,), greedy(1)))
        workers = [t for t in threading.enumerate() if t.name == "wkvm-step" and t not in before]
        assert len(workers) == 1
    workers[0].join(PATIENCE_S)
    assert not workers[0].is_alive()


async def test_a_request_that_is_refused_leaves_no_trace() -> None:
    setup = Setup(config=EngineConfig(n_slots=1, max_queue=0))
    async with running(setup):
        with pytest.raises(Exception, match="at least one"):
            setup.submit((), greedy(1))
        assert setup.loop.n_live == 0
        await setup.loop.drain(PATIENCE_S)
