"""Write the tables of measured figures in README.md from the lines in ``bench/results``.

    python -m tools.readme_figures

For each case of a command the last line counts. That of docs/comparison.md is written, too. A test
holds both files to what this writes.
"""

import json
from pathlib import Path
from typing import Any

from wkvm_bench.report.records import place, read
from wkvm_bench.report.tables import figure, spread

ROOT = Path(__file__).parents[1]
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
    "1.5B decodes 256 rows": _step("1.5B", 256),
    "1.5B decodes 256 rows, `--deferred-writes`": _stored(256, "float32, deferred writes"),
    "7.2B decodes 1 row": _step("7.2B", 1),
    "7.2B decodes 256 rows": _step("7.2B", 256),
    "1.5B absorbs a prompt of 4,096 tokens": _prompts(2, "1.5B, 1 prompts of 4096"),
    "7.2B absorbs 32 prompts of 1,024": _prompts(3, "7.2B, 32 prompts of 1024"),
    "Mamba-2 2.7B decodes 256 rows": _family("decode", "mamba2-2.7B", 256),
    "Mamba-2 2.7B absorbs a prompt of 8,192 tokens": _family("prompts", "mamba2-2.7B", 1),
    "Qwen3.5 9B decodes 256 rows after 4,096 tokens each": _family("decode", "qwen3.5-9B", 256),
    "Qwen3.5 9B absorbs a prompt of 8,192 tokens": _family("prompts", "qwen3.5-9B", 1),
    "Qwen3-Next 80B in float8 decodes 256 rows": _family("decode", "qwen3-next-80B", 256),
}
"""Forward passes on a GPU that README.md shows, by what it calls them."""

Case = tuple[str, str, str]
"""A benchmark, a case of it, and the command."""


def _case(bench: str, case: str, flags: str = "") -> Case:
    return bench, case, f"python -m wkvm_bench {bench}{flags}"


def _vllm(shape: str, n_streams: int, what: str) -> Case:
    case = f"{shape}, 1024 in, 128 out, {n_streams} streams: {what}"
    command = f"python tools/peer_vllm.py --vllm-site DIR --shape {shape} --output FILE"
    return "vllm", case, command


ROWS: dict[str, Case] = {
    "one stream": _case("decode", "batch 1", " --threads 1"),
    "16 streams": _case("decode", "batch 16", " --threads 1"),
    "one stream, same weights; transformers in float32": _case(
        "peers", "decode, transformers, 1 stream"
    ),
    "one stream, same weights; both with matrices in float16": _case(
        "peers", "decode, llama.cpp, 1 stream"
    ),
    "all sessions of 16,384 tokens that fit into 256 MiB": _case(
        "frontier", "sessions of 16,384 tokens in 256 MiB"
    ),
    "first token of a conversation's 40th turn": _case("turns", "first token at turn 40"),
    "one of 10,000 sessions on disk, to its next id": _case(
        "states", "bundled on cpu, 10,000 sessions: from disk to the next id"
    ),
    "64 chats that are streamed, of any model": _case("gateway", "events, 64 streams"),
    "1.5B on a GPU, 256 rows": _case("engine", "1.5B on cuda, 256 rows"),
    "1.5B on a GPU, 256 streams": _case("server", "1.5B on cuda, 256 streams"),
    "one stream on a GPU, of an RWKV-7 and a transformer": _vllm("1.5B", 1, "ids"),
    "256 streams of these, each after 1,024 tokens": _vllm("1.5B", 256, "ids"),
    "one stream of Mamba-2 2.7B on a GPU": _vllm("mamba2-2.7B", 1, "ids"),
    "32 streams of it, 1,024 tokens in and 128 out": _vllm("mamba2-2.7B", 32, "ids"),
}
"""Comparisons that README.md shows, by what it calls them; docs/performance.md has all."""


VLLM_SHAPES = {
    "1.5B": "1.5B: RWKV-7 in wkvm, Qwen2.5 in vLLM",
    "mamba2-2.7B": "Mamba-2 2.7B in both",
    "qwen3.5-9B": "Qwen3.5 9B in both",
}
"""Those of docs/comparison.md, by what it calls them."""
VLLM_STREAMS = (1, 32, 256)


def _latest(folder: Path) -> dict[Case, dict[str, Any]]:
    """Of each case of a command the last line."""
    lines = (line for line in read([folder]) if "ratio" in line and "bench" in line)
    return {(line["bench"], line["case"], line["command"]): line for line in lines}


def figures(folder: Path, rows: dict[str, Case]) -> str:
    """Comparisons as Markdown.

    Raises:
        ValueError: there is no line for a row.
    """
    latest = _latest(folder)
    lines = ["| | measured | against | ratio | command |", "|---|---|---|---|---|"]
    places = set[str]()
    for name, case in rows.items():
        if case not in latest:
            raise ValueError(f"no line of {name}")
        record = latest[case]
        a, b, unit = record["a"], record["b"], record["unit"]
        lines.append(
            f"| {name} | {a['name']}: {figure(a['median'])} {unit} "
            f"| {b['name']}: {figure(b['median'])} {unit} "
            f"| {spread(record['ratio'])} | `{case[2]}` |"
        )
        places.add(f"{place(record)}, {record['n_cores']} cores")
    lines += [
        "",
        "Medians; the two sides of a row alternate in one run, with equal numbers of threads. In",
        "brackets: the 10th and 90th percentile of the ratio. Measured on",
        "; ".join(sorted(places)) + ".",
    ]
    return "\n".join(lines) + "\n"


def vllm_table(folder: Path) -> str:
    """Servers of wkvm and vLLM as Markdown.

    Raises:
        ValueError: there is no line for a cell.
    """
    latest = _latest(folder)

    def cell(case: Case) -> str:
        if case not in latest:
            raise ValueError(f"no line of {case[1]}")
        record = latest[case]
        a, b = (figure(record[side]["median"]) for side in "ab")
        return f"{a} to {b}: {record['ratio']['median']:.2f}"

    columns = {
        "ids/s": "ids",
        "first id, ms": "first id, p50",
        "between ids, ms": "between ids, p50",
    }
    lines = [
        f"| wkvm to vLLM | streams | {' | '.join(columns)} |",
        "|---" * (2 + len(columns)) + "|",
    ]
    lines += [
        f"| {name} | {n} | {' | '.join(cell(_vllm(shape, n, what)) for what in columns.values())} |"
        for shape, name in VLLM_SHAPES.items()
        for n in VLLM_STREAMS
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


def with_figures(readme: str, new: str, begin: str = BEGIN, end: str = END) -> str:
    """``readme`` with what stands between two marks replaced."""
    before, rest = readme.split(begin)
    _, after = rest.split(end)
    return before + begin + new + end + after


def written(readme: str, folder: Path) -> str:
    """``readme`` with all figures as the lines in ``folder`` have them."""
    new = with_figures(readme, figures(folder, ROWS))
    return with_figures(new, gpu_table(folder, GPU_ROWS), GPU_BEGIN, GPU_END)


def compared(page: str, folder: Path) -> str:
    """``docs/comparison.md`` with its figures as the lines in ``folder`` have them."""
    return with_figures(page, vllm_table(folder))


def main() -> None:
    """Rewrite README.md and docs/comparison.md."""
    for file, write in (("README.md", written), ("docs/comparison.md", compared)):
        path = ROOT / file
        path.write_text(write(path.read_text("utf-8"), ROOT / "bench/results"), "utf-8")


if __name__ == "__main__":
    main()
