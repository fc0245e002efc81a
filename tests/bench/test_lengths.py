"""How long prompts and outputs are."""

import json
from itertools import islice
from pathlib import Path

import pytest
from wkvm_bench.harness import BenchError
from wkvm_bench.lengths import Lengths, read_pairs


def test_fixed_lengths_are_all_alike() -> None:
    lengths = Lengths(5, 7)
    assert set(islice(lengths.draw(0), 10)) == {(5, 7)}
    assert lengths.words == (5, 7)


def test_drawn_lengths_are_all_those_around_their_means_and_those_of_the_seed() -> None:
    lengths = Lengths(10, 4, 0.5)
    drawn = list(islice(lengths.draw(1), 500))
    assert {n for n, _ in drawn} == set(range(5, 16))
    assert {n for _, n in drawn} == set(range(2, 7))
    assert drawn == list(islice(lengths.draw(1), 500))
    assert drawn != list(islice(lengths.draw(2), 500))
    assert lengths.words == ("5 to 15", "2 to 6")


def test_no_drawn_length_is_0() -> None:
    lengths = Lengths(1, 1, 0.9)
    assert min(n for pair in islice(lengths.draw(0), 50) for n in pair) == 1
    assert lengths.words == ("1 to 2", "1 to 2")


def test_pairs_of_a_file_are_drawn_together(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    pairs = [(3, 1), (1048576, 2)]
    records = [{"input_len": a, "output_len": b, "more": 1} for a, b in pairs]
    path.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    lengths = Lengths(128, 128, pairs=read_pairs(path))
    assert set(islice(lengths.draw(0), 50)) == set(pairs)
    assert lengths.words == ("3 to 1048576", "1 to 2")


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "{}",
        '{"input_len": 0, "output_len": 1}',
        '{"input_len": 1, "output_len": 1048577}',
        '{"input_len": true, "output_len": 1}',
        '{"input_len": 1.5, "output_len": 1}',
    ],
)
def test_a_line_that_has_no_lengths_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"input_len": 1, "output_len": 1}\n' + line)
    with pytest.raises(BenchError, match=r"lengths\.jsonl, line 2: not an object"):
        read_pairs(path)


def test_a_file_without_lines_or_none_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        read_pairs(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(BenchError, match="no lines"):
        read_pairs(tmp_path / "empty")
