"""The kernels' tests under compute-sanitizer: no access out of bounds, no race, no stray barrier.

    python tools/gpu_sanitizer.py memcheck racecheck synccheck --output bench/results/FILE.jsonl

One JSON line for each tool and file of tests, with what the sanitizer counted. For memcheck torch
hands every tensor's memory back at once, so that what lies beyond a tensor is nobody's. Exit status
1 if a tool found something, or a test failed or did not end.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FILES = tuple(
    f"tests/kernels/{name}.py"
    for name in (
        "test_gpu_attention",
        "test_gpu_delta",
        "test_gpu_experts",
        "test_gpu_norms",
        "test_gpu_ssd",
        "test_rwkv7_prefill",
        "test_sampling",
    )
)
ERRORS = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
TESTS = re.compile(r"(\d+) passed")


def checked(tool: str, file: str, limit_s: float) -> Finding:
    """Run a file of tests under a tool."""
    began = time.monotonic()
    command = [
        *("compute-sanitizer", "--tool", tool, "--target-processes", "all", "--print-limit", "5"),
        *(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"),
        *("-p", "no:xdist", "-o", "faulthandler_timeout=0", file),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if tool == "memcheck":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # What it watches is another process, which holds the pipe.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    errors = [int(one or other) for one, other in ERRORS.findall(output)]
    passed = [int(one) for one in TESTS.findall(output)]
    is_clean = process.returncode == 0 and bool(errors) and not sum(errors)
    if not is_clean:
        print(output[-2000:])
    return {
        "sanitizer": tool,
        "tests": file,
        "passed": sum(passed),
        "errors": sum(errors),
        "seconds": round(time.monotonic() - began, 1),
        "ok": is_clean and bool(passed),
    }


def findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    """All tools over all files, files side by side."""
    for tool in arguments.tools:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            tasks = [
                pool.submit(checked, tool, file, arguments.limit_s)
                for file in arguments.files or FILES
            ]
            yield from (task.result() for task in as_completed(tasks))


def main() -> int:
    """Check, and write what was found."""
    parser = parser_of(__doc__)
    parser.add_argument("tools", nargs="+", choices=TOOLS)
    parser.add_argument("--files", nargs="+", help="files of tests (default: all of kernels)")
    parser.add_argument("--jobs", type=int, default=8, help="files side by side")
    parser.add_argument("--limit-s", type=float, default=400, help="of one file")
    arguments = parser.parse_args()
    with recorded(arguments) as found:
        for finding in findings(arguments):
            found.add(finding)
    return int(found.n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
