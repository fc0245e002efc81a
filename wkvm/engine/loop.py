"""The step coroutine: an engine on an event loop, its forward pass in a thread of its own.

The loop's thread plans and commits; one worker thread launches and collects the steps of an
engine that blocks, so that sockets stay alive during a forward pass. Between steps the loop turns
once. With nothing to do it sleeps.

As many steps are in flight as the engine has depth for: with two, a step is planned and launched
while the one before runs, and the events of that one are delivered as soon as it is over.
"""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial

from wkvm.core.errors import DrainingError, EngineFailedError, StepFailedError, WkvmError
from wkvm.core.layout import StateLayout
from wkvm.core.request import EndEvent, Event, RequestSpec, Status, TokensEvent
from wkvm.engine.interface import EngineInfo, EngineLike
from wkvm.engine.shapes import History
from wkvm.engine.worker import Here, Step, Worker

logger = logging.getLogger(__name__)

TIMER_SLACK_S = 0.001
"""Event loops round their timers to a millisecond; a deadline is met just after, never before."""

NEVER_TURNS_US = 2**63 - 1
"""The ``step_age_us`` of a loop that does not run."""


@dataclass(slots=True)
class _Live:
    """What the loop itself knows of a request that has not ended."""

    n_prompt: int
    submitted_at: float


