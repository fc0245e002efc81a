"""What has no section of its own: each comparison and figure as a row of a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record, place
from wkvm_bench.report.sections import Plot, Section
from wkvm_bench.report.tables import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = {"serve", "peers", "vllm", "fla", "frontier", "ladders", "kernels"}
"""Benchmarks that have sections."""
UNSHOWN = {"json", "aborts"}
"""Not of how fast something is, or deciding something inside, which bench/NOTES.md has."""


def _has(record: Record) -> bool:
    is_line = "bench" in record and ("ratio" in record or "value" in record)
    return is_line and record["bench"] not in OWN | UNSHOWN


def _is_ratio(record: Record) -> bool:
    return isinstance(record.get("ratio"), dict)


def draw_ratios(figure_: "Figure", records: Sequence[Record]) -> None:
    """A point and a line for each comparison, one below the other."""
    figure_.set_size_inches(10.0, 0.9 + 0.22 * len(records))
    axes = figure_.subplots()
    names = list[str]()
    for at, record in enumerate(records):
        ratio, is_rate = record["ratio"], record["unit"].endswith("/s")
        colour = "C0" if is_rate else "C1"
        axes.plot([ratio["p10"], ratio["p90"]], [at, at], "-", color=colour, alpha=0.5)
        axes.plot(ratio["median"], at, "o", color=colour)
        on = ", GPU" if record.get("gpu") or str(place(record)).startswith("NVIDIA") else ""
        names.append(f"{record['bench']}, {record['case']}, against {record['b']['name']}{on}")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: figure(value))
    axes.axvline(1.0, color="#57606a", linewidth=1)
    axes.plot([], [], "o-", color="C0", label="of a rate: more is better")
    axes.plot([], [], "o-", color="C1", label="of a time: less is better")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


SECTIONS: Sequence[Section] = (
    Section(
        name="others",
        title="Each benchmark by itself",
        text=(
            "Both sides of a row alternate in one run, with equal numbers of threads; figures"
            " are medians. In brackets: the 10th and 90th percentile of the ratio of each pair of"
            " turns."
        ),
        has=_has,
        plots=(
            Plot(
                name="ratios",
                title="Ratios of what took turns, with their 10th and 90th percentile.",
                has=_is_ratio,
                draw=draw_ratios,
            ),
        ),
    ),
)
