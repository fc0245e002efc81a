"""The table of threats in docs/reliability.md: each has tests over both doors, and they exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"
N_THREATS = 27
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
NOT_HERE = re.compile(r"No: \w")
"""How a cell begins that says why a door does not have a threat."""


def rows() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").split("\n## Threats\n")[1].partition("\n## ")[0]
    _, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_the_table_has_every_threat_in_order() -> None:
    assert [row[0] for row in rows()] == [str(n + 1) for n in range(N_THREATS)]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} {row[1]}")
def test_each_threat_has_tests_that_exist_over_both_doors(row: list[str]) -> None:
    _, threat, right, *doors = row
    assert threat
    assert right
    assert len(doors) == 2
    for cell in doors:
        named = NAMED.findall(cell)
        assert named or NOT_HERE.match(cell), cell
        assert len(named) == cell.count("::"), cell
        missing = [
            f"{file}::{name}"
            for file, name in named
            if not (TESTS / file).is_file() or name not in functions(TESTS / file)
        ]
        assert missing == []
