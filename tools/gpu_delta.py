"""The gated delta rule on a GPU: against float64, and how fast, beside fla's kernels.

    python tools/gpu_delta.py check decode prefill --output bench/results/FILE.jsonl
    python tools/gpu_delta.py decode prefill --sweep --rows 32 --output bench/results/FILE.jsonl

With ``--sweep`` launch constants are varied. Shapes are those of transformers' default Qwen3.5 text
configuration and of Kimi Linear. One JSON line per finding, each with commit, device, versions and
command; timings are graph replays, but for what cannot be captured, of which it is said. Exit
status 1 if a check failed.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import relative  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_timing import copy_bandwidth, graph_of, milliseconds  # noqa: E402
from wkvm.kernels import reference  # noqa: E402
from wkvm.kernels.gpu import delta_decode, delta_prefill, delta_within  # noqa: E402
from wkvm.kernels.gpu.delta_mix import delta_mix  # noqa: E402
from wkvm.kernels.rows import Rows  # noqa: E402

MATRIX_RATE = 780e12
"""Operations a second of large products of bfloat16."""

N_LAYERS = 24
"""Of the default Qwen3.5 configuration with a state: one after another in a graph."""


@dataclass(frozen=True)
class Shape:
    """Heads of keys and values, and their sizes."""

    name: str
    Hk: int
    Hv: int
    K: int
    V: int
    by_channel: bool = False

    @property
    def state_bytes(self) -> int:
        """Of one layer, float32."""
        return self.Hv * self.K * self.V * 4

    def prompt_operations(self, T: int) -> float:
        """Of the products of the chunked rule, for T tokens in chunks of 64."""
        L = delta_within.CHUNK
        within = 2 * L * self.K + L * (self.K + self.V) + L * L
        passing = 3 * self.K * self.V + L * self.V
        return 2.0 * T * self.Hv * (within + passing)

    def prompt_bytes(self, T: int) -> int:
        """That any way of computing it reads and writes, for T tokens of bfloat16."""
        decays = self.Hv * (self.K if self.by_channel else 1) * 4
        return T * (2 * (2 * self.Hk * self.K + 2 * self.Hv * self.V) + decays + 4 * self.Hv)


QWEN = Shape("Qwen3.5", 16, 32, 128, 128)
KIMI = Shape("Kimi Linear", 32, 32, 128, 128, by_channel=True)
ODD = Shape("odd", 3, 6, 48, 80)
WIDE = Shape("wide", 4, 4, 256, 512)

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs_of(
    shape: Shape, T: int, dtype: torch.dtype, *, strongest: float = 1.0, seed: int = 0
) -> Inputs:
    """q, k, v, g and beta; the first three are pieces of one tensor."""
    draw = torch.Generator("cuda").manual_seed(seed)

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(*sizes, generator=draw, device="cuda")

    sizes = [shape.Hk * shape.K, shape.Hk * shape.K, shape.Hv * shape.V]
    packed = torch.randn(T, sum(sizes), generator=draw, device="cuda").to(dtype)
    q, k, v = torch.split(packed, sizes, 1)
    heads = (T, shape.Hv, shape.K) if shape.by_channel else (T, shape.Hv)
    g = -strongest * uniform(*heads).pow(4)
    return (
        q.view(T, shape.Hk, shape.K),
        k.view(T, shape.Hk, shape.K),
        v.view(T, shape.Hv, shape.V),
        g,
        uniform(T, shape.Hv),
    )


def rows_of(slots: list[int], lengths: list[int]) -> Rows:
    """Such rows, on the device."""
    on_device = torch.tensor(slots, dtype=torch.int32, device="cuda")
    return Rows(on_device, tuple(slots), tuple(lengths))


def states_of(shape: Shape, n_slots: int, dtype: torch.dtype, named: list[int]) -> Tensor:
    """``[N, H, K, V]`` of wider records; slots that are not named are NaN."""
    size = shape.Hv * shape.K * shape.V
    records = torch.randn(n_slots, 2 * size, device="cuda").mul_(0.1).to(dtype)
    records[[slot for slot in range(n_slots) if slot not in named]] = float("nan")
    return records[:, size:].view(n_slots, shape.Hv, shape.K, shape.V)


BARS = {torch.float32: 1e-5, torch.bfloat16: 6e-3}

STEPS = {
    "decode": ([5, -1, 0, 3], [1, 1, 1, 1]),
    "prompts": ([4, -1, 0, 2], [300, 70, 129, 1]),
}


def check() -> Iterator[Finding]:
    """Outputs and states against float64, with slow decays and with extreme ones; fla beside it."""
    for shape in (QWEN, KIMI, ODD, WIDE, replace(ODD, name="odd by channel", by_channel=True)):
        for dtype, bar in BARS.items():
            for step, (slots, lengths) in STEPS.items():
                for strongest in (0.05, 30.0):
                    yield _checked(shape, dtype, bar, step, slots, lengths, strongest)
        yield _cut(shape)


def _checked(
    shape: Shape,
    dtype: torch.dtype,
    bar: float,
    step: str,
    slots: list[int],
    lengths: list[int],
    strongest: float,
) -> Finding:
    rows = rows_of(slots, lengths)
    live = [slot for slot in slots if slot >= 0]
    inputs = inputs_of(shape, rows.n_tokens, dtype, strongest=strongest)
    state = states_of(shape, 7, torch.float32, live)
    before = state.clone()
    exact_state = state.double()
    q, k, v, g, beta = (tensor.double() for tensor in inputs)
    exact = reference.gated_delta(q, k, v, g, beta, exact_state, rows)
    out = delta_prefill.gated_delta(*inputs, state, rows)
    errors = {
        "outputs": relative(out, exact),
        "states": relative(state[live], exact_state[live]),
    }
    start, end = rows.host_offsets[1:3]
    found: Finding = {
        "check": f"gated delta rule against float64, {shape.name}, {dtype}, {step},"
        f" decays down to e^-{strongest}",
        "ok": max(errors.values()) < bar and not out[start:end].any(),
        "relative_errors": errors,
        "other_slots_untouched": bool(state[[1, 6]].isnan().all()),
    }
    if step == "prompts" and dtype == torch.bfloat16:
        try:
            at = slice(0, lengths[0])
            some = tuple(tensor[None, at] for tensor in inputs)
            its, last = fla_prompt(shape, some, before[slots[0]][None].contiguous(), None)
            found["relative_errors_of_fla"] = {
                "outputs": relative(its[0], exact[at]),
                "states": relative(last[0], exact_state[slots[0]]),
            }
        except Exception as error:  # noqa: BLE001
            found["fla"] = repr(error)[:300]
    return found


def _cut(shape: Shape) -> Finding:
    """One prompt in one piece and in three."""
    n, cuts = 500, [0, 128, 192, 500]
    inputs = inputs_of(shape, n, torch.bfloat16)
    whole = states_of(shape, 2, torch.float32, [1])
    pieces = whole.clone()
    out = delta_prefill.gated_delta(*inputs, whole, rows_of([1], [n]))
    parts = []
    for start, end in pairwise(cuts):
        q, k, v, g, beta = (tensor[start:end] for tensor in inputs)
        rows = rows_of([1], [end - start])
        parts.append(delta_prefill.gated_delta(q, k, v, g, beta, pieces, rows))
    same = torch.equal(torch.cat(parts), out) and torch.equal(pieces[1], whole[1])
    return {"check": f"cuts at multiples of 64 change no bit, {shape.name}", "ok": same}


def fla_prompt(
    shape: Shape, inputs: tuple[Tensor, ...], state: Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Fla's chunked kernels: outputs ``[1, T, H, V]`` and last states."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    q, k, v, g, beta = inputs
    chunked = chunk_kda if shape.by_channel else chunk_gated_delta_rule
    out, last = chunked(
        q=q.contiguous(),
        k=k.contiguous(),
        v=v.contiguous(),
        g=g,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=offsets,
    )
    return out, last


LAUNCHES = [
    delta_decode.Launch(block_v, n_warps)
    for block_v, n_warps in ((4, 1), (8, 1), (16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4))
]


def decode(rows: list[int], bandwidth: float, *, sweeps: bool) -> Iterator[Finding]:
    """The layers of a model one after another; fla's by index."""
    for shape in (QWEN, KIMI):
        for B in rows:
            size = (B, N_LAYERS, shape.Hv, shape.K, shape.V)
            states = torch.randn(size, device="cuda").mul_(0.1)
            inputs = inputs_of(shape, B, torch.bfloat16)
            slots = torch.randperm(B, device="cuda").int()
            ways = decode_ways(shape, inputs, states, slots, sweeps=sweeps)
            for name, launch in ways.items():
                try:
                    us = median(milliseconds(graph_of(launch).replay, 8)) / N_LAYERS * 1e3
                except Exception as error:  # noqa: BLE001
                    print(B, name, repr(error)[:300])
                    continue
                n_bytes = 2 * B * shape.state_bytes
                yield {
                    "timing": f"gated delta rule, one token, one layer, {shape.name}, {B} rows,"
                    f" {name}",
                    "median_us": round(us, 2),
                    "floor_us": round(n_bytes / bandwidth * 1e6, 2),
                    "tb_per_s": round(n_bytes / us / 1e6, 3),
                    "of_copy": round(n_bytes / us * 1e6 / bandwidth, 3),
                    "finite": bool(states[:1].isfinite().all()),
                    "copy_tb_per_s": round(bandwidth / 1e12, 3),
                }
            del states, ways
            torch.cuda.empty_cache()


