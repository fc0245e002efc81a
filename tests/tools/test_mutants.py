"""The faults that are planted have their places in the code as it is."""

from pathlib import Path

import pytest

from tools.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.what)
def test_a_planted_fault_has_one_place_in_the_code(mutant: Mutant) -> None:
    code = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert code.count(mutant.old) == 1
    assert mutant.new != mutant.old
