"""A session of 128k tokens of a hybrid: to the disk, through the death of its server, and on.

    python tools/gpu_long_session.py --output bench/results/FILE.jsonl

Random weights of the 9B shape. A server absorbs the prompt, once to keep nothing and once to keep
the state with its pages on the disk, goes on from it likewise, and is killed; another one resumes
it and gives the next ids. What moved, and how long it took, beside the bytes that the attention
layers keep.
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
ABSORBED = "the prompt absorbed, its first id, nothing kept, s"
WRITTEN = "the prompt absorbed, and its state on the disk, s"

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
    """Absorb, keep, kill, resume, answer."""
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
    # Each prompt is to be absorbed whole.
    flags += ["--prefix-cache-bytes", "0"]
    draw = random.Random(1)
    prompt = [draw.randrange(90) for _ in range(options.tokens)]
    times = dict[str, float]()

    async def timed(name: str, work: Any) -> Any:
        began = time.perf_counter()
        done = await work
        times[name] = time.perf_counter() - began
        return done

    async def first(client: aio.Client) -> list[int]:
        stream = await client.generate(prompt, temperature=0, max_tokens=1)
        return list((await stream.completion()).ids)

    async def answer(client: aio.Client, **keeping: Any) -> list[int]:
        stream = await client.generate(
            [7], temperature=0, max_tokens=8, ignore_eos=True, state="long", **keeping
        )
        return list((await stream.completion()).ids)

    async with serving(model, uds, flags) as started, aio.connect(f"unix://{uds}") as client:
        # What is timed was done before, once: kernels are compiled when they are first launched.
        await first(client)
        await timed(ABSORBED, first(client))
        created = client.states.create("long", prompt, durability="disk")
        await timed(WRITTEN, created)
        times["the latter takes longer by, s"] = times[WRITTEN] - times[ABSORBED]
        n_bytes = max(one.stat().st_size for one in (folder / "store").rglob("*") if one.is_file())
        expected = await answer(client)
        kept = await timed("8 ids from it, nothing kept, s", answer(client))
        saving = answer(client, save_as="later", durability="disk")
        saved = await timed("8 ids from it, and where they lead to on the disk, s", saving)
        os.kill(started.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
    async with serving(model, uds, flags) as started, aio.connect(f"unix://{uds}") as client:
        times["the new server's start, s"] = started.seconds
        await timed("resumed from the disk, s", client.states.resume("long"))
        given = await timed("8 ids after it, s", answer(client))
        again = await timed("8 ids once more, s", answer(client))
    if not kept == saved == given == again == expected:
        raise BenchError(f"not {expected}: {kept}, {saved}; after the restart {given}, {again}")
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
