"""Write the tables of measured figures in README.md from the lines in ``bench/results``.

    python -m tools.readme_figures

For each case of a command the last line counts. A test holds README.md to what this writes.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNSHOWN = {"json", "serve", "ladders", "frontier", "peers", "kernels", "vllm", "fla"}
"""Benchmarks that decide something inside, which bench/NOTES.md has; ladders and peers, whose many
lines are in docs/performance.md."""
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
GPU_BEGIN, GPU_END = "<!-- GPU figures: begin -->\n", "<!-- GPU figures: end -->\n"

Lines = tuple[str, dict[str, Any]]
"""A file of results, and the fields by which lines in it are known."""


def _step(model: str, rows: int) -> Lines:
    return "2026-11-29-gpu-decode-time-2.jsonl", {
        "timing": f"decode step, graph, {model}, {rows} rows"
    }


def _stored(rows: int, state: str) -> Lines:
    """Steps by how states are stored, with the recurrence in use."""
    timing = f"decode step, graph, 1.5B, {rows} rows, state {state}"
    return "2026-11-29-gpu-recurrence-time-3.jsonl", {"timing": timing, "split": False}


def _prompts(file: int, what: str) -> Lines:
    return f"2026-11-29-gpu-prefill-{file}.jsonl", {"timing": f"prefill, eager, {what} tokens"}


def _family(what: str, shape: str, rows: int) -> Lines:
    return "2026-11-30-gpu-families.jsonl", {"what": what, "shape": shape, "rows": rows}


GPU_ROWS: dict[str, Lines] = {
    "1.5B decodes 1 row": _step("1.5B", 1),
    "1.5B decodes 32 rows": _step("1.5B", 32),
    "1.5B decodes 256 rows": _step("1.5B", 256),
    "1.5B decodes 256 rows, `--deferred-writes`": _stored(256, "float32, deferred writes"),
    "1.5B decodes 256 rows, `--state-dtype float16`": _stored(256, "float16"),
    "1.5B decodes 1,024 rows": _step("1.5B", 1024),
    "1.5B decodes 1,024 rows, `--deferred-writes`": _stored(1024, "float32, deferred writes"),
    "1.5B decodes 1,024 rows, `--state-dtype float16`": _stored(1024, "float16"),
    "7.2B decodes 1 row": _step("7.2B", 1),
    "7.2B decodes 32 rows": _step("7.2B", 32),
    "7.2B decodes 256 rows": _step("7.2B", 256),
    "1.5B absorbs a prompt of 4,096 tokens": _prompts(2, "1.5B, 1 prompts of 4096"),
    "1.5B absorbs 32 prompts of 1,024": _prompts(2, "1.5B, 32 prompts of 1024"),
    "7.2B absorbs 32 prompts of 1,024": _prompts(3, "7.2B, 32 prompts of 1024"),
    "Mamba-2 2.7B decodes 1 row": _family("decode", "mamba2-2.7B", 1),
    "Mamba-2 2.7B decodes 32 rows": _family("decode", "mamba2-2.7B", 32),
    "Mamba-2 2.7B decodes 256 rows": _family("decode", "mamba2-2.7B", 256),
    "Mamba-2 2.7B absorbs a prompt of 8,192 tokens": _family("prompts", "mamba2-2.7B", 1),
    "Qwen3.5 9B decodes 1 row after 4,096 tokens": _family("decode", "qwen3.5-9B", 1),
    "Qwen3.5 9B decodes 32 rows after 4,096 tokens each": _family("decode", "qwen3.5-9B", 32),
    "Qwen3.5 9B decodes 256 rows after 4,096 tokens each": _family("decode", "qwen3.5-9B", 256),
    "Qwen3.5 9B absorbs a prompt of 8,192 tokens": _family("prompts", "qwen3.5-9B", 1),
    "Qwen3-Next 80B in float8 decodes 1 row": _family("decode", "qwen3-next-80B", 1),
    "Qwen3-Next 80B in float8 decodes 32 rows": _family("decode", "qwen3-next-80B", 32),
    "Qwen3-Next 80B in float8 decodes 256 rows": _family("decode", "qwen3-next-80B", 256),
}
"""Forward passes on a GPU that README.md shows, by what it calls them."""


def comparisons(folder: Path) -> list[dict[str, Any]]:
    """The last line of each case of a command that compares two things, in order."""
    latest = _latest(folder, "ratio")
    return [latest[key] for key in sorted(latest) if key[0] not in UNSHOWN]


def findings(folder: Path) -> list[dict[str, Any]]:
    """The last line of each case of a command whose figure stands for itself, as recorded."""
    return list(_latest(folder, "value").values())


def _latest(folder: Path, field: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each case of a command that has a field."""
    latest = dict[tuple[str, str, str], dict[str, Any]]()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            # Lines of tools for a GPU are of no benchmark, and are read by name.
            if field in record and "bench" in record:
                # Where the lines were written to is nobody else's folder.
                record["command"] = re.sub(r" --results \S+", "", record["command"])
                latest[record["bench"], record["case"], record["command"]] = record
    return latest


def figures(folder: Path) -> str:
    """All that stands between the marks."""
    return table(comparisons(folder)) + sentences(findings(folder))


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


def gpu_table(folder: Path, rows: dict[str, Lines]) -> str:
    """Forward passes on a GPU as Markdown. Of several lines the fastest counts: its plan is in use.

    Raises:
        ValueError: there is no line for a row.
    """
    lines = ["| | ms | tokens/s | lines |", "|---|---|---|---|"]
    for name, (file, fields) in rows.items():
        records = (json.loads(one) for one in (folder / file).read_text("utf-8").splitlines())
        found = [record for record in records if fields.items() <= record.items()]
        if not found:
            raise ValueError(f"{file} has no line of {name}")
        record = min(found, key=_ms)
        ms = _ms(record)
        rates = (record[field] for field in ("tokens_per_s", "tok_s") if field in record)
        rate = next(rates, None) or record["rows"] / ms * 1e3
        lines.append(f"| {name} | {ms:,.4g} | {rate:,.0f} | [{file}](bench/results/{file}) |")
    return "\n".join(lines) + "\n"


def _ms(record: dict[str, Any]) -> float:
    ms: float = record["ms"] if "ms" in record else record["median_ms"]
    return ms


def place(record: dict[str, Any]) -> str:
    """What a figure was measured on: the GPU, where the machine has one."""
    name: str = record.get("gpu") or record["device"]
    return name


def with_figures(readme: str, new: str, begin: str = BEGIN, end: str = END) -> str:
    """``readme`` with what stands between two marks replaced."""
    before, rest = readme.split(begin)
    _, after = rest.split(end)
    return before + begin + new + end + after


def written(readme: str, folder: Path) -> str:
    """``readme`` with all figures as the lines in ``folder`` have them."""
    new = with_figures(readme, figures(folder))
    return with_figures(new, gpu_table(folder, GPU_ROWS), GPU_BEGIN, GPU_END)


def main() -> None:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    new = written(path.read_text(encoding="utf-8"), ROOT / "bench/results")
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
