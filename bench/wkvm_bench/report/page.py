"""A report as Markdown: every section that has lines, with its plots, tables and commands."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wkvm_bench.harness import BenchError
from wkvm_bench.report.records import Record, latest, place
from wkvm_bench.report.sections import Plot, Section

DOCUMENT = Path("docs/performance.md")
"""The report that is a document of wkvm, and not a user's, as it is named from a checkout."""
COMMAND = f"python -m wkvm_bench report bench/results --output {DOCUMENT}"
INTRO = f"""# Performance

What was measured of wkvm, and with which command each figure can be had again. This page and its
plots are made from the lines in [bench/results](../bench/results) by

    {COMMAND}

and a test fails while they differ. Every line has the commit, the machine and the versions that
it was measured with; of each case of a command the last line counts. What was expected before,
what was tried, and what was not kept is in [bench/NOTES.md](../bench/NOTES.md).

Two things that are compared took turns in one run, each pair in the other order than the one
before: a ratio is the median of the pairs' ratios, with their 10th and 90th percentile. Times
without a ratio are of one machine on one day: they tell how a curve runs, and not which of two
programs is the faster one. Where a machine had other things to do at the same time, its load is
told: of such rows the ratios count, if anything.

A server of your own, wkvm's or any other that speaks OpenAI's interfaces, is measured by
[`wkvm bench serve`](cli.md#wkvm-bench-serve), and [`wkvm bench report`](cli.md#wkvm-bench-report)
makes such a page of the lines that it writes:

    wkvm bench serve --target one=openai-completions@http://127.0.0.1:8000 \\
        --target other=openai-completions@http://127.0.0.1:8100 --repeat 5 --results mine
    wkvm bench report mine --output mine/report.md
"""


UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What comes of a line that is not as a section knows it: anybody may have written it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot, and the lines that it is to be drawn from."""

    plot: Plot
    records: tuple[Record, ...]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.plot.name}.svg"

    @property
    def digest(self) -> str:
        """Of the lines: a file that has another one is of other lines."""
        lines = json.dumps(self.records, sort_keys=True).encode()
        return hashlib.sha256(lines).hexdigest()[:32]


def pictures(records: Sequence[Record], sections: Sequence[Section]) -> list[Picture]:
    """All plots that have something to draw, in order."""
    found, kept = list[Picture](), latest(records)
    for section in sections:
        of_section = _lines_of(section, kept)
        for plot in section.plots:
            if drawn := tuple(record for record in of_section if plot.has(record)):
                found.append(Picture(plot, drawn))
    return found


def markdown(
    records: Sequence[Record],
    sections: Sequence[Section],
    *,
    intro: str,
    images: str | None,
) -> str:
    """The report.

    Args:
        records: all lines, as they were read.
        sections: those without lines are left out.
        intro: what it begins with.
        images: the folder of the plots, as the report names it; None leaves them out.
    """
    kept = latest(records)
    parts = [intro.rstrip()]
    for section in sections:
        of_section = _lines_of(section, kept)
        if not of_section:
            continue
        parts += [f"## {section.title}", section.text.rstrip()]
        if images is not None:
            parts += [
                f"![{one.plot.title}]({images}/{one.file})\n\n*{one.plot.title}*"
                for one in pictures(of_section, [section])
            ]
        parts += [part for part in _tables(section, of_section) if part]
    return "\n\n".join(parts) + "\n"


def _tables(section: Section, records: Sequence[Record]) -> tuple[str, str]:
    """The tables of a section, and where its lines come from."""
    try:
        return section.tables(records).rstrip(), _origin(records)
    except UNREADABLE as error:
        raise unreadable(section.title, error) from error


def unreadable(title: str, error: Exception) -> BenchError:
    """The error of a line that has what its benchmark writes, but not as it writes it."""
    why = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
    return BenchError(f"{title}: a line {why}")


def relative(images: Path, output: Path) -> str:
    """The folder of the plots as a file beside ``output`` names it."""
    return Path(os.path.relpath(images, output.parent)).as_posix()


def _lines_of(section: Section, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if section.has(record)]


def _origin(records: Sequence[Record]) -> str:
    """Where, and by which commands, the lines of a section were measured."""
    commands = sorted({str(record["command"]) for record in records if record.get("command")})
    places = sorted({_machine(record) for record in records})
    told = "; ".join(f"`{command}`" for command in commands)
    return f"Measured on {'; '.join(places)}" + (f" by {told}." if told else ".")


def _machine(record: Record) -> str:
    versions = record.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else record.get("torch")
    n_cores = f", {record['n_cores']} cores" if "n_cores" in record else ""
    return f"{place(record)}{n_cores}" + (f", torch {torch}" if torch else "")
