"""Run the tests of docs/reliability.md as often as it promises, part by part.

    python -m tools.soak                       # make soak: all that is not yet done at this code
    python -m tools.soak --only 2 --only 11    # two layers
    python -m tools.soak --jobs 14 --limit-s 540
    python -m tools.soak --table               # run nothing, write the table

A part is a process of pytest with a seed of its own, its number. What came of it is a line in
``bench/results/soak.jsonl``, whatever becomes of the parts after it; a part that passed at the
code as it is now is not run again. No part is begun that would not end before ``--limit-s``, and
those that run then are ended and leave nothing. Exit status 1 if a part failed, or told nothing,
or less was done than is promised; 3 if parts are left over; 0 otherwise.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from wkvm_bench.results import environment

from tools.soak_layers import LAYERS, PART_LIMIT_S, TRIALS, Trial
from tools.soak_record import Latest, Line, append, digest_of, kept, read, written

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/soak.jsonl"
DOCUMENT = ROOT / "docs/reliability.md"
TAIL_CHARACTERS = 4000
GRACE_S = 10.0
"""From being asked to end until being killed."""
ON_A_GPU = 13
"""The layer whose tests have the marker ``gpu``."""
LEFT_OVER = 3
"""The exit status where parts are left to be run."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a trial. Its number is its seed."""

    trial: Trial
    number: int
    code: str

    def __str__(self) -> str:
        """As it is printed."""
        return f"layer {self.trial.layer}, {self.trial.name}, part {self.number}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a part.

    Attributes:
        passed: None where it was cut off, which says nothing.
        why: in words, of one that did not pass.
    """

    passed: bool | None
    why: str
    seconds: float
    told: list[Line]
    log: str


class Runner:
    """Runs parts side by side until there are none left, or no time.

    Args:
        parts: all that are to be run.
        root: the checkout.
        output: the file of results, which is appended to.
        latest: what has been kept; how long parts took is known from there.
        limit_s: from now on; None for none.
        part_limit_s: of one part.
        facts: of this machine and checkout, for each line.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        root: Path,
        output: Path,
        latest: Latest,
        limit_s: float | None,
        part_limit_s: float,
        facts: Line,
    ) -> None:
        self._root, self._output, self._facts = root, output, facts
        self._took_s = dict[str, float]()
        for (name, _), line in latest.items():
            self._note(name, line["seconds"])
        # What takes longest comes first, so that the end does not wait for it alone.
        self._left = sorted(parts, key=self._expected_s, reverse=True)
        self._part_limit_s = part_limit_s
        self._until = None if limit_s is None else time.monotonic() + limit_s - GRACE_S - 1
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._n_cores = self._n_free = 1
        self._over = threading.Event()
        self.failed = list[Part]()
        self.n_passed = 0

    @property
    def n_left(self) -> int:
        """Parts that were not begun, or were cut off."""
        return len(self._left)

    def run(self, n_jobs: int) -> None:
        """Run as many at a time.

        Raises:
            KeyboardInterrupt: a signal came; all that had ended is kept, and nothing runs.
        """
        self._n_cores = self._n_free = n_jobs
        threads = [threading.Thread(target=self._work) for _ in range(n_jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while (part := self._next()) is not None:
            self._keep(part, self._run_one(part))

    def _next(self) -> Part | None:
        """A part to be run, with the cores that it takes; None if there is none any more."""
        with self._changed:
            while not self._over.is_set():
                in_time = [part for part in self._left if self._is_in_time(part)]
                if not in_time:
                    return None
                for part in in_time:
                    if self._cores_of(part) <= self._n_free:
                        self._left.remove(part)
                        self._n_free -= self._cores_of(part)
                        return part
                self._changed.wait(1.0)
        return None

    def _is_in_time(self, part: Part) -> bool:
        return self._until is None or time.monotonic() + self._expected_s(part) < self._until

    def _cores_of(self, part: Part) -> int:
        return min(part.trial.n_cores, self._n_cores)

    def _expected_s(self, part: Part) -> float:
        return self._took_s.get(part.trial.name, part.trial.part_s)

    def _note(self, name: str, seconds: float) -> None:
        self._took_s[name] = max(self._took_s.get(name, 0.0), seconds)

    def _keep(self, part: Part, ended: Ended) -> None:
        with self._changed:
            self._n_free += self._cores_of(part)
            self._changed.notify_all()
            if ended.passed is None:
                self._left.append(part)
                print(f"cut off: {part}", flush=True)
                return
            line = {
                "layer": part.trial.layer,
                "trial": part.trial.name,
                "part": part.number,
                "code": part.code,
                "passed": ended.passed,
                "seconds": round(ended.seconds, 1),
                "told": ended.told,
            }
            if ended.passed:
                self.n_passed += 1
                self._note(part.trial.name, ended.seconds)
            else:
                self.failed.append(part)
                line |= {"seed": part.number, "why": ended.why, "log": ended.log}
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            append(self._output, {**line, "at": at, **self._facts})
            verdict = "passed" if ended.passed else f"FAILED ({ended.why})"
            print(f"{verdict} in {ended.seconds:.0f} s: {part}", flush=True)

    def _run_one(self, part: Part) -> Ended:
        with _short_folder() as folder:
            told, log = folder / "told.jsonl", folder / "log"
            began = time.monotonic()
            with log.open("wb") as file:
                process = subprocess.Popen(
                    _command(part),
                    cwd=self._root,
                    env=_variables(self._root, part, folder, told),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                why = self._wait(process, began + self._part_limit_s)
            seconds = time.monotonic() - began
            lines = _read_told(told)
            tail = _tail(log, {str(folder): "TMP", f"{self._root}/": ""})
        if why == "cut off":
            return Ended(None, why, seconds, lines, tail)
        if not why and process.returncode:
            why = f"status {process.returncode}"
        if not why and not lines:
            why = "told nothing"
        return Ended(not why, why, seconds, lines, tail)

    def _wait(self, process: "subprocess.Popen[bytes]", part_until: float) -> str:
        """Wait for the end of a part; why it was ended, if it was."""
        why = ""
        while process.poll() is None and not why:
            now = time.monotonic()
            if self._over.is_set() or (self._until is not None and now > self._until):
                why = "cut off"
            elif now > part_until:
                why = f"takes longer than {self._part_limit_s:g} s"
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        if process.poll() is None:
            # pytest alone is asked: it undoes what its tests have mounted and started.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return why


def _command(part: Part) -> list[str]:
    has_hypothesis = (
        importlib.util.find_spec("hypothesis") is not None
        and "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in os.environ
    )
    return [
        *(sys.executable, "-m", "pytest", "-q", "--no-header", "--color=no"),
        *("-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-m", "gpu" if part.trial.layer == ON_A_GPU else "not gpu"),
        *([f"--hypothesis-seed={part.number}"] if has_hypothesis else []),
        *part.trial.tests,
    ]


def _variables(root: Path, part: Part, folder: Path, told: Path) -> dict[str, str]:
    """Of a part's environment: all that is random in it follows from its number."""
    kept_ones = {
        name: value
        # CI has hypothesis take the same examples each time: in a soak they are to be others.
        for name, value in os.environ.items()
        if name not in {"CI", "PYTEST_ADDOPTS"}
    }
    packages = (root, root / "protocol", root / "clients", root / "bench")
    paths = [*map(str, packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept_ones | {
        "WKVM_SOAK": "1",
        "WKVM_SOAK_PART": str(part.number),
        "WKVM_SOAK_OUTPUT": str(told),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": str(part.number),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(folder),
    }


@contextmanager
def _short_folder() -> Iterator[Path]:
    """A folder of a part's own. Sockets lie below it, whose paths may have 107 characters."""
    name = tempfile.mkdtemp(prefix="s")
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def _read_told(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _tail(path: Path, instead: dict[str, str]) -> str:
    text = path.read_bytes().decode(errors="replace")[-TAIL_CHARACTERS:]
    for old, new in instead.items():
        text = text.replace(old, new)
    return text


@dataclass(slots=True)
class Chosen:
    """Which parts are to be run, and which not.

    Attributes:
        todo: to be run.
        n_done: that passed at this code before.
        lacking: trials that cannot be run here, with the programs that they lack.
        codes: the digests of the code of trials, by their names.
    """

    todo: list[Part] = field(default_factory=list[Part])
    n_done: int = 0
    lacking: list[str] = field(default_factory=list[str])
    codes: dict[str, str] = field(default_factory=dict[str, str])

    def of_this_code(self, latest: Latest) -> Latest:
        """What has been kept of parts that ran the code as it is now."""
        return {
            (name, part): line
            for (name, part), line in latest.items()
            if line["code"] == self.codes.get(name)
        }


def choose(trials: Sequence[Trial], root: Path, latest: Latest) -> Chosen:
    """Sort out what is left to be run."""
    chosen = Chosen()
    for trial in trials:
        code = chosen.codes[trial.name] = digest_of(root, trial)
        parts = [Part(trial, number, code) for number in range(1, trial.n_parts + 1)]
        todo = [one for one in parts if not _is_done(one, latest)]
        chosen.n_done += len(parts) - len(todo)
        missing = [program for program in trial.needs if shutil.which(program) is None]
        if todo and missing:
            chosen.lacking.append(f"{trial.name}: there is no {', no '.join(missing)}")
        else:
            chosen.todo += todo
    return chosen


def _is_done(part: Part, latest: Latest) -> bool:
    line = latest.get((part.trial.name, part.number))
    return line is not None and line["passed"] and line["code"] == part.code


def main(argv: Sequence[str], trials: Sequence[Trial] = TRIALS, root: Path = ROOT) -> int:
    """Run what is asked for, and print what has come of all promises."""
    arguments = _parser().parse_args(argv)
    if arguments.table:
        document = root / DOCUMENT.relative_to(ROOT)
        old = document.read_text(encoding="utf-8")
        new = written(old, trials, read(arguments.output))
        document.write_text(new, encoding="utf-8")
        return 0
    wanted = [one for one in trials if not arguments.only or one.layer in arguments.only]
    latest = read(arguments.output)
    chosen = choose(wanted, root, latest)
    facts: Line = dict(environment())
    if arguments.commit is not None:
        facts["commit"] = arguments.commit
    runner = Runner(
        chosen.todo,
        root=root,
        output=arguments.output,
        latest=latest,
        limit_s=arguments.limit_s,
        part_limit_s=arguments.part_limit_s,
        facts=facts,
    )
    was_stopped = False
    try:
        with _terminated_like_interrupted():
            runner.run(arguments.jobs)
    except KeyboardInterrupt:
        was_stopped = True
    all_kept = kept(wanted, chosen.of_this_code(read(arguments.output)))
    for one in all_kept:
        mark = "done" if one.is_met else "NOT DONE"
        print(
            f"{mark:>8}  layer {one.trial.layer:>2}  {one.count:>12,} of "
            f"{one.promise.count:,} {one.promise.unit}: {one.promise.what}"
            f" ({one.n_passed} of {one.trial.n_parts} parts"
            f"{f', {one.n_failed} failed' if one.n_failed else ''})"
            f"{f'; {one.figures}' if one.figures else ''}"
        )
    for lacking in chosen.lacking:
        print(f"not run here: {lacking}")
    print(
        f"{runner.n_passed} parts passed, {len(runner.failed)} failed, {chosen.n_done} were done, "
        f"{runner.n_left} are left"
    )
    falls_short = any(
        one.n_passed == one.trial.n_parts and one.count < one.promise.count for one in all_kept
    )
    if runner.failed or falls_short:
        return 1
    return LEFT_OVER if was_stopped or runner.n_left else 0


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak",
        description="Run the tests of docs/reliability.md as often as it promises.",
        epilog="\n".join(f"  {number:>2}  {what}" for number, what in LAYERS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=int,
        action="append",
        choices=list(LAYERS),
        metavar="LAYER",
        help="this layer; may be given more than once (default: all)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="parts side by side (default 1)"
    )
    parser.add_argument(
        "--limit-s", type=float, metavar="S", help="begin nothing that would not end by then"
    )
    parser.add_argument(
        "--part-limit-s",
        type=float,
        default=PART_LIMIT_S,
        metavar="S",
        help=f"a part that takes longer has failed (default {PART_LIMIT_S:g})",
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS, metavar="FILE", help="append JSON lines here"
    )
    parser.add_argument("--commit", metavar="NAME", help="of this code, where there is no git")
    parser.add_argument(
        "--table", action="store_true", help="run nothing; write the table of docs/reliability.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
