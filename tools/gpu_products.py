"""Which cut of a product is fastest on a GPU, for each shape and number of rows; and cuBLAS.

    for i in $(seq 0 11); do python tools/gpu_products.py --compile $i/12 & done; wait
    python tools/gpu_products.py --output FILE

Weights rotate among copies, so that none is in a cache. Compiling is split among processes first.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_findings import Findings  # noqa: E402
from tools.gpu_timing import graph_of, milliseconds  # noqa: E402
from wkvm.kernels import rwkv7_decode as kernels  # noqa: E402
from wkvm.kernels.rwkv7_decode import Blocks  # noqa: E402

SHAPES = {
    "first": (6656, 2048),
    "output": (2048, 2048),
    "key": (8192, 2048),
    "value": (2048, 8192),
    "head": (65536, 2048),
}


def candidates(n_rows: int, name: str) -> list[Blocks]:
    """Cuts worth trying."""
    if n_rows <= 64:
        b = max(16, n_rows)
        narrow = [
            (16, 256, 4, 4),
            (32, 128, 4, 6),
            (32, 256, 4, 4),
            (64, 64, 4, 8),
            (64, 128, 4, 4),
            (64, 128, 4, 6),
            (64, 256, 4, 3),
            (128, 64, 4, 6),
            (128, 128, 4, 4),
            (128, 128, 8, 4),
        ]
        splits = (1, 2, 4) if name in ("output", "value") else (1,)
        cuts = [(n, b, k, w, s) for n, k, w, s in narrow]
    elif n_rows <= 128:
        cuts = [
            (64, 64, 128, 4, 4),
            (64, 128, 128, 4, 4),
            (64, 128, 64, 4, 5),
            (128, 128, 64, 8, 4),
            (128, 128, 64, 4, 4),
            (128, 128, 128, 8, 3),
            (128, 64, 128, 4, 4),
            (128, 64, 64, 4, 6),
            (64, 64, 64, 4, 8),
        ]
        splits = (1, 2, 4) if name in ("output", "value") else (1,)
    else:
        cuts = [
            (128, 128, 64, 8, 4),
            (128, 128, 64, 4, 4),
            (128, 256, 64, 8, 3),
            (128, 256, 64, 8, 4),
            (256, 128, 64, 8, 3),
            (64, 256, 64, 4, 4),
            (128, 128, 128, 8, 3),
            (64, 128, 64, 4, 6),
            (64, 128, 128, 4, 3),
            (64, 256, 64, 8, 4),
            (128, 64, 64, 4, 6),
        ]
        splits = (1, 2, 4) if name in ("output", "value") and n_rows <= 512 else (1,)
    return [Blocks(n, b, k, sp, w, s) for (n, b, k, w, s), sp in itertools.product(cuts, splits)]


def main() -> None:
    """Compile a part of them, or time all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 64, 128, 256, 1024])
    args = parser.parse_args()
    if args.compile:
        part, n_parts = map(int, args.compile.split("/"))
        seen = sorted(
            {
                (b, n_rows % b.b == 0, b_name == "key")
                for n_rows in args.rows
                for b_name in SHAPES
                for b in candidates(n_rows, b_name)
            },
            key=str,
        )
        x = torch.zeros(1024, 2048, device="cuda", dtype=torch.bfloat16)
        w = torch.zeros(256, 2048, device="cuda", dtype=torch.bfloat16)
        for blocks, even, is_key in seen[part::n_parts]:
            n = 1024 if even else 8
            out = torch.zeros(
                blocks.n_splits,
                n,
                256,
                device="cuda",
                dtype=torch.float32 if blocks.n_splits > 1 else torch.bfloat16,
            )
            try:
                kernels.product(x[:n], w, out, blocks, what=int(is_key), pdl=True)
            except Exception as error:  # noqa: BLE001
                print(blocks, repr(error)[:80])
        return
    with args.output.open("a") as output:
        command = "python tools/gpu_products.py --output FILE"
        time_all(args.rows, Findings(output, commit=args.commit, command=command))


def time_all(row_counts: Sequence[int], results: Findings) -> None:
    """Check and time all candidates of every shape and number of rows."""
    for n_rows in row_counts:
        for name, (N, K) in SHAPES.items():
            n_copies = max(2, min(24, (1 << 30) // (N * K * 2)))
            weights = torch.randn(n_copies, N, K, device="cuda", dtype=torch.bfloat16) * K**-0.5
            x = torch.randn(n_rows, K, device="cuda", dtype=torch.bfloat16)
            exact = x.double() @ weights[0].double().t()
            findings = []
            plain = torch.empty(n_rows, N, device="cuda", dtype=torch.bfloat16)

            def cublas(weights: Tensor = weights, x: Tensor = x, out: Tensor = plain) -> None:
                for weight in weights:
                    torch.mm(x, weight.t(), out=out)

            n = 3 if n_rows >= 256 else 10
            ms = median(milliseconds(graph_of(cublas).replay, n, 5)) / n_copies
            findings.append((ms, "cublas"))
            for blocks in candidates(n_rows, name):
                out = torch.full(
                    (blocks.n_splits, n_rows, N),
                    float("nan"),
                    device="cuda",
                    dtype=torch.float32 if blocks.n_splits > 1 else torch.bfloat16,
                )
                what = int(name == "key")
                try:
                    kernels.product(x, weights[0], out, blocks, what=what, pdl=True)
                    value = out.double().sum(0)
                    wanted = exact.relu().square() if what else exact
                    distance = float((value - wanted).norm() / wanted.norm())
                    if not distance < 5e-3:
                        print("WRONG", name, n_rows, blocks, distance)
                        continue

                    def ours(
                        weights: Tensor = weights,
                        x: Tensor = x,
                        out: Tensor = out,
                        blocks: Blocks = blocks,
                        what: int = what,
                    ) -> None:
                        for weight in weights:
                            kernels.product(x, weight, out, blocks, what=what, pdl=True)

                    ms = median(milliseconds(graph_of(ours).replay, n, 5)) / n_copies
                    findings.append((ms, str(blocks)))
                except Exception as error:  # noqa: BLE001
                    print("failed", name, n_rows, blocks, repr(error)[:80])
            findings.sort()
            for ms, cut in findings[:6] + [f for f in findings[6:] if f[1] == "cublas"]:
                print(
                    f"{name} {n_rows} {ms * 1e3:.1f} us {N * K * 2 / ms / 1e9:.2f} TB/s "
                    f"{2 * N * K * n_rows / ms / 1e9:.0f} TF {cut}",
                    flush=True,
                )
            for ms, cut in findings:
                results.write(
                    {
                        "product": name,
                        "N": N,
                        "K": K,
                        "rows": n_rows,
                        "us": round(ms * 1e3, 2),
                        "blocks": cut,
                    }
                )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