class EngineLoop:
    """Runs an engine and hands its events on. All methods belong to the loop's thread.

    Attributes:
        deliver: takes the events of a step, in order, once per step; and those of a cancel
            or the like, soon after and never from within the call. Must not raise.
    """

    def __init__(self, engine: EngineLike, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._runs_ahead = engine.depth > 1
        self._clock = clock
        self.deliver: Callable[[list[Event]], None] = _ignore
        self._live = dict[int, _Live]()
        self._n_output = Counter[int]()
        self._wake = asyncio.Event()
        self._none_live = asyncio.Event()
        self._none_live.set()
        self._flush_is_due = False
        self._accepts = True
        self._closing = False
        self._runs = False
        self._has_run = False
        self._busy_since: float | None = None
        self._stats: Mapping[str, int] | None = None
        self._steps = deque[Step]()
        self._collected: Step | None = None
        self._history = History()
        self._failure: EngineFailedError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        return self._engine.info

    @property
    def n_live(self) -> int:
        """How many requests have not ended."""
        return len(self._live)

    @property
    def tick_age_s(self) -> float:
        """For how long the loop has had something to do and has not turned.

        0 while it sleeps for want of work; infinite if it does not run.
        """
        if not self._runs:
            return math.inf
        return 0.0 if self._busy_since is None else self._clock() - self._busy_since

    @property
    def busy_since(self) -> float | None:
        """When it turned last, on its clock, if it has something to do; for any thread."""
        return self._busy_since if self._runs else None

    def steps_told(self) -> dict[str, object]:
        """What the last steps were made of, as JSON can hold it: counts, no ids; for any thread."""
        steps, first = list(self._steps), self._collected
        steps = steps if first is None else [first, *steps]
        return self._history.told([one.plan for one in steps], self._clock())

    @property
    def layout(self) -> StateLayout:
        """Of one state.

        Raises:
            ValueError: the engine has no states.
        """
        layout = self._engine.info.layout
        if layout is None:
            raise ValueError("the engine has no states")
        return layout

    def reserve(self, n: int) -> tuple[int, ...]:
        """Ids for a spec of ``n`` choices that is submitted later, or never."""
        return self._engine.reserve(n)

    def submit(
        self, spec: RequestSpec, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Queue a request for each of ``params.n`` choices: all of them or none.

        Args:
            request_ids: as ``reserve`` gave them; None for new ones.

        Returns:
            Their ids in the order of the choices, never used before by this engine.

        Raises:
            RequestError: the request is wrong.
            CapacityError: the queue has no room for all, or no new requests are taken.
        """
        if not self._accepts:
            raise DrainingError
        now = self._clock()
        request_ids = self._engine.submit(spec, now, request_ids)
        for request_id in request_ids:
            self._live[request_id] = _Live(len(spec.prompt), now)
        self._none_live.clear()
        self._turn_soon()
        return request_ids

    def cancel(self, request_id: int) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
        self._engine.cancel(request_id, self._clock())
        self._turn_soon()
        # A step may be in flight: the end need not wait for it.
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def interrupt(self, request_id: int) -> None:
        """End a request as cancelled, with its state if it saves it: see ``EngineLike``."""
        self._engine.interrupt(request_id, self._clock())
        self._turn_soon()

    def snapshot(self, request_id: int) -> bool:
        """Have the state of a running request told: see ``EngineLike``.

        Raises:
            InvalidParameterError: what the request produces is not kept.
        """
        is_coming = self._engine.snapshot(request_id)
        self._turn_soon()
        return is_coming

    def grant(self, request_id: int, n_tokens: int) -> None:
        """Add to a request's credit. Unknown and ended requests are ignored."""
        self._engine.grant(request_id, n_tokens, self._clock())
        self._turn_soon()

    def hold(self, request_id: int) -> None:
        """Produce nothing more for a request until released. Unknown ones are ignored."""
        self._engine.hold(request_id, self._clock())
        self._turn_soon()

    def release(self, request_id: int) -> None:
        """End a hold. Unknown requests and such that are not held are ignored."""
        self._engine.release(request_id, self._clock())
        self._turn_soon()

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name: the engine's, and ``step_age_us``.

        The engine is asked again only when something may have changed: to be asked all the
        time must not slow the steps down.
        """
        if self._stats is None:
            self._stats = self._engine.stats()
        age_s = self.tick_age_s
        age_us = NEVER_TURNS_US if age_s == math.inf else round(age_s * 1e6)
        return {**self._stats, "step_age_us": age_us}

    async def run(self) -> None:
        """Run steps until ``close``, or until cancelled; then end what is left as cancelled.

        A step that raises ends its requests with a WkvmError, and the loop goes on; a step
        that was launched after it counts for its other requests. An engine whose device is lost, or
        whose bookkeeping raises, is broken: every request ends with EngineFailedError, no new ones
        are taken, and the exception comes out of here. So it is after ``give_up``.
        """
        self._task = asyncio.current_task()
        worker = Worker(self._engine) if self._engine.blocks else Here(self._engine)
        self._engine.set_wake(partial(self._wake_from_afar, asyncio.get_running_loop()))
        self._runs = True
        try:
            while not self._closing:
                await self._turn(worker)
            while self._steps:
                await self._collect(worker)
            self.cancel_all()
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            self.cancel_all()
            raise
        except Exception as error:
            self._failure = error if isinstance(error, EngineFailedError) else EngineFailedError()
            logger.exception("the engine is broken and stops")
            raise
        finally:
            self._runs = self._accepts = False
            self._has_run = True
            worker.close()
            self._end_all()

    def give_up(self) -> None:
        """End ``run`` though a step is in flight that does not end; see there. Once."""
        self._accepts = False
        self._failure = EngineFailedError(stalled=True)
        if self._task is not None:
            self._task.cancel()

    async def drain(self, grace_s: float) -> None:
        """Take no new requests; return when the last one has ended.

        What is left after ``grace_s`` seconds is cancelled. Needs a running ``run``.
        """
        self._accepts = False
        self._engine.drain()
        self._stats = None
        try:
            async with asyncio.timeout(grace_s):
                await self._none_live.wait()
        except TimeoutError:
            self.cancel_all()
            await self._none_live.wait()

    def cancel_all(self, but: Container[int] = ()) -> None:
        """End all requests but these. Their EndEvents are delivered within the call."""
        for request_id in [one for one in self._live if one not in but]:
            self._engine.cancel(request_id, self._clock())
        self._stats = None
        self._flush()

    def close(self) -> None:
        """Let ``run`` return after the steps that are in flight."""
        self._closing = True
        self._wake.set()

    async def _turn(self, worker: Worker | Here) -> None:
        """The launch of a step or the end of one, or the sleep until there may be one."""
        self._wake.clear()
        self._busy_since = self._clock()
        steps, plan = self._steps, None
        if not steps or steps[-1].error is None:
            plan = self._engine.plan(self._busy_since)
            self._stats = None
        if plan is None or not self._runs_ahead:
            self._flush()
        if plan is not None:
            steps.append(worker.launch(plan))
            if self._runs_ahead:
                # The device must not wait for what the last step gave to be told; and no plan is
                # made on top of one whose launch may yet fail.
                await worker.catch_up()
                self._flush()
                if len(steps) < self._engine.depth:
                    return
        if steps:
            await self._collect(worker)
        else:
            self._busy_since = None
            await self._sleep()

    async def _collect(self, worker: Worker | Here) -> None:
        """Wait for the oldest step in flight, and commit it.

        What came of it is told now if nothing else is in flight, else with the next launch.
        """
        step = self._collected = self._steps.popleft()
        try:
            result = await worker.collect(step)
        except Exception as error:
            self._history.failed(step.plan)
            if isinstance(error, EngineFailedError):
                raise
            logger.exception("a step of %d rows failed", len(step.plan.rows))
            told = error if isinstance(error, WkvmError) else StepFailedError()
            self._engine.fail(step.plan, told, self._clock())
        else:
            now = self._clock()
            self._engine.commit(step.plan, result, now)
            self._history.ended(step.plan, now)
        self._collected = None  # nothing of a step is held while nothing is to be done
        self._stats = None
        if not self._steps:
            self._flush()

    async def _sleep(self) -> None:
        deadline = self._engine.next_deadline()
        timer = None
        if deadline is not None:
            delay = max(0.0, deadline - self._clock()) + TIMER_SLACK_S
            timer = asyncio.get_running_loop().call_later(delay, self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()

    def _turn_soon(self) -> None:
        """Something has changed: wake the coroutine if it sleeps."""
        self._stats = None
        if not self._wake.is_set():
            self._wake.set()
            if self._busy_since is None:
                self._busy_since = self._clock()

    def _wake_from_afar(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the coroutine, from another thread."""
        try:
            loop.call_soon_threadsafe(self._turn_soon)
        except RuntimeError:
            logger.debug("something came up after the loop was closed")

    def _flush(self) -> None:
        self._flush_is_due = False
        events = self._engine.take_events()
        # After the end of ``run`` every request has had its end.
        if not events or self._has_run:
            return
        for event in events:
            if isinstance(event, TokensEvent):
                self._n_output.update(event.request_ids)
            elif isinstance(event, EndEvent):
                del self._live[event.request_id]
                self._n_output.pop(event.request_id, None)
        if not self._live:
            self._none_live.set()
        self.deliver(events)

    def _end_all(self) -> None:
        """Give every request that is left its end, without the engine's help."""
        now = self._clock()
        events: list[Event] = [
            EndEvent(
                request_id=request_id,
                status=Status.FINISHED_ERROR,
                stop_id=None,
                error=self._failure or StepFailedError(),
                n_prompt=live.n_prompt,
                n_output=self._n_output[request_id],
                queue_s=None,
                first_token_s=None,
                total_s=now - live.submitted_at,
            )
            for request_id, live in self._live.items()
        ]
        self._live.clear()
        self._none_live.set()
        if events:
            self.deliver(events)


def _ignore(events: list[Event]) -> None:
    del events
