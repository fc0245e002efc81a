"""Write the table of measured figures in README.md from the lines in ``bench/results``.

    python -m tools.readme_figures

For each case of a command the last line counts. A test holds README.md to what this writes.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def comparisons(folder: Path) -> list[dict[str, Any]]:
    """The last line of each case of a command that compares two things, in order."""
    latest = dict[tuple[str, str, str], dict[str, Any]]()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "ratio" in record:
                latest[record["bench"], record["case"], record["command"]] = record
    return [latest[key] for key in sorted(latest)]


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
        f"{r['device']}, {r['n_cores']} cores, Python {r['versions']['python']}, "
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


def with_figures(readme: str, figures: str) -> str:
    """``readme`` with what stands between the marks replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + figures + END + after


def main() -> None:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    figures = table(comparisons(ROOT / "bench/results"))
    path.write_text(with_figures(path.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main()
