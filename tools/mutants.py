"""Plant known faults, one at a time, in a copy of the code, and say which test finds each.

    python -m tools.mutants [--jobs N] [--only WORD] [--missing] [--again]
    python -m tools.mutants --write

The first runs what was not run at this code before, appends a JSON line for each fault to
``bench/results/mutants.jsonl``, and prints a table. A fault that no test finds is printed as alive,
and the exit status is 1. The second writes the table of docs/reliability.md from those lines.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tools.faults import FAULTS, Fault
from tools.readme_figures import with_figures

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/mutants.jsonl"
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- planted faults: begin -->\n", "<!-- planted faults: end -->\n"

COPIED = ("wkvm", "protocol", "clients", "bench", "tests", "docs", "tools", "pyproject.toml")
NOT_CODE = (".md", ".jsonl", ".svg", ".pyc")
"""What does not matter for whether a fault is found: a line of text makes no run necessary."""
NOT_TRIED = "tools"
"""A folder of which the same is true."""

TIMEOUT_S = 180.0
"""A test that has not ended by then has found the fault: some wait for what does not come."""
WITHOUT_FAULT_S = 3600.0
"""All tests together, without any."""
NOT_RUN = "not run here"
"""Found by: nobody, as every test of the fault was skipped on this machine."""


def planted(fault: Fault, folder: Path) -> None:
    """Plant a fault in a copy of the code.

    Raises:
        ValueError: its place is not there exactly once.
    """
    path = folder / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.what}: {text.count(fault.old)} places in {fault.file}")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def copy_to(folder: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "results", ".*cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)


def code_of(folder: Path) -> str:
    """A digest of all code in a copy: what was found out of it holds for the same code alone."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix not in NOT_CODE and not name.startswith(NOT_TRIED):
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def run_tests(folder: Path, tests: Iterable[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """The first test that fails or does not end; None if all pass; ``NOT_RUN`` if none was run.

    Raises:
        RuntimeError: the tests could not be begun.
    """
    paths = [str(folder / name) for name in ("", "protocol", "clients", "bench")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a file changes twice in one second
    environment["PYTHONUNBUFFERED"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-n", "0", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
        begun = re.findall(r"^(\S+\.py::\w+)", said, re.MULTILINE)
        if not begun:
            raise RuntimeError(said) from error
        return str(begun[-1])
    if done.returncode == 0:
        return None if re.search(r"\b\d+ passed", done.stdout) else NOT_RUN
    failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.MULTILINE)
    if failed is None:
        raise RuntimeError(done.stdout + done.stderr)
    return failed[1]


def id_of(fault: Fault) -> str:
    """What tells a fault from all others, and from what it was before it was changed."""
    return hashlib.sha256(repr(fault).encode()).hexdigest()[:16]


class Copies:
    """Copies of the code, one for each that runs at a time.

    Attributes:
        code: see ``code_of``.
    """

    def __init__(self, folder: Path, n: int) -> None:
        copies = [folder / str(number) for number in range(n)]
        for copy in copies:
            copy.mkdir()
            copy_to(copy)
        self.code = code_of(copies[0])
        self.fill(copies)

    def fill(self, copies: Iterable[Path]) -> None:
        """These are free."""
        self._free = SimpleQueue[Path]()
        for copy in copies:
            self._free.put(copy)

    @contextmanager
    def with_fault(self, fault: Fault | None) -> Iterator[Path]:
        """A copy with a fault in it, which is taken out again."""
        copy = self._free.get()
        path = None if fault is None else copy / fault.file
        before = b"" if path is None else path.read_bytes()
        try:
            if fault is not None:
                planted(fault, copy)
            yield copy
        finally:
            if path is not None:
                path.write_bytes(before)
            self._free.put(copy)


def lines() -> list[dict[str, Any]]:
    """What was found out so far, the oldest first."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def run(copies: Copies, fault: Fault | None, tests: tuple[str, ...]) -> dict[str, Any]:
    """Plant a fault, or none, and look for it; the line that says what came of it."""
    began = time.monotonic()
    with copies.with_fault(fault) as copy:
        found = run_tests(copy, tests, WITHOUT_FAULT_S if fault is None else TIMEOUT_S)
    return {
        "benchmark": "mutants",
        "fault": None if fault is None else fault.what,
        "id": None if fault is None else id_of(fault),
        "tests": list(tests),
        "found_by": found,
        "seconds": round(time.monotonic() - began, 1),
        "code": copies.code,
        "commit": _commit(),
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def tried(faults: Sequence[Fault], *, jobs: int, again: bool) -> Iterator[dict[str, Any]]:
    """The lines of faults; those that are new are appended to ``RESULTS`` as they come.

    The tests are run without any fault first.

    Raises:
        RuntimeError: a test fails without any fault.
    """
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        copies = Copies(Path(name), jobs)
        known = [] if again else [one for one in lines() if one["code"] == copies.code]
        of_fault = {one["id"]: one for one in known if one["fault"] is not None}
        new = [one for one in faults if id_of(one) not in of_fault]
        sound = {test for one in known if one["fault"] is None for test in one["tests"]}
        unknown = sorted({test for one in new for test in one.tests} - sound)
        parts = [tuple(unknown[at::jobs]) for at in range(min(jobs, len(unknown)))]
        for without in pool.map(partial(run, copies, None), parts):
            if without["found_by"] not in (None, NOT_RUN):
                raise RuntimeError(f"without any fault, {without['found_by']} fails")
            _append(without)
        yield from (of_fault[id_of(one)] for one in faults if id_of(one) in of_fault)
        for line in pool.map(lambda one: run(copies, one, one.tests), new):
            _append(line)
            yield line


def _append(line: dict[str, Any]) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def kills(results: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Each fault that was found, and by which test, as the newest line has it."""
    found = dict[str, str]()
    for one in results:
        if one["fault"] is not None and one["found_by"] not in (None, NOT_RUN):
            found[one["fault"]] = one["found_by"]
    return found


def table(found: dict[str, str]) -> str:
    """The faults and the tests that find them, as Markdown.

    Raises:
        ValueError: one was not found.
    """
    rows = ["| fault | found by |", "|---|---|"]
    for fault in FAULTS:
        if fault.what not in found:
            raise ValueError(f"run python -m tools.mutants: nothing found yet: {fault.what}")
        rows.append(f"| {fault.what} | `{found[fault.what].removeprefix('tests/')}` |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """``page`` with the table as the lines have it."""
    return with_figures(page, table(kills(lines())), BEGIN, END)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="faults that name it")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="at a time")
    parser.add_argument("--missing", action="store_true", help="not what was found at any time")
    parser.add_argument("--again", action="store_true", help="also those that were run already")
    parser.add_argument("--write", action="store_true", help="write the table of the document")
    args = parser.parse_args()
    if args.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if not any(args.only in one.what for one in FAULTS):
        parser.error(f"--only: no fault is called so: {args.only}")
    n_alive = 0
    print("| fault | found by |\n|---|---|")
    there = kills(lines()) if args.missing else {}
    faults = [one for one in FAULTS if args.only in one.what and one.what not in there]
    for one in tried(faults, jobs=args.jobs, again=args.again):
        found = one["found_by"]
        n_alive += found is None
        text = "**nothing: it is alive**" if found is None else f"`{found}`"
        print(f"| {one['fault']} | {text} |", flush=True)
        print(f"{one['seconds']:.1f} s", file=sys.stderr)
    return 1 if n_alive else 0


if __name__ == "__main__":
    sys.exit(main())
