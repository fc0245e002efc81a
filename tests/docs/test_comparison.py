"""Each claim of docs/comparison.md about another project has its source, with a version."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/comparison.md").read_text(encoding="utf-8")
TABLES, SOURCES = PAGE.split("## Where it says so")


def test_every_number_has_a_source_and_every_source_a_number() -> None:
    used = {int(number) for number in re.findall(r"\[(\d+)\]", TABLES)}
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", SOURCES, re.MULTILINE)]
    assert listed == list(range(1, len(listed) + 1))
    assert used == set(listed)


def test_every_address_of_code_or_documents_is_of_one_version() -> None:
    addresses = re.findall(r"\(https://github\.com/[^/]+/[^/]+/(?:blob|tree)/([^/)]+)", PAGE)
    assert addresses
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+|[0-9a-f]{40}", one) for one in addresses)


def test_every_row_has_a_cell_for_each_project() -> None:
    rows = [line for line in TABLES.split("## Models")[1].splitlines() if line.startswith("|")]
    assert {len(row.strip("|").split("|")) for row in rows} == {7}


def test_every_claim_about_another_project_has_a_number() -> None:
    rows = [line for line in TABLES.split("## Models")[1].splitlines() if line.startswith("| ")]
    claims = [cell for row in rows for cell in row.strip("|").split("|")[2:] if cell.strip()]
    names = {"vLLM", "SGLang", "llama.cpp", "Albatross", "rwkv_lightning"}
    assert [one for one in claims if "[" not in one and one.strip() not in names] == []
