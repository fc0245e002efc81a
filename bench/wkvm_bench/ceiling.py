"""What the load generator can take at most: the same streams from a server that computes nothing.

The server is a process of this machine, and where cores are few it takes time from the generator:
the ceiling is no lower than what is measured here.
"""

import dataclasses
import tempfile
from pathlib import Path

from wkvm_bench.harness import BenchError
from wkvm_bench.load import Plan, random_prompts, run_rung
from wkvm_bench.servers import running
from wkvm_bench.targets import Asking, Target, connected

MAX_STREAMS = 512
"""Half of what the server without a model has room for."""
N_ROUNDS = 4
N_CTX = 8


async def ceiling(backend: str, asking: Asking, *, n_streams: int, n_out: int) -> float:
    """Ids a second, over HTTP the events that bring them, of streams that nobody computes.

    Args:
        backend: one of ``BACKENDS``.
        asking: as of the load that is to be judged; its model, path and keys are left out.
        n_streams: at a time; more than ``MAX_STREAMS`` count as so many.
        n_out: ids of an output.

    Raises:
        BenchError: requests failed.
    """
    kind = "null" if backend == "wkvm-binary" else "gateway"
    plain = dataclasses.replace(asking, api_key=None, model=None, endpoint=None, more={})
    plan = Plan(
        n_streams=min(n_streams, MAX_STREAMS), n_rounds=N_ROUNDS, n_out=n_out, rate=None, seed=0
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "null.sock"
        async with (
            running(kind, path),
            connected(Target("", backend, f"unix://{path}"), plain) as to,
        ):
            rung = await run_rung(to.source, plan, random_prompts(0, N_CTX, to.vocab_size))
    if rung.errors:
        raise BenchError(f"the check of the load generator failed: {rung.errors}")
    return rung.n_arrivals * rung.per_s
