"""Quantised weights on a GPU, and deterministic steps: what they cost in accuracy and time.

    python tools/gpu_quantization.py check time prompts --output bench/results/FILE.jsonl

One JSON line per finding. Random weights, but for the bundled model's goldens. Exit status 1 if a
kernel is wrong; what quantization itself costs is measured, not judged.
"""

import copy
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.test_rwkv7_decode import unquantised  # noqa: E402
from tests.models.tiny_rwkv7 import batch_of  # noqa: E402
from tools.gpu_decode import Timed, check_rows  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import BUNDLED, random_parameters, shape_of  # noqa: E402
from tools.gpu_prefill import milliseconds, random_rows  # noqa: E402
from tools.gpu_timing import copy_bandwidth, graph_of  # noqa: E402
from wkvm.models.rwkv7 import layout_of  # noqa: E402
from wkvm.models.rwkv7_decode import DecodeStep  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_params import load_parameters, read_shape  # noqa: E402
from wkvm.models.rwkv7_prefill import Prefill  # noqa: E402
from wkvm.models.weights import open_checkpoint  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

QUANTIZATIONS = ("none", "fp8", "int8")


def check_kernels() -> Iterator[Finding]:
    """One layer of the 1.5B shape: against the matrices as held, and against the true ones."""
    shape = shape_of("1.5B", 1)
    parameters = random_parameters(shape, torch.bfloat16)
    layout = layout_of(shape, "bfloat16")
    for quantization in QUANTIZATIONS[1:]:
        model = Rwkv7Decode(shape, parameters, quantization=quantization)
        held = unquantised(parameters, quantization)
        for n_rows in (1, 4, 32, 100, 256):
            finding = check_rows(model, held, layout, n_rows, 5e-3)
            yield {**finding, "check": f"{quantization}: {finding['check']}"}
        finding = check_rows(model, parameters, layout, 64, float("inf"))
        yield {**finding, "check": f"{quantization}, cost of: {finding['check']}"}


def check_depth() -> Iterator[Finding]:
    """All layers of the 1.5B shape after 32 ids: logits against those of float32."""
    shape = shape_of("1.5B")
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (32, 32), generator=draw)
    exact: Tensor | None = None
    for dtype, quantization in (
        (torch.float32, "none"),
        *((torch.bfloat16, quantization) for quantization in QUANTIZATIONS),
    ):
        parameters = {n: t.to(dtype) for n, t in random_parameters(shape, torch.bfloat16).items()}
        model = Rwkv7Decode(shape, parameters, quantization=quantization)
        arena = Arena(layout_of(shape, str(dtype).removeprefix("torch.")), 32, "cuda")
        arena.zero(range(32))
        step = DecodeStep(model, 32)
        step.slots.copy_(torch.arange(32))
        for column in ids.t():
            step.token_ids.copy_(column)
            step.launch(arena.views)
        logits = step.logits.double()
        if exact is None:
            exact = logits.clone()
            continue
        p, q = exact.log_softmax(-1), logits.log_softmax(-1)
        yield {
            "check": f"logits after 32 ids, random 1.5B, bfloat16, quantization {quantization}",
            "relative_error": float(f"{float((logits - exact).norm() / exact.norm()):.3g}"),
            "kl": float(f"{float((p.exp() * (p - q)).sum(-1).mean()):.3g}"),
            "same_best_id": float((exact.argmax(1) == logits.argmax(1)).double().mean()),
        }


