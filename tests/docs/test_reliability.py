"""docs/reliability.md says what the code does: limits, planted faults, and what is where."""

import re
from pathlib import Path

import pytest

from tools import limits, mutants
from tools.faults import FAULTS
from tools.limits.limit import Unit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
PARTS = (
    "Promises",
    "Limits",
    "Threats",
    "Layers",
    "Planted faults",
    "Operating",
    "How to corrupt a store",
    "Supply",
)
NO_LIMITS = {
    # What they set is where something is, whether, or how it is done.
    "--responses-dir",
    "--allowed-origins",
    "--model-aliases",
    "--omit-media",
    "--stream-interval",
    "--request-log",
    "--prefix-cache-every",
    "--deterministic",
    "--poison-freed-slots",
    "--seed",
    "--state-dir",
    "--state-cold",
    "--drop-old-versions",
}


def test_the_page_has_its_parts_in_their_order() -> None:
    assert tuple(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) == PARTS


def test_the_limits_are_those_of_the_code() -> None:
    assert limits.written(PAGE) == PAGE, "run: python -m tools.limits"


def test_every_flag_of_a_limit_has_a_row() -> None:
    rows = {limit.by for part in limits.LIMITS.values() for limit in part}
    assert set(limits.defaults()) - rows == NO_LIMITS, "add it to tools/limits, or to NO_LIMITS"


def test_every_limit_names_a_test_that_exists() -> None:
    named = {limit.test for part in limits.LIMITS.values() for limit in part}
    assert sorted(one for one in named if not _exists(one)) == []


def test_every_planted_fault_was_found_and_by_which_test_is_told() -> None:
    assert mutants.written(PAGE) == PAGE, "run: python -m tools.mutants --missing, then --write"


def test_the_tests_that_found_planted_faults_exist() -> None:
    named = re.findall(r"`([\w/.]+::\w+)` \|$", _between(mutants.BEGIN, mutants.END), re.MULTILINE)
    assert len(named) == len(FAULTS)
    assert sorted(one for one in named if not _exists(one)) == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2**20, "B", "1 MiB"),
        (1000, "B", "1,000 bytes"),
        (1024, "B/s", "1 KiB/s"),
        (0.05, "share", "5%"),
        (86_400.0, "s", "24 h"),
        (600.0, "s", "600 s"),
        (10_240, "", "10,240"),
    ],
)
def test_a_value_is_said_with_its_unit(value: float, unit: Unit, text: str) -> None:
    assert limits.said(value, unit) == text


def test_every_document_is_in_the_list_of_documents() -> None:
    listed = set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs/README.md").read_text("utf-8")))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert there <= listed


def _between(begin: str, end: str) -> str:
    return PAGE.split(begin)[1].split(end)[0]


def _exists(test: str) -> bool:
    name, _, function = test.partition("::")
    path = ROOT / "tests" / name
    return path.is_file() and bool(
        re.search(rf"^(async )?def {function}\(", path.read_text("utf-8"), re.MULTILINE)
    )
