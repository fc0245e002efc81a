"""What can only be seen on a GPU: the gpu-marked tests, goldens, tolerances, and timings.

    python tools/gpu_check.py --output bench/results/DATE-gpu-check.jsonl [--reference DIR]

Writes one JSON line per finding, each with commit, device, versions and command. Exit status 1 if
a check failed; timings are for information and fail nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.tiny_rwkv7 import Tiny, batch_of, random_weights, write_folder  # noqa: E402
from tools.gpu_findings import Finding, Findings  # noqa: E402
from wkvm.models.base import Model  # noqa: E402
from wkvm.models.registry import load_model  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BUNDLED = ROOT / "wkvm/bundled/rwkv7-tinystories"

FLOAT32_TOLERANCE = 5e-5
BFLOAT16_MAX_TOLERANCE = 0.2
BFLOAT16_MEAN_TOLERANCE = 0.02
BFLOAT16_MIN_SAME_IDS = 0.97


def check_tests(reference_dir: Path | None) -> Iterator[Finding]:
    """The tests marked ``gpu``."""
    environment = dict(os.environ)
    if reference_dir is not None:
        environment["WKVM_REFERENCE_DIR"] = str(reference_dir)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/kernels", "tests/models"]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    print(run.stdout[-3000:], run.stderr[-1000:])
    last = run.stdout.strip().splitlines()[-1:] or [""]
    yield {"check": "gpu-marked tests", "ok": run.returncode == 0, "summary": last[0]}


def check_goldens() -> Iterator[Finding]:
    """The bundled model in float32 and bfloat16 against its goldens."""
    golden = np.load(BUNDLED / "golden.npz")
    for dtype in ("float32", "bfloat16"):
        logits, ids = greedy(load_model(BUNDLED, device="cuda", dtype=dtype))
        error = np.abs(logits - golden["logits"])
        same = ids == golden["continuations"]
        # From the first other id on the two follow different texts.
        agreed = np.cumprod(same, axis=1).mean()
        # Fed the golden ids instead, each step is judged on its own.
        forced = float(forced_agreement(dtype, golden["continuations"]))
        if dtype == "float32":
            ok = bool(same.all()) and error.max() < FLOAT32_TOLERANCE
        else:
            ok = (
                error.max() < BFLOAT16_MAX_TOLERANCE
                and error.mean() < BFLOAT16_MEAN_TOLERANCE
                and forced > BFLOAT16_MIN_SAME_IDS
            )
        yield {
            "check": f"bundled goldens, {dtype}",
            "ok": bool(ok),
            "max_logit_error": float(error.max()),
            "mean_logit_error": float(error.mean()),
            "greedy_prefix_agreement": float(agreed),
            "same_id_given_golden_prefix": forced,
        }


def greedy(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Logits after the golden prompts, and 64 greedy ids of each."""
    prompts = golden_prompts()
    arena = Arena(model.layout, len(prompts), "cuda")
    logits = model.forward(batch_of(list(enumerate(prompts)), "cuda"), arena.views)
    first, steps = logits.cpu().numpy(), [logits.argmax(1).tolist()]
    for _ in range(63):
        rows = [(slot, [token_id]) for slot, token_id in enumerate(steps[-1])]
        steps.append(model.forward(batch_of(rows, "cuda"), arena.views).argmax(1).tolist())
    return first, np.array(steps).T


def forced_agreement(dtype: str, continuations: np.ndarray) -> float:
    """Share of positions where the best id after the golden ids so far is the golden id."""
    model = load_model(BUNDLED, device="cuda", dtype=dtype)
    shares = []
    for prompt, continuation in zip(golden_prompts(), continuations.tolist(), strict=True):
        arena = Arena(model.layout, 1, "cuda")
        batch = batch_of([(0, prompt + continuation[:-1])], "cuda", all_logits=True)
        best = model.forward(batch, arena.views).argmax(1)[len(prompt) - 1 :]
        shares.append((best.cpu().numpy() == np.array(continuation)).mean())
    return float(np.mean(shares))


def golden_prompts() -> list[list[int]]:
    """The ids of the golden prompts."""
    entries = json.loads((BUNDLED / "golden.json").read_text())
    return [entry["prompt_ids"] for entry in entries]


def time_decode(folder: Path) -> Iterator[Finding]:
    """Eager forward of one token per row, and of a prompt."""
    wide = Tiny(n_layers=12, width=768, ffn_width=3072, vocab_size=65536, ranks=(64, 64, 32, 128))
    write_folder(folder, wide, random_weights(wide))
    for path, label in ((BUNDLED, "bundled 10M"), (folder, "random 12 x 768")):
        model = load_model(path, device="cuda", dtype="bfloat16")
        for n_rows in (1, 16, 128, 512):
            arena = Arena(model.layout, n_rows, "cuda")
            batch = batch_of([(slot, [slot % 256]) for slot in range(n_rows)], "cuda")
            yield timing(
                f"decode forward, eager, bfloat16, {label}, {n_rows} rows",
                partial(model.forward, batch, arena.views),
            )
        arena = Arena(model.layout, 1, "cuda")
        batch = batch_of([(0, [i % 256 for i in range(2048)])], "cuda")
        yield timing(
            f"prefill forward, eager, bfloat16, {label}, 2048 tokens",
            partial(model.forward, batch, arena.views),
        )


def timing(what: str, call: Callable[[], object], n: int = 30) -> Finding:
    """Milliseconds of ``call`` by CUDA events, after a warm-up."""
    for _ in range(5):
        call()
    times = []
    for _ in range(n):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    cuts = quantiles(times, n=10)
    spread = {"median_ms": median(times), "p10_ms": cuts[0], "p90_ms": cuts[8]}
    return {"timing": what, **spread, "n": n}


def main() -> int:
    """Run all of it; 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/gpu_check"))
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    # Golden logits are float32 ones; TF32 keeps ten bits of a factor.
    torch.backends.cuda.matmul.allow_tf32 = False
    with args.output.open("w") as output:
        findings = Findings(output, commit=args.commit, command="python tools/gpu_check.py")
        for part in (
            check_goldens(),
            check_tests(args.reference),
            time_decode(args.scratch),
        ):
            for finding in part:
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
