"""``wkvm bench report``: lines of results as Markdown, with plots."""

import argparse
import sys
from pathlib import Path

from wkvm_bench.harness import BenchError
from wkvm_bench.report import page
from wkvm_bench.report.records import read
from wkvm_bench.report.registry import sections

INTRO = "# Results\n"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What it is given."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="files of lines, or folders of them")
    add("--output", type=Path, metavar="FILE", help="write Markdown here (default: print it)")
    add(
        "--images",
        type=Path,
        metavar="DIR",
        help="write plots here (default: img beside the output, if it is a file; needs matplotlib)",
    )
    add("--no-images", action="store_true", help="no plots")


def run(options: argparse.Namespace) -> None:
    """Make the report.

    Raises:
        BenchError: a line cannot be read, a file not be written, or matplotlib is missing.
    """
    output: Path | None = options.output
    images: Path | None = options.images
    if images is None and output is not None:
        images = output.parent / "img"
    if options.no_images:
        images = None
    records, all_sections = read(options.paths), sections()
    if images is not None:
        from wkvm_bench.report.drawing import draw

        for picture in page.pictures(records, all_sections):
            draw(picture, images)
    text = page.markdown(
        records,
        all_sections,
        intro=page.INTRO if output == page.DOCUMENT else INTRO,
        images=None if images is None else page.relative(images, output or Path("report.md")),
    )
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{output}: {error.strerror}") from error
    print(f"wrote {output}", file=sys.stderr)
