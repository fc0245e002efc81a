"""A session of 128k tokens of a hybrid: to the disk, through the death of its server, and on.

    python tools/gpu_long_session.py --output bench/results/FILE.jsonl

Random weights of the 9B shape. A server absorbs the prompt and saves the state with its pages; it
is asked to hibernate it, and is killed; another one resumes it and gives the next id. What moved,
and how long it took, beside the bytes that the attention layers keep.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

import torch  # noqa: E402
import uvloop  # noqa: E402
from wkvm_bench.harness import Bar, BenchError, Finding  # noqa: E402
from wkvm_bench.random_weights import write_folder  # noqa: E402
from wkvm_bench.results import append, environment, to_line, to_text  # noqa: E402
from wkvm_bench.servers import serving  # noqa: E402
from wkvm_client import aio  # noqa: E402
from wkvm_client.errors import ClientError  # noqa: E402

from tools.gpu_store import roomy  # noqa: E402
from wkvm.models.registry import describe  # noqa: E402

TOKENS = 131_072
COPY_RATE = 53e9
"""Bytes a second between an H200 and pinned memory."""

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.5-9B": {"model_type": "qwen3_5_text"},
    "tiny": {
        "model_type": "qwen3_5_text",
        "vocab_size": 101,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
}


async def session(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Absorb, hibernate, kill, resume, answer."""
    model = folder / "model"
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    write_folder(model, SHAPES[options.shape], dtype=dtype, device=options.device)
    layout = describe(model, device=options.device).layout
    guest = layout.guest
    if guest is None:
        raise BenchError(f"{options.shape} has no attention layers")
    n_kept = layout.image_bytes(options.tokens) - layout.record_bytes
    uds = folder / "wkvm.sock"
    flags = ["--device", options.device, "--slots", "4", "--state-dir", str(folder / "store")]
    flags += ["--guest-tokens", str(4 * options.tokens)]
    draw = random.Random(1)
    prompt = [draw.randrange(90) for _ in range(options.tokens)]
    times = dict[str, float]()

    async def timed(name: str, work: Any) -> Any:
        began = time.perf_counter()
        done = await work
        times[name] = time.perf_counter() - began
        return done

    async def answer(client: aio.Client) -> list[int]:
        stream = await client.generate([7], temperature=0, max_tokens=8, state="long")
        return list((await stream.completion()).ids)

    async with serving(model, uds, flags) as started, aio.connect(f"unix://{uds}") as client:
        created = client.states.create("long", prompt, durability="memory")
        await timed("the prompt absorbed, s", created)
        await timed("hibernated to the disk, s", client.states.hibernate("long"))
        expected = await answer(client)
        os.kill(started.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
    async with serving(model, uds, flags) as started, aio.connect(f"unix://{uds}") as client:
        times["the new server's start, s"] = started.seconds
        await timed("resumed from the disk, s", client.states.resume("long"))
        given = await timed("8 ids after it, s", answer(client))
        again = await timed("8 ids once more, s", answer(client))
    if not given == again == expected:
        raise BenchError(f"other ids after the restart: {given} and {again} for {expected}")
    n_bytes = max(one.stat().st_size for one in (folder / "store").rglob("*") if one.is_file())
    case = f"{options.shape} on {options.device}, a session of {options.tokens:,} tokens"
    besides = {
        **times,
        "bytes of its attention layers": float(n_kept),
        "bytes of its file": float(n_bytes),
        "these bytes over the bus once, s": n_kept / COPY_RATE,
    }
    ratio = n_bytes / n_kept
    return [
        Finding(
            f"{case}: bytes stored",
            ratio,
            "times what attention keeps",
            Bar(1.1, at_least=False),
            besides,
        )
    ]


def main() -> int:
    """Run it, and write the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="what is measured, where git cannot say it")
    parser.add_argument("--output", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3.5-9B")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    before = environment()
    if options.commit is not None:
        before["commit"] = options.commit
    with TemporaryDirectory(dir=roomy(40 * 10**9)) as name:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results = runner.run(session(options, Path(name)))
        except (BenchError, ClientError) as error:
            print(error, file=sys.stderr)
            return 1
    settings = {"shape": options.shape, "tokens": options.tokens}
    for result in results:
        print(to_text("long-session", result))
    lines = [
        to_line("long-session", one, command=sys.argv, settings=settings, environment=before)
        for one in results
    ]
    append(options.output.parent, options.output.stem, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
