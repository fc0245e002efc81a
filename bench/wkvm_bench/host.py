"""What the host costs beside a device: a server, 256 streams, and steps of a fixed time.

The server runs the real scheduler, loop and connections over a device that is a clock
(``timed_engine``), and the streams are read in another process. The device must never wait for
the host, and the host should have half of each step left.
"""

import asyncio
import tempfile
from pathlib import Path

from wkvm_bench.harness import Bar, BenchError, Finding
from wkvm_bench.load import Plan, random_prompts, run_rung
from wkvm_bench.load_binary import BinarySource, connected
from wkvm_bench.servers import running

STEP_S = 0.0032
"""About a step of 256 rows of a 1.5B model on an H200."""
N_STREAMS = 256
N_OUT = 1500


async def compare(*, smoke: bool, n_threads: int) -> list[Finding]:
    """Run the benchmark. ``n_threads`` is not used: each process has one."""
    del n_threads
    n_streams, n_out = (8, 20) if smoke else (N_STREAMS, N_OUT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wkvm.sock"
        async with (
            running("timed", path),
            connected(f"unix://{path}") as source,
        ):
            plan = Plan(n_streams=n_streams, n_rounds=1, n_out=n_out, rate=None, seed=0)
            prompts = random_prompts(0, 8, 1000)
            counted = asyncio.create_task(run_rung(source, plan, prompts))
            before = await _when_steady(source, n_streams, counted)
            rung = await counted
            after = await source.stats()
    if rung.errors:
        raise BenchError(f"requests failed: {rung.errors}")
    gone = {name: after[name] - before[name] for name in after if name in before}
    n_steps = gone["device_steps"]
    pace = n_streams / STEP_S
    case = f"{n_streams} streams, steps of {STEP_S * 1e3:g} ms"
    return [
        Finding(
            f"{case}: from ids to the next launch",
            after["turnaround_p50_ns"] / 1e3,
            "us",
            Bar(STEP_S * 1e6 / 2, at_least=False),
            {
                "p90, us": after["turnaround_p90_ns"] / 1e3,
                "p99, us": after["turnaround_p99_ns"] / 1e3,
                "CPU time of the server a step, us": gone["process_ns"] / n_steps / 1e3,
                "CPU time of the load, cores": rung.generator_cpu,
            },
        ),
        Finding(
            f"{case}: the device waits",
            gone["device_idle_ns"] / 1e9 / (n_steps * STEP_S) * 100,
            "% of its time",
            Bar(1.0, at_least=False),
            {"late launches": gone["device_late_steps"], "steps": n_steps},
        ),
        Finding(
            f"{case}: ids that arrive",
            (rung.steady_ids_per_s or 0.0) / pace * 100,
            "% of the device's pace",
            Bar(95.0),
            {
                "between ids, p50, ms": 0.0 if rung.itl is None else rung.itl.p50,
                "between ids, p99, ms": 0.0 if rung.itl is None else rung.itl.p99,
            },
        ),
    ]


async def _when_steady(
    source: BinarySource, n_streams: int, counted: "asyncio.Task[object]"
) -> dict[str, int]:
    """The counters once all streams run for good."""
    while not counted.done():
        stats = await source.stats()
        if stats["n_running"] == n_streams and stats["requests_total"] == 2 * n_streams:
            return stats
        await asyncio.sleep(0.005)
    return await source.stats()
