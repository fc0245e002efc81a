"""Where the steps of an engine are launched and collected: a thread of its own, or the loop's.

For ``wkvm.engine.loop``; like it this knows asyncio.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from wkvm.core.errors import EngineFailedError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.engine.interface import EngineLike

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Step:
    """A plan in flight. ``error`` is what its launch raised, once all was done that came before."""

    plan: StepPlan
    error: BaseException | None = None

    def launch(self, engine: EngineLike) -> None:
        """Launch it. Never raises."""
        try:
            engine.launch(self.plan)
        except BaseException as error:  # noqa: BLE001  (it is raised by ``collect``)
            self.error = error

    def collect(self, engine: EngineLike) -> StepResult:
        """Collect it. Raises what its launch raised, or collecting it does."""
        if self.error is not None:
            raise self.error
        return engine.collect(self.plan)


class Worker:
    """A thread that does one thing at a time, handed over without a lock or an executor.

    A daemon, so that a forward pass that never returns cannot keep the process from ending.
    """

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._work = SimpleQueue[_Work | None]()
        self._thread = threading.Thread(target=self._run, name="wkvm-step", daemon=True)
        self._thread.start()

    def launch(self, plan: StepPlan) -> Step:
        """Have a step launched in the thread, after all that was asked of it before."""
        step = Step(plan)
        self._work.put((partial(step.launch, self._engine), None))
        return step

    async def collect(self, step: Step) -> StepResult:
        """Collect a step in the thread. Raises what the engine raises."""
        result = await self._done(partial(step.collect, self._engine))
        if result is None:
            raise AssertionError("a step has a result or an error")
        return result

    async def catch_up(self) -> None:
        """Return when the thread has done all that was asked of it."""
        await self._done(_nothing)

    def close(self) -> None:
        """Let the thread end, after what it was asked for. Does not wait for it."""
        self._work.put(None)

    async def _done(self, call: "_Call") -> StepResult | None:
        done: asyncio.Future[_Outcome] = self._loop.create_future()
        self._work.put((call, done))
        result, error = await done
        if isinstance(error, Exception):
            raise error
        if error is not None:
            # It would end the loop, or the interpreter, before anybody was told.
            raise EngineFailedError from error
        return result

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._do(*work)
            del work  # nothing of a step, and no state of it, is held while nothing is to be done

    def _do(self, call: "_Call", done: "asyncio.Future[_Outcome] | None") -> None:
        try:
            outcome: _Outcome = (call(), None)
        except BaseException as error:  # noqa: BLE001  (it is raised in the coroutine)
            outcome = (None, error)
        if done is None:
            return
        try:
            self._loop.call_soon_threadsafe(_settle, done, outcome)
        except RuntimeError:
            logger.debug("a step ended after its loop was closed")


class Here:
    """Runs the steps of an engine that does not block, on the loop's thread, one a turn."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    def launch(self, plan: StepPlan) -> Step:
        """Launch a step."""
        step = Step(plan)
        step.launch(self._engine)
        return step

    async def collect(self, step: Step) -> StepResult:
        """Let the loop turn once, and collect a step. Raises what the engine raises."""
        await asyncio.sleep(0)
        return step.collect(self._engine)

    async def catch_up(self) -> None:
        """Nothing: what was asked for was done at once."""

    def close(self) -> None:
        """Nothing."""


_Call = Callable[[], StepResult | None]

_Outcome = tuple[StepResult | None, BaseException | None]
"""A result or what was raised. Not a future's exception: that cannot be a StopIteration."""

_Work = tuple[_Call, asyncio.Future[_Outcome] | None]
"""What to do, and whom to tell when it is done."""


def _settle(done: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
    if not done.cancelled():
        done.set_result(outcome)


def _nothing() -> None:
    pass
