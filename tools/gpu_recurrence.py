"""The recurrence of a decode step on a GPU: dtypes of states, deferred writes, drift, time.

    python tools/gpu_recurrence.py check drift time step --output bench/results/FILE.jsonl

One JSON line per finding, each with commit, device, versions and command; timings are graph
replays. Exit status 1 if a check failed.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import relative  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import random_parameters, shape_of  # noqa: E402
from tools.gpu_timing import copy_bandwidth, graph_of, milliseconds  # noqa: E402
from wkvm.core.layout import StateOptions  # noqa: E402
from wkvm.kernels.rwkv7_decode import Ring, begin_ring, fold, wkv  # noqa: E402
from wkvm.models.rwkv7 import RING, RING_FILL, WKV, layout_of  # noqa: E402
from wkvm.models.rwkv7_decode import DecodeStep  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

K, GROUP_EPS = 64, 64e-5
RANKS = (96, 96, 64, 256)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Inputs = tuple[Tensor, Tensor, Tensor]
"""r, k, v ``[3, B, C]``; those of the first layer; outputs of the low-rank maps ``[B, 4, C]``."""


@dataclass(frozen=True, slots=True)
class Way:
    """How states are kept, and how the kernel is launched."""

    state: str = "float32"
    deferred: bool = False
    n_warps: int = 1

    def __str__(self) -> str:
        words = [self.state, "deferred" if self.deferred else "at once", f"{self.n_warps} warps"]
        return ", ".join(words)


class States:
    """States of ``L`` layers, ``[N, L, H, K, K]``, with rings where writes are deferred."""

    def __init__(self, way: Way, N: int, L: int, H: int, dtype: torch.dtype) -> None:
        self.way = way
        self.wkv = torch.zeros(N, L, H, K, K, dtype=DTYPES[way.state], device="cuda")
        n = 7 if way.deferred else 1
        self.ring = torch.full((N, L, H, n, 4, K), float("nan"), dtype=dtype, device="cuda")
        self.fill = torch.zeros(N, 1, dtype=torch.int32, device="cuda")

    def step(self, layer: int, inputs: Inputs, vectors: Tensor, y: Tensor, slots: Tensor) -> None:
        """One token of each row, in one layer."""
        rkv, first, second = inputs
        if self.way.deferred and layer == 0:
            self.rows = torch.empty(3, len(slots), dtype=torch.int32, device="cuda")
            begin_ring(slots, self.fill, self.rows, 8)
        wkv(
            rkv,
            first,
            second,
            vectors,
            RANKS,
            y,
            self.wkv[:, layer],
            slots,
            GROUP_EPS,
            second=second,
            is_first=False,
            ring=Ring(self.ring[:, layer], self.rows) if self.way.deferred else None,
            n_warps=self.way.n_warps,
        )

    def folded(self, vectors: Tensor) -> Tensor:
        """The matrices after all tokens. The rings are left as they are."""
        if not self.way.deferred:
            return self.wkv
        state, fill = self.wkv.clone(), self.fill.clone()
        slots = torch.arange(len(state), dtype=torch.int32, device="cuda")
        fold(state, self.ring, fill, vectors, slots)
        return state


def vectors_of(H: int, draw: torch.Generator) -> Tensor:
    """``[8, C]``, as in a model: decays of half a token to some thousand."""
    C = H * K
    vectors = torch.randn(8, C, generator=draw, device="cuda") * 0.2
    vectors[0] = torch.randn(C, generator=draw, device="cuda") * 2 - 4
    vectors[3] += 0.7
    vectors[4] += 1.0
    vectors[6] += 1.0
    return vectors


def inputs_of(B: int, H: int, draw: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Random ones."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device="cuda").to(dtype)

    return normal(3, B, H * K), normal(3, B, H * K), normal(B, 4, H * K)


def exact_step(S: Tensor, inputs: Inputs, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """State and output in float64; ``S`` is ``[B, H, K, K]``."""
    w0, a0, v0, k_k, k_a, r_k, norm_w, norm_b = vectors.double()
    (r, k, v), first, second = (t.double() for t in inputs)
    lerp, w, a, g = second.unbind(1)
    heads = (-1, *S.shape[1:3])
    w = torch.exp(-0.6065306597126334 * torch.sigmoid(w0 + w)).view(heads)
    a = torch.sigmoid(a0 + a)
    v = (v + (first[2] - v) * torch.sigmoid(v0 + lerp)).view(heads)
    kap = torch.nn.functional.normalize((k * k_k).view(heads), dim=-1)
    k, a = (k * (1 + (a - 1) * k_a)).view(heads), a.view(heads)
    r = r.view(heads)
    removed = torch.einsum("bhkv,bhk->bhv", S, kap)
    S = w[..., None] * S - (kap * a)[..., None] * removed[:, :, None] + k[..., None] * v[:, :, None]
    y = torch.einsum("bhkv,bhk->bhv", S, r)
    y = torch.nn.functional.layer_norm(y, (K,), None, None, GROUP_EPS).flatten(1)
    bonus = ((r * k * r_k.view(heads[1:])).sum(-1, keepdim=True) * v).flatten(1)
    return S, (y * norm_w + norm_b + bonus) * g


WAYS = (
    Way(),
    Way("float16"),
    Way("bfloat16"),
    Way(deferred=True),
    Way("float16", deferred=True),
    Way("bfloat16", deferred=True),
    Way(deferred=True, n_warps=2),
)

BARS = {
    (torch.float32, "float32"): 1e-5,
    (torch.bfloat16, "float32"): 5e-3,
    (torch.float32, "float16"): 3e-3,
    (torch.bfloat16, "float16"): 5e-3,
    (torch.float32, "bfloat16"): 2e-2,
    (torch.bfloat16, "bfloat16"): 2e-2,
}
"""Relative norm of outputs and states over 40 steps, by dtype of the model and of the states."""


def check() -> Iterator[Finding]:
    """40 steps of rows in different phases, and pad rows, against float64."""
    H, N, B = 5, 12, 7
    for dtype in (torch.float32, torch.bfloat16):
        for way in WAYS:
            draw = torch.Generator("cuda").manual_seed(5)
            vectors = vectors_of(H, draw)
            states = States(way, N, 1, H, dtype)
            untouched = 11
            states.wkv[untouched] = float("nan")
            S = torch.zeros(N, H, K, K, dtype=torch.float64, device="cuda")
            worst = 0.0
            for _ in range(40):
                slots = torch.randperm(11, generator=draw, device="cuda")[:B].int()
                slots[1] = -1
                live = slots >= 0
                inputs = inputs_of(B, H, draw, dtype)
                y = torch.full((B, H * K), float("nan"), dtype=dtype, device="cuda")
                states.step(0, inputs, vectors, y, slots)
                named = slots[live].long()
                of_live = (inputs[0][:, live], inputs[1][:, live], inputs[2][live])
                S[named], exact = exact_step(S[named], of_live, vectors)
                worst = max(worst, relative(y[live], exact))
                if y[~live].any():
                    worst = float("inf")
            state = states.folded(vectors[None])[:untouched, 0]
            bar = BARS[dtype, way.state]
            error = relative(state, S[:untouched])
            kept = bool(states.wkv[untouched].isnan().all()) and not states.fill[untouched].any()
            yield {
                "check": f"recurrence against float64, {way}, inputs {dtype}",
                "ok": max(worst, error) < bar and kept,
                "relative_errors": {"outputs": worst, "states": error},
                "other_slots_untouched": kept,
            }


def drift(n_steps: int = 10_000) -> Iterator[Finding]:
    """Random inputs in float32, for as long as a long answer: errors by the number of steps."""
    B, H = 4, 4
    ways = [way for way in WAYS if way.n_warps == 1]
    draw = torch.Generator("cuda").manual_seed(6)
    vectors = vectors_of(H, draw)
    kept = {way: States(way, B, 1, H, torch.float32) for way in ways}
    S = torch.zeros(B, H, K, K, dtype=torch.float64, device="cuda")
    slots = torch.arange(B, dtype=torch.int32, device="cuda")
    y = {way: torch.empty(B, H * K, device="cuda") for way in ways}
    inputs = inputs_of(B, H, draw, torch.float32)
    exact = torch.empty(B, H * K, dtype=torch.float64, device="cuda")

    def launch() -> None:
        for way in ways:
            kept[way].step(0, inputs, vectors, y[way], slots)
        new, out = exact_step(S, inputs, vectors)
        S.copy_(new)
        exact.copy_(out)

    graph = graph_of(launch)
    for way in ways:
        kept[way].wkv.zero_()
        kept[way].fill.zero_()
    S.zero_()
    marks = [10, 100, 1000, 3000, n_steps]
    outputs = {way: torch.zeros((), dtype=torch.float64, device="cuda") for way in ways}
    found: dict[Way, dict[str, dict[str, float]]] = {way: {} for way in ways}
    for step in range(1, n_steps + 1):
        for buffer, fresh in zip(inputs, inputs_of(B, H, draw, torch.float32), strict=True):
            buffer.copy_(fresh)
        graph.replay()
        for way in ways:
            error = (y[way].double() - exact).norm() / exact.norm()
            outputs[way] = torch.maximum(outputs[way], error)
        if step in marks:
            for way in ways:
                found[way][str(step)] = {
                    "state": relative(kept[way].folded(vectors[None])[:, 0], S),
                    "largest_of_outputs_so_far": float(outputs[way]),
                }
    for way in ways:
        last = found[way][str(n_steps)]
        yield {
            "check": f"drift over {n_steps} steps of random inputs, {way}",
            "ok": max(last.values()) < 5 * BARS[torch.float32, way.state],
            "relative_errors_after_steps": found[way],
            "norm_of_states": float(S.norm()),
        }


def state_bytes(way: Way, H: int) -> float:
    """Bytes that a row moves in one layer, on average over the phases."""
    item = DTYPES[way.state].itemsize
    if not way.deferred:
        return 2 * H * K * K * item
    return H * (K * K * item * (1 + 1 / 8) + 4 * K * 2 * (3.5 + 7 / 8) + 8)


def time(rows: list[int], bandwidth: float) -> Iterator[Finding]:
    """24 layers of 32 heads, one after another in a graph; bfloat16 inputs."""
    L, H = 24, 32
    draw = torch.Generator("cuda").manual_seed(7)
    vectors = vectors_of(H, draw)
    ways = [way for way in WAYS if way.n_warps == 1]
    for B in rows:
        for way in ways:
            try:
                yield _timed(way, B, L, H, vectors, draw, bandwidth)
            except Exception as error:  # noqa: BLE001
                print(B, way, repr(error)[:300])
            torch.cuda.empty_cache()


def _timed(
    way: Way, B: int, L: int, H: int, vectors: Tensor, draw: torch.Generator, bandwidth: float
) -> Finding:
    states = States(way, B, L, H, torch.bfloat16)
    states.wkv.normal_(generator=draw)
    states.ring.normal_(generator=draw)
    inputs = inputs_of(B, H, draw, torch.bfloat16)
    slots = torch.randperm(B, generator=draw, device="cuda").int()
    y = torch.empty(B, H * K, dtype=torch.bfloat16, device="cuda")

    def launch() -> None:
        for layer in range(L):
            states.step(layer, inputs, vectors, y, slots)

    graph = graph_of(launch)
    by_phase = {}
    for name in ("different", "same") if way.deferred else ("none",):
        phases = torch.randint(8, (B, 1), generator=draw, device="cuda", dtype=torch.int32)
        states.fill.copy_(phases if name == "different" else torch.zeros_like(phases))
        # Groups of eight replays: each has every phase once.
        times = milliseconds(graph.replay, 8, 5)
        by_phase[name] = median(times) / L * 1e3
    us = by_phase.get("different", by_phase.get("none", 0.0))
    n_bytes = B * state_bytes(way, H)
    return {
        "timing": f"recurrence of one layer, 32 heads, {B} rows, {way}",
        "median_us": round(us, 2),
        "us_by_phases": {name: round(value, 2) for name, value in by_phase.items()},
        "tb_per_s": round(n_bytes / us / 1e6, 3),
        "mb_counted": round(n_bytes / 1e6, 1),
        "finite": bool(y.isfinite().all()),
        "copy_tb_per_s": round(bandwidth / 1e12, 3),
    }


def step(rows: list[int], bandwidth: float) -> Iterator[Finding]:
    """Whole decode steps of the 1.5B shape: bare forward passes, rows in different phases."""
    parameters = random_parameters(shape_of("1.5B"), torch.bfloat16)
    model = Rwkv7Decode(shape_of("1.5B"), parameters)
    parameters.clear()
    for B in rows:
        for option in (
            ("float32", False),
            ("float32", True),
            ("float16", False),
            ("float16", True),
        ):
            layout = layout_of(model.shape, "bfloat16", StateOptions(*option))
            arena = Arena(layout, B, "cuda")
            arena.views[WKV].normal_().mul_(0.3)
            if option[1]:
                arena.views[RING].normal_()
                arena.views[RING_FILL].copy_(torch.randint(8, (B, 1), dtype=torch.int32))
            one = DecodeStep(model, B)
            one.slots.copy_(torch.randperm(B))
            one.token_ids.copy_(torch.randint(model.shape.vocab_size, (B,)))
            graph = graph_of(partial(one.launch, arena.views))
            ms = median(milliseconds(graph.replay, 8 if B >= 256 else 16, 7))
            wkv_of = arena.views[WKV][:4]
            yield {
                "timing": f"decode step, graph, 1.5B, {B} rows, state {option[0]}"
                + (", deferred writes" if option[1] else ""),
                "median_ms": round(ms, 4),
                "tokens_per_s": round(B / ms * 1e3),
                "finite": bool(one.logits.isfinite().all() and wkv_of.isfinite().all()),
                "record_bytes": layout.record_bytes,
                "copy_tb_per_s": round(bandwidth / 1e12, 3),
            }
            del arena, one, graph
            torch.cuda.empty_cache()


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256, 1024])
    args = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "check": check,
        "drift": drift,
        "step": lambda: step(args.rows, copy_bandwidth()),
        "time": lambda: time(args.rows, copy_bandwidth()),
    }
    with recorded(args) as findings:
        for part in args.what:
            for finding in parts[part]():
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
