"""A hundred clients at once over HTTP beside the same over the binary protocol; and what they pay.

Both sides send the same prompts, as ids, to one server of the bundled model, by turns, each
client on a connection or a lane of its own. Then every interface is asked, streamed and not, and
the tokens that the answers own up to are held against what the engine counted.
"""

import tempfile
from pathlib import Path

from wkvm.assembly.models import BUNDLED
from wkvm_bench import load_binary, load_openai
from wkvm_bench.accounts import difference
from wkvm_bench.figures import Rung
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding, alternate
from wkvm_bench.load import Plan, Source, random_prompts, run_rung
from wkvm_bench.servers import serving

N_CLIENTS = 100
N_CTX = 64
SETTINGS = {"temperature": 0.8, "top_p": 0.9, "timeout_s": 600.0, "api_key": None}


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark. ``n_threads`` are torch's."""
    n_clients, n_out, n = (6, 4, 1) if smoke else (N_CLIENTS, 64, 7)
    with tempfile.TemporaryDirectory() as name:
        http, binary = Path(name) / "http.sock", Path(name) / "binary.sock"
        flags = ["--device", "cpu", "--threads", str(n_threads), "--uds", str(http)]
        flags += ["--slots", "32", "--max-queue", str(2 * N_CLIENTS)]
        async with (
            serving(BUNDLED, binary, flags),
            load_binary.connected(f"unix://{binary}", **SETTINGS) as lanes,  # type: ignore[arg-type]
            load_openai.connected(
                f"unix://{http}",
                model=None,
                vocab_size=lanes.server.vocab_size,
                **SETTINGS,  # type: ignore[arg-type]
            ) as connections,
        ):
            plan = Plan(n_streams=n_clients, n_rounds=1, n_out=n_out, rate=None, seed=0)
            vocab_size = lanes.server.vocab_size
            rungs = dict[str, Rung]()

            async def rate_of(name: str, source: Source) -> float:
                prompts = random_prompts(0, N_CTX, vocab_size)
                rungs[name] = rung = await run_rung(source, plan, prompts, warm_up=False)
                if rung.errors:
                    raise BenchError(f"requests failed: {rung.errors}")
                return rung.ids_per_s

            a, b = await alternate(
                lambda: rate_of("HTTP", connections), lambda: rate_of("binary", lanes), n
            )
            apart, besides = await difference(http, lanes)
    names = ("HTTP", "binary protocol")
    case = f"bundled on cpu, {n_clients} clients"
    details = {
        f"{name}, {what}, ms": value
        for name, rung in rungs.items()
        for what, value in _times(rung).items()
    }
    return [
        Comparison(case, *names, "ids/s", a, b, Bar(0.9), details),
        Finding(
            "tokens of usage apart from those that the engine counted",
            apart,
            "tokens",
            Bar(0, at_least=False),
            besides,
        ),
    ]


def _times(rung: Rung) -> dict[str, float]:
    if rung.ttft is None or rung.e2e is None:
        return {}
    return {
        "first id, p50": rung.ttft.p50,
        "first id, p99": rung.ttft.p99,
        "request, p50": rung.e2e.p50,
        "request, p99": rung.e2e.p99,
    }
