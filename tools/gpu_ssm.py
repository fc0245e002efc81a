"""The kernels of Mamba-2 on a GPU: are they right, and how near to what the memory can give.

    python tools/gpu_ssm.py check decode prefill conv peer --output FILE
    python tools/gpu_ssm.py decode prefill conv --sweep --rows 32 --prompts 8x2048 --output FILE

One JSON line per finding, and a table of the timings at the end. Timings are graph replays. Decode
is one layer of many, so that nothing stays in the L2 cache. With ``--sweep`` the launch constants
are varied, one or two at a time. Exit status 1 if a check failed.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.kernels.ssd_cases import SsdCase, ssd_case  # noqa: E402
from tools.gpu_findings import Finding, Findings, parser_of, recorded  # noqa: E402
from tools.gpu_ssm_checks import (  # noqa: E402
    SHAPES,
    absorbed,
    check,
    cut_of,
    decoded,
    rows_on,
)
from tools.gpu_timing import copy_bandwidth, graph_of, milliseconds  # noqa: E402
from wkvm.kernels.gpu.conv import CONV_CUT, ConvCut, causal_conv  # noqa: E402
from wkvm.kernels.gpu.ssd_decode import DecodeCut, decode_cut  # noqa: E402
from wkvm.kernels.gpu.ssd_prefill import WHOLE  # noqa: E402
from wkvm.kernels.rows import Rows  # noqa: E402

COPY_RATE, MATRIX_RATE = 4.19e12, 780e12
"""Bytes a second of a copy, operations a second of a large product in bfloat16: an H200's."""


@dataclass(frozen=True)
class Layers:
    """Inputs of one layer, and states of ``n`` of them, a slot's side by side.

    Attributes:
        windows: ``[S, n, W - 1, C]``. states: ``[S, n, H, P, N]``, float32.
    """

    case: SsdCase
    rows: Rows
    windows: Tensor
    states: Tensor

    @property
    def n(self) -> int:
        """How many layers."""
        return self.states.shape[1]

    def step(self, cut: DecodeCut, *, pdl: bool) -> None:
        """A token of each row in all layers."""
        for layer in range(self.n):
            window, state = self.windows[:, layer], self.states[:, layer]
            decoded(self.case, window, state, self.rows, cut, pdl=pdl)

    def convolve(self, cut: ConvCut) -> None:
        """The convolutions of all layers alone."""
        case = self.case
        for layer in range(self.n):
            window = self.windows[:, layer]
            causal_conv(
                case.projected, case.conv_weight, case.conv_bias, window, self.rows, cut=cut
            )

    def touch(self) -> None:
        """Read and write the states by torch: what a pattern like this one can reach."""
        for layer in range(self.n):
            self.states[:, layer].mul_(0.999)


def layers_of(shape_name: str, rows: Rows, n_layers: int) -> Layers:
    """Random ones in bfloat16, with a slot for each row."""
    H, P, G, N, W = SHAPES[shape_name]
    n_slots, channels = len(rows.lengths), H * P + 2 * G * N
    # The inputs alone are used of it: its own states are for few slots.
    few = rows_on("cuda", [0], [rows.n_tokens])
    case = ssd_case(few, SHAPES[shape_name], dtype=torch.bfloat16)
    windows = torch.randn(n_slots, n_layers, W - 1, channels, device="cuda").bfloat16()
    states = torch.randn(n_slots, n_layers, H, P, N, device="cuda")
    return Layers(case, rows, windows, states)


def timed(
    what: str, floor_us: float, launch: Callable[[], object], n_layers: int = 1
) -> Iterator[Finding]:
    """A graph of ``launch``, which is of ``n_layers`` layers. A way that fails is left out."""
    try:
        graph = graph_of(launch)  # type: ignore[arg-type]
        us = median(milliseconds(graph.replay, 8, 7)) / n_layers * 1e3
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        return
    share = round(floor_us / us, 3)
    yield {
        "timing": what,
        "median_us": round(us, 2),
        "floor_us": round(floor_us, 2),
        "of_floor": share,
    }


def decode(shape_name: str, rows_counts: list[int], *, sweeps: bool) -> Iterator[Finding]:
    """One layer of a decode step."""
    H, P, G, N, W = SHAPES[shape_name]
    for B in rows_counts:
        rows = rows_on("cuda", torch.randperm(B).tolist(), [1] * B)
        layers = layers_of(shape_name, rows, 64 if B <= 8 else 16)
        state_us = 2 * B * H * P * N * 4 / COPY_RATE * 1e6
        window_us = B * (H * P + 2 * G * N) * 2 * 2 * W / COPY_RATE * 1e6
        of_rows = f"{shape_name}, {B} rows"
        ways = [(decode_cut(B), pdl) for pdl in (False, True)]
        if sweeps:
            cuts = [
                DecodeCut(n_bytes, n_warps)
                for n_bytes in (2048, 4096, 8192, 16384, 32768)
                for n_warps in (1, 2, 4)
            ]
            ways += [(cut, True) for cut in cuts]
        for cut, pdl in ways:
            what = f"decode, {of_rows}, {cut.n_bytes} bytes, {cut.n_warps} warps"
            what += ", dependent" if pdl else ""
            step = partial(layers.step, cut, pdl=pdl)
            yield from timed(what, state_us + window_us, step, layers.n)
        convolve = partial(layers.convolve, CONV_CUT)
        yield from timed(f"convolution of decode, {of_rows}", window_us, convolve, layers.n)
        what = f"torch reads and writes the states, {of_rows}"
        yield from timed(what, state_us, layers.touch, layers.n)
        del layers, convolve
        torch.cuda.empty_cache()


