"""Thousands of sessions of a 1.5B shape on disk: what it takes to go on with one, on a GPU.

    python tools/gpu_store.py --output bench/results/FILE.jsonl

Random weights and 12.8 MB a state: 2,000 sessions are 25 GB, in memory (/dev/shm) where that has
the room, since what is measured is read from the page cache anyhow, or else on the disk. The
sessions are made and resumed by one server that keeps none of them in host memory. About a
minute, half of it the start and the making.
"""

import argparse
import asyncio
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

import torch  # noqa: E402
import uvloop  # noqa: E402
from wkvm_bench.random_model import SIZES, write_random  # noqa: E402
from wkvm_bench.results import append, environment, to_line, to_text  # noqa: E402
from wkvm_bench.states import Setup, sessions  # noqa: E402

STATE_BYTES = 14 * 10**6
WEIGHT_BYTES = 4 * 10**9


def roomy(n_bytes: int) -> Path:
    """Where so many bytes fit: in memory, or else where temporary files are."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 1.1 * n_bytes:
        return memory
    return Path(gettempdir())


def main() -> int:
    """Make, resume, and write the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="what is measured, where git cannot say it")
    parser.add_argument("--output", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--folder", type=Path, help="for weights and states, if not found by size")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--resumed", type=int, default=600)
    parser.add_argument("--limit-s", type=float, default=20.0, help="of making, and of resuming")
    parser.add_argument("--size", choices=sorted(SIZES), default="1.5B")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    before = environment()
    if options.commit is not None:
        before["commit"] = options.commit
    folder = options.folder or roomy(options.sessions * STATE_BYTES + WEIGHT_BYTES)
    print(f"in {folder}")
    with TemporaryDirectory(dir=folder) as name:
        model = Path(name) / "model.pth"
        dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
        write_random(model, SIZES[options.size], dtype=dtype, device=options.device)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        setup = Setup(
            model=model,
            what=f"{options.size} on {options.device}",
            flags=("--device", options.device, "--slots", "32"),
            folder=Path(name),
            n_sessions=options.sessions,
            n_resumed=options.resumed,
            p50_bar_ms=8.0,
            p99_bar=2.0,
            restarts=False,
            limit_s=options.limit_s,
            n_decoded=5,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(sessions(setup))
    for result in results:
        print(to_text("states", result))
    settings = {"sessions": options.sessions, "resumed": options.resumed, "size": options.size}
    lines = [
        to_line("states", one, command=sys.argv, settings=settings, environment=before)
        for one in results
    ]
    append(options.output.parent, options.output.stem, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
