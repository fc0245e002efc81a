"""What tools for a GPU measured: steps by rows, families, prompts, and states that move.

Lines of these tools are of no benchmark: they are known by their files and what they call
themselves.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record
from wkvm_bench.report.sections import Plot, Section
from wkvm_bench.report.tables import cell, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DECODE_FILES = {
    "2026-11-29-gpu-decode-time-2.jsonl",
    "2026-11-29-gpu-decode-time-final.jsonl",
    "2026-11-29-gpu-recurrence-time-3.jsonl",
}
PROMPT_FILES = {
    "2026-11-29-gpu-prefill-2.jsonl",
    "2026-11-29-gpu-prefill-3.jsonl",
    "2026-11-29-gpu-prefill-4.jsonl",
}
FAMILY_FILES = {"2026-11-30-gpu-families.jsonl", "2026-11-30-gpu-families-peer.jsonl"}
STATE_FILE = "2026-11-30-gpu-states.jsonl"
_STEP = re.compile(r"decode step, graph, (\S+), (\d+) rows(?:, state (.*))?")
_PROMPT = re.compile(r"prefill, (?:eager|captured), (\S+), (?:(\d+) prompts of )?(\d+) tokens")
_MOVES = {
    "one record on the host into 64 slots, on the device": "one state from the host into 64 slots",
    "copy a state to another slot, within the device": "fork of one state, on the device",
    "fork into 64 and the next token of each, through the engine": (
        "fork into 64, and the next id of each"
    ),
    "hibernate, from the last token to the state on the host, through the engine": (
        "hibernate to the host, after the last id"
    ),
    "resume from pinned memory to the next token, through the engine": (
        "resume from the host, to the next id"
    ),
}

Step = tuple[str, int]
"""What is decoded, and by how many rows."""


def steps(records: Sequence[Record]) -> dict[Step, Record]:
    """The fastest step of each kind: its plan is the one in use."""
    found = dict[Step, Record]()
    for record in records:
        matched = _STEP.fullmatch(str(record.get("timing", "")))
        if matched is None or record.get("split"):
            continue
        model, rows, state = matched[1], int(matched[2]), matched[3] or "float32"
        kind = model if state == "float32" else f"{model}, state {state}"
        best = found.get((kind, rows))
        if best is None or record["median_ms"] < best["median_ms"]:
            found[kind, rows] = record
    return dict(sorted(found.items()))


def decode_table(records: Sequence[Record]) -> str:
    """Steps by rows, with what their bytes would take at the speed of a copy."""
    lines = [
        "| RWKV-7 | rows | ms a step | ids/s | of what its bytes allow |",
        "|---|---|---|---|---|",
    ]
    for (kind, rows), record in steps(records).items():
        ms, share = record["median_ms"], record.get("of_serial_floor")
        told = "-" if share is None else f"{share:.0%}"
        lines.append(
            f"| {cell(kind)} | {rows:,} | {figure(ms)} | {rows / ms * 1e3:,.0f} | {told} |"
        )
    return "\n".join(lines) + "\n"


def draw_decode(figure_: "Figure", records: Sequence[Record]) -> None:
    """Ids a second and milliseconds a step, by rows."""
    kinds = dict[str, list[tuple[int, float]]]()
    for (kind, rows), record in steps(records).items():
        kinds.setdefault(kind, []).append((rows, record["median_ms"]))
    rate, step = figure_.subplots(1, 2)
    for kind, points in kinds.items():
        if len(points) > 1:
            counts = [n for n, _ in points]
            rate.plot(counts, [n / ms * 1e3 for n, ms in points], "o-", label=kind)
            step.plot(counts, [ms for _, ms in points], "o-", label=kind)
    _by_rows(rate, "ids a second, all rows together")
    _by_rows(step, "ms a step")
    rate.legend()


def _by_rows(axes: "Axes", title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("rows (streams)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: figure(value))
    axes.grid(visible=True, which="major")


def prompts_table(records: Sequence[Record]) -> str:
    """Prompts by length: the fastest line of each."""
    best = dict[tuple[str, int, int], float]()
    for record in records:
        matched = _PROMPT.match(str(record.get("timing", "")))
        if matched is None or record.get("median_ms") is None:
            continue
        key = (matched[1], int(matched[2] or 1), int(matched[3]))
        best[key] = min(record["median_ms"], best.get(key, float("inf")))
    lines = ["| RWKV-7 | prompts | tokens each | ms | tokens/s |", "|---|---|---|---|---|"]
    for (model, n, tokens), ms in sorted(best.items()):
        rate = n * tokens / ms * 1e3
        lines.append(f"| {cell(model)} | {n} | {tokens:,} | {figure(ms)} | {rate:,.0f} |")
    return "\n".join(lines) + "\n"


def families(records: Sequence[Record]) -> dict[Step, Record]:
    """The last line of each family and number of rows, of wkvm and of its peer."""
    found = dict[Step, Record]()
    for record in records:
        if record.get("what") == "decode":
            found[f"{record['shape']}, wkvm", record["rows"]] = record
        elif record.get("what") == "peer" and "generate_tok_s" in record:
            found[f"{record['shape']}, transformers' generate", record["rows"]] = record
    return dict(sorted(found.items()))


def _family_rate(record: Record) -> float:
    return float(record.get("tok_s") or record["generate_tok_s"])


def families_table(records: Sequence[Record]) -> str:
    """Ids a second by family and rows."""
    lines = ["| | rows | ids/s |", "|---|---|---|"]
    lines += [
        f"| {cell(kind)} | {rows:,} | {_family_rate(record):,.0f} |"
        for (kind, rows), record in families(records).items()
    ]
    return "\n".join(lines) + "\n"


def draw_families(figure_: "Figure", records: Sequence[Record]) -> None:
    """A curve for each family, and a dotted one for its peer."""
    curves = dict[str, list[tuple[int, float]]]()
    for (kind, rows), record in families(records).items():
        curves.setdefault(kind, []).append((rows, _family_rate(record)))
    shapes = sorted({kind.partition(",")[0] for kind in curves})
    axes = figure_.subplots()
    for kind, points in curves.items():
        shape, _, whose = kind.partition(", ")
        colour, style = f"C{shapes.index(shape)}", "o-" if whose == "wkvm" else "s:"
        axes.plot(*zip(*points, strict=True), style, color=colour, label=kind)
    _by_rows(axes, "ids a second, all rows together")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def moves(records: Sequence[Record]) -> dict[str, float]:
    """Milliseconds of each move of a state, by the last line of each."""
    found = {str(one.get("timing")): one["ms"] for one in records if "ms" in one}
    return {words: found[timing] for timing, words in _MOVES.items() if timing in found}


def moves_table(records: Sequence[Record]) -> str:
    """What moving a state takes."""
    lines = ["| a state of 12.2 MiB | ms |", "|---|---|"]
    lines += [f"| {cell(words)} | {figure(ms)} |" for words, ms in moves(records).items()]
    return "\n".join(lines) + "\n"


def draw_moves(figure_: "Figure", records: Sequence[Record]) -> None:
    """A bar for each move."""
    found = moves(records)
    axes = figure_.subplots()
    bars = axes.barh(list(found), list(found.values()), height=0.6)
    axes.bar_label(bars, [f"{ms:,.3g} ms" for ms in found.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.15)


def _is_step(record: Record) -> bool:
    return record.get("file") in DECODE_FILES and str(record.get("timing", "")).startswith(
        "decode step"
    )


def _is_prompt(record: Record) -> bool:
    return (
        record.get("file") in PROMPT_FILES
        and _PROMPT.match(str(record.get("timing", ""))) is not None
    )


def _is_family(record: Record) -> bool:
    return record.get("file") in FAMILY_FILES and record.get("what") in ("decode", "peer")


def _is_move(record: Record) -> bool:
    return record.get("file") == STATE_FILE and record.get("timing") in _MOVES


SECTIONS = (
    Section(
        name="gpu-decode",
        title="Decoding on a GPU",
        text="""The forward pass of one id for each of so many streams, as a captured graph, with
