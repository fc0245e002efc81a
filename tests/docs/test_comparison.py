"""Each claim of docs/comparison.md about another project has its source, with a version."""

import re
from pathlib import Path

import pytest

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


def ratios(model: str, n_streams: int) -> list[float]:
    """Of ids, of the time to the first one, and between them: wkvm's over vLLM's."""
    (row,) = re.findall(rf"^\| {model}.* \| {n_streams} \|(.*)\|$", PAGE, re.MULTILINE)
    return [float(cell.rpartition(":")[2]) for cell in row.split("|")]


@pytest.mark.parametrize("model", ["1.5B", "Mamba-2 2.7B", "Qwen3.5 9B"])
def test_what_is_said_of_speed_is_what_was_measured(model: str) -> None:
    ids, first, between = ratios(model, 1)
    assert ids > 1 > max(first, between)
    for n_streams in (32, 256):
        ids, first, between = ratios(model, n_streams)
        assert 2.4 < first < 4.6
        assert model == "1.5B" or ids < 1
        low, high = {"1.5B": (0.15, 0.5), "Mamba-2 2.7B": (1.2, 2), "Qwen3.5 9B": (0.9, 1.1)}[model]
        assert low <= between <= high
