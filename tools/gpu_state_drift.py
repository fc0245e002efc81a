"""How far the bundled model drifts from float64 over a long answer, by the dtype of its states.

    python tools/gpu_state_drift.py --output bench/results/FILE.jsonl

Rows of ids drawn from the float64 model; every version absorbs the same ids, one a step, through
captured decode steps. One JSON line per version, with commit, device, versions and command.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import Float64Step  # noqa: E402
from tools.gpu_decode import graph_of, relative  # noqa: E402
from tools.gpu_findings import Finding, Findings  # noqa: E402
from wkvm.core.layout import StateOptions  # noqa: E402
from wkvm.models.rwkv7 import RING, WKV, layout_of  # noqa: E402
from wkvm.models.rwkv7_decode import DecodeStep  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_params import Rwkv7Shape, load_parameters, read_shape  # noqa: E402
from wkvm.models.weights import open_checkpoint  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BUNDLED = ROOT / "wkvm/bundled/rwkv7-tinystories"
B = 8
MARKS = (10, 100, 1000, 3000, 10_000)

VERSIONS = [
    (weights, StateOptions(state, deferred))
    for weights in ("float32", "bfloat16")
    for state in ("float32", "float16", "bfloat16")
    for deferred in (False, True)
    if not (deferred and state == "bfloat16")
]


class Version:
    """One version of the model, with states of its own."""

    def __init__(
        self, shape: Rwkv7Shape, parameters: dict[str, Tensor], dtype: str, state: StateOptions
    ) -> None:
        self.dtype, self.state = dtype, state
        model = Rwkv7Decode(shape, parameters)
        self.arena = Arena(layout_of(shape, dtype, state), B, "cuda")
        self.step = DecodeStep(model, B)
        self.step.slots.copy_(torch.arange(B))
        self.graph = graph_of(partial(self.step.launch, self.arena.views))
        self.arena.zero(range(B))
        self.largest = torch.zeros(len(MARKS), dtype=torch.float64, device="cuda")
        self.total = torch.zeros(len(MARKS), dtype=torch.float64, device="cuda")
        self.state_errors: dict[str, float] = {}


def run(versions: list[Version], exact: Float64Step, seconds: float) -> int:
    """Absorb ids; the number of steps, which is the last mark unless time runs out."""
    began = time.monotonic()
    ids = torch.zeros(B, dtype=torch.int64, device="cuda")
    logits = torch.zeros(B, versions[0].step.logits.shape[1], dtype=torch.float64, device="cuda")

    def absorb() -> None:
        logits.copy_(exact(ids)[1])

    graph = graph_of(absorb)
    for state in exact.states.values():
        state.zero_()
    window = 0
    for step in range(1, MARKS[-1] + 1):
        graph.replay()
        expected = logits.log_softmax(-1)
        following = torch.multinomial(expected.exp(), 1)
        of_next = expected.gather(1, following)
        for version in versions:
            version.step.token_ids.copy_(ids)
            version.graph.replay()
            found = version.step.logits.double().log_softmax(-1)
            error = (found.gather(1, following) - of_next).abs()
            version.largest[window] = torch.maximum(version.largest[window], error.max())
            version.total[window] += error.mean()
        if step == MARKS[window]:
            for version in versions:
                if RING not in version.arena.views:
                    version.state_errors[str(step)] = relative(
                        version.arena.views[WKV], exact.states[WKV]
                    )
            window += 1
        if step % 500 == 0 and time.monotonic() - began > seconds:
            return step
        ids.copy_(following[:, 0])
    return step


def main() -> int:
    """Measure all versions together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--seconds", type=float, default=90.0)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    command = " ".join(["python", *sys.argv]).replace(str(args.output), "FILE")
    command = command.replace(str(args.model), "MODEL")
    checkpoint = open_checkpoint(args.model)
    shape = read_shape(checkpoint)
    stored = dict(load_parameters(checkpoint, shape))
    with args.output.open("a") as output, torch.inference_mode():
        findings = Findings(output, commit=args.commit, command=command)
        parameters = {
            dtype: {
                name: tensor.to("cuda", getattr(torch, dtype)).contiguous()
                for name, tensor in stored.items()
            }
            for dtype in ("float32", "bfloat16")
        }
        versions = [Version(shape, parameters[d], d, state) for d, state in VERSIONS]
        states = {name: view.clone() for name, view in versions[0].arena.views.items()}
        exact = Float64Step(shape, parameters["float32"], versions[0].step.model.table, states)
        n_steps = run(versions, exact, args.seconds)
        starts = (0, *MARKS)
        for version in versions:
            windows: Finding = {}
            for start, mark, largest, total in zip(
                starts, MARKS, version.largest.tolist(), version.total.tolist(), strict=False
            ):
                n = min(mark, n_steps) - start
                if n > 0:
                    windows[f"{start}-{min(mark, n_steps)}"] = {
                        "mean": float(f"{total / n:.3g}"),
                        "max": float(f"{largest:.3g}"),
                    }
            findings.add(
                {
                    "drift": f"bundled model, weights {version.dtype}, states {version.state.dtype}"
                    + (", deferred writes" if version.state.deferred else ""),
                    "n_steps": n_steps,
                    "rows": B,
                    "logprob_error_of_drawn_ids": windows,
                    "state_relative_errors": version.state_errors,
                }
            )
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
