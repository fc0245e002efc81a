"""What a soak keeps of its parts, and the table of docs/reliability.md that is made from it.

Each part that has ended is a line of JSON: whose it is, the digest of the code that it ran, whether
it passed, what it told, and of one that did not the end of its log.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tools.soak_layers import LAYERS, Promise, Trial

BEGIN, END = "<!-- soak: begin -->\n", "<!-- soak: end -->\n"
COUNTS = re.compile(r"\w+:\d+( \w+:\d+)*")
SHIPPED = ("wkvm", "protocol", "clients", "bench/wkvm_bench")

Line: TypeAlias = dict[str, Any]
Latest: TypeAlias = dict[tuple[str, int], Line]
"""The last line of each part, by the name of its trial and the number of the part."""


def digest_of(root: Path, trial: Trial) -> str:
    """The digest of all code that a trial runs.

    That is what is shipped, what tests share, and the trial's own tests; no document, no result,
    no tool and no test of something else. It reads some 30 MB.
    """
    shared = (
        one for one in sorted((root / "tests").rglob("*.py")) if not one.name.startswith("test_")
    )
    shipped = (one for folder in SHIPPED for one in sorted((root / folder).rglob("*")))
    total = hashlib.sha256()
    for path in (*shipped, *shared, *(root / name for name in trial.files)):
        is_code = path.is_file() and path.suffix not in {".md", ".pyc"}
        if is_code and not any(part.startswith(".") for part in path.relative_to(root).parts):
            total.update(f"{path.relative_to(root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def read(path: Path) -> Latest:
    """The last line of each part in a file of results, which need not exist.

    A line that was cut off, by a full disk or a kill, is passed over: that part is done again.
    """
    latest: Latest = {}
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line: Line = json.loads(text)
            except json.JSONDecodeError:
                continue
            latest[line["trial"], line["part"]] = line
    return latest


def append(path: Path, line: Mapping[str, object]) -> None:
    """Add a line to a file of results, after whatever was cut off before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a promise has come to.

    Attributes:
        count: tried in all parts that passed.
        n_passed, n_failed: parts; the others have not been run.
        seconds: of all parts that passed, together.
        commits: that these ran at.
        figures: what was measured, over all parts.
    """

    trial: Trial
    promise: Promise
    count: int
    n_passed: int
    n_failed: int
    seconds: float
    commits: Sequence[str]
    figures: str

    @property
    def is_met(self) -> bool:
        """Whether all of it was tried, and nothing failed."""
        return self.count >= self.promise.count and self.n_passed == self.trial.n_parts


def kept(trials: Iterable[Trial], latest: Latest) -> list[Kept]:
    """What has come of every promise, in the order of layers."""
    return [
        _kept_of(trial, promise, _lines_of(trial, latest))
        for trial in sorted(trials, key=lambda one: (one.layer, one.name))
        for promise in trial.promises
    ]


def _lines_of(trial: Trial, latest: Latest) -> list[Line]:
    keys = ((trial.name, part) for part in range(1, trial.n_parts + 1))
    return [latest[key] for key in keys if key in latest]


def _kept_of(trial: Trial, promise: Promise, lines: Sequence[Line]) -> Kept:
    passed = [line for line in lines if line["passed"]]
    told: list[Line] = [
        one
        for line in passed
        for one in line["told"]
        if (one["what"], one["unit"]) == (promise.what, promise.unit)
    ]
    return Kept(
        trial,
        promise,
        count=sum(one["count"] for one in told),
        n_passed=len(passed),
        n_failed=len(lines) - len(passed),
        seconds=sum(line["seconds"] for line in passed),
        commits=sorted({line["commit"] for line in passed}),
        figures=_figures(told),
    )


def _figures(told: Sequence[Line]) -> str:
    """What was measured over all parts.

    Numbers go from the least to the largest, and counts by name, such as ``200:3 400:2``, are added
    up. What took longest is that of the part that took longest; of other words all are told.
    """
    values = dict[str, list[Any]]()
    for one in told:
        for name in one.keys() - {"layer", "what", "part", "count", "unit"}:
            values.setdefault(name, []).append(one[name])
    longest: Line = max(told, key=lambda one: one.get("longest_ms", 0.0), default={})
    for name in values.keys() & longest.keys() & {"slowest", "body"}:
        values[name] = [longest[name]]
    spans = {name: _span(found) for name, found in sorted(values.items())}
    return "; ".join(f"{name.replace('_', ' ')} {span}" for name, span in spans.items())


def _span(values: Sequence[Any]) -> str:
    words = [one for one in values if isinstance(one, str)]
    if words and all(COUNTS.fullmatch(one) for one in words):
        sums = Counter[str]()
        for name, count in (pair.split(":") for one in words for pair in one.split()):
            sums[name] += int(count)
        return ", ".join(f"{name}: {count:,}" for name, count in sorted(sums.items()))
    if words:
        return ", ".join(sorted({str(one) for one in values}))
    low, high = (f"{one:,.4g}" for one in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def table(trials: Iterable[Trial], latest: Latest) -> str:
    """All promises, and what has come of them, as Markdown."""
    trials = tuple(trials)
    lines = [
        "| layer | what | promised | done | parts | minutes of a core | measured besides |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in kept(trials, latest):
        count, unit = one.promise.count, one.promise.unit
        lines.append(
            f"| {one.trial.layer}: {LAYERS[one.trial.layer]} | {one.promise.what} "
            f"| {count:,} {unit} | {one.count:,} | {_parts(one)} "
            f"| {one.seconds / 60:.1f} | {one.figures} |"
        )
    ran = [line for trial in trials for line in _lines_of(trial, latest)]
    places = sorted({f"{line['device']}, {line['n_cores']} cores" for line in ran})
    if ran:
        lines += ["", f"Run on {'; '.join(places)}."]
    return "\n".join(lines) + "\n"


def _parts(one: Kept) -> str:
    parts = f"{one.n_passed} of {one.trial.n_parts}"
    if one.commits:
        parts += f" at {', '.join(one.commits)}"
    return f"{parts}, {one.n_failed} failed" if one.n_failed else parts


def written(document: str, trials: Iterable[Trial], latest: Latest) -> str:
    """A document with the table between its marks made anew."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(trials, latest) + END + after
