"""A server's streams against the bare forward pass on the same device.

A model of random weights is served by a process of its own on a unix socket; 256 streams of the
binary protocol are read in this one, with temperature and top-p. Beside it this process runs the
forward pass alone, again and again on as many rows; on a GPU that is a graph replayed. The two
sides take turns, so that one is idle while the other is measured.
"""

import tempfile
from pathlib import Path

from wkvm.models.registry import load_model
from wkvm_bench.engine import Bare
from wkvm_bench.figures import Rung
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding, Summary, alternate
from wkvm_bench.load import Plan, random_prompts, run_rung
from wkvm_bench.load_binary import connected
from wkvm_bench.random_model import SIZES, write_suitable
from wkvm_bench.servers import serving

N_STREAMS = 256
N_CTX = 8


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark on a GPU if there is one. ``n_threads`` are torch's on a CPU."""
    n_streams, n_out, n = (4, 12, 1) if smoke else (N_STREAMS, 200, 5)
    with tempfile.TemporaryDirectory() as name:
        path, uds = Path(name) / "model.pth", Path(name) / "wkvm.sock"
        device, size = write_suitable(path, smoke=smoke)
        flags = ["--device", device, "--slots", str(n_streams)]
        flags += [] if device == "cuda" else ["--threads", str(n_threads)]
        bare = Bare(load_model(path, device=device), n_streams)
        async with (
            serving(path, uds, flags) as started,
            connected(f"unix://{uds}") as source,
        ):
            plan = Plan(n_streams=n_streams, n_rounds=1, n_out=n_out, rate=None, seed=0)
            prompts = random_prompts(0, N_CTX, SIZES[size].vocab_size)
            rungs, cpu_s = list[Rung](), list[float]()

            async def of_server() -> float:
                before = started.cpu_s
                rung = await run_rung(source, plan, prompts, warm_up=False)
                cpu_s.append(started.cpu_s - before)
                rungs.append(rung)
                return _steady(rung)

            async def of_bare() -> float:
                return bare.rate(n_out)

            a, b = await alternate(of_server, of_bare, n)
    case = f"{size} on {device}, {n_streams} streams"
    step_s = n_streams / Summary.of(a).median
    last = rungs[-1]
    return [
        Comparison(
            case,
            "server, unix socket",
            "bare forward",
            "ids/s",
            a,
            b,
            Bar(0.9),
            {
                "ids/s from the first request to the last end": last.ids_per_s,
                "between ids, p50, ms": last.itl.p50 if last.itl else 0.0,
                "between ids, p99, ms": last.itl.p99 if last.itl else 0.0,
                "first id, p50, ms": last.ttft.p50 if last.ttft else 0.0,
                "CPU time of the load, cores": last.generator_cpu,
                "ready after, s": started.seconds,
            },
        ),
        Finding(
            f"{case}: CPU time of the server a step",
            Summary.of(cpu_s[1:] or cpu_s).median / n_out / step_s * 100,
            "% of the step",
            Bar(50.0, at_least=False),
            {"step, ms": step_s * 1e3},
        ),
    ]


def _steady(rung: Rung) -> float:
    """Ids a second while all streams were at their outputs."""
    if rung.errors:
        raise BenchError(f"requests failed: {rung.errors}")
    if rung.steady_ids_per_s is None:
        raise BenchError("the streams never were at their outputs all at once")
    return rung.steady_ids_per_s