def check_goldens() -> Iterator[Finding]:
    """The bundled model, ids one by one, then 64 greedy ids of each prompt."""
    golden = np.load(BUNDLED / "golden.npz")
    prompts = [e["prompt_ids"] for e in json.loads((BUNDLED / "golden.json").read_text())]
    checkpoint = open_checkpoint(BUNDLED)
    shape = read_shape(checkpoint)
    parameters = {
        name: tensor.to("cuda", torch.bfloat16).contiguous()
        for name, tensor in load_parameters(checkpoint, shape)
    }
    n_rows = len(prompts)
    for quantization in QUANTIZATIONS:
        model = Rwkv7Decode(shape, parameters, quantization=quantization)
        arena = Arena(layout_of(shape, "bfloat16"), n_rows, "cuda")
        arena.zero(range(n_rows))
        step = DecodeStep(model, n_rows)
        graph = graph_of(partial(step.launch, arena.views))
        arena.zero(range(n_rows))
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(n_rows, int(lengths.max()) + 64, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        logits = torch.zeros(n_rows, shape.vocab_size)
        for t in range(int(lengths.max()) + 63):
            live = t < lengths + 63
            step.slots.copy_(torch.where(live, torch.arange(n_rows), -1).to(torch.int32))
            step.token_ids.copy_(ids[:, t])
            graph.replay()
            best = step.logits.argmax(1).cpu()
            ends = lengths - 1 == t
            logits[ends] = step.logits.cpu()[ends]
            follows = live & (t >= lengths - 1)
            ids[follows, t + 1] = best[follows]
        found = torch.stack([ids[r, n : n + 64] for r, n in enumerate(lengths.tolist())])
        same = found.numpy() == golden["continuations"]
        error = np.abs(logits.numpy() - golden["logits"])
        yield {
            "check": f"bundled goldens, captured decode step, bfloat16, quantization "
            f"{quantization}, {n_rows} rows",
            "ok": bool(error.max() < 2.0),
            "max_logit_error": float(error.max()),
            "mean_logit_error": float(error.mean()),
            "greedy_prefix_agreement": float(np.cumprod(same, axis=1).mean()),
        }


def models(plain: Rwkv7Decode) -> dict[str, Rwkv7Decode]:
    """One as it is, a deterministic one with the same weights, and quantised ones."""
    parameters = random_parameters(plain.shape, plain.dtype)
    found = {"none": plain, "deterministic": copy.copy(plain)}
    found["deterministic"].deterministic = True
    for quantization in QUANTIZATIONS[1:]:
        found[quantization] = Rwkv7Decode(plain.shape, parameters, quantization=quantization)
    return found


def times(name: str, rows: list[int], dtype: torch.dtype) -> Iterator[Finding]:
    """Decode steps; each ratio is to the same step of the model as it is, timed next to it."""
    bandwidth = copy_bandwidth()
    timed = Timed(name, max(rows), dtype)
    found = models(timed.model)
    for n_rows in rows:
        plain_ms = 0.0
        for mode, model in found.items():
            timed.model = model
            finding = timed.time(n_rows, bandwidth)
            if mode == "none":
                plain_ms = finding["median_ms"]
            ratio = round(plain_ms / finding["median_ms"], 3)
            yield {**finding, "dtype": str(dtype), "mode": mode, "times_as_fast": ratio}


def prompt_times(name: str, dtype: torch.dtype) -> Iterator[Finding]:
    """Prompts, as ``times``."""
    shape = shape_of(name)
    arena = Arena(layout_of(shape, str(dtype).removeprefix("torch.")), 64, "cuda")
    found = models(Rwkv7Decode(shape, random_parameters(shape, dtype)))
    for n_rows, n_tokens in ((32, 1024), (1, 4096), (1, 1024)):
        rows = random_rows(range(n_rows), [n_tokens] * n_rows, shape.vocab_size, 5)
        batch = batch_of(rows, "cuda")
        plain_ms = 0.0
        for mode, model in found.items():
            forward = partial(Prefill(model), batch, arena.views)
            ms = median(milliseconds(forward, 5))
            if mode == "none":
                plain_ms = ms
            yield {
                "timing": f"prefill, eager, {name}, {n_rows} prompts of {n_tokens} tokens",
                "dtype": str(dtype),
                "mode": mode,
                "median_ms": round(ms, 3),
                "tokens_per_s": round(n_rows * n_tokens / ms * 1e3),
                "times_as_fast": round(plain_ms / ms, 3),
                "finite": bool(forward().isfinite().all()),
            }


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+", choices=("check", "time", "prompts"))
    parser.add_argument("--model", default="1.5B")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 32, 64, 128, 256, 512, 1024])
    args = parser.parse_args()
    dtype = torch.float16 if args.dtype == "float16" else torch.bfloat16
    with recorded(args) as findings:
        if "check" in args.what:
            for finding in (*check_kernels(), *check_goldens(), *check_depth()):
                findings.add(finding)
        if "time" in args.what:
            for finding in times(args.model, args.rows, dtype):
                findings.add(finding)
        if "prompts" in args.what:
            for finding in prompt_times(args.model, dtype):
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
