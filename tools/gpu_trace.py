"""Whether a GPU waits for the host: a trace of an engine's steps, and the gaps between kernels.

    python tools/gpu_trace.py --rows 256 --output bench/results/FILE.jsonl

Requests that decode with temperature and top-p, random weights of the 1.5B shape, ids delivered to
a consumer in this process. The profiler slows the host down, so the gaps are at most this long.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

from wkvm_bench.engine import Crowd, running  # noqa: E402
from wkvm_bench.random_model import SIZES, write_random  # noqa: E402

from tools.gpu_findings import Findings  # noqa: E402
from wkvm.core.config import EngineConfig  # noqa: E402
from wkvm.engine.engine import Engine  # noqa: E402
from wkvm.models.base import Model  # noqa: E402
from wkvm.models.registry import load_model  # noqa: E402

FIRST_KERNEL = "begin_kernel"
"""What each decode step begins with."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of the device, in microseconds."""

    name: str
    start: float
    end: float


def main() -> int:
    """Trace, and write the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        write_random(path, SIZES["1.5B"], dtype=torch.bfloat16, device="cuda")
        model = load_model(path, device="cuda")
    spans = asyncio.run(trace(model, arguments.rows, arguments.steps))
    with arguments.output.open("a") as output:
        findings = Findings(
            output, commit=arguments.commit, command=f"tools/gpu_trace.py --rows {arguments.rows}"
        )
        findings.add({"trace": f"1.5B, {arguments.rows} rows", **gaps_of(spans)})
    return 0


async def trace(model: Model, n_rows: int, n_steps: int) -> list[Span]:
    """The device's work of some steps in the middle of a run."""
    engine = Engine(model, EngineConfig(n_slots=n_rows, request_timeout_s=1e6))
    async with running(engine) as (loop, consumer):
        crowd = Crowd(loop, consumer, n_rows)
        await crowd.rate(50)
        consumer.clear()
        crowd.submit(n_rows, 1_000_000)
        await consumer.all_have_ids(n_rows)
        await consumer.more_steps(20)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            await consumer.more_steps(n_steps)
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return spans_of(json.loads(file.read_text())["traceEvents"])


def spans_of(events: Sequence[dict[str, Any]]) -> list[Span]:
    """Kernels and transfers of a trace, by their beginning."""
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    spans = [
        Span(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in kinds
    ]
    return sorted(spans, key=lambda span: span.start)


def gaps_of(spans: Sequence[Span]) -> dict[str, Any]:
    """How long the device did nothing, within steps and before each step's first kernel."""
    within, before = list[float](), list[float]()
    busy_until = spans[0].end
    steps = [span.start for span in spans if FIRST_KERNEL in span.name]
    for span in spans[1:]:
        gap = max(0.0, span.start - busy_until)
        (before if FIRST_KERNEL in span.name else within).append(gap)
        busy_until = max(busy_until, span.end)
    whole = busy_until - spans[0].start
    lengths = sorted(b - a for a, b in pairwise(steps))
    return {
        "n_steps": len(steps),
        "n_spans": len(spans),
        "step_us": lengths[len(lengths) // 2],
        "idle_percent": 100 * (sum(within) + sum(before)) / whole,
        "before_a_step_us": _quantiles(before),
        "within_a_step_us": _quantiles(within),
        "idle_within_a_step_us": sum(within) / max(len(steps), 1),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[int(q * (len(ordered) - 1))], 2) for name, q in at.items()}


if __name__ == "__main__":
    sys.exit(main())
