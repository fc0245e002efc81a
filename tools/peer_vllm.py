"""Servers of wkvm and vLLM on one GPU, the same loads by turns over the same HTTP interface.

    python tools/peer_vllm.py --vllm-site /tmp/vllm-site --output bench/results/FILE.jsonl
    python tools/peer_vllm.py --vllm-site DIR --shape mamba2-2.7B --ctx 4096 --output FILE

Both servers are up at a time, each with its share of the memory, and idle while the other is asked.
Each side of a pair is a rung of ``wkvm bench serve``: so many streams at a time, random prompts of
token ids, outputs of a fixed length, greedy. vLLM has random weights of its own (``--load-format
dummy``); configs and tokenizers are made here, and nothing is fetched. Where both run the
architecture it is the same shape; else wkvm's is RWKV-7 and vLLM's a transformer of that size.

One JSON line a figure and load: ids a second, time to the first id, time between ids.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

import uvloop  # noqa: E402
from wkvm_bench import load_openai  # noqa: E402
from wkvm_bench.figures import Rung  # noqa: E402
from wkvm_bench.harness import BenchError, Comparison, alternate  # noqa: E402
from wkvm_bench.load import Plan, random_prompts, run_rung  # noqa: E402
from wkvm_bench.results import append, environment, to_line, to_text  # noqa: E402
from wkvm_bench.servers import serving  # noqa: E402

from tools.gpu_shapes import SHAPES  # noqa: E402

READY_TIMEOUT_S = 420.0
"""vLLM compiles and captures before it listens."""
SETTINGS = (
    "shape",
    "ctx",
    "out",
    "rounds",
    "pairs",
    "memory_share",
    "temperature",
    "eager",
    "wkvm_flags",
)


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared.

    Attributes:
        ours: a config that wkvm reads, or the name of a size of RWKV-7.
        theirs: the config of vLLM's model, with its architecture.
        flags: more of vLLM's.
        is_same: whether it is one shape.
    """

    ours: dict[str, Any] | str
    theirs: dict[str, Any]
    flags: tuple[str, ...] = ()
    is_same: bool = True


MAMBA2 = SHAPES["mamba2-2.7B"]
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
OLMO: dict[str, Any] = {
    "model_type": "olmo_hybrid",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}
TINY: dict[str, Any] = MAMBA2 | {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
}

TRITON = ("--gdn-prefill-backend", "triton")
"""On a Hopper vLLM takes FlashInfer's kernel for prompts, installed or not."""

CASES = {
    "mamba2-2.7B": Case(MAMBA2, {**MAMBA2, "architectures": ["Mamba2ForCausalLM"]}),
    "olmo-hybrid-7B": Case(OLMO, {**OLMO, "architectures": ["OlmoHybridForCausalLM"]}, TRITON),
    "qwen3.5-9B": Case(
        {"model_type": "qwen3_5_text"},
        {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": {"model_type": "qwen3_5_text"},
        },
        ("--language-model-only", *TRITON),
    ),
    "1.5B": Case("1.5B", QWEN2, is_same=False),
    "tiny": Case(TINY, {**TINY, "architectures": ["Mamba2ForCausalLM"]}),
}


