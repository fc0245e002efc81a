"""What a report is made of: sections, each with lines that belong to it, tables and plots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record
from wkvm_bench.report.tables import tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture of some lines of a section. One of whose lines there are none is left out.

    Attributes:
        name: of its file, without an ending; no other plot has it.
        title: what is to be seen, as a sentence: the picture's caption, and what stands for it
            where pictures are not shown.
        has: whether it draws a line.
        draw: draws them, at least one, on a figure without axes. Matplotlib is imported in it,
            if at all. It takes lines as they were recorded: what is odd is left out.
        size: of the figure, in inches.
    """

    name: str
    title: str
    has: Callable[[Record], bool]
    draw: "Callable[[Figure, Sequence[Record]], None]"
    size: tuple[float, float] = (8.0, 3.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A chapter of a report.

    Attributes:
        name: in one word; no other section has it.
        title: its heading.
        text: Markdown: what was measured, how, and how it is to be read. Figures are not in it.
        has: whether a line belongs to it. A line may belong to several sections.
        tables: makes Markdown of its lines, of each case the last; by default one table for each
            kind of line. An empty string leaves the tables out.
        plots: in the order in which they are shown, above the tables.
    """

    name: str
    title: str
    text: str
    has: Callable[[Record], bool]
    tables: Callable[[Sequence[Record]], str] = tables
    plots: tuple[Plot, ...] = ()


def of_bench(*names: str) -> Callable[[Record], bool]:
    """Chooses the lines of benchmarks."""
    return lambda record: record.get("bench") in names
