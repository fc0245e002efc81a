"""From the command to a server that takes requests: weights on disk, kernels compiled or not."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from wkvm_bench.harness import Bar, BenchError, Finding
from wkvm_bench.random_model import SIZES, write_random

TIMEOUT_S = 120.0


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
        cache = {"TRITON_CACHE_DIR": str(folder / "kernels")}
        findings = list[Finding]()
        for case in ("no kernel compiled before", "kernels compiled before"):
            seconds = await _seconds(path, folder / "wkvm.sock", flags, cache)
            bar = Bar(30.0, at_least=False)
            findings.append(Finding(f"{size} on {device}, {case}", seconds, "s", bar))
    return findings


async def _seconds(path: Path, uds: Path, flags: list[str], variables: dict[str, str]) -> float:
    """How long a server takes to say that it is ready. Its log goes to this one's."""
    command = ["-m", "wkvm", "serve", str(path), "--port", "none", *flags]
    command += ["--binary-port", "none", "--binary-uds", str(uds), "--log-level", "warning"]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            line = await process.stdout.readline() if process.stdout is not None else b""
        if not line.startswith(b"ready"):
            raise BenchError("the server ended before it was ready")
        return time.perf_counter() - began
    except TimeoutError:
        raise BenchError(f"the server is not ready after {TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
