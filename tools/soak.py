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
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from wkvm_bench.results import environment

from tools.soak_layers import LAYERS, PART_LIMIT_S, TRIALS, Trial
from tools.soak_parts import Part, Runner
from tools.soak_record import Latest, Line, digest_of, kept, read, written

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/soak.jsonl"
DOCUMENT = ROOT / "docs/reliability.md"
LEFT_OVER = 3
"""The exit status where parts are left to be run."""


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
    wanted = [
        one
        for one in trials
        if (not arguments.only or one.layer in arguments.only) and arguments.match in one.name
    ]
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
        "--match",
        default="",
        metavar="TEXT",
        help="only trials whose tests have this in their names",
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
        metavar="S",
        help=f"a part that takes longer has failed (default {PART_LIMIT_S:g}, and what trials say)",
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
