"""Kernels under their rooflines: those that tools for a GPU timed, and those of a CPU.

Operations are counted as ``wkvm_bench.kernels`` counts them: of the recurrence as it is written
down. A GPU's lines say how many bytes a second a kernel moved, and at which speed a copy did.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record
from wkvm_bench.report.sections import Plot, Section, of_bench
from wkvm_bench.report.tables import cell, compared, figure, in_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPY_RATE, MATRIX_RATE = 4.2e12, 780e12
"""Of an H200: bytes a second of a copy, read and written together, as these tools measured it; and
operations a second of a large product in bfloat16."""
FILES = {
    "2026-11-29-gpu-products-1.jsonl",
    "2026-11-29-gpu-recurrence-time-3.jsonl",
    "2026-11-30-gpu-ssm.jsonl",
    "2026-11-30-gpu-delta.jsonl",
    "2026-11-30-gpu-attention.jsonl",
}
_RWKV7 = re.compile(r"recurrence of one layer, (\d+) heads, (\d+) rows, (float32), at once, .*")
_SSM = re.compile(r"decode, (mamba2-2\.7B), (\d+) rows, (?:one|two) launch.*")
_DELTA = re.compile(r"gated delta rule, one token, one layer, (.*), (\d+) rows, default")
_ATTENTION = re.compile(
    r"attention of one token, one layer, (Qwen3\.5), (\d+) rows of (\d+) tokens, default"
)
RWKV7_EACH, SSM_EACH, DELTA_EACH = 9, 5, 7
"""Operations for each number of a state and token."""
SSM_NUMBERS = 80 * 64 * 128
"""Of a state of that shape, in one layer."""
MARKERS = "os^Dv"
SHARED = 4
"""Query heads to a head of keys in Qwen3.5: so many operations a byte, in bfloat16."""


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel that was timed.

    Attributes:
        per_byte: operations a byte.
        rate: operations a second.
    """

    kind: str
    load: str
    per_byte: float
    rate: float

    @property
    def share(self) -> float:
        """Of its roof."""
        return self.rate / min(self.per_byte * COPY_RATE, MATRIX_RATE)


def point(record: Record) -> Point | None:
    """What a line of a GPU says, if it is of a kernel that is drawn."""
    if record.get("file") not in FILES:
        return None
    if "product" in record and "us" in record:
        return _product(record)
    timing, us = str(record.get("timing", "")), record.get("median_us")
    if not us:
        return None
    if found := _RWKV7.fullmatch(timing):
        # A state is read and written once: eight bytes for each number.
        return _moved("RWKV-7", _rows(found[2]), RWKV7_EACH / 8, record["tb_per_s"])
    if found := _SSM.fullmatch(timing):
        operations = SSM_EACH * SSM_NUMBERS * int(found[2])
        rate = operations / us * 1e6
        return Point("Mamba-2", _rows(found[2]), SSM_EACH / 8, rate)
    if found := _DELTA.fullmatch(timing):
        kind = f"gated delta rule, {found[1]}"
        return _moved(kind, _rows(found[2]), DELTA_EACH / 8, record["tb_per_s"])
    if found := _ATTENTION.fullmatch(timing):
        load = f"{_rows(found[2])} of {int(found[3]):,} tokens"
        return _moved(f"attention, {found[1]}", load, SHARED, record["tb_per_s"])
    return None


def _moved(kind: str, load: str, per_byte: float, tb_per_s: float) -> Point:
    return Point(kind, load, per_byte, per_byte * tb_per_s * 1e12)


def _rows(n: str | int) -> str:
    return f"{int(n):,} row{'' if int(n) == 1 else 's'}"


def _product(record: Record) -> Point:
    n, k, rows = record["N"], record["K"], record["rows"]
    operations = 2.0 * n * k * rows
    n_bytes = 2.0 * (n * k + rows * (n + k))
    load = f"{record['product']}, {_rows(rows)}"
    return Point("products", load, operations / n_bytes, operations / record["us"] * 1e6)


def points(records: Sequence[Record]) -> list[Point]:
    """The fastest of each kernel and load."""
    best = dict[tuple[str, str], Point]()
    for record in records:
        one = point(record)
        if one is not None:
            key = (one.kind, one.load)
            if key not in best or best[key].rate < one.rate:
                best[key] = one
    return sorted(best.values(), key=lambda one: (one.kind, in_numbers(one.load)))


