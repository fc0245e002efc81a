"""The README's table of figures is made from recorded lines."""

import json
from pathlib import Path

import pytest

from tools.readme_figures import Lines, comparisons, figures, gpu_table, table, with_figures


def line(case: str, median: float, bench: str = "decode") -> str:
    side = {"name": "wkvm", "median": median, "p10": 1.0, "p90": 2.0, "n": 9}
    return json.dumps(
        {
            "bench": bench,
            "case": case,
            "unit": "tokens/s",
            "a": side,
            "b": {**side, "name": "peer", "median": 10.0},
            "ratio": {"median": median / 10, "p10": 1.0, "p90": 2.0, "n": 9},
            "command": "python -m wkvm_bench decode",
            "device": "a processor",
            "n_cores": 2,
            "versions": {"python": "3.11.7"},
        }
    )


def test_the_last_line_of_a_case_counts_and_other_records_are_left_out(tmp_path: Path) -> None:
    lines = [
        line("batch 1", 20.0),
        line("batch 2", 30.0),
        line("batch 1", 40.0),
        '{"bench": "gpu"}',
    ]
    (tmp_path / "decode.jsonl").write_text("\n".join(lines) + "\n")
    records = comparisons(tmp_path)
    assert [(r["case"], r["a"]["median"]) for r in records] == [
        ("batch 1", 40.0),
        ("batch 2", 30.0),
    ]
    text = table(records)
    assert "| wkvm: 40 tokens/s | peer: 10 tokens/s | 4.00 (1.00 to 2.00) |" in text
    assert "wkvm: 20 " not in text
    assert "a processor, 2 cores, Python 3.11.7" in text


def test_a_figure_that_stands_for_itself_is_a_sentence(tmp_path: Path) -> None:
    command = "python -m wkvm_bench aborts"
    lines = [
        {"bench": "aborts", "case": case, "value": value, "unit": "left over", "command": command}
        for case, value in (("tasks", 7), ("tasks", 0), ("slots", 2))
    ]
    (tmp_path / "aborts.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    assert figures(tmp_path).endswith(f"\n`{command}`: tasks 0 left over; slots 2 left over.\n")


@pytest.mark.parametrize("bench", ["json", "serve"])
def test_what_decides_something_inside_and_loads_are_not_shown(bench: str, tmp_path: Path) -> None:
    (tmp_path / f"{bench}.jsonl").write_text(line("text", 20.0, bench) + "\n")
    assert comparisons(tmp_path) == []


def test_a_forward_pass_on_a_gpu_is_shown_as_its_fastest_line_has_it(tmp_path: Path) -> None:
    steps: list[dict[str, object]] = [
        {"rows": 4, "op": "start", "ms": 1.0},
        {"rows": 4, "op": "end", "ms": 2.0},
        {"rows": 4, "op": "end", "ms": 3.0},
        {"timing": "prompts", "median_ms": 5.0, "tokens_per_s": 12345},
    ]
    (tmp_path / "steps.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in steps))
    rows: dict[str, Lines] = {
        "steps": ("steps.jsonl", {"rows": 4, "op": "end"}),
        "prompts": ("steps.jsonl", {"timing": "prompts"}),
    }
    text = gpu_table(tmp_path, rows)
    link = "[steps.jsonl](bench/results/steps.jsonl)"
    assert f"| steps | 2 | 2,000 | {link} |\n| prompts | 5 | 12,345 | {link} |\n" in text
    with pytest.raises(ValueError, match="none"):
        gpu_table(tmp_path, {"none": ("steps.jsonl", {"rows": 5})})


def test_a_command_is_told_without_the_folder_that_its_lines_went_to(tmp_path: Path) -> None:
    line = {"bench": "a", "case": "b", "unit": "s", "value": 1.0}
    line["command"] = "python -m wkvm_bench a --results /tmp/x --smoke"
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(line)}\n")
    assert figures(tmp_path).endswith("`python -m wkvm_bench a --smoke`: b 1 s.\n")


def test_only_what_is_between_the_marks_is_replaced() -> None:
    readme = "a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nb\n"
    assert with_figures(readme, "new\n") == readme.replace("old", "new")
