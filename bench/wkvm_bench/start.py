"""From the command to a server that takes requests: weights on disk, kernels compiled or not.

Where ``TRITON_CACHE_DIR`` is set its kernels are used, and nothing is compiled.
"""

import os
import tempfile
from pathlib import Path

import torch

from wkvm_bench.harness import Bar, Finding
from wkvm_bench.random_model import SIZES, write_random
from wkvm_bench.servers import serving


async def compare(*, smoke: bool, n_threads: int) -> list[Finding]:
    """Run the benchmark on a GPU if there is one. ``n_threads`` are torch's on a CPU."""
    device = "cuda" if torch.cuda.is_available() and not smoke else "cpu"
    size = "1.5B" if device == "cuda" else "tiny"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    flags = ["--device", device]
    flags += ["--slots", "auto"] if device == "cuda" else ["--threads", str(n_threads)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.pth"
        write_random(path, SIZES[size], dtype=dtype, device=device)
        # The first start compiles, and leaves its kernels to the second.
        cases, cache = ["no kernel compiled before", "kernels compiled before"], dict[str, str]()
        if "TRITON_CACHE_DIR" in os.environ:
            del cases[0]
        else:
            cache["TRITON_CACHE_DIR"] = str(folder / "kernels")
        findings = list[Finding]()
        for case in cases:
            async with serving(path, folder / "wkvm.sock", flags, cache) as started:
                bar = Bar(30.0, at_least=False)
                findings.append(Finding(f"{size} on {device}, {case}", started.seconds, "s", bar))
    return findings
