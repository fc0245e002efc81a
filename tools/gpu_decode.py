"""The decode step on a GPU: is it right, how fast is it, and where does the time go.

    python tools/gpu_decode.py check time profile --output bench/results/FILE.jsonl

One JSON line per finding, each with commit, device, versions and command; timings are graph
replays. Random weights with bounded activations. Exit status 1 if a check failed.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import Float64Step, relative  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import BUNDLED, random_parameters, shape_of  # noqa: E402
from tools.gpu_timing import copy_bandwidth, graph_of, milliseconds  # noqa: E402
from wkvm.models.rwkv7 import WKV, layout_of  # noqa: E402
from wkvm.models.rwkv7_decode import DecodeStep  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_params import load_parameters, read_shape  # noqa: E402
from wkvm.models.rwkv7_plans import Plan  # noqa: E402
from wkvm.models.weights import open_checkpoint  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BARS = {
    ("1.5B", 1): 1000,
    ("1.5B", 32): 24000,
    ("1.5B", 256): 80000,
    ("1.5B", 1024): 95000,
    ("7.2B", 1): 280,
    ("7.2B", 32): 6300,
    ("7.2B", 256): 24000,
}


def check() -> Iterator[Finding]:
    """Layers of the 1.5B shape against float64: rows, states, neighbours, pad rows.

    The bar is that of one layer; two in a row, of which the second has the value residual, may
    add up theirs.
    """
    for n_layers in (1, 2):
        shape = shape_of("1.5B", n_layers)
        for dtype, bar in ((torch.bfloat16, 5e-3), (torch.float16, 5e-3), (torch.float32, 1e-5)):
            parameters = random_parameters(shape, dtype)
            model = Rwkv7Decode(shape, parameters)
            layout = layout_of(shape, str(dtype).removeprefix("torch."))
            for n_rows in (1, 2, 4, 5, 17, 64, 100, 256, 300):
                if dtype == torch.bfloat16 or n_rows in (4, 5, 64, 100):
                    yield check_rows(model, parameters, layout, n_rows, bar * n_layers)


def check_rows(
    model: Rwkv7Decode,
    parameters: dict[str, Tensor],
    layout: Any,
    n_rows: int,
    bar: float,
    plan: Plan | None = None,
) -> Finding:
    """Three steps from random states."""
    shape = model.shape
    draw = torch.Generator().manual_seed(n_rows)
    n_slots = n_rows + 3
    arena = Arena(layout, n_slots, "cuda")
    arena.poison(range(n_slots))
    order = torch.randperm(n_slots, generator=draw)[:n_rows]
    is_pad = torch.zeros(n_rows, dtype=torch.bool)
    if n_rows > 2:
        is_pad[1::5] = True
    slots = torch.where(is_pad, -1, order).to(torch.int32)
    live = (~is_pad).nonzero()[:, 0]
    named = order[live].cuda()
    for view in arena.views.values():
        size = (len(live), *view.shape[1:])
        # As large as states become: the recurrence removes what it adds.
        view[named] = torch.randn(*size, generator=draw).cuda().to(view.dtype) * 0.3
    before = arena.records.clone()
    step = DecodeStep(model, n_rows, plan=plan)
    exact = Float64Step(
        shape, parameters, model.table, {name: view[named] for name, view in arena.views.items()}
    )
    step.slots.copy_(slots)
    worst = dict.fromkeys(("branches", "logits", *arena.views), 0.0)
    for _ in range(3):
        ids = torch.randint(shape.vocab_size, (n_rows,), generator=draw)
        step.token_ids.copy_(ids)
        for buffer in step.buffers():
            buffer.fill_(float("nan"))
        step.launch(arena.views)
        live_ids = ids[live].cuda()
        residuals, logits = exact(live_ids)
        pairs = {
            "branches": (
                step.residual[live] - model.table[live_ids].float(),
                residuals[-1] - residuals[0],
            ),
            "logits": (step.logits[live], logits),
            **{name: (view[named], exact.states[name]) for name, view in arena.views.items()},
        }
        for name, (value, expected) in pairs.items():
            worst[name] = max(worst[name], relative(value, expected))
    others = torch.ones(n_slots, dtype=torch.bool)
    others[named.cpu()] = False
    untouched = torch.equal(arena.records[others.cuda()], before[others.cuda()])
    pads_finite = bool(step.logits.isfinite().all())
    return {
        "check": f"decode step against float64, {shape.n_layers} layers of {shape.width}, "
        f"{model.dtype}, {n_rows} rows",
        "ok": max(worst.values()) < bar and untouched and pads_finite,
        "relative_errors": {name: float(f"{e:.3g}") for name, e in worst.items()},
        "other_slots_untouched": untouched,
        "pad_rows_finite": pads_finite,
    }


def check_goldens() -> Iterator[Finding]:
    """The bundled model, ids one by one: prompts of several lengths, then 64 greedy ids of each."""
    golden = np.load(BUNDLED / "golden.npz")
    prompts = [e["prompt_ids"] for e in json.loads((BUNDLED / "golden.json").read_text())]
    checkpoint = open_checkpoint(BUNDLED)
    shape = read_shape(checkpoint)
    for dtype in (torch.float32, torch.bfloat16):
        parameters = {
            name: tensor.to("cuda", dtype).contiguous()
            for name, tensor in load_parameters(checkpoint, shape)
        }
        model = Rwkv7Decode(shape, parameters)
        layout = layout_of(shape, str(dtype).removeprefix("torch."))
        for n_rows in (4, 8, 40, 100):
            used = min(n_rows, len(prompts))
            arena = Arena(layout, len(prompts), "cuda")
            step = DecodeStep(model, n_rows)
            graph = graph_of(partial(step.launch, arena.views))
            arena.zero(range(len(prompts)))
            logits = torch.zeros(used, shape.vocab_size)
            ids = torch.zeros(used, max(map(len, prompts)) + 64, dtype=torch.int64)
            for row, prompt in enumerate(prompts[:used]):
                ids[row, : len(prompt)] = torch.tensor(prompt)
            lengths = torch.tensor([len(prompt) for prompt in prompts[:used]])
            for t in range(int(lengths.max()) + 63):
                live = t < lengths + 63
                slots = torch.full((n_rows,), -1, dtype=torch.int32)
                slots[:used] = torch.where(live, torch.arange(used), -1).to(torch.int32)
                step.slots.copy_(slots)
                step.token_ids[:used].copy_(ids[:, t])
                graph.replay()
                best = step.logits[:used].argmax(1).cpu()
                ends = lengths - 1 == t
                logits[ends] = step.logits[:used].cpu()[ends]
                follows = live & (t >= lengths - 1)
                ids[follows, t + 1] = best[follows]
            found = torch.stack([ids[r, n : n + 64] for r, n in enumerate(lengths.tolist())])
            error = np.abs(logits.numpy() - golden["logits"][:used])
            same = found.numpy() == golden["continuations"][:used]
            exact = dtype == torch.float32
            yield {
                "check": f"bundled goldens, captured decode step, {dtype}, {n_rows} rows",
                "ok": bool(error.max() < (5e-5 if exact else 0.2) and (same.all() or not exact)),
                "max_logit_error": float(error.max()),
                "mean_logit_error": float(error.mean()),
                "greedy_prefix_agreement": float(np.cumprod(same, axis=1).mean()),
            }


def weight_bytes(model: Rwkv7Decode) -> int:
    """Of all matrices that a step reads whole."""
    shape = model.shape
    C = shape.width
    low_rank = C * sum(shape.ranks.values())
    held = 4 * C * C + 2 * C * shape.ffn_width + low_rank
    n_bytes = held * model.layers[0].first.values.itemsize + low_rank * model.dtype.itemsize
    return shape.n_layers * n_bytes + shape.vocab_size * C * model.dtype.itemsize


def operations(model: Rwkv7Decode) -> int:
    """Of all products, for one row."""
    shape = model.shape
    C = shape.width
    per_layer = 4 * C * C + 2 * C * shape.ffn_width + 2 * C * sum(shape.ranks.values())
    return 2 * (shape.n_layers * per_layer + shape.vocab_size * C)


class Timed:
    """A model of random weights, and steps over one arena."""

    def __init__(
        self,
        name: str,
        max_rows: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        quantization: str = "none",
    ) -> None:
        self.name = name
        self.shape = shape_of(name)
        parameters = random_parameters(self.shape, dtype)
        self.model = Rwkv7Decode(self.shape, parameters, quantization=quantization)
        self.layout = layout_of(self.shape, str(dtype).removeprefix("torch."))
        self.arena = Arena(self.layout, max_rows, "cuda")
        self.max_rows = max_rows

    def step(self, n_rows: int, **options: Any) -> DecodeStep:
        """Warmed up on states that stay."""
        step = DecodeStep(self.model, n_rows, **options)
        step.slots.copy_(torch.randperm(self.max_rows)[:n_rows])
        step.token_ids.copy_(torch.randint(self.shape.vocab_size, (n_rows,)))
        return step

    def time(self, n_rows: int, bandwidth: float, **options: Any) -> Finding:
        """Tokens a second of graph replays."""
        step = self.step(n_rows, **options)
        graph = graph_of(lambda: step.launch(self.arena.views))
        times = milliseconds(graph.replay, 20 if n_rows < 256 else 6)
        ms = median(times)
        state_bytes = sum(spec.nbytes for spec in self.layout.tensors)
        n_bytes = weight_bytes(self.model)
        bytes_ms = (n_bytes + 2 * n_rows * state_bytes) / bandwidth * 1e3
        flop_ms = operations(self.model) * n_rows / 780e12 * 1e3
        serial_ms = max(n_bytes / bandwidth * 1e3, flop_ms) + 2e3 * n_rows * state_bytes / bandwidth
        cuts = quantiles(times, n=10)
        bar = BARS.get((self.name, n_rows))
        wkv = self.arena.views[WKV][step.slots.long()[:4]]
        return {
            "timing": f"decode step, graph, {self.name}, {n_rows} rows",
            "median_ms": round(ms, 4),
            "p10_ms": round(cuts[0], 4),
            "p90_ms": round(cuts[8], 4),
            "n": len(times),
            "tokens_per_s": round(n_rows / ms * 1e3),
            "of_bandwidth_floor": round(bytes_ms / ms, 3),
            "of_serial_floor": round(serial_ms / ms, 3),
            "of_bar": bar and round(n_rows / ms * 1e3 / bar, 3),
            "finite": bool(step.logits.isfinite().all() and wkv.isfinite().all()),
            "largest_state": float(wkv.abs().max()),
            "copy_tb_per_s": round(bandwidth / 1e12, 3),
        }

    def profile(self, n_rows: int, **options: Any) -> Finding:
        """Microseconds of each kernel of a step, summed by name and shape of the launch."""
        step = self.step(n_rows, **options)
        graph = graph_of(lambda: step.launch(self.arena.views))
        graph.replay()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        totals: dict[str, list[float]] = defaultdict(list)
        spans = []
        for event in events:
            if event.get("cat") == "kernel":
                grid = "x".join(map(str, event["args"]["grid"][:2]))
                totals[f"{event['name'][:40]} {grid}"].append(event["dur"])
                spans.append((event["ts"], event["ts"] + event["dur"]))
        busy = {
            name: {"n": len(d) // 3, "median_us": round(median(d), 2), "sum_us": round(sum(d) / 3)}
            for name, d in sorted(totals.items(), key=lambda item: -sum(item[1]))
        }
        total = (max(e for _, e in spans) - min(s for s, _ in spans)) / 3
        return {"profile": f"{self.name}, {n_rows} rows", "wall_us": round(total), "kernels": busy}


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--model", default="1.5B")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256, 512, 1024])
    args = parser.parse_args()
    with recorded(args) as findings:
        if "check" in args.what:
            for finding in (*check_goldens(), *check()):
                findings.add(finding)
        if {"time", "profile"} & set(args.what):
            bandwidth = copy_bandwidth()
            timed = Timed(args.model, max(args.rows))
            for n_rows in args.rows:
                if "time" in args.what:
                    findings.add(timed.time(n_rows, bandwidth))
                if "profile" in args.what:
                    findings.add(
                        timed.profile(n_rows, plan=replace(timed.model.plan_of(n_rows), pdl=False))
                    )
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