def write_texts(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer whose every id is a word of its own: each one that comes is an event."""
    vocab = {f"\u0120w{token_id}": token_id for token_id in range(vocab_size)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2**20}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def write_ours(folder: Path, case: Case, device: str) -> int:
    """Write wkvm's model, and return how many ids it has."""
    import torch
    from wkvm_bench.random_model import SIZES, write_random
    from wkvm_bench.random_weights import blueprint, write_folder

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.inference_mode():
        if isinstance(case.ours, str):
            folder.mkdir()
            size = SIZES[case.ours]
            write_random(folder / "model.pth", size, dtype=dtype, device=device)
            vocab_size = size.vocab_size
        else:
            write_folder(folder, case.ours, dtype=dtype, device=device)
            tables = (
                shape for name, shape in blueprint(case.ours).weights.items() if "emb" in name
            )
            vocab_size = next(tables)[0]
        if device == "cuda":
            torch.cuda.empty_cache()
    write_texts(folder, vocab_size)
    return vocab_size


def write_theirs(folder: Path, case: Case, vocab_size: int) -> None:
    """Write vLLM's model: a config and a tokenizer, no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.theirs), "utf-8")
    write_texts(folder, case.theirs.get("vocab_size", vocab_size))


@contextlib.asynccontextmanager
async def vllm(folder: Path, uds: Path, options: argparse.Namespace) -> AsyncIterator[str]:
    """Run vLLM's server for the length of a block, which gets its address.

    Raises:
        BenchError: it ended before it answered, or does not answer in time.
    """
    case = CASES[options.shape]
    length = options.ctx + options.out + 64
    flags = ["--uds", str(uds), "--load-format", "dummy", "--dtype", "bfloat16"]
    flags += ["--max-model-len", str(length), "--max-num-seqs", str(max(options.concurrency))]
    flags += ["--gpu-memory-utilization", str(options.memory_share), "--generation-config", "vllm"]
    flags += ["--no-enable-prefix-caching", "--served-model-name", "peer", *case.flags]
    flags += ["--enforce-eager"] if options.eager else []
    variables = {
        "PYTHONPATH": str(options.vllm_site),
        "VLLM_NO_USAGE_STATS": "1",
        # Its default imports FlashInfer, installed or not; what is greedy needs neither.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(folder.parent / "vllm-cache"),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *flags),
        *options.vllm_flags,
        env={**os.environ, **variables},
    )
    try:
        address = f"unix://{uds}"
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not await _answers(address):
                if process.returncode is not None:
                    raise BenchError(f"vLLM ended with {process.returncode}")
                await asyncio.sleep(1.0)
        yield address
    except TimeoutError:
        raise BenchError("vLLM does not answer") from None
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20.0):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _answers(address: str) -> bool:
    try:
        async with source(address, 1, 0.0):
            return True
    except BenchError:
        return False


def source(
    address: str, vocab_size: int, temperature: float
) -> contextlib.AbstractAsyncContextManager[load_openai.OpenAiSource]:
    """A connection to a server, prompts as ids."""
    return load_openai.connected(
        address,
        model=None,
        vocab_size=vocab_size,
        api_key=None,
        temperature=temperature,
        top_p=1.0,
        timeout_s=300.0,
    )


async def compared(options: argparse.Namespace, folder: Path) -> AsyncGenerator[Comparison, None]:
    """Start both servers, and have them answer the same loads by turns."""
    case = CASES[options.shape]
    ours, theirs = folder / "ours", folder / "theirs"
    vocab_size = write_ours(ours, case, options.device)
    write_theirs(theirs, case, vocab_size)
    n_ids = min(vocab_size, case.theirs.get("vocab_size", vocab_size))
    most = max(options.concurrency)
    flags = ["--device", options.device, "--slots", str(most), "--uds", str(folder / "wkvm.http")]
    if _has_guest(case):
        flags += ["--guest-tokens", str(most * (options.ctx + options.out + 64))]
    flags += options.wkvm_flags
    model = ours / "model.pth" if isinstance(case.ours, str) else ours
    async with contextlib.AsyncExitStack() as stack:
        # vLLM first: it takes a share of what is free when it starts.
        address = await stack.enter_async_context(vllm(theirs, folder / "vllm.http", options))
        await stack.enter_async_context(serving(model, folder / "wkvm.sock", flags))
        sources = [
            await stack.enter_async_context(source(one, n_ids, options.temperature))
            for one in (f"unix://{folder / 'wkvm.http'}", address)
        ]
        for n_streams in options.concurrency:
            for comparison in await _by_turns(options, sources, n_ids, n_streams):
                yield comparison


def _has_guest(case: Case) -> bool:
    """Whether some of the layers of wkvm's model attend."""
    return not isinstance(case.ours, str) and case.ours["model_type"] != "mamba2"


async def _by_turns(
    options: argparse.Namespace,
    sources: Sequence[load_openai.OpenAiSource],
    n_ids: int,
    n_streams: int,
) -> list[Comparison]:
    """A load, on both by turns."""
    plan = Plan(n_streams=n_streams, n_rounds=options.rounds, n_out=options.out, rate=None, seed=0)
    prompts = random_prompts(0, options.ctx, n_ids)
    rungs: tuple[list[Rung], list[Rung]] = ([], [])

    async def turn(at: int) -> float:
        rung = await run_rung(sources[at], plan, prompts)
        if rung.errors:
            raise BenchError(f"{('wkvm', 'vLLM')[at]}: {rung.errors}")
        rungs[at].append(rung)
        return rung.ids_per_s

    async def of_wkvm() -> float:
        return await turn(0)

    async def of_vllm() -> float:
        return await turn(1)

    rates = await alternate(of_wkvm, of_vllm, options.pairs)
    counted = tuple(side[1:] for side in rungs)
    return list(_comparisons(options, n_streams, rates, counted))


def _comparisons(
    options: argparse.Namespace,
    n_streams: int,
    rates: tuple[tuple[float, ...], tuple[float, ...]],
    rungs: tuple[list[Rung], ...],
) -> Iterator[Comparison]:
    same = CASES[options.shape].is_same
    names = (
        f"wkvm, {'the same' if same else 'RWKV-7'}",
        f"vLLM, {'the same' if same else 'Qwen2.5 1.5B'}",
    )
    load = f"{options.shape}, {options.ctx} in, {options.out} out, {n_streams} streams"
    if options.wkvm_flags:
        load += f", wkvm with {' '.join(options.wkvm_flags)}"
    besides = {
        f"{name}, generator's cores": max(one.generator_cpu for one in side)
        for name, side in zip(names, rungs, strict=True)
    }
    yield Comparison(f"{load}: ids", *names, "ids/s", *rates, None, besides)
    firsts = [[one.ttft for one in side] for side in rungs]
    betweens = [[one.itl for one in side] for side in rungs]
    for what, sides in (("first id, p50", firsts), ("between ids, p50", betweens)):
        a, b = (tuple(one.p50 for one in side if one is not None) for side in sides)
        if len(a) == len(b) and a:
            yield Comparison(f"{load}: {what}", *names, "ms", a, b, None)


def main() -> int:
    """Compare, print, and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--vllm-site", type=Path, required=True, help="a folder with vLLM and what it needs")
    add("--output", type=Path, required=True, help="a file of JSON lines")
    add("--commit", help="what is measured, where git cannot say it")
    add("--shape", choices=list(CASES), default="mamba2-2.7B")
    add("--ctx", type=int, default=1024)
    add("--out", type=int, default=128)
    add("--rounds", type=int, default=1)
    add("--pairs", type=int, default=3)
    add("--concurrency", type=int, nargs="+", default=[1, 32, 256])
    add("--memory-share", type=float, default=0.45, help="of the GPU, for vLLM")
    add("--temperature", type=float, default=0.0)
    add("--eager", action="store_true", help="vLLM without compilation: starts sooner, runs slower")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--wkvm-flags", type=str.split, default=[], help="more of wkvm's, in one argument")
    add("--vllm-flags", nargs=argparse.REMAINDER, default=[], help="more of vLLM's, at the end")
    options = parser.parse_args()
    before: dict[str, Any] = {**environment(), "vllm": vllm_version(options.vllm_site)}
    if options.commit is not None:
        before["commit"] = options.commit
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 30 * 2**30
    settings = {name: getattr(options, name) for name in SETTINGS}

    async def run(folder: Path) -> None:
        # A line is kept as soon as it is there: what comes later may take too long, or fail.
        async with contextlib.aclosing(compared(options, folder)) as comparisons:
            async for one in comparisons:
                print(to_text("vllm", one), flush=True)
                line = to_line(
                    "vllm",
                    one,
                    command=command_of(options),
                    settings=settings,
                    environment=before,
                )
                append(options.output.parent, options.output.stem, [line])

    began = time.perf_counter()
    with (
        TemporaryDirectory(dir=memory if roomy else gettempdir()) as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            runner.run(run(Path(name)))
        except BenchError as error:
            print(f"{options.shape}: {error}", file=sys.stderr)
            return 1
    print(f"{time.perf_counter() - began:.0f} s in all")
    return 0


def command_of(options: argparse.Namespace) -> list[str]:
    """What ran, without paths of this machine."""
    command = ["python", *sys.argv]
    for path, name in ((options.output, "FILE"), (options.vllm_site, "DIR")):
        command = [name if one == str(path) else one for one in command]
    return command


def vllm_version(site: Path) -> str:
    """The version in a folder of packages, which need not be importable from here."""
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
