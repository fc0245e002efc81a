"""A device that is a clock; and what the loop does while such a device has a step to run."""

import asyncio
import time

import pytest
from wkvm_bench.timed_engine import TimedDevice, TimedEngine

from wkvm.core.config import EngineConfig
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import Event, RequestSpec, TokensEvent, by_request
from wkvm.core.sampling import SamplingParams
from wkvm.engine.loop import EngineLoop

N_OUT = 6


class NotingEngine(TimedEngine):
    """Notes when the device is given a step and gives one back."""

    def __init__(self, depth: int) -> None:
        super().__init__(EngineConfig(n_slots=2), step_s=0.005, depth=depth)
        self.notes = list[str]()

    def launch(self, plan: StepPlan) -> None:
        self.notes.append("launch")
        super().launch(plan)

    def collect(self, plan: StepPlan) -> StepResult:
        result = super().collect(plan)
        self.notes.append("collect")
        return result


async def notes_of(depth: int) -> tuple[list[str], list[int]]:
    """Run two requests to their ends: what happened in which order, and one of their outputs."""
    engine = NotingEngine(depth)
    loop = EngineLoop(engine)
    events = list[Event]()

    def deliver(some: list[Event]) -> None:
        if any(isinstance(event, TokensEvent) for event in some):
            engine.notes.append("tell")
        events.extend(some)

    loop.deliver = deliver
    running = asyncio.create_task(loop.run())
    spec = RequestSpec(prompt=(1, 2), params=SamplingParams(max_tokens=N_OUT, n=2))
    first, _ = loop.submit(spec)
    await loop.drain(10.0)
    loop.close()
    await running
    tokens = [event for event in by_request(events) if event.request_id == first]
    return engine.notes, [getattr(event, "token_id", -1) for event in tokens]


async def test_the_next_step_is_launched_before_the_ids_of_the_last_one_are_told() -> None:
    notes, ids = await notes_of(depth=2)
    assert notes[:2] == ["launch", "launch"]
    assert notes[2:5] == ["collect", "launch", "tell"]
    assert ids == [*range(2, 2 + N_OUT), -1]


async def test_without_a_second_step_in_flight_ids_are_told_as_soon_as_they_are_known() -> None:
    notes, ids = await notes_of(depth=1)
    assert notes[:5] == ["launch", "collect", "tell", "launch", "collect"]
    assert ids == [*range(2, 2 + N_OUT), -1]


@pytest.mark.timed(0.01)
def test_a_step_takes_its_time_and_the_next_one_begins_at_its_end() -> None:
    device = TimedDevice(0.01, depth=2)
    start = time.perf_counter()
    device.launch()
    device.launch()
    device.collect()
    first = time.perf_counter() - start
    device.collect()
    assert first >= 0.01
    assert time.perf_counter() - start >= 0.02
    assert (device.n_steps, device.n_late) == (2, 0)


def test_a_launch_after_the_device_has_run_dry_is_late_unless_nothing_was_to_be_run() -> None:
    device = TimedDevice(0.001, depth=2)
    device.launch()
    device.collect()
    time.sleep(0.01)
    device.launch()
    assert device.n_late == 1
    assert device.idle_s >= 0.01
    device.collect()
    device.pause()
    time.sleep(0.01)
    device.launch()
    assert device.n_late == 1
