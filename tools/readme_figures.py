"""Write the table of measured figures in README.md from the lines in ``bench/results``.

    python -m tools.readme_figures

For each case of a command the last line counts. A test holds README.md to what this writes.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNSHOWN = {"json"}
"""Benchmarks that decide something inside; bench/NOTES.md has what came of them."""
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def comparisons(folder: Path) -> list[dict[str, Any]]:
    """The last line of each case of a command that compares two things, in order."""
    latest = _latest(folder, "ratio")
    return [latest[key] for key in sorted(latest) if key[0] not in UNSHOWN]


def findings(folder: Path) -> list[dict[str, Any]]:
    """The last line of each case of a command whose figure stands for itself, as recorded."""
    return list(_latest(folder, "value").values())


def rungs(folder: Path) -> list[dict[str, Any]]:
    """The last line of each rung of a load on a server, as recorded."""
    return list(_latest(folder, "rung").values())


def _latest(folder: Path, field: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each case of a command that has a field."""
    latest = dict[tuple[str, str, str], dict[str, Any]]()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if field in record:
                latest[record["bench"], record["case"], record["command"]] = record
    return latest


def figures(folder: Path) -> str:
    """All that stands between the marks."""
    return table(comparisons(folder)) + ladder(rungs(folder)) + sentences(findings(folder))


def sentences(records: list[dict[str, Any]]) -> str:
    """The figures that stand for themselves, a line for each command."""
    commands = dict[str, list[str]]()
    for record in records:
        figure = f"{record['case']} {record['value']:,.4g} {record['unit']}"
        commands.setdefault(record["command"], []).append(figure)
    return "".join(f"\n`{command}`: {'; '.join(all_)}.\n" for command, all_ in commands.items())


def table(records: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    if not records:
        return "Nothing yet.\n"
    lines = [
        "| | measured | against | ratio | command |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        a, b, ratio = record["a"], record["b"], record["ratio"]
        unit = record["unit"]
        lines.append(
            f"| {record['bench']}, {record['case']} | {a['name']}: {a['median']:,.4g} {unit} "
            f"| {b['name']}: {b['median']:,.4g} {unit} "
            f"| {ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f}) "
            f"| `{record['command']}` |"
        )
    places = {
        f"{place(r)}, {r['n_cores']} cores, Python {r['versions']['python']}, "
        f"torch {r['versions'].get('torch', 'none')}"
        for r in records
    }
    lines += [
        "",
        "Medians; the two sides of a row alternate in one run, with equal numbers of threads. In",
        "brackets: the 10th and 90th percentile of the ratio. Measured on",
        "; ".join(sorted(places)) + ".",
        "All lines, with commits and versions, are in [bench/results](bench/results).",
    ]
    return "\n".join(lines) + "\n"


def ladder(records: list[dict[str, Any]]) -> str:
    """Loads on servers as Markdown, with times in milliseconds."""
    if not records:
        return ""
    lines = [
        "",
        "| load | ids/s | first id, p50 / p99 | between ids, p50 / p99 | request, p50 / p99 | on |",
        "|---|---|---|---|---|---|",
    ]
    for record in records:
        rung = record["rung"]
        times = (_times(rung[name]) for name in ("ttft", "itl", "e2e"))
        lines.append(
            f"| {record['case']} | {rung['ids_per_s']:,.0f} | {' | '.join(times)} "
            f"| {place(record)} |"
        )
    return "\n".join(lines) + "\n"


def place(record: dict[str, Any]) -> str:
    """What a figure was measured on: the GPU, where the machine has one."""
    name: str = record.get("gpu") or record["device"]
    return name


def _times(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['p50']:,.4g} / {spread['p99']:,.4g} ms"


def with_figures(readme: str, new: str) -> str:
    """``readme`` with what stands between the marks replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + new + END + after


def main() -> None:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    new = figures(ROOT / "bench/results")
    path.write_text(with_figures(path.read_text(encoding="utf-8"), new), encoding="utf-8")


if __name__ == "__main__":
    main()