random weights in the shapes of the 1.5B and 7.2B models, in bfloat16. A step reads all weights
once, and reads and writes the state of each row: what its bytes would take at the speed of a plain
copy is the floor that the last column is a share of. Up to some tens of rows the weights are most
of it, and more rows are almost free; beyond, the states are. How states are stored
(`--state-dtype`, `--deferred-writes`) matters there.""",
        has=_is_step,
        tables=decode_table,
        plots=(
            Plot(
                name="gpu-decode",
                title="Decoding on a GPU: ids a second, and what a step takes, by rows.",
                has=_is_step,
                draw=draw_decode,
                size=(10.0, 3.6),
            ),
        ),
    ),
    Section(
        name="gpu-prompts",
        title="Prompts on a GPU",
        text="Whole prompts, packed where there are several; the fastest line of each length.",
        has=_is_prompt,
        tables=prompts_table,
    ),
    Section(
        name="gpu-families",
        title="Other families on a GPU",
        text="""Decoding after 4,096 tokens of context, and beside it what `generate` of
transformers does with the same shapes on the same machine (in another run: there is no ratio).
Qwen3.5 and Qwen3-Next are hybrids: their attention layers read what they keep of each token.""",
        has=_is_family,
        tables=families_table,
        plots=(
            Plot(
                name="gpu-families",
                title="Decoding of other families on a GPU, in ids a second.",
                has=_is_family,
                draw=draw_families,
                size=(9.0, 3.6),
            ),
        ),
    ),
    Section(
        name="gpu-states",
        title="States on a GPU",
        text="""What it takes to move the state of a 1.5B RWKV-7, which is of one size after ten
tokens or ten million: to copy it to other slots, to the host, and back to where the next id
comes.""",
        has=_is_move,
        tables=moves_table,
        plots=(
            Plot(
                name="gpu-states",
                title="Moving a state of 12.2 MiB on a GPU.",
                has=_is_move,
                draw=draw_moves,
                size=(8.0, 2.6),
            ),
        ),
    ),
)
