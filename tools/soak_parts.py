"""Parts of a soak: each a process of pytest, some side by side, until there are none or no time."""

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.soak_layers import Trial
from tools.soak_record import Latest, Line, append

ON_A_GPU = 13
"""The layer whose tests have the marker ``gpu``."""
TAIL_CHARACTERS = 4000
GRACE_S = 10.0
"""From being asked to end until being killed."""


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
        part_limit_s: of one part; None for what its trial says.
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
        part_limit_s: float | None,
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
        with ThreadPoolExecutor(n_jobs) as pool:
            working = [pool.submit(self._work) for _ in range(n_jobs)]
            try:
                # What one of them raises, such as a result that cannot be written, ends all.
                for one in as_completed(working):
                    one.result()
            finally:
                self._over.set()

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
                limit_s = self._part_limit_s or part.trial.limit_s
                why = self._wait(process, began, limit_s)
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

    def _wait(self, process: "subprocess.Popen[bytes]", began: float, limit_s: float) -> str:
        """Wait for the end of a part; why it was ended, if it was."""
        why = ""
        while process.poll() is None and not why:
            now = time.monotonic()
            if self._over.is_set() or (self._until is not None and now > self._until):
                why = "cut off"
            elif now > began + limit_s:
                why = f"takes longer than {limit_s:g} s"
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
        # A part is long, and has a limit of its own. Of a thread that runs, some versions of Python
        # cannot write the stack.
        *("-o", "faulthandler_timeout=0"),
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
