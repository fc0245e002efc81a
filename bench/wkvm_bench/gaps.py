"""When a GPU did nothing, by a profiler's trace of an engine's steps."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import profile

FIRST_KERNEL = "begin_kernel"
"""What each decode step begins with."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of the device, in microseconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """For how long the device did nothing, in microseconds.

    Attributes:
        n_steps: that were traced.
        step_us: the median from one step's beginning to the next one's.
        idle_percent: of all the time.
        before: before each step's first kernel, where it would have waited for the host; ascending.
        within: between kernels of a step, ascending.
    """

    n_steps: int
    step_us: float
    idle_percent: float
    before: tuple[float, ...]
    within: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        """Them in short."""
        figures = {"steps": float(self.n_steps), "step, us": self.step_us}
        figures["idle in all, %"] = self.idle_percent
        for name, gaps in (("before a step", self.before), ("within a step", self.within)):
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                if gaps:
                    figures[f"{name}, {label}, us"] = gaps[int(share * (len(gaps) - 1))]
        return figures


def gaps_of(spans: Sequence[Span]) -> Gaps:
    """The gaps of a trace, whose spans are in the order of their beginnings."""
    within, before = list[float](), list[float]()
    busy_until = spans[0].end
    for span in spans[1:]:
        gap = max(0.0, span.start - busy_until)
        (before if FIRST_KERNEL in span.name else within).append(gap)
        busy_until = max(busy_until, span.end)
    starts = [span.start for span in spans if FIRST_KERNEL in span.name]
    lengths = sorted(b - a for a, b in pairwise(starts))
    return Gaps(
        n_steps=len(starts),
        step_us=lengths[len(lengths) // 2] if lengths else 0.0,
        idle_percent=100 * (sum(within) + sum(before)) / (busy_until - spans[0].start),
        before=tuple(sorted(before)),
        within=tuple(sorted(within)),
    )


def spans_of(events: Sequence[dict[str, Any]]) -> list[Span]:
    """Kernels and transfers of a trace, in the order of their beginnings."""
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    spans = [
        Span(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in kinds
    ]
    return sorted(spans, key=lambda span: span.start)


def traced(profiler: profile) -> list[Span]:
    """What a profiler that has ended saw of the device."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return spans_of(json.loads(file.read_text())["traceEvents"])
