"""Times the device sampler on a GPU: all of ``end()`` as a replayed graph, and each kernel of it.

    python tools/gpu_sampling.py --rows 1 32 256 1024 [--profile] --output FILE

Rows are of ``--vocab`` logits: flat ones, as random weights give them, and peaked ones. Of two sets
of logits each is read in turn. The model bytes are one pass over the logits: 4 V B.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_findings import Finding, Findings, parser_of, recorded  # noqa: E402
from wkvm.core.plan import RowPlan  # noqa: E402
from wkvm.core.sampling import SamplingParams  # noqa: E402
from wkvm.engine.slot_table import SlotTable  # noqa: E402
from wkvm.kernels.device_sampling import records as fields  # noqa: E402

VOCAB = 65_536
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1}
MIXES = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(top_p=0.9),
    "top_k": SamplingParams(top_k=50),
    "min_p": SamplingParams(min_p=0.05),
    "top_k+top_p": SamplingParams(top_k=40, top_p=0.95),
    "top_p+all rules": SamplingParams(
        top_p=0.9, penalty_decay=0.996, logit_bias=((5, 1.0),), **PENALTIES
    ),
}
SHAPES = {"flat": 0.5, "peaked": 4.0}
"""Standard deviations of the logits."""


class Case:
    """A slot for each row, all of one mix of parameters, and a captured ``end()``."""

    def __init__(self, n_rows: int, params: SamplingParams, spread: float, vocab_size: int) -> None:
        self.table = SlotTable(n_rows, vocab_size, "cuda", max_rows=n_rows)
        rows = [
            RowPlan(i, i, (1, 2, 3), 0, 3, True, True, 0, params, i, 0, stops=(0, 261))
            for i in range(n_rows)
        ]
        self.table.start(rows)
        self.table.feed(rows)
        generator = torch.Generator("cuda").manual_seed(n_rows)
        self.sets = [
            torch.randn(n_rows, vocab_size, device="cuda", generator=generator) * spread
            for _ in range(2)
        ]
        device: dict[str, Any] = {"device": "cuda"}
        self.slots = torch.arange(n_rows, dtype=torch.int32, **device)
        self.masks = torch.full((n_rows, -(-vocab_size // 32)), -1, dtype=torch.int32, **device)
        self.has_mask = torch.zeros(n_rows, dtype=torch.bool, **device)
        self.ids = torch.empty(n_rows, dtype=torch.int64, **device)
        self.flags = torch.empty(n_rows, dtype=torch.uint8, **device)
        self.n_replays = 0
        for logits in self.sets:
            self._end(logits)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for logits in self.sets:
                self._end(logits)

    def _end(self, logits: Tensor) -> None:
        self.table.end(logits, self.slots, self.masks, self.has_mask, self.ids, self.flags)

    def times(self) -> list[float]:
        """Microseconds of one ``end()``: 9 groups of 5 replays of 2."""
        self.graph.replay()
        found = list[float]()
        for _ in range(9):
            # So that no row is done.
            self.table.records[:, fields.N_OUTPUT] = 0
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            start.record()
            for _ in range(5):
                self.graph.replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 10 * 1e3)
        return found

    def kernels(self) -> dict[str, float]:
        """Microseconds of each kernel, by the profiler."""
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(5):
                self.graph.replay()
            torch.cuda.synchronize()
        return {
            event.key.removesuffix("_kernel"): round(event.device_time_total / 10, 1)
            for event in profile.key_averages()
            if event.key.endswith("_kernel")
        }

    def listed(self) -> str:
        """How many ids were listed around the cuts."""
        n = self.table._scratch.n_listed[:, 0].float()
        return f"{n.min():.0f}/{n.mean():.0f}/{n.max():.0f}"


def measure(arguments: argparse.Namespace, findings: Findings) -> None:
    """Find the times of all cases."""
    for n_rows in arguments.rows:
        for mix in arguments.mixes:
            for shape in arguments.shapes:
                try:
                    case = Case(n_rows, MIXES[mix], SHAPES[shape], arguments.vocab)
                    times = case.times()
                    median = statistics.median(times)
                    finding: Finding = {
                        "what": "sampling",
                        "vocab": arguments.vocab,
                        "rows": n_rows,
                        "mix": mix,
                        "shape": shape,
                        "us": round(median, 1),
                        "us_min": round(min(times), 1),
                        "gb_s": round(4 * arguments.vocab * n_rows / median / 1e3),
                        "listed": case.listed(),
                    }
                    if arguments.profile:
                        finding["kernels"] = case.kernels()
                    findings.add(finding)
                except Exception as error:  # noqa: BLE001 - the other cases are to run
                    sys.stdout.write(f"{n_rows} {mix} {shape}: {error!r:.300}\n")
                sys.stdout.flush()


def main() -> None:
    """All mixes and shapes that are asked for."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1, 32, 1024])
    parser.add_argument("--mixes", nargs="+", default=list(MIXES))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with recorded(arguments) as findings:
        measure(arguments, findings)


if __name__ == "__main__":
    main()
