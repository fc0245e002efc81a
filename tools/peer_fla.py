"""RWKV-7 in wkvm and in fla's own model on one GPU, the same shape, by turns.

    python tools/peer_fla.py --output bench/results/FILE.jsonl

Random weights in bfloat16, each program's own. wkvm's side is the whole engine: scheduler, captured
steps, sampling on the device, ids delivered. fla's is the forward pass of its model with its cache
and the argmax, step by step as its ``generate`` calls it, without what ``generate`` does around
them. One JSON line for each number of streams.
"""

import argparse
import asyncio
import gc
import importlib
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

import torch  # noqa: E402
import uvloop  # noqa: E402
from wkvm_bench.engine import Crowd, running  # noqa: E402
from wkvm_bench.harness import BenchError, Comparison, alternate  # noqa: E402
from wkvm_bench.random_model import HEAD_SIZE, SIZES, Size, write_random  # noqa: E402
from wkvm_bench.results import append, environment, to_line, to_text  # noqa: E402

from wkvm.core.config import EngineConfig  # noqa: E402
from wkvm.engine.engine import Engine  # noqa: E402
from wkvm.models.registry import load_model  # noqa: E402

PROMPT_IDS = 32
"""Below 64 fla steps through a prompt; from there on it tunes kernels for minutes."""


def config_of(size: Size) -> dict[str, Any]:
    """Of fla's model, in the words of its configuration."""
    w, a, v, g = size.ranks
    return {
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width,
        "num_hidden_layers": size.n_layers,
        "head_dim": HEAD_SIZE,
        "vocab_size": size.vocab_size,
        "decay_low_rank_dim": w,
        "a_low_rank_dim": a,
        "v_low_rank_dim": v,
        "gate_low_rank_dim": g,
    }


def blank(size: Size, device: str) -> Any:
    """A model of fla's without its own weights, which take minutes: they are orthogonal matrices.

    fla asks ``transformers.modeling_utils._init_weights`` whether its layers are to make theirs.
    """
    models: Any = importlib.import_module("fla.models")
    switch: Any = importlib.import_module("transformers.modeling_utils")
    switch._init_weights = False

    class Blank(models.RWKV7ForCausalLM):  # type: ignore[misc]
        def _init_weights(self, module: torch.nn.Module) -> None:
            """Make nothing: neither the matrix of the output."""

    with torch.device(device):
        return Blank(models.RWKV7Config(**config_of(size)))


class Fla:
    """Sequences of fla's model, which all decode at once."""

    def __init__(self, size: Size, n_streams: int, device: str) -> None:
        model = blank(size, device).to(torch.bfloat16).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(std=0.02)
        self._model: Any = model
        self._cache: Any = None
        self._next = torch.randint(2, size.vocab_size, (n_streams, PROMPT_IDS), device=device)
        self._step()

    def rate(self, n_steps: int) -> float:
        """Ids a second of all sequences together."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n_steps):
            self._step()
        torch.cuda.synchronize()
        return n_steps * len(self._next) / (time.perf_counter() - start)

    def _step(self) -> None:
        with torch.inference_mode():
            out = self._model(
                self._next, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self._cache = out.past_key_values
        self._next = out.logits[:, -1:].argmax(-1)


async def compared(options: argparse.Namespace, n_streams: int, path: Path) -> Comparison:
    """So many streams in both, by turns.

    Raises:
        BenchError: not all streams ran at a time.
    """
    size = SIZES[options.size]
    config = EngineConfig(n_slots=n_streams, request_timeout_s=1e6)
    engine = Engine(load_model(path, device=options.device), config)
    peer = Fla(size, n_streams, options.device)
    async with running(engine) as (loop, consumer):
        crowd = Crowd(loop, consumer, n_streams)

        async def of_wkvm() -> float:
            return await crowd.rate(options.steps)

        async def of_fla() -> float:
            return peer.rate(options.steps)

        a, b = await alternate(of_wkvm, of_fla, options.pairs)
    case = f"{options.size}, {n_streams} stream{'' if n_streams == 1 else 's'}: ids"
    return Comparison(case, "wkvm, its engine", "fla, its model", "ids/s", a, b, None)


def main() -> int:
    """Compare, print, and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="a file of JSON lines")
    add("--commit", help="what is measured, where git cannot say it")
    add("--size", choices=sorted(SIZES), default="1.5B")
    add("--streams", type=int, nargs="+", default=[1, 32, 256])
    add("--steps", type=int, default=100)
    add("--pairs", type=int, default=3)
    add("--device", default="cuda")
    options = parser.parse_args()
    before = environment()
    if options.commit is not None:
        before["commit"] = options.commit
    command = ["python", *("FILE" if one == str(options.output) else one for one in sys.argv)]
    settings = {"size": options.size, "steps": options.steps, "pairs": options.pairs}
    with TemporaryDirectory() as name:
        path = Path(name) / "model.pth"
        size = SIZES[options.size]
        with torch.inference_mode():
            write_random(path, size, dtype=torch.bfloat16, device=options.device)
        for n_streams in options.streams:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                try:
                    result = runner.run(compared(options, n_streams, path))
                except BenchError as error:
                    print(f"fla: {error}", file=sys.stderr)
                    return 1
            print(to_text("fla", result), flush=True)
            line = to_line("fla", result, command=command, settings=settings, environment=before)
            append(options.output.parent, options.output.stem, [line])
            gc.collect()
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
