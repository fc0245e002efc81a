"""Reports: what is read, what a section gets, and that plots say which lines they are of."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from wkvm_bench.command import main
from wkvm_bench.harness import BenchError
from wkvm_bench.report import page
from wkvm_bench.report.records import Record, latest, place_and_load, read
from wkvm_bench.report.registry import sections
from wkvm_bench.report.sections import Plot, Section, of_bench
from wkvm_bench.report.serving import beside, rungs
from wkvm_bench.report.tables import cell, compared, figure, found, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = {"name": "wkvm", "median": 20.0, "p10": 1.0, "p90": 2.0, "n": 9}


def compared_line(case: str, ratio: float, command: str = "c") -> Record:
    return {
        "bench": "decode",
        "case": case,
        "unit": "ids/s",
        "a": SIDE,
        "b": {**SIDE, "name": "a|b", "median": 10.0},
        "ratio": {"median": ratio, "p10": 1.0, "p90": 2.0, "n": 9},
        "command": command,
        "device": "a processor",
    }


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


def draw_bar(figure: "Figure", records: Sequence[Record]) -> None:
    figure.subplots().bar([r["case"] for r in records], [r["ratio"]["median"] for r in records])


BARS = Plot(name="bars", title="Ratios.", has=lambda r: r["case"] != "odd", draw=draw_bar)
DECODE = Section(name="d", title="Decode", text="Words.", has=of_bench("decode"), plots=(BARS,))


def test_lines_of_files_and_folders_are_read_with_the_names_of_their_files(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", [{"n": 2}])
    write(tmp_path / "a.jsonl", [{"n": 1, "command": "x --results /tmp/y --smoke"}])
    one = write(tmp_path / "notes.txt", [{"n": 3}])
    assert read([tmp_path, one]) == [
        {"n": 1, "file": "a.jsonl", "command": "x --smoke"},
        {"n": 2, "file": "b.jsonl"},
        {"n": 3, "file": "notes.txt"},
    ]


def test_of_a_case_that_was_measured_again_at_another_commit_the_last_line_counts(
    tmp_path: Path,
) -> None:
    lines: list[Record] = [
        {"bench": "b", "case": "c", "command": f"tool --commit {commit} --output FILE"}
        for commit in ("abc1234", "def5678")
    ]
    write(tmp_path / "a.jsonl", lines)
    (kept,) = latest(read([tmp_path]))
    assert kept["command"] == "tool --output FILE"


@pytest.mark.parametrize("line", ["{", "[]", "7", "[" * 100_000, r'{"a": "\ud800"}'])
def test_a_line_that_is_no_object_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n\n" + line + "\n")
    with pytest.raises(BenchError, match=r"x\.jsonl, line 3: no JSON object"):
        read([path])


@pytest.mark.parametrize("name", ["bench", "case", "command"])
@pytest.mark.parametrize("value", [None, ["a"], {"a": 1}, 3])
def test_what_names_a_line_is_text(name: str, value: object, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{name: value}])
    with pytest.raises(BenchError, match=f"x.jsonl, line 1: '{name}' is no text"):
        read([path])


def test_a_number_that_no_machine_has_is_an_error_of_its_section() -> None:
    record = {**compared_line("x", 1.0), "load": 10**400}
    with pytest.raises(BenchError, match="Decode: a line cannot be read"):
        page.markdown([record], [DECODE], intro="# R", images=None)


def test_what_cannot_be_read_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"report: {tmp_path}/none: No such file or directory\n"
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"report: {tmp_path}: no file of it ends in .jsonl\n"


def test_of_a_case_of_a_command_the_last_line_counts_and_others_all_stay() -> None:
    first, other = compared_line("x", 1.0), compared_line("x", 2.0, command="d")
    last = compared_line("x", 3.0)
    assert latest([first, {"timing": 1}, other, {"timing": 1}, last]) == [
        {"timing": 1},
        other,
        {"timing": 1},
        last,
    ]


def test_a_ratio_is_a_row_with_both_sides_and_text_stays_in_its_cell() -> None:
    text = compared([compared_line("batch 1", 2.5)])
    assert text.splitlines()[2:] == [
        r"| decode, batch 1 | wkvm: 20 ids/s | a\|b: 10 ids/s | 2.50 (1.00 to 2.00) | a processor |"
    ]
    assert cell("a\n<b>") == "a &lt;b>"


def test_a_figure_is_a_row_with_what_else_was_measured() -> None:
    record = {"bench": "b", "case": "c", "unit": "s", "value": 0.12345, "besides": {"n": 1234567.0}}
    assert "| b, c | 0.1235 s | n 1,234,567 | a machine without a name |" in found([record])
    assert figure(12345.6) == "12,346"


def test_sections_without_lines_are_left_out_and_others_have_plots_above_tables() -> None:
    records = [compared_line("x", 1.0), compared_line("odd", 2.0)]
    none = Section(name="n", title="Nothing", text="", has=of_bench("nothing"))
    text = page.markdown(records, [none, DECODE], intro="# R", images="img")
    assert "Nothing" not in text
    order = ["# R", "## Decode", "Words.", "![Ratios.](img/bars.svg)", "| decode, x |", "`c`"]
    assert sorted(order, key=text.index) == order
    assert "bars.svg" not in page.markdown(records, [DECODE], intro="# R", images=None)


def test_a_picture_is_of_the_lines_that_it_draws_and_its_digest_is_theirs() -> None:
    records = [compared_line("x", 1.0), compared_line("odd", 2.0)]
    (picture,) = page.pictures(records, [DECODE])
    assert [record["case"] for record in picture.records] == ["x"]
    (other,) = page.pictures([compared_line("x", 1.5)], [DECODE])
    assert picture.digest != other.digest
    assert page.pictures([compared_line("odd", 2.0)], [DECODE]) == []


def test_a_drawn_file_says_which_lines_it_is_of_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from wkvm_bench.report.drawing import digest_of, draw

    (picture,) = page.pictures([compared_line("x", 1.0)], [DECODE])
    first = draw(picture, tmp_path / "new")
    again = draw(picture, tmp_path)
    assert first.name == "bars.svg"
    assert digest_of(first) == picture.digest
    assert first.read_bytes() == again.read_bytes()


def test_names_of_sections_and_plots_are_their_own() -> None:
    all_sections = sections()
    names = [one.name for one in all_sections]
    plots = [plot.name for section in all_sections for plot in section.plots]
    assert len(set(names)) == len(names)
    assert len(set(plots)) == len(plots)


def rung_line(
    turn: int, throughput: float, label: str = "ours", rate: float | None = None
) -> Record:
    rung = {
        "label": label,
        "backend": "wkvm-binary",
        "model_id": "m",
        "input_len": 4,
        "output_len": "2 to 6",
        "request_rate": rate,
        "max_concurrency": 8 if rate is None else None,
        "goodput": {"ttft": 500.0},
        "request_throughput": 2.0,
        "request_goodput": 1.5,
        "output_throughput": throughput,
        "is_generator_bound": turn == 3,
        **{f"{what}_ttft_ms": 12.0 for what in ("median", "p99")},
    }
    case = f"{label}, {rate or 8} at a time, turn {turn} of 3"
    return {"bench": "serve", "case": case, "rung": rung, "command": "c", "device": "d"}


def test_of_the_turns_of_a_load_the_one_in_the_middle_is_shown() -> None:
    records = [rung_line(1, 30.0), rung_line(2, 10.0), rung_line(3, 20.0)]
    records.append(rung_line(1, 99.0, label="theirs"))
    rows = rungs(records).splitlines()[2:]
    assert [row.split(" | ")[:5] for row in rows] == [
        ["| 4 in, 2 to 6 out, 8 at a time", "ours †", "2", "1.5 (ttft 500 ms)", "20"],
        ["| 4 in, 2 to 6 out, 8 at a time", "theirs", "2", "1.5 (ttft 500 ms)", "99"],
    ]
    assert "| 12 / 12 | - | - | - | d |" in rows[0]


def test_servers_under_one_load_are_laid_side_by_side() -> None:
    records = [rung_line(1, 30.0), rung_line(1, 99.0, label="theirs")]
    alone = {**rung_line(1, 7.0, label="alone"), "device": "another"}
    lines = beside([*records, alone, rung_line(1, 8.0, rate=3.0)]).splitlines()
    assert lines[0] == "| load | | ours | theirs |"
    assert lines[2:4] == [
        "| 4 in, 2 to 6 out, 8 at a time, on d | tokens/s | 30 | 99 |",
        "|  | ttft, median, ms | 12 | 12 |",
    ]
    assert lines[4:] == ["|  | ttft, p99, ms | 12 | 12 |", "|  | goodput, requests/s | 1.5 | 1.5 |"]
    assert beside([alone]) == ""


@pytest.mark.parametrize(("load", "told"), [(3.0, False), (3.1, True)])
def test_a_load_on_a_machine_that_has_more_to_do_says_so(load: float, told: bool) -> None:
    record = {**rung_line(1, 30.0), "load": load, "n_cores": 2}
    assert ("d, at a load of 3 on 2 cores |" in rungs([record])) == told


def test_a_comparison_on_a_machine_that_has_more_to_do_says_so_too() -> None:
    busy = {**compared_line("batch 1", 2.0), "load": 8.0, "n_cores": 2}
    assert compared([busy]).endswith("| a processor, at a load of 8 on 2 cores |\n")
    assert place_and_load(busy, {**busy, "load": 12.4}) == (
        "a processor, at a load of 8 to 12 on 2 cores"
    )


def test_a_small_ratio_keeps_two_digits() -> None:
    assert spread({"median": 0.0049, "p10": 0.001, "p90": 0.12}) == "0.0049 (0.001 to 0.12)"


def test_loads_with_and_without_a_rate_are_drawn_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from wkvm_bench.report.drawing import draw

    records = [rung_line(1, 30.0), rung_line(1, 30.0, rate=2.5)]
    found = page.pictures(records, sections())
    assert [(one.plot.name, len(one.records)) for one in found] == [
        ("serving-closed", 1),
        ("serving-open", 1),
    ]
    for one in found:
        assert "ours" in draw(one, tmp_path).read_text()


def test_without_matplotlib_a_report_has_no_plots_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines, output = write(tmp_path / "x.jsonl", [rung_line(1, 30.0)]), tmp_path / "x.md"
    assert main(["report", str(lines), "--output", str(output)]) == 1
    why = "report: plots need matplotlib: pip install 'wkvm[bench]'\n"
    assert capsys.readouterr().err == why
    assert main(["report", str(lines), "--output", str(output), "--no-images"]) == 0
    assert "## Loads on servers" in output.read_text()
    assert not (tmp_path / "img").exists()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"bench": "serve", "case": "x", "rung": {}}, "Loads on servers: a line lacks 'input_len'"),
        (
            {"bench": "b", "case": "x", "unit": "s", "ratio": {"median": "fast"}},
            "Each benchmark by itself: a line lacks 'a'",
        ),
        (
            {"bench": "b", "case": "x", "unit": "s", "value": 1.0, "settings": 7},
            "Each benchmark by itself: a line cannot be read",
        ),
    ],
)
def test_a_line_that_is_not_as_benchmarks_write_it_is_an_error_of_one_line(
    record: Record, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.jsonl", [record])
    assert main(["report", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"report: {why}")
    assert error.count("\n") == 1
    pytest.importorskip("matplotlib")
    assert main(["report", str(path), "--output", str(tmp_path / "x.md")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_of_somebody_elses_is_not_taken_for_wkvms_own(tmp_path: Path) -> None:
    lines, output = write(tmp_path / "a.jsonl", [compared_line("x", 2.0)]), tmp_path / "docs"
    output.mkdir()
    assert main(["report", str(lines), "--no-images", "--output", f"{output}/performance.md"]) == 0
    assert (output / "performance.md").read_text().startswith("# Results\n")
