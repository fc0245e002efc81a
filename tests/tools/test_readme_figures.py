"""The README's table of figures is made from recorded lines."""

import json
from pathlib import Path

import pytest

from tools.readme_figures import Case, Lines, figures, gpu_table, with_figures

COMMAND = "python -m wkvm_bench decode"


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
            "command": COMMAND,
            "device": "a processor",
            "n_cores": 2,
            "versions": {"python": "3.11.7"},
        }
    )


ROWS: dict[str, Case] = {"one stream": ("decode", "batch 1", COMMAND)}


def test_the_last_line_of_a_case_counts_and_only_rows_that_are_asked_for_are_shown(
    tmp_path: Path,
) -> None:
    lines = [
        line("batch 1", 20.0),
        line("batch 2", 30.0),
        line("batch 1", 40.0),
        '{"bench": "gpu"}',
    ]
    (tmp_path / "decode.jsonl").write_text("\n".join(lines) + "\n")
    text = figures(tmp_path, ROWS)
    assert "| one stream | wkvm: 40 tokens/s | peer: 10 tokens/s | 4.00 (1.00 to 2.00) |" in text
    assert "wkvm: 20 " not in text
    assert "wkvm: 30 " not in text
    assert "a processor, 2 cores" in text


def test_a_row_without_a_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "decode.jsonl").write_text(line("batch 2", 30.0) + "\n")
    with pytest.raises(ValueError, match="one stream"):
        figures(tmp_path, ROWS)


def test_a_large_figure_is_told_without_a_power_of_ten(tmp_path: Path) -> None:
    (tmp_path / "decode.jsonl").write_text(line("batch 1", 67096.3) + "\n")
    assert "wkvm: 67,096 tokens/s" in figures(tmp_path, ROWS)


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
    text = line("batch 1", 20.0).replace(COMMAND, f"{COMMAND} --results /tmp/x --threads 1")
    (tmp_path / "a.jsonl").write_text(f"{text}\n")
    command = f"{COMMAND} --threads 1"
    assert f"| `{command}` |" in figures(tmp_path, {"one": ("decode", "batch 1", command)})


def test_only_what_is_between_the_marks_is_replaced() -> None:
    readme = "a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nb\n"
    assert with_figures(readme, "new\n") == readme.replace("old", "new")
