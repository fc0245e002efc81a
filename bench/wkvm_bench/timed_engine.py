"""An engine whose device is a clock: what is left is the host's work, beside steps that take time.

The engine, the loop and the server are the real ones. The device takes a fixed time for a step
and runs one after the other, as a GPU with a stream does; how often and how long it had to wait
for the host's next launch is what this engine tells.
"""

import time
from array import array
from collections import deque
from collections.abc import Mapping

from wkvm.core.config import EngineConfig
from wkvm.core.errors import WkvmError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.engine.engine import Engine
from wkvm_bench.null_model import CountingModel

VOCAB_SIZE = 65536


class TimedDevice:
    """Runs steps of a fixed time, one after the other, at the pace of a clock.

    Attributes:
        n_steps: that were launched.
        n_late: of them, such as found the device idle although work was known.
        idle_s: for how long it was so.
        turnaround_s: for each step, from when the ids of the last one but ``depth`` were known to
            its launch: what the host does in between.
    """

    def __init__(self, step_s: float, depth: int) -> None:
        self.step_s = step_s
        self.depth = depth
        self.n_steps = 0
        self.n_late = 0
        self.idle_s = 0.0
        self.turnaround_s: array[float] = array("d")
        self._free_at = 0.0
        self._ends = deque[float]()
        self._collected_at: float | None = None

    def launch(self) -> None:
        """Begin a step, or queue it behind the one that runs."""
        now = time.perf_counter()
        if self._collected_at is not None:
            self.turnaround_s.append(now - self._collected_at)
            if now > self._free_at:
                self.n_late += 1
                self.idle_s += now - self._free_at
            self._collected_at = None
        self.n_steps += 1
        self._free_at = max(now, self._free_at) + self.step_s
        self._ends.append(self._free_at)

    def collect(self) -> None:
        """Wait for the end of the step that was launched first."""
        end = self._ends.popleft()
        while (wait_s := end - time.perf_counter()) > 0:
            time.sleep(wait_s)
        self._collected_at = time.perf_counter()

    def pause(self) -> None:
        """Nothing was to be run: what comes next is not late."""
        self._collected_at = None


class _Runner:
    """Runs plans on a ``TimedDevice``. Every id is the row's position."""

    def __init__(self, device: TimedDevice) -> None:
        self._device = device

    @property
    def depth(self) -> int:
        """How many plans may be in flight."""
        return self._device.depth

    @property
    def loads_beside(self) -> bool:
        """There is nothing to be loaded."""
        return False

    def launch(self, plan: StepPlan) -> None:
        """Begin a step."""
        del plan
        self._device.launch()

    def collect(self, plan: StepPlan) -> StepResult:
        """Wait for the end of a step."""
        self._device.collect()
        return StepResult(
            tuple(
                [
                    (row.position + row.n_ids) % VOCAB_SIZE if row.samples else None
                    for row in plan.rows
                ]
            )
        )


class TimedEngine(Engine):
    """An engine over a ``TimedDevice``, which it tells when there is nothing to do."""

    def __init__(self, config: EngineConfig, *, step_s: float, depth: int = 2) -> None:
        self._device = TimedDevice(step_s, depth)
        self._n_in_flight = 0
        super().__init__(
            CountingModel(VOCAB_SIZE), config, make_runner=lambda *_: _Runner(self._device)
        )

    def plan(self, now: float) -> StepPlan | None:
        """Choose the next step's rows."""
        plan = super().plan(now)
        if plan is not None:
            self._n_in_flight += 1
        elif not self._n_in_flight:
            self._device.pause()
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a step's result."""
        self._n_in_flight -= 1
        super().commit(plan, result, now)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan."""
        self._n_in_flight -= 1
        super().fail(plan, error, now)

    def stats(self) -> Mapping[str, int]:
        """The engine's, and what the device saw; and CPU time of this process."""
        device = self._device
        ranked = sorted(device.turnaround_s) or [0.0]
        return {
            **super().stats(),
            "device_steps": device.n_steps,
            "device_late_steps": device.n_late,
            "device_idle_ns": round(device.idle_s * 1e9),
            "process_ns": time.process_time_ns(),
            **{
                f"turnaround_p{p}_ns": round(ranked[len(ranked) * p // 100] * 1e9)
                for p in (50, 90, 99)
            },
        }
