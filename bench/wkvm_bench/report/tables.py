"""Lines of results as Markdown: two sides and their ratio, figures, loads on servers."""

from collections.abc import Sequence

from wkvm_bench.report.records import Record, place

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
        a, b, ratio, unit = record["a"], record["b"], record["ratio"], record["unit"]
        rows.append(
            f"| {_name(record)} | {cell(a['name'])}: {figure(a['median'])} {unit} "
            f"| {cell(b['name'])}: {figure(b['median'])} {unit} "
            f"| {ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f}) "
            f"| {place(record)} |"
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
            f"| {more} | {place(record)} |"
        )
    return _table(FOUND, rows)


def figure(value: float) -> str:
    """Four digits, and thousands set apart."""
    text = f"{value:,.4g}"
    return f"{value:,.0f}" if "e" in text and 1 <= abs(value) < 1e12 else text


def cell(text: str) -> str:
    """Text that is no more than text in a cell of a table."""
    return " ".join(str(text).replace("|", r"\|").replace("<", "&lt;").split())


def _name(record: Record) -> str:
    n_threads = record.get("settings", {}).get("threads", 1)
    more = f", {n_threads} threads" if n_threads > 1 else ""
    return cell(f"{record['bench']}, {record['case']}{more}")


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([*head, *rows]) + "\n" if rows else ""
