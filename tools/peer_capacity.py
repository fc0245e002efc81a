"""Sessions under a cap of GPU memory: states of RWKV-7 in wkvm, keys and values in vLLM.

    python tools/peer_capacity.py --vllm-site /tmp/vllm-site --output bench/results/FILE.jsonl

vLLM serves a transformer of 1.5B parameters (Qwen2.5's shape, which shares heads of keys) with as
much memory for keys and values as the cap says; wkvm an RWKV-7 of 1.5B with as many slots as states
fit the cap. At each context all sessions that fit decode at once, greedily, on both sides by turns.
vLLM keeps the prompts of the first turn, which does not count, and finds them in the turns that do
(``--enable-prefix-caching``); wkvm's sessions have read eight tokens, since a state takes as many
bytes, and a step as long, whatever was read before.

What is compared is ids a second over the longest time in which all sessions were between their
first id and their last. wkvm is asked over its binary protocol, vLLM over HTTP: at a thousand
streams and more, one load generator does not keep up with events of HTTP. One JSON line a context.
"""

import argparse
import asyncio
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

import uvloop  # noqa: E402
from wkvm_bench import load_binary  # noqa: E402
from wkvm_bench.harness import BenchError, Comparison, alternate  # noqa: E402
from wkvm_bench.load import Plan, Source, random_prompts, run_rung  # noqa: E402
from wkvm_bench.random_model import SIZES  # noqa: E402
from wkvm_bench.results import append, environment, to_line, to_text  # noqa: E402
from wkvm_bench.servers import serving  # noqa: E402

from tools import peer_vllm  # noqa: E402

LANES = 1000
"""Of a connection."""
PROMPT_IDS = 8
WARM_UP_IDS = 16
"""That a request which does not count decodes, after its prompt."""


def session_bytes(shape: str, device: str) -> int:
    """Of a state of RWKV-7: matrices in float32, and the last token's vectors of each layer."""
    size = SIZES[shape]
    return size.n_layers * size.width * (64 * 4 + 2 * (2 if device == "cuda" else 4))


def token_bytes() -> int:
    """Keys and values of a token in vLLM's transformer, in bfloat16."""
    config = peer_vllm.QWEN2
    head_size = config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size * 2)


