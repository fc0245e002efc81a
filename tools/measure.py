"""Measure what is compared on this machine's CPU again, and bring the documents up to date.

    python -m tools.measure
    python -m tools.measure peers frontier

Some minutes on a machine that does nothing else: what is timed here is spoiled by whoever shares
its cores. Lines are added to ``bench/results``; docs/performance.md and README.md follow them. A
benchmark that fails is told of, and the others go on.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHES = ("peers", "frontier", "ladders", "kernels", "decode")
IDLE = 0.5
"""A machine of which more is waiting than this share of a core is not idle."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run, write, and return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--smoke", action="store_true", help="tiny counts; nothing is kept")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.names) - set(BENCHES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if os.getloadavg()[0] > IDLE:
        print(f"the machine is not idle: its load is {os.getloadavg()[0]:.1f}", file=sys.stderr)
    smoke = ["--smoke"] if arguments.smoke else []
    failed = [
        name for name in arguments.names or BENCHES if _run("-m", "wkvm_bench", name, *smoke) != 0
    ]
    if not arguments.smoke:
        _run("-m", "wkvm_bench", "report", "bench/results", "--output", "docs/performance.md")
        _run("-m", "tools.readme_figures")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(*arguments: str) -> int:
    print(f"python {' '.join(arguments)}", flush=True)
    parts = (str(ROOT / part) for part in ("bench", "protocol", "clients"))
    path = os.pathsep.join([str(ROOT), *parts, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
