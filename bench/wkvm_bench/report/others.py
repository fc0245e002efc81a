"""What has no section of its own: each comparison and figure as a row of a table."""

from collections.abc import Sequence

from wkvm_bench.report.records import Record
from wkvm_bench.report.sections import Section

OWN = {"serve", "peers", "vllm", "frontier", "ladders", "kernels"}
"""Benchmarks that have sections."""
UNSHOWN = {"json", "aborts"}
"""Not of how fast something is, or deciding something inside, which bench/NOTES.md has."""


def _has(record: Record) -> bool:
    is_line = "bench" in record and ("ratio" in record or "value" in record)
    return is_line and record["bench"] not in OWN | UNSHOWN


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
    ),
)
