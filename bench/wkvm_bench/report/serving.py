"""Loads on servers: what came of each, one below the other, and how times grow with the load."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record, place, place_and_load
from wkvm_bench.report.sections import Plot, Section, of_bench
from wkvm_bench.report.tables import cell, compared, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TEXT = """`wkvm bench serve` sends random prompts to a server and notes when each id of the output
comes. In a **closed loop** so many requests are open at a time, and as one ends the next is sent:
that shows what a server can do, and how long a request takes at a given concurrency. In an **open
loop** requests come at random times (a Poisson process), whether or not those before them are
over, as they do from people who do not know of each other: that shows what they wait. There times
count from when a request was *due*, not from when it was sent, so that a server that stalls is
charged for all who waited meanwhile; a load generator that sends its next request only after the
last answer leaves these out ("coordinated omission").

*ttft* is the time to the first id, *itl* between one id and the next (over HTTP: between events
that bring text), *tpot* a request's time after its first id over the ids after it, *e2el* the time
of a whole request; all in milliseconds, as median / 99th percentile. *Goodput* are the requests a
second that kept all the bounds in the same row. A row is marked † where the load generator itself
was so busy, or so late, that the server may do better.

*bundled* is `wkvm serve` on the model of this repository, *1.5B* on an RWKV-7 of that size with
random weights. `transformers serve` has the same weights
in float32, by [serve_transformers.py](../tools/README.md#transformers-server-serve_transformerspy).
It runs as it does by default, without `--continuous-batching`: one request after the other."""

HEAD = (
    "| load | server | requests/s | goodput | tokens/s | ttft | itl | tpot | e2el | on |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)
BESIDE = {
    "tokens/s": "output_throughput",
    "ttft, median, ms": "median_ttft_ms",
    "ttft, p99, ms": "p99_ttft_ms",
    "tpot, median, ms": "median_tpot_ms",
    "tpot, p99, ms": "p99_tpot_ms",
    "e2el, p99, ms": "p99_e2el_ms",
    "goodput, requests/s": "request_goodput",
}
"""What servers are laid side by side by, and its field."""
METRICS = ("ttft", "itl", "tpot", "e2el")


def is_rung(record: Record) -> bool:
    """Whether a line is of one load on one server."""
    return isinstance(record.get("rung"), dict)


def is_open(record: Record) -> bool:
    """Whether its requests came at a rate of their own."""
    return is_rung(record) and record["rung"].get("request_rate") is not None


def is_closed(record: Record) -> bool:
    """Whether a request was sent as another one ended."""
    return is_rung(record) and record["rung"].get("request_rate") is None


def rungs(records: Sequence[Record]) -> str:
    """Loads as a table, those that are alike below each other."""
    rows = list[str]()
    for record in sorted(of_turns(records), key=_order):
        rung = record["rung"]
        mark = " †" if rung.get("is_generator_bound") else ""
        rows.append(
            f"| {cell(workload(rung))} | {cell(server_of(record))}{mark} "
            f"| {figure(rung['request_throughput'])} | {_goodput(rung)} "
            f"| {figure(rung['output_throughput'])} "
            + "".join(f"| {_times(rung, name)} " for name in METRICS)
            + f"| {place_and_load(record)} |"
        )
    return HEAD + "\n".join(rows) + "\n" if rows else ""


def beside(records: Sequence[Record]) -> str:
    """Loads that several servers were put under, a column for each server."""
    loads = dict[str, dict[str, Record]]()
    for record in sorted(of_turns(records), key=_order):
        # The same load on another machine is no column beside these.
        where = f"{workload(record['rung'])}, on {place(record)}"
        loads.setdefault(where, {})[server_of(record)] = record["rung"]
    tables = dict[tuple[str, ...], dict[str, dict[str, Record]]]()
    for where, servers in loads.items():
        if len(servers) > 1:
            tables.setdefault(tuple(sorted(servers)), {})[where] = servers
    return "\n".join(_beside(names, of_names) for names, of_names in tables.items())


def _beside(names: Sequence[str], loads: Mapping[str, Mapping[str, Record]]) -> str:
    """A table of the loads that these servers were put under."""
    lines = [f"| load | | {' | '.join(map(cell, names))} |", "|---" * (len(names) + 2) + "|"]
    for where, servers in loads.items():
        told = cell(where)
        for what, field in BESIDE.items():
            values = [servers[name].get(field) for name in names]
            if any(value is not None for value in values):
                cells = " | ".join("-" if value is None else figure(value) for value in values)
                lines.append(f"| {told} | {what} | {cells} |")
                told = ""
    return "\n".join(lines) + "\n"


def tables(records: Sequence[Record]) -> str:
    """Servers side by side, all loads, and the ratios of those that took turns."""
    parts = (beside(records), rungs(records), compared(records))
    return "\n".join(part for part in parts if part)


def of_turns(records: Sequence[Record]) -> list[Record]:
    """Of several turns of one load on one server, the one in the middle by its output."""
    turns = dict[tuple[str, ...], list[Record]]()
    for record in filter(is_rung, records):
        rung = record["rung"]
        bounds, shape = str(rung.get("goodput")), str(rung.get("burstiness"))
        key = (workload(rung), server_of(record), place(record), bounds, shape)
        turns.setdefault((*key, str(record.get("command"))), []).append(record)
    ranked = (sorted(one, key=lambda r: r["rung"]["output_throughput"]) for one in turns.values())
    return [one[len(one) // 2] for one in ranked]


def server_of(record: Record) -> str:
    """What was asked, by its label, or else its model and interface."""
    rung = record["rung"]
    return str(rung.get("label") or f"{rung['model_id']}, {rung['backend']}")


def workload(rung: Record) -> str:
    """What was sent, in words."""
    lengths = f"{rung['input_len']} in, {rung['output_len']} out"
    cap = rung.get("max_concurrency")
    if rung.get("request_rate") is None:
        return f"{lengths}, {cap} at a time"
    limit = "" if cap is None else f", at most {cap} at a time"
    return f"{lengths}, {rung['request_rate']:g} requests/s{limit}"


def _order(record: Record) -> tuple[object, ...]:
    rung = record["rung"]
    rate, cap = rung.get("request_rate"), rung.get("max_concurrency")
    lengths = (str(rung["input_len"]), str(rung["output_len"]))
    return (rate is not None, *lengths, rate or 0, cap or 0, server_of(record), record["case"])


def _times(rung: Record, name: str) -> str:
    median, p99 = rung.get(f"median_{name}_ms"), rung.get(f"p99_{name}_ms")
    return "-" if median is None or p99 is None else f"{figure(median)} / {figure(p99)}"


def _goodput(rung: Record) -> str:
    if rung.get("request_goodput") is None:
        return "-"
    bounds = ", ".join(f"{name} {ms:g} ms" for name, ms in rung["goodput"].items())
    return f"{figure(rung['request_goodput'])} ({bounds})"


# --- plots --------------------------------------------------------------------------------


def _curves(
    axes: "Axes",
    records: Sequence[Record],
    x: str,
    ys: Sequence[tuple[str, str, str]],
    name: Callable[[Record], str],
) -> None:
    """A curve for each server and each of ``ys``: a field, what it is called, and its line."""
    of_server = dict[str, list[Record]]()
    for record in records:
        if record["rung"].get(x) is not None:
            of_server.setdefault(name(record), []).append(record)
    for number, (server, lines) in enumerate(of_server.items()):
        lines = sorted(lines, key=lambda record: record["rung"][x])
        for field, called, style in ys:
            points = [(r["rung"][x], r["rung"][field]) for r in lines if r["rung"].get(field)]
            if points:
                label = f"{server}, {called}" if called else server
                axes.plot(
                    *zip(*points, strict=True), style, marker="o", color=f"C{number}", label=label
                )


def _named(records: Sequence[Record]) -> Callable[[Record], str]:
    """Servers by their names, with the machine and the lengths where these differ."""
    places = {place(record) for record in records}
    shapes = {(str(r["rung"]["input_len"]), str(r["rung"]["output_len"])) for r in records}

    def name(record: Record) -> str:
        rung, parts = record["rung"], [server_of(record)]
        if len(places) > 1:
            parts.append(place(record))
        if len(shapes) > 1:
            parts.append(f"{rung['input_len']} in, {rung['output_len']} out")
        return ", ".join(parts)

    return name


def draw_closed(figure: "Figure", records: Sequence[Record]) -> None:
    """Rate and times by how many requests are open at a time."""
    from wkvm_bench.report.drawing import milliseconds, powers_of_two

    records = of_turns(records)
    name, counts = _named(records), [float(r["rung"]["max_concurrency"]) for r in records]
    rate, first, gap = figure.subplots(1, 3)
    panels = (
        (rate, "tokens a second, all together", [("output_throughput", "", "-")]),
        (first, "ms to the first id", _median_and_p99("ttft")),
        (gap, "ms an id after the first", _median_and_p99("tpot")),
    )
    for axes, title, ys in panels:
        _curves(axes, records, "max_concurrency", ys, name)
        axes.set_title(title)
        axes.set_xlabel("requests at a time")
        powers_of_two(axes, counts)
    rate.set_ylim(bottom=0)
    milliseconds(first)
    milliseconds(gap)
    figure.legend(*rate.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    gap.legend(handles=_line_styles())


def draw_open(figure: "Figure", records: Sequence[Record]) -> None:
    """Goodput and times by how many requests come a second."""
    from wkvm_bench.report.drawing import milliseconds

    records = of_turns(records)
    name = _named(records)
    good, first, whole = figure.subplots(1, 3)
    panels = (
        (good, "requests a second within the bounds", [("request_goodput", "", "-")]),
        (first, "ms to the first id", _median_and_p99("ttft")),
        (whole, "ms of a request", _median_and_p99("e2el")),
    )
    for axes, title, ys in panels:
        _curves(axes, records, "request_rate", ys, name)
        axes.set_title(title)
        axes.set_xlabel("requests that come a second")
        axes.set_xlim(left=0)
    most = max(record["rung"]["request_rate"] for record in records)
    good.plot([0, most], [0, most], ":", color="#8c959f", label="all that come")
    good.set_ylim(bottom=0)
    milliseconds(first)
    milliseconds(whole)
    good.legend()
    whole.legend(handles=_line_styles())


def _median_and_p99(name: str) -> list[tuple[str, str, str]]:
    # The legend has one entry for each server, and one for each style.
    return [(f"median_{name}_ms", "", "-"), (f"p99_{name}_ms", "", ":")]


def _line_styles() -> "list[Line2D]":
    from matplotlib.lines import Line2D

    grey = "#57606a"
    return [
        Line2D([], [], color=grey, linestyle="-", label="median"),
        Line2D([], [], color=grey, linestyle=":", label="99th percentile"),
    ]


SECTIONS = (
    Section(
        name="serving",
        title="Loads on servers",
        text=TEXT,
        has=of_bench("serve"),
        tables=tables,
        plots=(
            Plot(
                name="serving-closed",
                title="Closed loop: so many requests at a time, each followed by the next.",
                has=is_closed,
                draw=draw_closed,
                size=(10.0, 3.8),
            ),
            Plot(
                name="serving-open",
                title="Open loop: requests come at random times, whether or not others are over.",
                has=is_open,
                draw=draw_open,
                size=(10.0, 3.4),
            ),
        ),
    ),
)