def gpu_table(records: Sequence[Record]) -> str:
    """All points, as a table."""
    lines = [
        "| kernel | load | operations a byte | Top/s | of its roof |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {cell(one.kind)} | {cell(one.load)} | {figure(one.per_byte)} "
        f"| {figure(one.rate / 1e12)} | {one.share:.0%} |"
        for one in points(records)
    ]
    return "\n".join(lines) + "\n"


def draw_gpu(figure_: "Figure", records: Sequence[Record]) -> None:
    """Points of each kind under the roof of an H200."""
    axes = figure_.subplots()
    _roof(axes, (0.5, 2000.0), COPY_RATE, MATRIX_RATE)
    kinds = dict[str, list[Point]]()
    for one in points(records):
        kinds.setdefault(one.kind.partition(",")[0], []).append(one)
    for kind, found in kinds.items():
        x, y = [one.per_byte for one in found], [one.rate for one in found]
        axes.plot(x, y, MARKERS[len(axes.lines) % len(MARKERS)], label=kind)
    _logarithmic(axes, "trillions", 1e12)


def draw_cpu(figure_: "Figure", records: Sequence[Record]) -> None:
    """Each kernel's share of its roof, the roof being another in each turn."""
    axes = figure_.subplots()
    first = records[0]["besides"]
    _roof(axes, (0.2, 1000.0), first["copy, GB/s"] * 1e9, first["product, Gop/s"] * 1e9)
    kinds = dict[str, list[Record]]()
    for record in records:
        kinds.setdefault(record["case"].partition(",")[0].partition(" of ")[0], []).append(record)
    for kind, found in kinds.items():
        x = [one["besides"]["operations a byte"] for one in found]
        y = [one["a"]["median"] * 1e9 for one in found]
        axes.plot(x, y, MARKERS[len(axes.lines) % len(MARKERS)], label=kind)
    axes.set_ylim(1e9, 1e11)
    _logarithmic(axes, "billions", 1e9)


def _roof(axes: "Axes", ends: tuple[float, float], copy: float, product: float) -> None:
    corner = product / copy
    x = sorted((*ends, corner))
    axes.plot(
        x,
        [min(copy * one, product) for one in x],
        "-",
        color="#1f2328",
        linewidth=1.0,
        label="roof",
    )


def _logarithmic(axes: "Axes", what: str, unit: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel(f"{what} of operations a second")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / unit:,g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(visible=True, which="major")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _is_point(record: Record) -> bool:
    return point(record) is not None


TEXT = """Operations are those of the recurrence as it is written down, token by token; bytes are
those that nobody can do without: states read and written once, weights, keys and values read once.
What a kernel could do at best is its roof: the speed of a copy times its operations a byte, or the
speed of a large product where that is less."""

SECTIONS = (
    Section(
        name="gpu-rooflines",
        title="Kernels on a GPU under their roofline",
        text=TEXT
        + """ One layer each, without the launch of others; of several plans and cuts the
fastest. A recurrence of one token does less than ten operations for each number that it must read
and write: what can be had is the memory's speed, and only that. Few rows do not fill the device.
A copy reads and writes: what reads alone can be a little faster than its roof. Products are the
matrices of a decode step of the 1.5B RWKV-7: the *first* of a layer (receptance, key, value and
what is of low rank, in one), its *output*, the *key* and *value* of its feed-forward part, and the
*head*. Their lines do not name their machine; they are of the same GPU.""",
        has=_is_point,
        tables=gpu_table,
        plots=(
            Plot(
                name="gpu-rooflines",
                title="Kernels on an H200 under their roofline, in bfloat16 with float32 states.",
                has=_is_point,
                draw=draw_gpu,
                size=(9.0, 4.4),
            ),
        ),
    ),
    Section(
        name="cpu-rooflines",
        title="Kernels on a CPU under their roofline",
        text=TEXT
        + """ On a CPU all of it is float32, on one thread, and each turn measures the copy and
the product anew: the ratio is the share of the roof that was there in that turn. The line in the
picture is that of the first kernel's median. States that lie in the processor's cache can be above
it; a prompt computed in chunks does other operations than are counted.""",
        has=of_bench("kernels"),
        tables=compared,
        plots=(
            Plot(
                name="cpu-rooflines",
                title="Kernels on a CPU under their roofline, in float32.",
                has=of_bench("kernels"),
                draw=draw_cpu,
                size=(9.0, 4.0),
            ),
        ),
    ),
)
