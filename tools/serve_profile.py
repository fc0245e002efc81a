"""``wkvm serve`` with a clock around each part of a step: where the host's time goes.

    python -m tools.serve_profile FILE serve [MODEL] [flags]

When the server has ended, FILE has for each part how often it ran and, a call, the median of its
time and of its thread's CPU time in microseconds. The first calls do not count. Parts may hold
others; what waits (``collect``, for the device) has little CPU time.
"""

import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wkvm import cli
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.engine.graphs import DecodeGraphs
from wkvm.engine.loop import EngineLoop
from wkvm.engine.transfers import Mark, Transfers
from wkvm.server.connection import Connection
from wkvm.server.dispatch import Dispatcher

N_SKIPPED = 50

PARTS: tuple[tuple[type, str], ...] = (
    (Engine, "plan"),
    (Engine, "launch"),
    (Engine, "collect"),
    (Engine, "commit"),
    (EngineLoop, "_flush"),
    (Dispatcher, "deliver"),
    (Connection, "_write"),
    (GpuRunner, "_replay"),
    (DecodeGraphs, "replay"),
    (Transfers, "up"),
    (Transfers, "down"),
    (Transfers, "mark"),
    (Mark, "wait"),
)


class Part:
    """Times of the calls of one method."""

    def __init__(self, owner: type, method: str) -> None:
        self.name = f"{owner.__name__}.{method}"
        self.wall: array[float] = array("d")
        self.cpu: array[float] = array("d")
        setattr(owner, method, self._timed(getattr(owner, method)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.cpu.append(time.thread_time() - cpu)
                self.wall.append(time.perf_counter() - wall)

        return timed

    def summary(self) -> dict[str, float]:
        """Microseconds a call."""
        wall, cpu = sorted(self.wall[N_SKIPPED:]), sorted(self.cpu[N_SKIPPED:])
        return {
            "n": len(wall),
            "median_us": round(statistics.median(wall) * 1e6, 1),
            "p99_us": round(wall[len(wall) * 99 // 100] * 1e6, 1),
            "cpu_median_us": round(statistics.median(cpu) * 1e6, 1),
        }


def main(arguments: list[str]) -> int:
    """Serve; the exit status."""
    output, *rest = arguments
    parts = [Part(owner, method) for owner, method in PARTS]
    try:
        return cli.main(rest)
    finally:
        told = {part.name: part.summary() for part in parts if len(part.wall) > N_SKIPPED}
        Path(output).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
