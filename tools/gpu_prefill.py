"""Prompts of RWKV-7 on a GPU: are they absorbed right, how fast, and where does the time go.

    python tools/gpu_prefill.py check time profile --output bench/results/FILE.jsonl

One JSON line per finding, each with commit, device, versions and command. Random weights with
bounded activations. Exit status 1 if a check failed.
"""

import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import Float64Step, relative  # noqa: E402
from tests.models.tiny_rwkv7 import Row, batch_of  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import random_parameters, shape_of  # noqa: E402
from wkvm.models.rwkv7 import WKV, layout_of  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_prefill import Prefill  # noqa: E402
from wkvm.models.rwkv7_prefill_step import STEP_TOKENS, PrefillGraphs  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BARS = {("1.5B", 1, 4096): 55_000, ("1.5B", 32, 1024): 130_000, ("7.2B", 32, 1024): 36_000}

CHECKED_VOCABULARY = 2048
"""Ids of the models that are held against float64, which takes four times the memory."""

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def random_rows(
    slots: Sequence[int], lengths: Sequence[int], vocab_size: int, seed: int
) -> list[Row]:
    """Rows of random ids."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(vocab_size, (n,), generator=draw).tolist() for n in lengths]
    return list(zip(slots, ids, strict=True))


def filled(arena: Arena, live: Sequence[int]) -> None:
    """Random states in the slots of ``live``, NaN in the others."""
    arena.poison(range(arena.n_slots))
    draw = torch.Generator("cuda").manual_seed(7)
    for view in arena.views.values():
        size = (len(live), *view.shape[1:])
        values = torch.randn(*size, generator=draw, device="cuda") * 0.3
        view[torch.tensor(live, device="cuda")] = values.to(view.dtype)


def check(names: Sequence[str]) -> Iterator[Finding]:
    """One layer of the 1.5B shape against float64, then two, which may add up their errors."""
    bars = {torch.bfloat16: 5e-3, torch.float16: 5e-3, torch.float32: 1e-5}
    for dtype, bar in bars.items():
        if NAMES[dtype] not in names:
            continue
        for n_layers in (1, 2):
            shape = replace(shape_of("1.5B", n_layers), vocab_size=CHECKED_VOCABULARY)
            parameters = random_parameters(shape, dtype)
            model = Rwkv7Decode(shape, parameters)
            for lengths in ((1, 5, 64, 65, 130), (1, 1, 1), (300,)):
                yield check_rows(model, parameters, lengths, bar * n_layers)
            if dtype != torch.float16:
                yield check_cuts(model, lengths=(448, 70, 129))


def check_rows(
    model: Rwkv7Decode, parameters: dict[str, Tensor], lengths: Sequence[int], bar: float
) -> Finding:
    """Packed rows and a pad row from random states."""
    shape = model.shape
    slots = [3 + 2 * row for row in range(len(lengths))]
    arena = Arena(layout_of(shape, NAMES[model.dtype]), 2 * len(lengths) + 4, "cuda")
    filled(arena, slots)
    before = arena.records.clone()
    rows = random_rows(slots, lengths, shape.vocab_size, 1)
    named = torch.tensor(slots, device="cuda")
    states = {name: view[named] for name, view in arena.views.items()}
    prefill = Prefill(model)
    pad: Row = (-1, [1, 2, 3])
    batch = batch_of([*rows, pad], "cuda", all_logits=True)
    # What the allocator hands out next: bytes of 255 are a NaN in every float dtype.
    n_bytes = prefill.workspace_bytes(sum(lengths) + 3, 0)
    poison = torch.full((n_bytes,), 255, dtype=torch.uint8, device="cuda")
    del poison
    logits = prefill(batch, arena.views)
    worst = dict.fromkeys(("residual", "logits", *arena.views), 0.0)
    exact_logits = []
    for row, (_, ids) in enumerate(rows):
        alone = {name: view[row : row + 1] for name, view in states.items()}
        exact = Float64Step(shape, parameters, model.table, alone)
        exact_logits += [exact(torch.tensor([i], device="cuda"))[1][0] for i in ids]
        for name, view in arena.views.items():
            error = relative(view[slots[row]], exact.states[name][0])
            worst[name] = max(worst[name], error)
    worst["logits"] = relative(logits[: sum(lengths)], torch.stack(exact_logits))
    del worst["residual"]
    others = [slot for slot in range(arena.n_slots) if slot not in slots]
    untouched = torch.equal(arena.records[others], before[others])
    finite = bool(logits.isfinite().all())
    return {
        "check": f"prompts of {list(lengths)} tokens against float64, {shape.n_layers} layers of "
        f"{shape.width}, {NAMES[model.dtype]}",
        "ok": max(worst.values()) < bar and untouched and finite,
        "relative_errors": {name: float(f"{e:.3g}") for name, e in worst.items()},
        "other_slots_untouched": untouched,
        "finite": finite,
    }


def check_branches(
    model: Rwkv7Decode, parameters: dict[str, Tensor], lengths: Sequence[int], bar: float
) -> Finding:
    """What the layers add to the residual, from empty states, all rows of one length at once."""
    shape = model.shape
    n_rows, n_tokens = len(lengths), lengths[0]
    arena = Arena(layout_of(shape, NAMES[model.dtype]), n_rows, "cuda")
    rows = random_rows(range(n_rows), lengths, shape.vocab_size, 3)
    states = {name: view.clone() for name, view in arena.views.items()}
    batch = batch_of(rows, "cuda")
    prefill = Prefill(model)
    tables = prefill.tables(batch.slot_list, batch.lengths)
    x = prefill.absorb(batch.token_ids, tables, arena.views).view(n_rows, n_tokens, -1)
    exact = Float64Step(shape, parameters, model.table, states)
    ids = batch.token_ids.view(n_rows, n_tokens)
    branches, errors = 0.0, 0.0
    for t in range(n_tokens):
        residuals, _ = exact(ids[:, t])
        branch = residuals[-1] - residuals[0]
        got = x[:, t].double() - residuals[0]
        branches += float(branch.square().sum())
        errors += float((got - branch).square().sum())
    worst = {name: relative(view, exact.states[name]) for name, view in arena.views.items()}
    worst["branches"] = (errors / branches) ** 0.5
    return {
        "check": f"branches of {n_rows} prompts of {n_tokens} tokens against float64, "
        f"{shape.n_layers} layers of {shape.width}, {NAMES[model.dtype]}",
        "ok": max(worst.values()) < bar,
        "relative_errors": {name: float(f"{e:.3g}") for name, e in worst.items()},
    }


def check_cuts(model: Rwkv7Decode, lengths: Sequence[int]) -> Finding:
    """The same prompts whole, and cut at multiples of 64, packed with others: the same bits.

    The number of tokens of a launch, which the library's products depend on, stays the same.
    """
    shape = model.shape
    arena = Arena(layout_of(shape, NAMES[model.dtype]), 16, "cuda")
    prefill = Prefill(model)
    total = sum(lengths) + 64
    slots = list(range(len(lengths)))
    rows = random_rows(slots, lengths, shape.vocab_size, 2)

    def absorb(parts: list[Row]) -> None:
        filler = total - sum(len(ids) for _, ids in parts)
        prefill(batch_of([*parts, (15, [7] * filler)], "cuda"), arena.views)

    absorb(rows)
    whole = arena.records[slots].clone()
    arena.records.zero_()
    for slot, ids in reversed(rows):
        edges = [0, 64, 192, len(ids)] if len(ids) > 192 else [0, 64, len(ids)]
        for start, stop in pairwise(edges):
            absorb([(slot, ids[start:stop])])
    cut = arena.records[slots]
    return {
        "check": f"cuts at multiples of 64 change no bit, {shape.n_layers} layers, "
        f"{NAMES[model.dtype]}",
        "ok": torch.equal(cut, whole),
    }


def milliseconds(call: Callable[[], object], n: int) -> list[float]:
    """By CUDA events, each call apart."""
    for _ in range(2):
        call()
    times = []
    for _ in range(n):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


class Timed:
    """A model of random weights, and prompts of random ids."""

    def __init__(self, name: str, n_layers: int | None = None) -> None:
        self.name = name
        self.shape = shape_of(name, n_layers)
        parameters = random_parameters(self.shape, torch.bfloat16)
        self.model = Rwkv7Decode(self.shape, parameters)
        self.prefill = Prefill(self.model)
        self.arena = Arena(layout_of(self.shape, "bfloat16"), 64, "cuda")

    def call(self, n_rows: int, n_tokens: int) -> Callable[[], Tensor]:
        """Absorb that many prompts of that length."""
        rows = random_rows(range(n_rows), [n_tokens] * n_rows, self.shape.vocab_size, 5)
        batch = batch_of(rows, "cuda")
        return lambda: self.prefill(batch, self.arena.views)

    def time(self, n_rows: int, n_tokens: int, n: int = 7) -> Finding:
        """Tokens a second, and the host's part."""
        call = self.call(n_rows, n_tokens)
        times = milliseconds(call, n)
        torch.cuda.synchronize()
        start = time.perf_counter()
        logits = call()
        host_ms = (time.perf_counter() - start) * 1e3
        torch.cuda.synchronize()
        ms = median(times)
        rate = n_rows * n_tokens / ms * 1e3
        bar = BARS.get((self.name, n_rows, n_tokens))
        return {
            "timing": f"prefill, eager, {self.name}, {n_rows} prompts of {n_tokens} tokens",
            "median_ms": round(ms, 3),
            "min_ms": round(min(times), 3),
            "max_ms": round(max(times), 3),
            "n": n,
            "host_ms": round(host_ms, 2),
            "tokens_per_s": round(rate),
            "of_bar": bar and round(rate / bar, 3),
            "finite": bool(logits.isfinite().all()),
        }

    def time_steps(self) -> Iterator[Finding]:
        """Captured steps of a few hundred tokens of a prompt that goes on after them."""
        graphs = PrefillGraphs(self.model, self.prefill, self.arena.views)
        for n_tokens in STEP_TOKENS:
            rows = random_rows([3], [n_tokens], self.shape.vocab_size, 5)
            batch = batch_of(rows, "cuda")
            batch = replace(batch, logit_rows=batch.logit_rows[:0])
            times = milliseconds(lambda: graphs.forward(batch), 15)  # noqa: B023
            start = time.perf_counter()
            graphs.forward(batch)
            host_ms = (time.perf_counter() - start) * 1e3
            yield {
                "timing": f"prefill, captured, {self.name}, {n_tokens} tokens, no logits",
                "median_ms": round(median(times), 3),
                "max_ms": round(max(times), 3),
                "n": len(times),
                "host_ms": round(host_ms, 3),
                "finite": bool(self.arena.views[WKV][3].isfinite().all()),
            }

    def profile(self, n_rows: int, n_tokens: int) -> Finding:
        """Milliseconds of each kernel, summed by name and grid."""
        call: Callable[[], object] = self.call(n_rows, n_tokens)
        if n_rows * n_tokens <= STEP_TOKENS[-1]:
            graphs = PrefillGraphs(self.model, self.prefill, self.arena.views)
            rows = random_rows(range(n_rows), [n_tokens] * n_rows, self.shape.vocab_size, 5)
            call = partial(graphs.forward, batch_of(rows, "cuda"))
        call()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            call()
            torch.cuda.synchronize()
        totals: dict[str, list[float]] = defaultdict(list)
        for event in profiler.events() or ():
            if event.device_type.name == "CUDA":
                totals[event.name[:70]].append(event.time_range.elapsed_us())
        busy = {
            name: {"n": len(d), "median_us": round(median(d), 1), "sum_ms": round(sum(d) / 1e3, 3)}
            for name, d in sorted(totals.items(), key=lambda item: -sum(item[1]))
        }
        total = sum(sum(d) for d in totals.values()) / 1e3
        return {
            "profile": f"{self.name}, {n_rows} prompts of {n_tokens} tokens",
            "sum_ms": round(total, 2),
            "kernels": busy,
        }


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "what",
        nargs="+",
        choices=["check", "branches", "time", "steps", "profile"],
    )
    parser.add_argument("--model", default="1.5B")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtypes", nargs="+", choices=NAMES.values(), default=NAMES.values())
    parser.add_argument("--prompts", nargs="+", default=["1x4096", "32x1024", "1x256"])
    args = parser.parse_args()
    with recorded(args) as findings:
        if "branches" in args.what:
            for dtype, bar in ((torch.bfloat16, 5e-3), (torch.float32, 1e-5)):
                shape = replace(shape_of("1.5B", 1), vocab_size=CHECKED_VOCABULARY)
                parameters = random_parameters(shape, dtype)
                model = Rwkv7Decode(shape, parameters)
                findings.add(check_branches(model, parameters, [200] * 8, bar))
        if "check" in args.what:
            for finding in check(args.dtypes):
                findings.add(finding)
        if {"time", "steps", "profile"} & set(args.what):
            timed = Timed(args.model, args.layers)
            if "steps" in args.what:
                for finding in timed.time_steps():
                    findings.add(finding)
            for prompt in args.prompts:
                n_rows, n_tokens = map(int, prompt.split("x"))
                try:
                    if "time" in args.what:
                        findings.add(timed.time(n_rows, n_tokens))
                    if "profile" in args.what:
                        findings.add(timed.profile(n_rows, n_tokens))
                except Exception:  # noqa: BLE001
                    # One shape must not end the others.
                    traceback.print_exc()
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
