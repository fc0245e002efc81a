"""From the command to a server that takes requests: weights on disk, kernels compiled or not.

Where ``TRITON_CACHE_DIR`` is set its kernels are used, and nothing is compiled.
"""

import os
import tempfile
from pathlib import Path

from wkvm_bench.harness import Bar, Finding
from wkvm_bench.random_model import write_suitable
from wkvm_bench.servers import serving


async def compare(*, smoke: bool, n_threads: int) -> list[Finding]:
    """Run the benchmark on a GPU if there is one. ``n_threads`` are torch's on a CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.pth"
        device, size = write_suitable(path, smoke=smoke)
        flags = ["--device", device]
        flags += ["--slots", "auto"] if device == "cuda" else ["--threads", str(n_threads)]
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
