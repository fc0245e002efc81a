"""The table of traps names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    table = text.split("## Traps\n")[1].partition("\n## ")[0]
    _, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    return rows


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_each_row_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (TESTS / file).is_file() or name not in functions(TESTS / file)
    ]
    assert missing == []


def test_every_name_in_the_table_is_written_as_one() -> None:
    text = "".join(rows())
    assert len(NAMED.findall(text)) == text.count("::")