def decode_ways(
    shape: Shape, inputs: Inputs, states: Tensor, slots: Tensor, *, sweeps: bool
) -> dict[str, Callable[[], None]]:
    """What is timed, by name."""
    q, k, v, g, beta = inputs
    C = 2 * shape.Hk * shape.K + shape.Hv * shape.V
    projected = torch.randn(len(slots), C, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(C, 4, dtype=torch.bfloat16, device="cuda")
    windows = torch.randn(len(slots), N_LAYERS, 3, C, dtype=torch.bfloat16, device="cuda")
    rows = Rows.of_decode(slots)
    A, dt_bias = -torch.ones(shape.Hv, device="cuda"), torch.zeros_like(g[0])

    def ours(launch: delta_decode.Launch | None) -> None:
        for layer in range(N_LAYERS):
            state = states[:, layer]
            delta_decode.gated_delta_decode(q, k, v, g, beta, state, slots, launch=launch)

    def mixed() -> None:
        for layer in range(N_LAYERS):
            window, state = windows[:, layer], states[:, layer]
            gates = A, dt_bias, state, rows, shape.Hk
            delta_mix(projected, g, beta, weight, window, *gates)

    def fla() -> None:
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

        by_key = g if shape.by_channel else g[..., None].expand(-1, -1, shape.K)
        for layer in range(N_LAYERS):
            fused_recurrent_kda_fwd(
                q=whole[0],
                k=whole[1],
                v=whole[2],
                g=by_key[:, None].contiguous(),
                beta=beta[:, None],
                initial_state=states[:, layer],
                inplace_final_state=True,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=True,
            )

    whole = [tensor.contiguous()[:, None] for tensor in (q, k, v)]
    named = {str(launch): partial(ours, launch) for launch in LAUNCHES if sweeps}
    return {
        "default": partial(ours, None),
        **named,
        "with gates and convolution": mixed,
        "fla by index": fla,
    }


PROMPTS = {
    "1 x 8,192": [8192],
    "1 x 4,096": [4096],
    "4 x 2,048": [2048] * 4,
    "32 x 256": [256] * 32,
}

WAYS = [
    delta_prefill.Launch(),
    delta_prefill.Launch(pass_stages=2),
    delta_prefill.Launch(block_v=16),
    delta_prefill.Launch(block_v=16, pass_stages=2),
    delta_prefill.Launch(block_v=64, pass_stages=2),
    delta_prefill.Launch(pass_warps=8),
    delta_prefill.Launch(within_warps=4),
    delta_prefill.Launch(score_warps=8),
]


def prefill(bandwidth: float, *, sweeps: bool) -> Iterator[Finding]:
    """One layer: whole, its two or three kernels apart, and fla's."""
    for shape in (QWEN, KIMI):
        for name, lengths in PROMPTS.items():
            T = sum(lengths)
            inputs = inputs_of(shape, T, torch.bfloat16, strongest=0.5)
            state = states_of(shape, len(lengths), torch.float32, list(range(len(lengths))))
            rows = rows_of(list(range(len(lengths))), lengths)
            cut = delta_within.Cut.of(rows, torch.bfloat16)
            effects = delta_within.within(*inputs, rows, cut)
            dtype, default = torch.bfloat16, delta_prefill.launch_of(shape.K)
            ours = partial(delta_prefill.gated_delta, *inputs, state, rows)
            ways: dict[str, Callable[[], object]] = {"default": ours}
            if sweeps:
                ways |= {str(way): partial(ours, launch=way) for way in WAYS}
            ways["within chunks alone"] = partial(delta_within.within, *inputs, rows, cut)
            ways["through chunks alone"] = partial(
                delta_prefill.pass_states, effects, state, rows, cut, default, dtype
            )
            floor = max(shape.prompt_bytes(T) / bandwidth, shape.prompt_operations(T) / MATRIX_RATE)
            for way, launch in ways.items():
                try:
                    ms = median(milliseconds(graph_of(partial(_discarded, launch)).replay, 4, 5))
                except Exception as error:  # noqa: BLE001
                    print(name, way, repr(error)[:300])
                    continue
                yield _prompt_finding(shape, name, way, ms, T, floor)
            batch = tuple(tensor[None] for tensor in inputs)
            offsets = rows.offsets.long()
            its = partial(fla_prompt, shape, batch, state.contiguous(), offsets)
            try:
                ms = median(milliseconds(its, 4, 5))
                yield _prompt_finding(shape, name, "fla, not captured", ms, T, floor)
            except Exception as error:  # noqa: BLE001
                print(name, "fla", repr(error)[:300])
            del effects, ways, ours
            torch.cuda.empty_cache()


def _discarded(launch: Callable[[], object]) -> None:
    launch()


def _prompt_finding(shape: Shape, name: str, way: str, ms: float, T: int, floor: float) -> Finding:
    return {
        "timing": f"gated delta rule, prompts, one layer, {shape.name}, {name}, {way}",
        "median_ms": round(ms, 4),
        "floor_ms": round(floor * 1e3, 4),
        "tokens_per_s": round(T / ms * 1e3),
        "tflop_per_s": round(shape.prompt_operations(T) / ms / 1e9, 1),
    }


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+", choices=["check", "decode", "prefill"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "check": check,
        "decode": lambda: decode(args.rows, copy_bandwidth(), sweeps=args.sweep),
        "prefill": lambda: prefill(copy_bandwidth(), sweeps=args.sweep),
    }
    with recorded(args) as findings:
        for part in args.what:
            for finding in parts[part]():
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
