"""Operations on states by size and number, and sessions that stay resident under a cap."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record, place, place_and_load
from wkvm_bench.report.sections import Plot, Section, of_bench
from wkvm_bench.report.tables import cell, figure, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPERATIONS = ("fork", "hibernate", "resume", "migrate")
CONTEXT = "context, tokens"


def _bytes(record: Record) -> float:
    return float(record["besides"]["bytes of a state"])


def _count(record: Record) -> int:
    return int(record["besides"]["states"])


def _operation(record: Record) -> str:
    return str(record["case"]).partition(",")[0]


def ladders_table(records: Sequence[Record]) -> str:
    """A row for each operation and size: milliseconds and ratios by how many at once."""
    counts = sorted({_count(record) for record in records})
    lines = [
        "| | a state | " + " | ".join(f"{n} at once" for n in counts) + " | on |",
        "|---|---|" + "---|" * len(counts) + "---|",
    ]
    rows = dict[tuple[str, float, str], list[Record]]()
    for record in records:
        rows.setdefault((_operation(record), _bytes(record), place(record)), []).append(record)
    for (operation, size, _), found in sorted(
        rows.items(), key=lambda one: (OPERATIONS.index(one[0][0]), one[0][1])
    ):
        cells = {_count(record): _cell(record) for record in found}
        told = " | ".join(cells.get(n, "-") for n in counts)
        lines.append(
            f"| {operation} | {size / 2**20:.2g} MiB | {told} | {cell(place_and_load(*found))} |"
        )
    return "\n".join(lines) + "\n"


def _cell(record: Record) -> str:
    return f"{figure(record['a']['median'])} ms, {spread(record['ratio'])}"


def draw_ladders(figure_: "Figure", records: Sequence[Record]) -> None:
    """Milliseconds a state, by bytes of a state: wkvm's and what is bare of it."""
    panels = figure_.subplots(1, len(OPERATIONS), sharey=True)
    counts = sorted({_count(record) for record in records})
    for axes, operation in zip(panels, OPERATIONS, strict=True):
        for number, count in enumerate(counts):
            found = sorted(
                (r for r in records if _operation(r) == operation and _count(r) == count),
                key=_bytes,
            )
            sizes = [_bytes(record) / 2**20 for record in found]
            for side, style in (("a", "o-"), ("b", ":")):
                values = [record[side]["median"] / count for record in found]
                label = f"{count} at once" if side == "a" else None
                axes.plot(sizes, values, style, color=f"C{number}", label=label)
        axes.set_title(operation)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("MiB of a state")
    panels[0].set_ylabel("ms a state (dotted: bare)")
    panels[0].legend()


def frontier_table(records: Sequence[Record]) -> str:
    """A row for each context."""
    lines = [
        "| context, cap | sessions: wkvm, transformer | ids/s: wkvm, transformer | ratio | on |",
        "|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda one: (place(one), one["besides"][CONTEXT])):
        besides = record["besides"]
        lines.append(
            f"| {besides[CONTEXT]:,.0f} tokens, {besides['cap, MiB']:,.0f} MiB "
            f"| {besides['sessions, wkvm']:,.0f}, {besides['sessions, transformer']:,.0f} "
            f"| {figure(record['a']['median'])}, {figure(record['b']['median'])} "
            f"| {spread(record['ratio'])} "
            f"| {cell(place_and_load(record))} |"
        )
    return "\n".join(lines) + "\n"


def draw_frontier(figure_: "Figure", records: Sequence[Record]) -> None:
    """Sessions and ids a second by context, on both sides, for each machine."""
    sessions, rate = figure_.subplots(1, 2)
    places = sorted({place(record) for record in records})
    for number, where in enumerate(places):
        found = [record for record in records if place(record) == where]
        found.sort(key=lambda one: one["besides"][CONTEXT])
        contexts = [record["besides"][CONTEXT] for record in found]
        for side, part, style in (("wkvm", "a", "o-"), ("transformer", "b", "s--")):
            colour, label = f"C{2 * number + (part == 'b')}", side
            if len(places) > 1:
                label = f"{side}, {where}"
            counts = [record["besides"][f"sessions, {side}"] for record in found]
            sessions.plot(contexts, counts, style, color=colour, label=label)
            low, middle, high = (
                [record[part][name] for record in found] for name in ("p10", "median", "p90")
            )
            rate.plot(contexts, middle, style, color=colour)
            rate.fill_between(contexts, low, high, color=colour, alpha=0.2)
    for axes, title in ((sessions, "sessions resident"), (rate, "ids a second, all together")):
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens that each session holds")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: figure(value))
    sessions.legend()


SECTIONS = (
    Section(
        name="frontier",
        title="Sessions under a cap of memory",
        text="""How many sessions of a context stay resident in so much memory, and how fast all
of them decode at once: states of the bundled model, against caches of a transformer of as many
parameters, layers and width, run by transformers with its static cache. States, caches and sums
are in float32; so are the transformer's weights, of which wkvm keeps large matrices in float16.
Both are in one process, with as many threads as each other. A state takes as many bytes, and a
step as long, whatever was read before; a cache grows with each token. The transformer has as many
heads of keys as of queries: one that shares them, or keeps them in fewer bits, holds so many times
more, and falls in the same way. On a GPU, where there are lines of one, the transformer is of
Qwen2.5's 1.5B shape, which shares heads of keys, and vLLM serves it; wkvm serves a 1.5B RWKV-7.""",
        has=of_bench("frontier"),
        tables=frontier_table,
        plots=(
            Plot(
                name="frontier",
                title="Sessions that stay resident under a cap of memory, and their rate.",
                has=of_bench("frontier"),
                draw=draw_frontier,
                size=(9.0, 3.4),
            ),
        ),
    ),
    Section(
        name="ladders",
        title="States by size and number",
        text="""Operations on states through a client over a unix socket, beside what they cannot
do without on the same disk: a fork beside a record of 4 KiB that is synced, hibernation beside as
many files written and synced, resuming beside as many files read, migration to another server
beside files read, and written and synced elsewhere. Both take turns. A cell has the milliseconds
of all that were asked for at once, and the ratio to the bare files. A fork copies no state;
resuming verifies all bytes, which takes longer than to read them from the page cache.""",
        has=of_bench("ladders"),
        tables=ladders_table,
        plots=(
            Plot(
                name="ladders",
                title="What a state costs to fork, hibernate, resume and migrate, by its size.",
                has=of_bench("ladders"),
                draw=draw_ladders,
                size=(11.0, 3.2),
            ),
        ),
    ),
)
