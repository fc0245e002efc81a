"""docs/performance.md and its plots are those of the lines in bench/results."""

from pathlib import Path

import pytest
from wkvm_bench.report import page
from wkvm_bench.report.drawing import digest_of
from wkvm_bench.report.records import Record, read
from wkvm_bench.report.registry import sections

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUN = f"run: {page.COMMAND}"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read([ROOT / "bench/results"])


def test_the_page_is_of_the_lines(records: list[Record]) -> None:
    text = page.markdown(records, sections(), intro=page.INTRO, images="img")
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == text, RUN


def test_every_plot_is_of_the_lines(records: list[Record]) -> None:
    drawn = {path.name: digest_of(path) for path in (DOCS / "img").glob("*.svg")}
    wanted = {one.file: one.digest for one in page.pictures(records, sections())}
    assert {name: drawn.get(name) for name in wanted} == wanted, RUN