def sessions(cap_bytes: int, context: int, n_out: int) -> int:
    """Of a context and an output, in vLLM, whose pages hold 16 tokens."""
    tokens = -(-(context + n_out + WARM_UP_IDS) // 16) * 16
    return cap_bytes // (tokens * token_bytes())


async def compared(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """Start both servers, and have all sessions decode at each context."""
    case, cap_bytes = peer_vllm.CASES["1.5B"], options.cap_gib << 30
    n_ours = options.sessions or cap_bytes // session_bytes(options.size, options.device)
    counts = {one: sessions(cap_bytes, one, options.out) for one in options.contexts}
    if not min(counts.values()):
        raise BenchError(f"the cap holds no session of {max(options.contexts)} tokens")
    ours, theirs = folder / "ours", folder / "theirs"
    options.shape, options.ctx = "1.5B", max(options.contexts)
    options.concurrency = list(counts.values())
    options.vllm_flags = [
        *("--kv-cache-memory-bytes", str(cap_bytes)),
        *("--enable-prefix-caching", "--max-num-batched-tokens", "8192"),
        *options.vllm_flags,
    ]
    ours_case = peer_vllm.Case(options.size, case.theirs, is_same=False)
    n_ids = peer_vllm.write_ours(ours, ours_case, options.device)
    peer_vllm.write_theirs(theirs, case, n_ids)
    flags = ["--device", options.device, "--slots", str(n_ours), "--max-queue", str(n_ours)]
    comparisons = list[Comparison]()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        address = await enter(peer_vllm.vllm(theirs, folder / "vllm.http", options))
        await enter(serving(ours / "model.pth", folder / "wkvm.sock", flags))
        ours_at = await enter(
            load_binary.connected(
                f"unix://{folder / 'wkvm.sock'}",
                n_connections=-(-n_ours // LANES),
                temperature=0.0,
                top_p=1.0,
                timeout_s=300.0,
            )
        )
        theirs_at = await enter(peer_vllm.source(address, n_ids, 0.0))
        for context, n_theirs in counts.items():
            sides = [
                _Side(ours_at, n_ours, _again(n_ids, PROMPT_IDS, n_ours), options.out),
                _Side(theirs_at, n_theirs, _again(n_ids, context, n_theirs), options.out),
            ]
            rates = await alternate(sides[0].rate, sides[1].rate, options.pairs)
            comparisons.append(_comparison(options, context, (n_ours, n_theirs), rates))
            print(to_text("frontier", comparisons[-1]), flush=True)
    return comparisons


def _again(n_ids: int, length: int, n: int) -> Iterator[Sequence[int]]:
    """The same prompts over and over, so that their keys and values are there the second time."""
    prompts = random_prompts(0, length, n_ids)
    return itertools.cycle([next(prompts) for _ in range(n)])


class _Side:
    """Sessions of one server, all of which decode in a turn."""

    def __init__(
        self, source: Source, n: int, prompts: Iterator[Sequence[int]], n_out: int
    ) -> None:
        self._source, self._prompts = source, prompts
        self._plan = Plan(n_streams=n, n_out=n_out, rate=None, seed=0)

    async def rate(self) -> float:
        """Ids a second while all of them decode."""
        rung = await run_rung(self._source, self._plan, self._prompts)
        if rung.errors:
            raise BenchError(f"{rung.errors}")
        return rung.steady_ids_per_s or rung.ids_per_s


def _comparison(
    options: argparse.Namespace,
    context: int,
    counts: tuple[int, int],
    rates: tuple[tuple[float, ...], tuple[float, ...]],
) -> Comparison:
    """In the words of ``wkvm_bench.frontier``, with which it is shown."""
    besides = {
        "context, tokens": float(context),
        "cap, MiB": float(options.cap_gib << 10),
        "sessions, wkvm": float(counts[0]),
        "sessions, transformer": float(counts[1]),
        "bytes of a session, wkvm": float(session_bytes(options.size, options.device)),
        "bytes of a session, transformer": float(token_bytes() * context),
    }
    return Comparison(
        f"sessions of {context:,} tokens in {options.cap_gib:,} GiB",
        f"wkvm, {counts[0]:,} sessions",
        f"vLLM, {counts[1]:,}",
        "ids/s",
        *rates,
        None,
        besides,
    )


def main() -> int:
    """Compare, print, and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--vllm-site", type=Path, required=True, help="a folder with vLLM and what it needs")
    add("--output", type=Path, required=True, help="a file of JSON lines")
    add("--commit", help="what is measured, where git cannot say it")
    add("--cap-gib", type=int, default=16)
    add("--contexts", type=int, nargs="+", default=[1024, 4096, 16_384, 65_536])
    add("--out", type=int, default=256)
    add("--pairs", type=int, default=2)
    add("--sessions", type=int, help="of wkvm, instead of as many as fit the cap")
    add("--size", choices=sorted(SIZES), default="1.5B", help="of RWKV-7")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--eager", action="store_true", help="vLLM without compilation: starts sooner, runs slower")
    add("--vllm-flags", nargs=argparse.REMAINDER, default=[], help="more of vLLM's, at the end")
    options = parser.parse_args()
    options.memory_share = 0.45
    before = {**environment(), "vllm": peer_vllm.vllm_version(options.vllm_site)}
    if options.commit is not None:
        before["commit"] = options.commit
    with (
        TemporaryDirectory() as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            results = runner.run(compared(options, Path(name)))
        except BenchError as error:
            print(f"capacity: {error}", file=sys.stderr)
            return 1
    settings = {"cap_gib": options.cap_gib, "out": options.out, "pairs": options.pairs}
    command = peer_vllm.command_of(options)
    lines = [
        to_line("frontier", one, command=command, settings=settings, environment=before)
        for one in results
    ]
    append(options.output.parent, options.output.stem, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