def prompts_of(name: str) -> Rows:
    """``8x2048``: that many rows of that many tokens."""
    n_rows, n_tokens = map(int, name.split("x"))
    rows = rows_on("cuda", list(range(n_rows)), [n_tokens] * n_rows)
    # Made once a step, and not in a graph.
    assert rows.offsets.is_cuda
    return rows


def prefill(shape_name: str, prompts: list[str], *, sweeps: bool) -> Iterator[Finding]:
    """The recurrence of one layer over prompts."""
    H, P, G, N, _ = SHAPES[shape_name]
    for name in prompts:
        rows = prompts_of(name)
        layers = layers_of(shape_name, rows, 1)
        T, state = rows.n_tokens, layers.states[:, 0]
        own = cut_of(SHAPES[shape_name], torch.bfloat16, rows)
        cuts = [own]
        if sweeps:
            cuts += [replace(own, span=span) for span in (256, 512, 1024, 2048, WHOLE)]
            cuts += [replace(own, n_stages=stages) for stages in (1, 3)]
            cuts += [replace(own, p=32), replace(own, n_warps=8)]
            cuts += [replace(own, states=states) for states in ((32, 64, 4, 3), (64, 128, 4, 2))]
            cuts += [replace(own, chunk=128, n_warps=8, n_stages=1)]
        n_bytes = T * 2 * (2 * H * P + 2 * G * N + H) + 2 * len(rows.lengths) * H * P * N * 4
        for cut in dict.fromkeys(cuts):
            n_operations = T * H * (4 * P * N + 2 * cut.chunk * (P + N))
            floor = max(n_bytes / COPY_RATE, n_operations / MATRIX_RATE) * 1e6
            launch = partial(absorbed, layers.case, state, rows, cut)
            yield from timed(f"prefill, {shape_name}, {name}, {cut}", floor, launch)
        launch = partial(absorbed, layers.case, state, rows, own)
        yield {"profile": f"prefill, {shape_name}, {name}", "us": profiled(launch)}
        del layers, launch, state
        torch.cuda.empty_cache()


def profiled(launch: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel."""
    launch()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        launch()
        torch.cuda.synchronize()
    return {
        event.name[:60]: round(event.time_range.elapsed_us(), 1)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA"
    }


def conv(shape_name: str, prompts: list[str], *, sweeps: bool) -> Iterator[Finding]:
    """The convolution of one layer over prompts."""
    for name in prompts:
        layers = layers_of(shape_name, prompts_of(name), 1)
        cuts = [CONV_CUT]
        if sweeps:
            cuts += [
                ConvCut(tokens=tokens, channels=channels, n_warps=n_warps)
                for tokens in (16, 32, 64)
                for channels in (64, 128, 256)
                for n_warps in (4, 8)
            ]
        floor = layers.case.projected.numel() * 2 * 2 / COPY_RATE * 1e6
        for cut in dict.fromkeys(cuts):
            what = f"convolution of prompts, {shape_name}, {name}, {cut}"
            yield from timed(what, floor, partial(layers.convolve, cut))


def peer(shape_name: str, prompts: list[str]) -> Iterator[Finding]:
    """The same recurrence by chunks of fla: B and C for each head, steps and D not done."""
    from fla.ops.simple_gla import chunk_simple_gla

    H, P, _, N, _ = SHAPES[shape_name]
    for name in prompts:
        rows = prompts_of(name)
        T = rows.n_tokens
        q, k = (torch.randn(1, T, H, N, device="cuda").bfloat16() for _ in range(2))
        launch = partial(
            chunk_simple_gla,
            q,
            k,
            torch.randn(1, T, H, P, device="cuda").bfloat16(),
            g=-torch.rand(1, T, H, device="cuda"),
            scale=1.0,
            initial_state=torch.randn(len(rows.lengths), H, N, P, device="cuda"),
            output_final_state=True,
            cu_seqlens=rows.offsets.long(),
        )
        us = median(milliseconds(launch, 8, 7)) * 1e3
        what = f"fla chunk_simple_gla, eager, {shape_name}, {name}"
        yield {"timing": what, "median_us": round(us, 2)}


def line(finding: Finding) -> str:
    """A timing in a table."""
    floor, share = finding.get("floor_us", ""), finding.get("of_floor", "")
    return f"{finding['median_us']:>10} {floor:>10} {share:>6}  {finding['timing']}"


def run(args: argparse.Namespace, findings: Findings) -> Iterator[Finding]:
    """What was asked for, part by part."""
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "check": lambda: check("cuda", args.shapes),
        "copy": lambda: iter([{"copy_tb_per_s": round(copy_bandwidth() / 1e12, 3)}]),
        "decode": lambda: decode(args.shape, args.rows, sweeps=args.sweep),
        "prefill": lambda: prefill(args.shape, args.prompts, sweeps=args.sweep),
        "conv": lambda: conv(args.shape, args.prompts, sweeps=args.sweep),
        "peer": lambda: peer(args.shape, args.prompts),
    }
    for part in args.what:
        for finding in parts[part]():
            findings.add(finding)
            yield finding


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    kinds = ["check", "decode", "prefill", "conv", "peer", "copy"]
    parser.add_argument("what", nargs="+", choices=kinds)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--shape", choices=SHAPES, default="mamba2-2.7B")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--prompts", nargs="+", default=["1x8192", "8x2048", "1x1024"])
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    with recorded(args) as findings:
        timings = [line(finding) for finding in run(args, findings) if "timing" in finding]
    print("\n".join([f"{'us':>10} {'floor':>10} {'of it':>6}", *timings]))
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
