"""Plots as files: one look for all of them, and the same bytes of the same lines."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wkvm_bench.harness import BenchError
from wkvm_bench.report.page import UNREADABLE, Picture, unreadable
from wkvm_bench.report.tables import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f6feb", "#d1590a", "#2c8c4a", "#8250df", "#b3261e", "#57606a")
"""Told apart by most eyes; the first is wkvm's, where it is compared."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "wkvm",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8c959f",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d8dee4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
_DIGEST = re.compile(r"lines ([0-9a-f]{32})<")


def draw(picture: Picture, folder: Path) -> Path:
    """Write a plot to its file in ``folder``, made if missing.

    Returns:
        The file's path.

    Raises:
        BenchError: matplotlib is not installed, the file cannot be written, or a line not be read.
    """
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError("plots need matplotlib: pip install 'wkvm[bench]'") from error
    path = folder / picture.file
    with mpl.rc_context({**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        drawn = Figure(figsize=picture.plot.size, layout="constrained")
        try:
            picture.plot.draw(drawn, picture.records)
        except UNREADABLE as error:
            raise unreadable(picture.plot.title, error) from error
        about = {"Date": None, "Creator": "wkvm bench report", "Title": picture.plot.title}
        about["Description"] = f"lines {picture.digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            drawn.savefig(path, format="svg", metadata=about)
        except OSError as error:
            raise BenchError(f"{path}: {error.strerror}") from error
    text = path.read_text(encoding="utf-8")
    # Ends of lines are no part of a picture, and checks of white space need not know of it.
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
    return path


def digest_of(path: Path) -> str | None:
    """The digest of the lines that a file was drawn from; None if it says none."""
    found = _DIGEST.search(path.read_text(encoding="utf-8"))
    return None if found is None else found[1]


def milliseconds(axes: "Axes") -> None:
    """A vertical axis of times, each tenfold of the one before."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(lambda value, _: figure(value))
    axes.yaxis.set_minor_formatter(NullFormatter())


def powers_of_two(axes: "Axes", values: list[float]) -> None:
    """A horizontal axis of numbers that double, each at its place."""
    ticks = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    axes.minorticks_off()
