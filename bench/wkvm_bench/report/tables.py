"""Lines of results as Markdown: two sides and their ratio, and figures alone."""

import re
from collections.abc import Sequence

from wkvm_bench.report.records import Record, place_and_load

COMPARED = ("| | measured | against | ratio | on |", "|---|---|---|---|---|")
FOUND = ("| | figure | besides | on |", "|---|---|---|---|")
N_BESIDES = 4
"""More figures beside the one that is meant make a table hard to read."""


def tables(records: Sequence[Record]) -> str:
    """A table for each kind of line; lines of no known kind are left out."""
    return "\n".join(part for part in (compared(records), found(records)) if part)


def compared(records: Sequence[Record]) -> str:
    """The lines that compare two sides, as a table."""
    rows = list[str]()
    for record in records:
        if not isinstance(record.get("ratio"), dict):
            continue
        a, b, unit = record["a"], record["b"], record["unit"]
        rows.append(
            f"| {_name(record)} | {cell(a['name'])}: {figure(a['median'])} {unit} "
            f"| {cell(b['name'])}: {figure(b['median'])} {unit} "
            f"| {spread(record['ratio'])} "
            f"| {place_and_load(record)} |"
        )
    return _table(COMPARED, rows)


def found(records: Sequence[Record]) -> str:
    """The lines whose figure stands for itself, as a table."""
    rows = list[str]()
    for record in records:
        if not isinstance(record.get("value"), int | float):
            continue
        besides = list(record.get("besides", {}).items())[:N_BESIDES]
        more = "; ".join(f"{cell(name)} {figure(value)}" for name, value in besides)
        rows.append(
            f"| {_name(record)} | {figure(record['value'])} {cell(record['unit'])} "
            f"| {more} | {place_and_load(record)} |"
        )
    return _table(FOUND, rows)


def figure(value: float) -> str:
    """Four digits, and thousands set apart."""
    text = f"{value:,.4g}"
    return f"{value:,.0f}" if "e" in text and 1 <= abs(value) < 1e12 else text


def spread(ratio: Record) -> str:
    """A ratio with its percentiles: two places, or two digits of what is below a tenth."""
    median, p10, p90 = (
        f"{one:.2f}" if one >= 0.1 else f"{one:.2g}"
        for one in (ratio["median"], ratio["p10"], ratio["p90"])
    )
    return f"{median} ({p10} to {p90})"


def cell(text: str) -> str:
    """Text that is no more than text in a cell of a table."""
    return " ".join(str(text).replace("|", r"\|").replace("<", "&lt;").split())


def in_numbers(text: str) -> tuple[str | int, ...]:
    """To sort by, so that 8 comes before 64: texts and numbers take turns, a text first."""
    parts = re.split(r"(\d+)", text.replace(",", ""))
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def _name(record: Record) -> str:
    n_threads = record.get("settings", {}).get("threads", 1)
    more = f", {n_threads} threads" if n_threads > 1 else ""
    return cell(f"{record['bench']}, {record['case']}{more}")


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([*head, *rows]) + "\n" if rows else ""
